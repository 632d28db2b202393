"""Measure the error of heard text against a synthesizer that knows the end of each word (flite, two voices).

Text is cut into segments as a session cuts it. Each segment is synthesized and cancelled at random moments. The last
word that the session reports as heard is compared with the last word played. The error is in words; negative means too
early.

    python -m benchmarks.heard_text_error [--segments 60] [--cancels 20]

The last line is JSON. Needs Debian's libflite1.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from realtime.bench.plan import CORPUS
from sessions.alignment.aligner import AlignerFactory, ForcedAligner, Pcm
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.text.spans import SpannedText
from sessions.text_items import TextSegment
from sessions.text_track import TextTrack
from sessions.timeline import ResponseTimeline
from training.flite import PHONEME_IDS, SAMPLE_RATE_HZ, synthesize

VOICES = ("slt", "rms")


def segments_of(text: str) -> list[str]:
    script = TextTrack(ResponseTimeline(SAMPLE_RATE_HZ, UniformAligner), normalize=True)
    script.push_text(text)
    script.end()
    found = []
    while not script.exhausted:
        while script.wants_text:
            script.read(len(text))
        item = script.pop() if script.waiting else None
        found += [item.text.strip()] if isinstance(item, TextSegment) else []
    return found


def word_ends(text: str, voice: str) -> tuple[list[int], Pcm]:
    """Return the end sample of each word, and the PCM. Words are found by their number of phonemes."""
    speech = synthesize(text, voice)
    sounds = np.flatnonzero(speech.phonemes != PHONEME_IDS["pau"])
    words = text.split()
    counts = [num_sounds(" ".join(words[: number + 1]), voice) for number in range(len(words))]
    return [int(speech.end_samples[sounds[min(count, len(sounds)) - 1]]) for count in counts], speech.pcm.astype(
        np.float32
    ) / 32768


def num_sounds(text: str, voice: str) -> int:
    return int(np.count_nonzero(synthesize(text, voice).phonemes != PHONEME_IDS["pau"]))


@dataclass(frozen=True)
class SynthesizedUtterance:
    text: str
    voice: str
    ends: list[int]
    pcm: Pcm

    @classmethod
    def by(cls, voice: str, text: str) -> SynthesizedUtterance:
        return cls(text, voice, *word_ends(text, voice))


def error_words(told: ResponseTimeline, spoken: SynthesizedUtterance, played_samples: int) -> int:
    """Number of reported words less played words."""
    num_told = len(told.heard_text(played_samples).text.split())
    return num_told - sum(end <= played_samples for end in spoken.ends)


def errors(spoken: SynthesizedUtterance, moments: list[int], make: AlignerFactory, lead_s: float | None) -> list[int]:
    """Errors at each moment. Audio exists up to ``lead`` after it; without a lead, all of it."""
    told, pcm = ResponseTimeline(SAMPLE_RATE_HZ, make), spoken.pcm
    told.append_text(spoken.text)
    segment = told.begin_segment(0)
    segment.add_text(SpannedText.from_raw(spoken.text, 0))
    segment.end_text()
    segment.start_sample = 0
    if lead_s is None:
        segment.push(pcm)
        segment.finish()
        return [error_words(told, spoken, moment) for moment in moments]
    found, at = [], 0
    for moment in sorted(moments):
        until = moment + int(lead_s * SAMPLE_RATE_HZ)
        segment.push(pcm[at:until])
        at = max(at, until)
        found.append(error_words(told, spoken, moment))
    return found


def summary(found: list[int]) -> dict[str, float]:
    sizes = np.abs(found)
    return {
        "mean": round(float(np.mean(found)), 2),
        "mean_abs": round(float(sizes.mean()), 2),
        "p95_abs": float(np.percentile(sizes, 95)),
        "max_abs": int(sizes.max()),
        "exact_share": round(float(np.mean(sizes == 0)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=60)
    parser.add_argument("--cancels", type=int, default=20)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    arguments = parser.parse_args()
    texts = [text for text in segments_of(arguments.corpus.read_text()) if len(text) > 20][: arguments.segments]
    spoken = [SynthesizedUtterance.by(VOICES[number % 2], text) for number, text in enumerate(texts)]
    result: dict[str, object] = {"segments": len(texts), "mean_chars": round(np.mean([len(text) for text in texts]), 1)}
    draw = random.Random(1)
    moments = [[draw.randrange(one.pcm.size) for _ in range(arguments.cancels)] for one in spoken]
    for aligner, make in (("letters", ForcedAligner), ("even", UniformAligner)):
        for name, lead_s in (("finished", None), ("lead_2s", 2.0), ("lead_0.2s", 0.2)):
            found = [error for one, at in zip(spoken, moments, strict=True) for error in errors(one, at, make, lead_s)]
            result[f"{aligner}_{name}"] = summary(found)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
