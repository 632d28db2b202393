"""Measure the error of word times against a synthesizer that knows the end of each sound.

The 200 fixed sentences are synthesized by the teachers (flite; truth is its own alignment) and by the engine. Truth of
the latter is a forced alignment of the second recognizer, whose own error against flite is reported beside it. The
aligner gets speech in chunks of 80 ms, and text a little before it is played. Errors are those of starts and ends of
words together, in ms.

    python -m benchmarks.word_times [--listener FILE] [--engine-sentences 40] [--weights FILE]

The last line is JSON. Needs Debian's libflite1; with --listener also the dependency group ``training``.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from benchmarks.phoneme_aligner import PhonemeAligner
from benchmarks.speech_sources import TEACHERS, EngineSource, Setting, Task
from sessions.alignment.aligner import Aligner, AlignerFactory, ForcedAligner
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.alignment.weights import AlignerWeights, load_weights
from training.flite import PHONEME_IDS, SAMPLE_RATE_HZ, Word, spoken_words, synthesize
from training.held_out import read_sentences

SILENCE = PHONEME_IDS["pau"]
# Seconds by which the text of a word precedes its audio.
TEXT_AHEAD_S = 0.4
CHUNK_S = 0.08

Pcm = npt.NDArray[np.float32]
# Start and end of each word, in seconds.
Times = list[tuple[float, float]]


@dataclass(frozen=True)
class TimedUtterance:
    text: str
    pcm: Pcm
    rate_hz: int
    times: Times


def written_words(text: str) -> list[tuple[int, int]]:
    """Positions of words in the text as flite splits them, also at hyphens."""
    return [match.span() for match in re.finditer(r"[A-Za-z][A-Za-z']*", text)]


def times_of(words: Sequence[Word], sounds: Times) -> Times:
    """Convert the times of phonemes, in order, to times of words."""
    ends = np.cumsum([len(word.phonemes) for word in words])
    return [(sounds[end - len(word.phonemes)][0], sounds[end - 1][1]) for word, end in zip(words, ends, strict=True)]


def by_teacher(text: str, voice: str) -> TimedUtterance | None:
    """Reference times by the teacher; None if flite's words differ from those of the text."""
    words, speech = spoken_words(text), synthesize(text, voice)
    starts = np.append(0, speech.end_samples[:-1]) / SAMPLE_RATE_HZ
    sounds = [
        (start, end / SAMPLE_RATE_HZ)
        for start, end, phoneme in zip(starts, speech.end_samples, speech.phonemes, strict=True)
        if phoneme != SILENCE
    ]
    fits = len(words) == len(written_words(text)) and sum(len(word.phonemes) for word in words) == len(sounds)
    pcm = speech.pcm.astype(np.float32) / 32768
    return TimedUtterance(text, pcm, SAMPLE_RATE_HZ, times_of(words, sounds)) if fits else None


def found(aligner: Aligner, spoken: TimedUtterance) -> Times:
    """Words that the aligner reports."""
    text, places = spoken.text, written_words(spoken.text)
    cuts = [start for start, _ in places[1:]]  # a word is sent with its white space, which completes it
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    due = [max(start - TEXT_AHEAD_S, 0.0) for start, _ in spoken.times]
    size = round(CHUNK_S * spoken.rate_hz)
    for at in range(0, len(spoken.pcm), size):
        while pieces and due[-len(pieces)] <= at / spoken.rate_hz:
            aligner.add_text(pieces.pop(0))
            if not pieces:
                aligner.end_text()
        aligner.push(spoken.pcm[at : at + size])
    aligner.finish()
    bounds = [bound / spoken.rate_hz for bound in aligner.bounds]
    return [(bounds[start], bounds[end]) for start, end in places]


def errors_ms(told: Times, truth: Times) -> list[float]:
    return [
        1000 * abs(a - b) for pair, other in zip(told, truth, strict=True) for a, b in zip(pair, other, strict=True)
    ]


def summary(errors: Sequence[float]) -> dict[str, float]:
    return {
        "median_ms": round(float(np.median(errors)), 1),
        "mean_ms": round(float(np.mean(errors)), 1),
        "p95_ms": round(float(np.percentile(errors, 95)), 1),
        "p99_ms": round(float(np.percentile(errors, 99)), 1),
        "num_times": len(errors),
    }


def measure(spoken: Sequence[TimedUtterance], make: AlignerFactory) -> dict[str, float]:
    return summary([error for one in spoken for error in errors_ms(found(make(one.rate_hz), one), one.times)])


def by_engine(texts: Sequence[str], voice: str, align: Callable[[str, Pcm, int], Times | None]) -> list[TimedUtterance]:
    engine = EngineSource(None)
    pieces = engine([Task(number, text) for number, text in enumerate(texts)], Setting(voice, "streaming", 1))
    spoken = []
    for text, pcm in zip(texts, pieces, strict=True):
        times = align(text, np.asarray(pcm, np.float32), engine.rate_hz)
        spoken += [TimedUtterance(text, np.asarray(pcm, np.float32), engine.rate_hz, times)] if times else []
    return spoken


def measure_engine(
    listener: Path, texts: list[str], teachers: list[TimedUtterance], make: AlignerFactory
) -> dict[str, object]:

    forced = PhonemeAligner(listener)

    def align(text: str, pcm: Pcm, rate_hz: int) -> Times | None:
        words = spoken_words(text)
        return times_of(words, forced(words, pcm, rate_hz)) if len(words) == len(written_words(text)) else None

    own = [(align(one.text, one.pcm, one.rate_hz), one.times) for one in teachers[: len(texts)]]
    result: dict[str, object] = {
        "truth_of_the_engine": summary([error for told, truth in own if told for error in errors_ms(told, truth)])
    }
    for voice in TEACHERS:
        result[f"engine_{voice}"] = measure(by_engine(texts, voice, align), make)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="weights of another aligner")
    parser.add_argument(
        "--listener", type=Path, help="weights of training.phoneme_recognizer; also measures the engine's speech"
    )
    parser.add_argument("--engine-sentences", type=int, default=40)
    arguments = parser.parse_args()
    weights = AlignerWeights.from_tensors(load_file(arguments.weights)) if arguments.weights else load_weights()
    texts = read_sentences()

    def make(sample_rate: int) -> Aligner:
        return ForcedAligner(sample_rate, weights)

    teachers = {voice: [one for text in texts if (one := by_teacher(text, voice))] for voice in TEACHERS.values()}
    result: dict[str, object] = {"sentences": {voice: len(spoken) for voice, spoken in teachers.items()}}
    for voice, spoken in teachers.items():
        result[f"teacher_{voice}"] = measure(spoken, make)
        result[f"teacher_{voice}_even"] = measure(spoken, UniformAligner)
    if arguments.listener:
        chosen = texts[:: max(1, len(texts) // arguments.engine_sentences)]
        result |= measure_engine(arguments.listener, chosen, teachers["slt"], make)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
