"""Words and marks in a row, as a voice reads them."""

from __future__ import annotations

import re


class WordJoiner:
    """Puts words and marks in a row: one space between words, one mark behind a word.

    ``¦`` is a pause that needs no mark of its own: a comma if another word follows.
    """

    _TOKEN = re.compile(
        r"(?P<word>[A-Za-z]+(?:['-][A-Za-z]+)*)|(?P<pause>¦)|(?P<marks>[.,;:!?](?:[\s\"')\]}]*[.,;:!?])*)"
    )
    _BY_STRENGTH = "?!.:;,"

    def __init__(self) -> None:
        self.started = False
        self._after_mark = False
        self._pause = False
        self._space_sent = False

    def join(self, text: str, *, glued: bool) -> str:
        pieces = []
        for token in self._TOKEN.finditer(text):
            if token["word"]:
                pieces.append(self._word(token["word"], glued=glued))
            elif token["marks"]:
                pieces.append(self._mark(token["marks"]))
            elif self._accepts_mark:
                self._pause = True
            glued = False
        return "".join(pieces)

    def end_sentence(self) -> str:
        return self._mark(".")

    def space(self) -> str:
        """The space in front of a word that is sure to come: it tells that the word before is complete."""
        if not self.started or self._pause or self._space_sent:
            return ""
        self._space_sent = True
        return " "

    @property
    def _accepts_mark(self) -> bool:
        return self.started and not (self._after_mark or self._space_sent)

    def _word(self, word: str, *, glued: bool) -> str:
        before = ", " if self._pause else " "
        if not self.started or self._space_sent or (glued and not self._pause):
            before = ""
        self.started = True
        self._after_mark = self._pause = self._space_sent = False
        return before + word

    def _mark(self, run: str) -> str:
        if not self._accepts_mark:
            return ""
        self._after_mark, self._pause = True, False
        return next(mark for mark in self._BY_STRENGTH if mark in run)
