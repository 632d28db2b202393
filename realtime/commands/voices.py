"""``voicewire voices``: what a model can speak with."""

from __future__ import annotations

import argparse
import asyncio

from engine.api import EngineInfo
from realtime.local_engine import add_model_argument, local_engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)


def run(args: argparse.Namespace) -> int:
    return asyncio.run(list_voices(args))


async def list_voices(args: argparse.Namespace) -> int:
    async with local_engine(args.model) as engine:
        print(table(engine.info))
    return 0


def table(info: EngineInfo) -> str:
    """One line a voice: name, languages, description."""
    rows = [(voice.name, ", ".join(voice.languages), voice.description) for voice in info.voices]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return "\n".join(f"{name:{widths[0]}}  {spoken:{widths[1]}}  {about}".rstrip() for name, spoken, about in rows)
