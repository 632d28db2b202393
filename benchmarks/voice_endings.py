"""Count how sentences of the embedded voice end: by themselves, or cut by a guard of the engine.

    python -m benchmarks.voice_endings [--sentences 10000] [--batch 12] [--device auto] [--seed 40000]

The sentences are those of the training grammar with a seed of their own; none of them is one of the benchmark's.
Voices and layouts alternate. Printed are the reasons of all endings, and the sentences that a guard cut. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from benchmarks.speech_sources import SEED, TEACHERS
from engine.api import FinishReason, RequestFinished, SamplingParams, SpeechEngine, SpeechRequest, TextLayout
from engine.launch import create_engine
from training.text import TextSettings, TextSource

SETTINGS = tuple(product(TEACHERS, (TextLayout.FULL, TextLayout.STREAMING)))
REPORT_EVERY = 1_000


@dataclass(frozen=True)
class Ending:
    number: int
    text: str
    voice: str
    layout: TextLayout
    reason: FinishReason
    num_frames: int

    def __str__(self) -> str:
        return f"{self.number} {self.voice} {self.layout}: {self.reason} after {self.num_frames} frames: {self.text}"


async def speak(engine: SpeechEngine, number: int, text: str) -> Ending:
    voice, layout = SETTINGS[number % len(SETTINGS)]
    sampling = SamplingParams(seed=SEED + number)
    request = SpeechRequest(
        request_id=f"sentence-{number}",
        voice=voice,
        language="english",
        text=text,
        text_closed=True,
        layout=layout,
        sampling=sampling,
    )
    async for event in engine.submit(request):
        if isinstance(event, RequestFinished):
            return Ending(number, text, voice, layout, event.reason, event.num_frames)
    raise RuntimeError(f"sentence {number}: the engine reported no end")


async def speak_all(engine: SpeechEngine, texts: TextSource, num_sentences: int, batch_size: int) -> list[Ending]:
    """Speak the sentences, ``batch_size`` at once."""
    numbers, endings = iter(range(num_sentences)), list[Ending]()

    async def speak_in_turn() -> None:
        for number in numbers:
            endings.append(await speak(engine, number, texts.sentence(number)))
            if len(endings) % REPORT_EVERY == 0:
                print(f"{len(endings)} sentences", flush=True)

    await asyncio.gather(*(speak_in_turn() for _ in range(batch_size)))
    return endings


def report(endings: Sequence[Ending], seconds: float) -> dict[str, object]:
    """Print the sentences that did not end by themselves, and return the counts."""
    reasons = Counter(str(ending.reason) for ending in endings)
    for ending in endings:
        if ending.reason is not FinishReason.STOP:
            print(ending)
    longest = max(endings, key=lambda ending: ending.num_frames / len(ending.text))
    print("longest for its text:", longest)
    return {"sentences": len(endings), "reasons": dict(reasons), "seconds": round(seconds, 1)}


async def run(options: argparse.Namespace) -> dict[str, object]:
    engine_options = {"max_batch_size": options.batch, "max_running_requests": options.batch}
    engine = create_engine(options.model, device=options.device, **engine_options)
    await engine.start()
    try:
        start_s = time.perf_counter()
        texts = TextSource(TextSettings(options.seed))
        endings = await speak_all(engine, texts, options.sentences, options.batch)
        return report(endings, time.perf_counter() - start_s)
    finally:
        await engine.aclose()


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Count how sentences of the embedded voice end.")
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: the embedded voice")
    parser.add_argument("--sentences", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=12, help="sentences at once")
    parser.add_argument("--device", default="auto", help="device of the engine")
    parser.add_argument("--seed", type=int, default=40_000, help="seed of the sentences; training has small ones")
    print(json.dumps(asyncio.run(run(parser.parse_args(arguments)))))


if __name__ == "__main__":
    main(sys.argv[1:])
