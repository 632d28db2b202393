"""A client that compares what it gets with an uninterrupted reply, and goes on elsewhere when its gateway dies."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from websockets.exceptions import WebSocketException

from realtime.client import NativeClient, open_session
from realtime.protocol import events as ev

RATE = 16_000
RETRY_S = 0.05
# With this lead a listener should miss nothing.
ENOUGH_LEAD_S = 1.5


@dataclass
class Listener:
    url: str
    settings: ev.NativeSpeechSettings
    text: str
    pcm: bytearray = field(default_factory=bytearray)
    began_s: float = 0.0
    # Silence so far, and the part of it since ``mark_event``.
    gap_s: float = 0.0
    gap_after_s: float = 0.0
    num_late: int = 0
    # Audio that it had and had not played at the event; ``None`` before it.
    lead_s: float | None = None
    # Audio messages behind a gap, or with other content than before.
    num_conflicts: int = 0
    statuses: list[str] = field(default_factory=list)
    # Codes of refusals; such a request was made again.
    refusals: list[str] = field(default_factory=list)
    # From each lost connection to the next audio.
    back_ms: list[float] = field(default_factory=list)
    _checkpoints: list[str] = field(default_factory=list)
    _lost_s: float = 0.0

    def mark_event(self) -> None:
        self.lead_s = max(self.began_s + len(self.pcm) / 2 / RATE + self.gap_s - time.monotonic(), 0.0)

    async def run(self) -> None:
        while not self.statuses:
            try:
                async with await open_session(self.url) as client:
                    await self._listen(client)
            except (OSError, EOFError, WebSocketException) as error:
                self.refusals += [] if self.pcm else [type(error).__name__]
            if not self.statuses:
                self._lost_s = self._lost_s or time.monotonic()
                await asyncio.sleep(RETRY_S)

    async def _listen(self, client: NativeClient) -> None:
        """Until the session is closed: a second end of the reply would come before that."""
        position = ev.Resync(checkpoints=tuple(self._checkpoints), received_samples=len(self.pcm) // 2)
        await client.send(
            ev.ResponseCreate(
                response_id="r",
                settings=self.settings,
                text=self.text,
                end=True,
                resync=position if self._checkpoints else None,
            )
        )
        async for message in client:
            match message:
                case ev.AudioMessage():
                    self._on_audio(2 * message.sample_time, b"".join(message.packets))
                case ev.ResponseCreated():
                    self.settings = message.settings
                case ev.ResponseCheckpoint():
                    self._checkpoints[message.index :] = [message.data]
                case ev.ErrorEvent():
                    self.refusals.append(message.code)
                    return
                case ev.ResponseDone():
                    self.statuses.append(message.error.code if message.error else message.status)
                    await client.send(ev.SessionClose())

    def _on_audio(self, at: int, data: bytes) -> None:
        now_s = time.monotonic()
        self.began_s = self.began_s or now_s
        if self._lost_s:
            self.back_ms.append(1_000 * (now_s - self._lost_s))
            self._lost_s = 0.0
        missing_s = now_s - self.began_s - len(self.pcm) / 2 / RATE - self.gap_s
        if missing_s > 0:
            self.num_late += 1
            self.gap_s += missing_s
            self.gap_after_s += missing_s if self.lead_s is not None else 0.0
        known = bytes(self.pcm[at : at + len(data)])
        self.num_conflicts += at > len(self.pcm) or known != data[: len(known)]
        self.pcm += data[len(known) :]


async def speak_whole(url: str, settings: ev.NativeSpeechSettings, text: str) -> bytes:
    """Return an uninterrupted reply."""
    whole = Listener(url, msgspec.structs.replace(settings, pace="burst", lead_ms=None), text)
    await whole.run()
    return bytes(whole.pcm)


def report(listeners: Sequence[Listener], whole: bytes) -> dict[str, object]:
    lengths = [(len(one.pcm) - len(whole)) // 2 for one in listeners]
    back_ms = [ms for one in listeners for ms in one.back_ms]
    present = [one for one in listeners if one.lead_s is not None]
    others = [one for one in present if not one.back_ms]
    return {
        "replies": dict(Counter(" ".join(one.statuses) for one in listeners)),
        "lost_samples": sum(max(0, -length) for length in lengths),
        "doubled_samples": sum(max(0, length) for length in lengths),
        "conflicts": sum(one.num_conflicts for one in listeners),
        "max_difference": max(difference(one.pcm, whole) for one in listeners),
        "replies_with_gaps": sum(one.gap_s > 0 for one in listeners),
        "longest_gap_ms": round(1_000 * max(one.gap_s for one in listeners), 1),
        "late_packets": sum(one.num_late for one in listeners),
        "lead_ms_at_event": percentiles([1_000 * one.lead_s for one in present if one.lead_s is not None], (0, 50)),
        "gaps_after_event": gaps_after(present),
        "gaps_after_event_of_others": gaps_after(others),
        "gaps_after_event_with_lead": gaps_after([one for one in present if (one.lead_s or 0) >= ENOUGH_LEAD_S]),
        "refused": dict(Counter(code for one in listeners for code in one.refusals)),
        "resynced": sum(bool(one.back_ms) for one in listeners),
        "back_ms": percentiles(back_ms),
    }


def difference(pcm: bytes | bytearray, whole: bytes) -> int:
    """Return the largest difference of a sample, where both have one."""
    num_bytes = min(len(pcm), len(whole))
    mine, other = (np.frombuffer(bytes(one[:num_bytes]), np.int16).astype(np.int32) for one in (pcm, whole))
    return int(np.abs(mine - other).max(initial=0))


def gaps_after(listeners: Sequence[Listener]) -> dict[str, object]:
    longest_s = max((one.gap_after_s for one in listeners), default=0.0)
    num_gaps = sum(one.gap_after_s > 0 for one in listeners)
    return {"replies": len(listeners), "with_gaps": num_gaps, "longest_ms": round(1_000 * longest_s, 1)}


def percentiles(values: Sequence[float], wanted: Sequence[int] = (50, 95, 100)) -> dict[str, float]:
    return {f"p{q}": round(float(np.percentile(values, q)), 1) for q in wanted} if values else {}
