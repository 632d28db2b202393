"""Only whole words go on to the engine, each with the white space behind it.

A word that is still being written stays here, so that a segment can be closed at any moment without cutting it in two;
and the white space tells the engine's tokenizer that the word before it is final.
"""

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
        joined = SpannedText.join([self._held, SpannedText.from_raw(text, self._num_chars)])
        self._num_chars += len(text)
        match = _UNFINISHED.search(joined.text)
        cut = match.start() if match else 0
        if len(joined.text) - cut > MAX_HELD_CHARS:
            cut = len(joined.text)
        whole, self._held = joined.cut_all([(0, cut), (cut, len(joined.text))])
        return whole

    def flush(self) -> SpannedText:
        held, self._held = self._held, EMPTY
        return held
