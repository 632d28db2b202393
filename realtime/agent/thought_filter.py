"""Removes the thoughts of a reasoning model from its answer: ``<think>`` to ``</think>``, however the text is cut."""

from __future__ import annotations

BEGIN, END = "<think>", "</think>"


class ThoughtFilter:
    """``push`` and ``finish`` return text without thoughts. A thought without an end lasts to the end of the text."""

    def __init__(self) -> None:
        # Text that may be the beginning of a tag.
        self._rest = ""
        self._is_thinking = False
        # True after a thought with a space before it, until there is text: the space behind the thought is dropped.
        self._skips_space = False
        # The text so far is empty, or ends in a space.
        self._has_space = True

    def push(self, text: str) -> str:
        self._rest += text
        pieces = []
        while True:
            before, tag, after = self._rest.partition(END if self._is_thinking else BEGIN)
            if not tag:
                break
            pieces.append(self._spoken(before))
            self._skips_space = self._skips_space or (self._is_thinking and self._has_space)
            self._is_thinking = not self._is_thinking
            self._rest = after
        cut = len(self._rest) - _num_begun(self._rest, END if self._is_thinking else BEGIN)
        pieces.append(self._spoken(self._rest[:cut]))
        self._rest = self._rest[cut:]
        return "".join(pieces)

    def finish(self) -> str:
        rest, self._rest = self._rest, ""
        return self._spoken(rest)

    def _spoken(self, text: str) -> str:
        if self._is_thinking:
            return ""
        if self._skips_space:
            text = text.lstrip()
            self._skips_space = not text
        if text:
            self._has_space = text[-1].isspace()
        return text


def _num_begun(text: str, tag: str) -> int:
    """Return how many characters at the end of a text begin a tag."""
    return next((size for size in range(len(tag) - 1, 0, -1) if text.endswith(tag[:size])), 0)
