"""Real processes and the embedded voice: a gateway, and the engine with it, is killed under a reply, which goes on."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import numpy as np
import psutil
import pytest

from realtime.client import NativeClient
from realtime.protocol import events as ev
from sessions.audio.opus import OpusDecoder
from tests.audio.seam_report import seam_report
from tests.realtime.server_process import wire_address
from tests.realtime.test_resume import FORMATS, Listener
from tests.realtime.test_resync import ResyncingListener

TEXT = "One two three four five. Six seven eight nine ten, eleven twelve? "
# The decoder rounds, with other frames in a call.
MAX_DIFFERENCE_DB = -60.0


class KillingListener(ResyncingListener):
    """Kills the gateway that it is connected to once it has so many samples."""

    def __init__(self, server: psutil.Process, url: str, settings: ev.NativeSpeechSettings, deaths: list[int]) -> None:
        super().__init__(url, settings, TEXT)
        self._server, self._deaths = server, deaths
        self.kills_engine = False
        # Where it went on.
        self.seams: list[int] = []

    async def _on_event(self, client: NativeClient, event: ev.ServerEvent | ev.AudioMessage) -> None:
        await super()._on_event(client, event)
        if isinstance(event, ev.ResponseCreated) and event.next_sample:
            self.seams.append(self.num_samples)
        if self._deaths and self.num_samples >= self._deaths[0]:
            del self._deaths[0]
            ours = client._socket.local_address
            for child in self._server.children():
                is_owner = any(connection.raddr == ours for connection in child.net_connections("tcp"))
                if is_owner or (self.kills_engine and "engine.host" in child.cmdline()):
                    os.kill(child.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[psutil.Process, str]]:
    command = [sys.executable, "-m", "realtime.cli", "serve", "--port", "0", "--gateways", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield psutil.Process(process.pid), wire_address(process.stdout).removesuffix("/v1/speech")
        process.terminate()


def settings_of(name: str, pace: str) -> ev.NativeSpeechSettings:
    return ev.NativeSpeechSettings(format=FORMATS[name], pace=pace, seed=5)


def decode(listener: Listener, name: str) -> np.ndarray:
    if name == "pcm":
        return np.frombuffer(b"".join(listener.packets), np.int16) / 32768
    decoder = OpusDecoder(24_000)
    return np.concatenate([decoder.decode(packet) for packet in listener.packets])


async def speak_whole(url: str, settings: ev.NativeSpeechSettings) -> Listener:
    """Gateways find an engine that is back one after the other."""
    while True:
        listener = Listener(url, settings, TEXT)
        await listener.run()
        if listener.done[0].status == "completed":
            return listener


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("name", "kills_engine"),
    [
        ("pcm", True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("pcm", False), ("opus", False), ("opus", True))),
    ],
)
async def test_reply_survives_its_gateway(served: tuple[psutil.Process, str], name: str, kills_engine: bool) -> None:
    server, url = served
    rng = random.Random(f"{name} {kills_engine}")
    whole = await speak_whole(url, settings_of(name, "burst"))
    deaths = sorted(rng.randrange(whole.num_samples * 3 // 4) for _ in range(2 - kills_engine))
    cut = KillingListener(server, url, settings_of(name, "lead"), deaths)
    cut.kills_engine = kills_engine
    async with asyncio.timeout(200):
        await cut.run()
    assert cut.num_resyncs >= 2 - kills_engine
    assert not deaths
    done, uncut = (msgspec.structs.replace(one.done[0], first_audio_ms=None) for one in (cut, whole))
    assert done == uncut
    pcm, expected = decode(cut, name), decode(whole, name)
    assert len(pcm) == len(expected)
    if name == "pcm":
        difference_db = 10 * np.log10(((pcm - expected) ** 2).mean() / (expected**2).mean() + 1e-12)
        assert difference_db < MAX_DIFFERENCE_DB
        return
    # An encoder may decide otherwise for the slightest difference, and few seams are judged beside the same places.
    seams, places = (seam_report(sound, cut.seams, 24_000) for sound in (pcm, expected))
    assert seams.jump_ratio < 2 * max(places.jump_ratio, 1.0)
    assert seams.spectral_ratio < 2 * max(places.spectral_ratio, 1.0)
