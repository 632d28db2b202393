"""Kill the engine under live replies, and measure what listeners miss.

    python -m benchmarks.takeover [--device cpu,cpu] [--gateways 1] [--listeners 8] [--lead-ms 2000] [--after 3]

The server is a process of its own with the embedded voice and an engine for each device; the first engine, a process of
its own, gets SIGKILL. Replies are PCM with a fixed seed. Reported are the seconds from the kill to a listener's next
audio, the silence by the client's clock, and the difference from an uninterrupted reply in dB; the samples must be as
many. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import psutil

from realtime.client import open_session
from realtime.protocol import events as ev
from tests.realtime.server_process import wire_address

TEXT = (
    "The quick brown fox jumps over the lazy dog and runs away into the forest where the tall trees grow. "
    "She sells sea shells by the sea shore every morning of the year."
)
RATE = 24_000
# Audio that was on its way when the engine was killed.
IN_FLIGHT_S = 0.3


@dataclass
class Listener:
    settings: ev.NativeSpeechSettings
    # When audio came, and how many samples there were by then.
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    audio: bytearray = field(default_factory=bytearray)
    status: str = ""

    async def run(self, url: str) -> None:
        client = await open_session(url)
        await client.send(ev.ResponseCreate(response_id="r", settings=self.settings, text=TEXT, end=True))
        async for message in client:
            if isinstance(message, ev.AudioMessage):
                self.audio += b"".join(message.packets)
                self.arrivals.append((time.monotonic(), len(self.audio) // 2))
            elif isinstance(message, ev.ResponseDone):
                self.status = message.status
                break
        await client.aclose()

    @property
    def pcm(self) -> npt.NDArray[np.float64]:
        return np.frombuffer(bytes(self.audio), np.int16).astype(np.float64)

    @property
    def silence_s(self) -> float:
        """Playback starts with the first audio and stands still while there is nothing to play."""
        total, dry_s, num_before = 0.0, self.arrivals[0][0], 0
        for moment_s, num_samples in self.arrivals:
            total += max(0.0, moment_s - dry_s)
            dry_s = max(dry_s, moment_s) + (num_samples - num_before) / RATE
            num_before = num_samples
        return total

    def resumed_s(self, killed_s: float) -> float:
        """Seconds from the kill to the next audio."""
        return next((at for at, _ in self.arrivals if at > killed_s + IN_FLIGHT_S), killed_s) - killed_s

    def difference_db(self, uncut: npt.NDArray[np.float64]) -> float:
        if len(self.pcm) != len(uncut):
            return float("inf")
        return float(10 * np.log10(((self.pcm - uncut) ** 2).mean() / (uncut**2).mean() + 1e-12))


async def run(url: str, server: psutil.Process, num_listeners: int, lead_ms: int, after_s: float) -> dict[str, object]:
    audio = ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=RATE)
    paced = ev.NativeSpeechSettings(seed=5, lead_ms=lead_ms, format=audio)
    uncut = Listener(ev.NativeSpeechSettings(seed=5, pace="burst", format=audio))
    await uncut.run(url)
    listeners = [Listener(paced) for _ in range(num_listeners)]
    tasks = [asyncio.create_task(listener.run(url)) for listener in listeners]
    await asyncio.sleep(after_s)
    engines = [child for child in server.children() if "engine.host" in child.cmdline()]
    killed_s = time.monotonic()
    engines[0].kill()
    await asyncio.gather(*tasks)
    return {
        "completed": sum(listener.status == "completed" for listener in listeners),
        "resumed_s": [round(listener.resumed_s(killed_s), 2) for listener in listeners],
        "silence_s": [round(listener.silence_s, 2) for listener in listeners],
        "difference_db": [round(listener.difference_db(uncut.pcm), 1) for listener in listeners],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="one engine for each; several with commas between them")
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--listeners", type=int, default=8)
    parser.add_argument("--lead-ms", type=int, default=2_000)
    parser.add_argument("--after", type=float, default=3.0, help="seconds of speech before the engine is killed")
    args = parser.parse_args()
    command = [sys.executable, "-m", "realtime.cli", "serve", "--port", "0", "--gateways", str(args.gateways)]
    command += ["--set", f"engine.options.device={args.device}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        url = wire_address(process.stdout).removesuffix("/v1/speech")
        found = asyncio.run(run(url, psutil.Process(process.pid), args.listeners, args.lead_ms, args.after))
        process.terminate()
    for name, value in found.items():
        print(f"{name}: {value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
