"""A server process with the fake engine: ``python -m tests.realtime.fake_server SETTINGS SCRIPT``, both in JSON.

``info`` in the script holds fields of ``EngineInfo``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import msgspec
import pytest

from engine.api import EngineInfo
from realtime.app import create_app, serve
from realtime.logs import configure_logs
from tests.fakes.engine import FAKE_INFO, FakeScript, FakeSpeechEngine
from tests.realtime.dialects.record_exchanges import FOLDER_VARIABLE, record_into
from tests.realtime.live_server import load_test_config


def main() -> None:
    flags, script = (json.loads(text) for text in sys.argv[1:3])
    script["stalls_s"] = {int(frame): stall_s for frame, stall_s in script.get("stalls_s", {}).items()}
    info = msgspec.convert(msgspec.to_builtins(FAKE_INFO) | script.pop("info", {}), EngineInfo)
    config = load_test_config(flags)
    configure_logs(config.log)
    app = create_app(config, FakeSpeechEngine(FakeScript(**script), info=info, num_slots=512))
    if folder := os.environ.get(FOLDER_VARIABLE):
        record_into(Path(folder), pytest.MonkeyPatch())
    asyncio.run(serve(config, app, on_ready=lambda ports: print(ports.main, flush=True)))


if __name__ == "__main__":
    main()
