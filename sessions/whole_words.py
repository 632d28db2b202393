"""Only whole words go on to the engine, each with the white space behind it.

A word that is still being written stays here, so that a segment can be closed at any moment without cutting it in two;
and the white space tells the engine's tokenizer that the word before it is final.
"""

from __future__ import annotations

import re

from sessions.text.normalizer import IncrementalNormalizer
from sessions.text.spans import EMPTY, SpannedText

_UNFINISHED = re.compile("[^\\s\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\uffef]*$")
"""Scripts without spaces are written a letter at a time: nothing of them is held back."""

MAX_HELD_CHARS = 200
"""A longer run without white space goes on as it is."""


class WholeWords:
    """For text as the client wrote it."""

    def __init__(self) -> None:
        self._held = EMPTY

    def push(self, text: SpannedText) -> SpannedText:
        text = SpannedText.join([self._held, text])
        match = _UNFINISHED.search(text.text)
        cut = match.start() if match else 0
        if len(text.text) - cut > MAX_HELD_CHARS:
            cut = len(text.text)
        whole, self._held = text.cut_all([(0, cut), (cut, len(text.text))])
        return whole

    def flush(self) -> SpannedText:
        held, self._held = self._held, EMPTY
        return held


class NormalizedWords:
    """The normaliser's words: they come whole, and the space behind one as soon as the next begins."""

    def __init__(self) -> None:
        self._normalizer = IncrementalNormalizer()

    def push(self, text: SpannedText) -> SpannedText:
        return self._normalizer.push(text.text)

    def flush(self) -> SpannedText:
        return self._normalizer.flush()
