"""Pass on whole words only, and join words and marks as a voice reads them."""

from __future__ import annotations

import re

from sessions.text.spans import EMPTY, SpannedText

# Scripts without spaces are written a letter at a time: nothing of them is held back.
_UNFINISHED = re.compile("[^\\s\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\uffef]*$")

# A longer run without white space goes on as it is.
MAX_HELD_CHARS = 200


class WordBuffer:
    """Text as the client wrote it, with its place in all of it."""

    def __init__(self) -> None:
        self._held = EMPTY
        self._num_chars = 0

    @property
    def num_chars_held(self) -> int:
        """Characters of the word that is still being written."""
        return len(self._held.text)

    def push(self, text: str) -> SpannedText:
        joined = self.push_last(text)
        match = _UNFINISHED.search(joined.text)
        cut = match.start() if match else 0
        if len(joined.text) - cut > MAX_HELD_CHARS:
            cut = len(joined.text)
        whole, self._held = joined.cut_all([(0, cut), (cut, len(joined.text))])
        return whole

    def push_last(self, text: str) -> SpannedText:
        """Append text, and return it with what was held back: its last word counts as whole."""
        joined = SpannedText.join([self.flush(), SpannedText.from_raw(text, self._num_chars)])
        self._num_chars += len(text)
        return joined

    def flush(self) -> SpannedText:
        held, self._held = self._held, EMPTY
        return held


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
