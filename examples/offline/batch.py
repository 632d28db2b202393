"""Speak many texts at once: the engine batches them step by step.

python examples/offline/batch.py prompts.txt
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from common import parser_of, running_engine, show, speak

from engine.api import SamplingParams, SpeechRequest


async def main(args: argparse.Namespace) -> None:
    texts = [line for line in args.prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
    async with running_engine(args.model) as engine:
        requests = [
            SpeechRequest(
                request_id=f"prompt-{number}",
                text=text,
                text_closed=True,
                language=args.language,
                sampling=SamplingParams(seed=args.seed),
                max_frames=args.max_frames,
            )
            for number, text in enumerate(texts)
        ]
        start_s = time.monotonic()
        timings = await asyncio.gather(*(speak(engine, request, args.out) for request in requests))
        elapsed_s = time.monotonic() - start_s
    audio_s = sum(timing["audio_s"] for timing in timings)
    total = {"texts": len(texts), "audio_s": round(audio_s, 2), "elapsed_s": round(elapsed_s, 2)}
    show(*timings, total | {"audio_s_per_s": round(audio_s / elapsed_s, 2)})


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("prompts", type=Path, help="a file with one text per line")
    asyncio.run(main(parser.parse_args()))
