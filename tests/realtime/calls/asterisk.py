"""An Asterisk of our own for a test: the dialplan of examples/asterisk, and callers whose hearing is recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sessions.audio.pcm import S16

EXAMPLES = Path(__file__).parents[3] / "examples" / "asterisk"
# ``VOICEWIRE_ASTERISK`` is the path of another one.
PROGRAM = os.environ.get("VOICEWIRE_ASTERISK") or shutil.which("asterisk", path=f"{os.environ['PATH']}:/usr/sbin")
WAIT_S = 30.0
FOLDERS = {"astdbdir": "db", "astspooldir": "spool", "astrundir": "run", "astlogdir": "log"}
CALLERS = """
[callers]
exten => listens,1,Answer()
 same => n,MixMonitor({folder}/mixed.wav,r({folder}/heard.wav))
 same => n,Wait(60)
exten => speaks,1,Answer()
 same => n,MixMonitor({folder}/mixed.wav,r({folder}/heard.wav))
 same => n,Wait(3)
 same => n,Playback({folder}/caller)
 same => n,Wait(60)
exten => presses,1,Answer()
 same => n,Wait(1)
 same => n,SendDTMF(7)
 same => n,Wait(60)
"""


class Asterisk:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def call(self, extension: str, caller: str) -> None:
        """``caller`` dials an extension of the example's dialplan."""
        (self._folder / "heard.wav").unlink(missing_ok=True)
        self.command(f"channel originate Local/{extension}@voicewire extension {caller}@callers")

    def hang_up(self) -> None:
        self.command("channel request hangup all")

    def heard(self) -> tuple[S16, int]:
        """What the caller heard, once nobody calls any more; and its sample rate."""
        until(lambda: self.num_channels() == 0)
        with wave.open(str(self._folder / "heard.wav")) as recording:
            samples = np.frombuffer(recording.readframes(recording.getnframes()), "<i2").astype(np.int16)
            return samples, recording.getframerate()

    def num_channels(self) -> int:
        return int(self.command("core show channels count").split()[0])

    def command(self, text: str) -> str:
        asked = [str(PROGRAM), "-C", str(self._folder / "asterisk.conf"), "-rx", text]
        return subprocess.run(asked, capture_output=True, text=True, timeout=WAIT_S, check=False).stdout


@contextmanager
def asterisk(folder: Path, address: str, audiosocket_port: int) -> Iterator[Asterisk]:
    """``address`` is our ``ws://HOST:PORT``. ``caller.sln`` in ``folder`` is what the caller ``speaks``."""
    _configure(folder, address, audiosocket_port)
    command = [str(PROGRAM), "-C", str(folder / "asterisk.conf"), "-fn"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            one = Asterisk(folder)
            until(
                lambda: (
                    "Ready" in (folder / "log" / "full").read_text() if (folder / "log" / "full").exists() else False
                )
            )
            yield one
        finally:
            process.terminate()


def until(reached: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < end_s, "it did not come to this"
        time.sleep(0.1)


def _configure(folder: Path, address: str, audiosocket_port: int) -> None:
    for name in FOLDERS.values():
        (folder / name).mkdir()
    folders = "\n".join(f"{name} => {folder / place}" for name, place in (FOLDERS | {"astetcdir": ""}).items())
    dialplan = (EXAMPLES / "extensions.conf").read_text().replace("127.0.0.1:9092", f"127.0.0.1:{audiosocket_port}")
    client = (EXAMPLES / "websocket_client.conf").read_text().replace("ws://127.0.0.1:8765", address)
    files = {
        "asterisk.conf": f"[directories]\n{folders}\n[options]\ntransmit_silence = yes\n",
        "modules.conf": "[modules]\nautoload = yes\n",
        "logger.conf": "[general]\n[logfiles]\nfull => notice,warning,error,verbose\n",
        "extensions.conf": dialplan + CALLERS.format(folder=folder),
        "websocket_client.conf": client,
    }
    for name, text in files.items():
        (folder / name).write_text(text)
