"""Engine processes behind a gateway process, which finds them in a file."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from realtime.protocol import events as ev
from tests.engine.served_engine import write_addresses
from tests.realtime.server_process import wire_address

FORMAT = ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=16_000)
# 188 frames, 15 s.
FAKE = ev.NativeSpeechSettings(format=FORMAT, lead_ms=2_000, seed=5, instruct="stop@188")
EMBEDDED = ev.NativeSpeechSettings(format=FORMAT, lead_ms=2_000, seed=5)
FAKE_TEXT = "hello there my friend"
EMBEDDED_TEXT = (
    "The quick brown fox jumps over the lazy dog and runs away into the forest where the tall trees grow. "
    "She sells sea shells by the sea shore every morning of the year."
)
ENGINES = {
    "fake": (sys.executable, "-m", "benchmarks.cluster_events.checksum_engine"),
    "embedded": (sys.executable, "-m", "realtime.cli", "engine", "--listen"),
}
# Speech is not marked: the cost of that is another measurement's.
GATEWAY = (sys.executable, "-m", "realtime.cli", "serve", "--port", "0")
SETTINGS = {"watermark.enabled": "false", "log.level": "error"}


class EngineProgram:
    def __init__(self, voice: str, address: str) -> None:
        self.process = subprocess.Popen((*ENGINES[voice], address), stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.address = wire_address(self.process.stdout, "engine")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class GatewayProgram:
    def __init__(self, engines_file: Path, num_gateways: int = 1) -> None:
        settings = SETTINGS | {"engine.addresses": f"file:{engines_file}", "listen.gateways": str(num_gateways)}
        flags = [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]
        self.process = subprocess.Popen((*GATEWAY, *flags), stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.url = wire_address(self.process.stdout).removesuffix("/v1/speech")

    def kill(self) -> None:
        self.process.terminate()  # the supervisor ends its gateways
        self.process.communicate()


class Engines:
    """Two engines; ``apply("engine")`` sends SIGKILL to one, and nothing starts it again."""

    def __init__(self, voice: str, num_gateways: int) -> None:
        self.text, self.settings = (FAKE_TEXT, FAKE) if voice == "fake" else (EMBEDDED_TEXT, EMBEDDED)
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self._engines = [EngineProgram(voice, f"unix:{folder / name}") for name in "ab"]
        write_addresses(folder / "file", *[engine.address for engine in self._engines])
        self._gateway = GatewayProgram(folder / "file", num_gateways)
        self.url = self._gateway.url

    async def apply(self, event: str, speak_more: Callable[[], Awaitable[None]]) -> dict[str, object]:
        if event == "engine":
            self._engines[0].process.kill()
        return {}

    def close(self) -> None:
        programs: Sequence[GatewayProgram | EngineProgram] = (self._gateway, *self._engines)
        for program in programs:
            program.kill()
        self._folder.cleanup()
