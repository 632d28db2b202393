"""An independent listener: pocketsphinx, with its stock language model or one of the sentences to be heard.

It knows nothing of the voices judged here, does not invent words (noise scores 100 %), and is far stricter than people
on noise; so its figures are upper bounds, to be read beside those of the teacher.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import gcd
from pathlib import Path

import jiwer
import numpy as np
import numpy.typing as npt
from pocketsphinx import Decoder, get_model_path
from scipy.signal import resample_poly

from training.held_out import words_of
from training.language_model import bigram_arpa

RATE_HZ = 16000
EDGE_SILENCE_S = 0.3
FRAMES_PER_S = 100
PEAK = 0.6
# A bigram model knows so many sentences: the size at which the teacher's voices score 0 to 1 %.
GROUP_SENTENCES = 40
# A recognizer holds about 60 MB.
MAX_RECOGNIZERS = 16
# For the bigram models: wider than stock, so that what is missed is missed by the voice, not by the search.
BEAMS = {"beam": 1e-70, "wbeam": 1e-45, "pbeam": 1e-70}

Signal = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Transcription:
    """What was heard of one sentence."""

    # Words of the sentence.
    words: int
    errors: int
    missing: int
    # Words too many that equal a word next to them.
    repeated: int
    hypothesis: str


@dataclass
class Score:
    """Sums over sentences."""

    heard: list[Transcription] = field(default_factory=list)

    @property
    def word_error_rate(self) -> float:
        return self._share("errors")

    @property
    def missing_rate(self) -> float:
        return self._share("missing")

    @property
    def repeated_rate(self) -> float:
        return self._share("repeated")

    def part(self, chosen: Iterable[bool]) -> Score:
        return Score([one for one, wanted in zip(self.heard, chosen, strict=True) if wanted])

    def _share(self, name: str) -> float:
        counted: int = sum(getattr(one, name) for one in self.heard)
        return counted / max(1, sum(one.words for one in self.heard))


def to_16k(signal: npt.ArrayLike, rate_hz: int) -> Signal:
    """Any rate, int16 or float in [-1, 1), to 16 kHz float32."""
    samples = np.asarray(signal)
    samples = samples.astype(np.float32) / (32768 if samples.dtype == np.int16 else 1)
    common = gcd(RATE_HZ, rate_hz)
    if rate_hz != RATE_HZ:
        samples = resample_poly(samples, RATE_HZ // common, rate_hz // common)
    return np.asarray(samples, np.float32)


class Recognizer:
    """Hears 16 kHz speech; ``sentences`` gives a bigram model of them in place of the stock language model."""

    def __init__(self, sentences: Sequence[str] | None = None) -> None:
        with tempfile.TemporaryDirectory() as folder:
            options = {} if sentences is None else _bigram_options(sentences, Path(folder))
            self._decoder = Decoder(samprate=RATE_HZ, loglevel="FATAL", **options)

    def hear(self, signal: Signal) -> str:
        self._listen(signal)
        hypothesis = self._decoder.hyp()
        return hypothesis.hypstr if hypothesis else ""

    def hear_times(self, signal: Signal) -> list[tuple[str, float]]:
        """The words heard, and when each begins, in seconds."""
        self._listen(signal)
        parts = [(_word_of(part.word), part.start_frame / FRAMES_PER_S) for part in self._decoder.seg() or ()]
        return [(word, start_s - EDGE_SILENCE_S) for word, start_s in parts if word[0] not in "<["]

    def _listen(self, signal: Signal) -> None:
        peak = float(np.abs(signal).max(initial=1e-6))
        edge = np.zeros(round(EDGE_SILENCE_S * RATE_HZ), np.float32)
        samples = np.concatenate([edge, signal * (PEAK / peak), edge])
        self._decoder.start_utt()
        self._decoder.process_raw((samples * 32767).astype(np.int16).tobytes(), full_utt=True)
        self._decoder.end_utt()


def _bigram_options(sentences: Sequence[str], folder: Path) -> dict[str, object]:
    spoken = [words_of(sentence) for sentence in sentences]
    words = {word for sentence in spoken for word in sentence}
    (folder / "bigram.arpa").write_text(bigram_arpa(spoken))
    entries = [line for line in _dictionary() if _word_of(line) in words]
    (folder / "words.dict").write_text("\n".join(entries) + "\n")
    return {"lm": str(folder / "bigram.arpa"), "dict": str(folder / "words.dict"), **BEAMS}


@cache
def _dictionary() -> list[str]:
    return (Path(get_model_path()) / "en-us" / "cmudict-en-us.dict").read_text().splitlines()


def _word_of(entry: str) -> str:
    """Further pronunciations are entries of their own: ``the(2) DH IY``."""
    return entry.split(" ", 1)[0].split("(")[0]


def known_words() -> set[str]:
    """The recogniser's dictionary; words outside it can never be heard."""
    return set(map(_word_of, _dictionary()))


def compare(text: str, hypothesis: str) -> Transcription:
    said, heard = words_of(text), words_of(hypothesis)
    if not heard:
        return Transcription(len(said), len(said), len(said), 0, "")
    result = jiwer.process_words(" ".join(said), " ".join(heard))
    repeated = sum(
        heard[position] in (heard[position - 1] if position else "", *heard[position + 1 : position + 2])
        for chunk in result.alignments[0]
        if chunk.type == "insert"
        for position in range(chunk.hyp_start_idx, chunk.hyp_end_idx)
    )
    errors = result.substitutions + result.deletions + result.insertions
    return Transcription(len(said), errors, result.deletions, repeated, hypothesis)


def group_number(text: str, sentences: Sequence[str]) -> int:
    return sentences.index(text) % num_groups(sentences)


def num_groups(sentences: Sequence[str]) -> int:
    return max(1, round(len(sentences) / GROUP_SENTENCES))


def group_of(text: str, sentences: Sequence[str]) -> tuple[str, ...]:
    """The fixed group of ``sentences`` that ``text`` is in."""
    return tuple(sentences[group_number(text, sentences) :: num_groups(sentences)])


@lru_cache(MAX_RECOGNIZERS)
def _recognizer(sentences: tuple[str, ...] | None) -> Recognizer:
    return Recognizer(sentences)


def hear_one(text: str, signal: Signal, sentences: Sequence[str] | None) -> Transcription:
    """Hear 16 kHz ``signal`` of ``text``: by a bigram model of its group of ``sentences``, or the stock model for None.

    The recognizers used last stay in memory.
    """
    group = group_of(text, sentences) if sentences is not None else None
    return compare(text, _recognizer(group).hear(signal))
