"""Speak with a named voice and an instruction for its style (Qwen3-TTS CustomVoice 1.7B).

python examples/offline/custom_voice.py "I did it." --voice vivian --instruct "Very happy." --model FOLDER
"""

from __future__ import annotations

import argparse
import asyncio

from common import parser_of, running_engine, show, speak

from engine.api import SamplingParams, SpeechRequest


async def main(args: argparse.Namespace) -> None:
    async with running_engine(args.model) as engine:
        request = SpeechRequest(
            request_id="custom_voice",
            text=args.text,
            text_closed=True,
            voice=args.voice,
            instruct=args.instruct,
            language=args.language,
            sampling=SamplingParams(seed=args.seed),
            max_frames=args.max_frames,
        )
        show(await speak(engine, request, args.out))


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("text")
    parser.add_argument("--voice", required=True)
    parser.add_argument("--instruct", default="", help="refused by a model that takes none")
    asyncio.run(main(parser.parse_args()))
