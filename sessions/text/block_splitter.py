"""Raw text cut into blocks: the fewest words that can be said without knowing what comes after them.

Most words are a block of their own. A word that may belong to the next one (a number before its unit, a month before
its day, a tag that is still open) waits for it. Where a block ends depends on the text alone and never on how it
arrived, so whatever is made of whole blocks obeys the same law.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
_RUN = re.compile(f"(?P<line_break>[\n\u2028\u2029])|(?P<space>[{WHITE_SPACE}])|(?P<visible>[^{WHITE_SPACE}]+)")


@dataclass(frozen=True, slots=True)
class BlockLimits:
    # A longer run without white space is cut here, and its parts are read one by one.
    max_word_chars: int = 200
    max_block_words: int = 10
    max_block_chars: int = 400


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Words with one space between them, and the raw characters they come from."""

    text: str
    raw_start: int
    raw_end: int
    # No white space before it: the rest of a word that was cut.
    no_space_before: bool = False


@dataclass(frozen=True, slots=True)
class BlockStart:
    """The first character of a block behind white space has come."""

    character: str
    raw_start: int


@dataclass(frozen=True, slots=True)
class LineBreak:
    raw_start: int


BlockEvent = BlockStart | TextBlock | LineBreak


class BlockSplitter:
    """``needs_next_word`` says of the words of a block whether the next word belongs to them."""

    def __init__(self, needs_next_word: Callable[[Sequence[str]], bool], limits: BlockLimits) -> None:
        self._wants_more = needs_next_word
        self._limits = limits
        self._position = 0
        self._word: list[str] = []
        self._num_word_chars = 0
        self._word_glued = False
        self._words: list[str] = []
        self._block_start = 0
        self._block_end = 0
        self._block_glued = False

    @property
    def num_chars_held(self) -> int:
        return self._num_word_chars + sum(map(len, self._words))

    def push(self, text: str) -> Iterator[BlockEvent]:
        for run in _RUN.finditer(text):
            if run["visible"]:
                yield from self._push_visible(run["visible"])
            else:
                yield from self._push_space(run.group(), is_break=run["line_break"] is not None)

    def flush(self) -> Iterator[BlockEvent]:
        self._end_word()
        yield from self._end_block()

    def _push_visible(self, text: str) -> Iterator[BlockEvent]:
        if not (self._words or self._word or self._word_glued):
            yield BlockStart(text[0], self._position)
        while text:
            room = self._limits.max_word_chars - self._num_word_chars
            self._word.append(text[:room])
            self._num_word_chars += len(text[:room])
            self._position += len(text[:room])
            if len(text) < room:
                return
            text = text[room:]
            self._end_word()
            yield from self._end_block()
            self._word_glued = True

    def _push_space(self, space: str, *, is_break: bool) -> Iterator[BlockEvent]:
        self._end_word()
        if is_break or not self._expects_more():
            yield from self._end_block()
        if is_break:
            yield LineBreak(self._position)
        self._position += len(space)

    def _expects_more(self) -> bool:
        has_room = len(self._words) < self._limits.max_block_words
        fits = self._block_end - self._block_start < self._limits.max_block_chars
        return has_room and fits and bool(self._words) and self._wants_more(self._words)

    def _end_word(self) -> None:
        if self._word:
            if not self._words:
                self._block_start = self._position - self._num_word_chars
                self._block_glued = self._word_glued
            self._words.append("".join(self._word))
            self._block_end = self._position
        self._word.clear()
        self._num_word_chars = 0
        self._word_glued = False

    def _end_block(self) -> Iterator[TextBlock]:
        if self._words:
            yield TextBlock(" ".join(self._words), self._block_start, self._block_end, self._block_glued)
            self._words.clear()
