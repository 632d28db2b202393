"""Speak like a recording (Qwen3-TTS Base, CosyVoice3): by its speaker embedding, and in context with a transcript.

python examples/offline/clone.py "Hello there." ann.wav --transcript "What she says in it." --model FOLDER
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from common import parser_of, read_recording, running_engine, show, speak

from engine.api import SamplingParams, SpeechRequest


async def main(args: argparse.Namespace) -> None:
    async with running_engine(args.model) as engine:
        # A recording is encoded once; the voice can then be used by any number of requests.
        transcripts = {"clone": ""} | ({"clone_in_context": args.transcript} if args.transcript else {})
        for name, transcript in transcripts.items():
            request = SpeechRequest(
                request_id=name,
                text=args.text,
                text_closed=True,
                voice=await engine.encode_voice(read_recording(args.recording, engine, transcript)),
                language=args.language,
                sampling=SamplingParams(seed=args.seed),
                max_frames=args.max_frames,
            )
            show(await speak(engine, request, args.out))


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("text")
    parser.add_argument("recording", type=Path, help="1 to 30 s in wav, flac, mp3, ogg or m4a")
    parser.add_argument("--transcript", default="", help="what is said in it: then also cloned in context")
    asyncio.run(main(parser.parse_args()))
