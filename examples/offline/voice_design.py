"""Speak with a voice that is described in words (Qwen3-TTS VoiceDesign).

python examples/offline/voice_design.py "Welcome aboard." "A calm, deep, old voice." --model FOLDER
"""

from __future__ import annotations

import argparse
import asyncio

from common import parser_of, running_engine, show, speak

from engine.api import SamplingParams, SpeechRequest


async def main(args: argparse.Namespace) -> None:
    async with running_engine(args.model) as engine:
        request = SpeechRequest(
            request_id="voice_design",
            text=args.text,
            text_closed=True,
            instruct=args.description,
            language=args.language,
            sampling=SamplingParams(seed=args.seed),
            max_frames=args.max_frames,
        )
        show(await speak(engine, request, args.out))


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("text")
    parser.add_argument("description", help="of the voice")
    asyncio.run(main(parser.parse_args()))
