"""``voicewire serve`` with the fake engine, as a program; ``--set NAME=VALUE`` as there."""

from __future__ import annotations

import argparse
import asyncio
import os

from realtime.app import create_app, serve
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.live_server import BASE_INFO, load_test_config

# Settings of engines that run elsewhere.
ENGINE_SETTINGS = ("engine.",)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--chunk-frames", type=int, default=1)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    settings = dict(item.split("=", 1) for item in args.set)
    if key := os.environ.get("VOICEWIRE_WATERMARK_KEY"):
        settings["watermark.key"] = key
    config = load_test_config(
        {"speech.aligner": "even"}
        | {name: value for name, value in settings.items() if not name.startswith(ENGINE_SETTINGS)}
    )
    script = FakeScript(chunk_frames=args.chunk_frames)
    app = create_app(config, FakeSpeechEngine(script, info=BASE_INFO, num_slots=args.slots))

    def announce(ports) -> None:
        print(f"wire ws://{config.listen.host}:{ports.main}/v1/speech", flush=True)

    asyncio.run(serve(config, app, on_ready=announce))


if __name__ == "__main__":
    main()
