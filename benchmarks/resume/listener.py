"""Clients whose connections are lost, and that go on by a resume or by a resync."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field

import msgspec
import numpy as np
from websockets.exceptions import WebSocketException

from benchmarks.resume.received import OPUS, PCM, ReceivedAudio, ReceivedOpus, ReceivedPcm
from realtime.client import NativeClient, open_session
from realtime.protocol import events as ev

FORMATS = {"pcm": PCM, "opus": OPUS}


@dataclass
class Listener:
    """Keeps what it has received; ``resumed_ms`` and ``audio_ms`` have a value for each cut."""

    url: str
    rng: random.Random
    text: str
    settings: ev.NativeSpeechSettings
    num_cuts: int = 0
    # Shortest and longest time between two cuts.
    interval_s: tuple[float, float] = (1.0, 5.0)
    audio: ReceivedAudio = field(init=False)
    resumed_ms: list[float] = field(default_factory=list)
    audio_ms: list[float] = field(default_factory=list)
    silence_s: float = 0.0
    num_conflicts: int = 0
    status: str = ""
    began_s: float = 0.0

    def __post_init__(self) -> None:
        self.audio = ReceivedOpus() if self.settings.format == OPUS else ReceivedPcm()

    async def run(self) -> None:
        client = await open_session(self.url + "?resume=true")
        session_id, token = client.created.session_id, client.created.resume_token
        await client.send(ev.ResponseCreate(response_id="r", settings=self.settings, text=self.text, end=True))
        for _ in range(self.num_cuts):
            token = await self._listen(client, token, self.rng.uniform(*self.interval_s))
            if self.status:
                break
            client.abort()
            client = await open_session(self.url + "?resume=true")
            opened_s = time.monotonic()
            self.audio.restart(is_new_encoder=False)
            position = ev.ResumePosition(response_id="r", received_samples=self.audio.num_samples)
            await client.send(ev.SessionResume(session_id=session_id, token=token, responses=(position,)))
            token = await self._wait_for_audio(client, token, opened_s)
        await self._listen(client, token, 600.0)
        await client.aclose()

    async def _listen(self, client: NativeClient, token: str, duration_s: float) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration_s):
                while not self.status:
                    token = self._on_event(await anext(client), token)
        return token

    async def _wait_for_audio(self, client: NativeClient, token: str, opened_s: float) -> str:
        num_samples = self.audio.num_samples
        async for event in client:
            elapsed_ms = 1000 * (time.monotonic() - opened_s)
            token = self._on_event(event, token)
            if isinstance(event, ev.SessionResumed):
                self.resumed_ms.append(elapsed_ms)
            elif self.audio.num_samples > num_samples:
                self.audio_ms.append(elapsed_ms)
                break
            elif self.status:
                break
        return token

    def _on_event(self, event: ev.ServerEvent | ev.AudioMessage, token: str) -> str:
        match event:
            case ev.AudioMessage():
                self._on_audio(event)
            case ev.SessionResumed():
                return event.token
            case ev.ResponseDone():
                self.status = event.error.code if event.error else event.status
            case ev.ErrorEvent():
                self.status = event.code
        return token

    def _on_audio(self, message: ev.AudioMessage) -> None:
        now_s = time.monotonic()
        self.began_s = self.began_s or now_s
        played_s = self.audio.num_samples / self.audio.rate + self.silence_s
        self.silence_s += max(now_s - self.began_s - played_s, 0.0)
        self.num_conflicts += not self.audio.add(message.sample_time, message.packets)


@dataclass
class ResyncingListener(Listener):
    """Goes on by a resync when its gateway dies, and after each of ``num_cuts``, as if its gateway had died."""

    checkpoints: list[str] = field(default_factory=list)
    # By ``time.monotonic``, from the lost connection to the next audio.
    back_ms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settings = msgspec.structs.replace(self.settings, checkpoints=True)

    async def run(self) -> None:
        self.client = await open_session(self.url)
        await self.client.send(self._request())
        for number in range(1_000):
            await self._listen_until_lost(self.rng.uniform(*self.interval_s) if number < self.num_cuts else 600.0)
            if self.status:
                break
            self.client.abort()
            await self._go_on()
        await self.client.aclose()

    def _request(self, resync: ev.Resync | None = None) -> ev.ResponseCreate:
        return ev.ResponseCreate(response_id="r", settings=self.settings, text=self.text, end=True, resync=resync)

    async def _listen_until_lost(self, duration_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration_s):
                async for event in self.client:
                    self._on_event(event, "")
                    if self.status:
                        return

    async def _go_on(self) -> None:
        lost_s, num_samples = time.monotonic(), self.audio.num_samples
        self.client = await self._reconnect()
        opened_s = time.monotonic()
        self.audio.restart(is_new_encoder=True)
        position = ev.Resync(checkpoints=tuple(self.checkpoints), received_samples=num_samples)
        await self.client.send(self._request(position))
        async for event in self.client:
            self._on_event(event, "")
            if isinstance(event, ev.ResponseCreated):
                self.resumed_ms.append(1000 * (time.monotonic() - opened_s))
            if self.audio.num_samples > num_samples or self.status:
                break
        self.audio_ms.append(1000 * (time.monotonic() - opened_s))
        self.back_ms.append(1000 * (time.monotonic() - lost_s))

    async def _reconnect(self) -> NativeClient:
        while True:
            with contextlib.suppress(OSError, WebSocketException):
                return await open_session(self.url)
            await asyncio.sleep(0.02)

    def _on_event(self, event: ev.ServerEvent | ev.AudioMessage, token: str) -> str:
        if isinstance(event, ev.ResponseCheckpoint):
            self.checkpoints[event.index :] = [event.data]
        return super()._on_event(event, token)


def difference_db(one: Listener, uncut: Listener) -> float:
    """Return the difference of PCM; infinite for another length."""
    assert isinstance(one.audio, ReceivedPcm)
    assert isinstance(uncut.audio, ReceivedPcm)
    if one.audio.num_samples != uncut.audio.num_samples:
        return float("inf")
    mine, other = one.audio.decode(), uncut.audio.decode()
    return round(float(10 * np.log10(((mine - other) ** 2).mean() / (other**2).mean() + 1e-12)), 1)
