"""Speak a text with a voice of the model.

python examples/offline/speak.py "Hello there, how are you?" --voice clara
"""

from __future__ import annotations

import argparse
import asyncio

from common import parser_of, running_engine, show, speak

from engine.api import SamplingParams, SpeechRequest


async def main(args: argparse.Namespace) -> None:
    async with running_engine(args.model) as engine:
        request = SpeechRequest(
            request_id="speak",
            text=args.text,
            text_closed=True,
            voice=args.voice,
            language=args.language,
            sampling=SamplingParams(seed=args.seed, temperature=args.temperature),
            max_frames=args.max_frames,
        )
        show(await speak(engine, request, args.out))


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("text")
    parser.add_argument("--voice", help="default: the first")
    parser.add_argument("--temperature", type=float, help="default: that of the checkpoint")
    asyncio.run(main(parser.parse_args()))
