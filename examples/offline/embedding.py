"""Take the speaker embeddings of two recordings, and speak with voices between them (Qwen3-TTS Base).

python examples/offline/embedding.py "Hello there." ann.wav ben.wav --model FOLDER
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

import numpy as np
from common import parser_of, read_recording, running_engine, show, speak

from engine.api import ClonedVoice, SamplingParams, SpeechRequest
from sessions.voices.lookup import blend, embedding_numbers

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)


def cosine(one: ClonedVoice, other: ClonedVoice) -> float:
    first, second = (np.frombuffer(voice.embedding, np.float32) for voice in (one, other))
    return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))


async def main(args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    async with running_engine(args.model) as engine:
        voices = []
        for recording in (args.first, args.second):
            voices.append(voice := await engine.encode_voice(read_recording(recording, engine)))
            # As `voicewire voices add NAME FILE.json` and `voicewire say --speaker-embedding` read it.
            (args.out / f"{recording.stem}.json").write_text(json.dumps(embedding_numbers(voice)))
        first, second = voices
        for weight in WEIGHTS:
            between = blend(first, second, weight)
            request = SpeechRequest(
                request_id=f"blend-{weight:.2f}",
                text=args.text,
                text_closed=True,
                voice=between,
                language=args.language,
                sampling=SamplingParams(seed=args.seed),
                max_frames=args.max_frames,
            )
            about = {
                "weight": weight,
                "cosine_to_first": round(cosine(between, first), 3),
                "cosine_to_second": round(cosine(between, second), 3),
                "length": round(float(np.linalg.norm(np.frombuffer(between.embedding, np.float32))), 3),
            }
            show(about | await speak(engine, request, args.out))


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("text")
    parser.add_argument("first", type=Path, help="a recording of 1 to 30 s")
    parser.add_argument("second", type=Path)
    asyncio.run(main(parser.parse_args()))
