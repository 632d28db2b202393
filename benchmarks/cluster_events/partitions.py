"""How soon new work is refused while a machine is cut off, from when that is known."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2 as httpx
from websockets.exceptions import InvalidStatus

from benchmarks.cluster_events.engines import FAKE, FAKE_TEXT, EngineProgram, GatewayProgram
from benchmarks.cluster_events.gateways import SETTINGS, free_port, open_door
from benchmarks.cluster_events.listener import Listener, percentiles, report, speak_whole
from engine.address import EngineAddress
from realtime.client import NativeClient, open_session
from realtime.cluster.replica import Members
from realtime.protocol import events as ev
from tests.cluster.conftest import GatewayProcess
from tests.engine.served_engine import StoppableProxy, write_addresses
from tests.realtime.live_server import NO_CERTIFICATES

NUM_REQUESTS = 100
# 15 s.
TEXT = "x" * 250
# Seconds of speech before the cut.
EVENT_S = 4.0
POLL_S = 0.02
PROBE_TIMEOUT_S = 0.2
SPEECH = {"model": "tts-1", "input": "Hello.", "response_format": "pcm"}


async def measure_engine_partition(num_listeners: int) -> dict[str, object]:
    """The gateway is cut off from its only engine. Its replies go on when it is back."""
    with tempfile.TemporaryDirectory() as folder:
        engine = await asyncio.to_thread(EngineProgram, "fake", "tcp://127.0.0.1:0")
        async with StoppableProxy(EngineAddress.parse(engine.address)).open() as way:
            write_addresses(Path(folder) / "file", way.address)
            gateway = await asyncio.to_thread(GatewayProgram, Path(folder) / "file")
            try:
                whole = await speak_whole(gateway.url, FAKE, FAKE_TEXT)
                listeners = [Listener(gateway.url, FAKE, FAKE_TEXT) for _ in range(num_listeners)]
                return await _measure(way, gateway.url, listeners, whole, {"in an open session": _create_in_session})
            finally:
                gateway.kill()
                engine.kill()


async def measure_door_partition(num_listeners: int) -> dict[str, object]:
    """The door is cut off from its only gateway."""
    port = free_port()
    gateway, door = await asyncio.to_thread(GatewayProcess, "a"), open_door(port)
    url = f"ws://127.0.0.1:{port}"
    try:
        async with StoppableProxy(EngineAddress(host="127.0.0.1", port=gateway.port)).open() as way:
            members = Members(gateways=(gateway.status(port=way.address.port),))
            while (await asyncio.to_thread(door.report, members)).state != "ready":  # noqa: ASYNC110 as below
                await asyncio.sleep(POLL_S)
            whole = await speak_whole(url, SETTINGS, TEXT)
            return await _measure(way, url, [Listener(url, SETTINGS, TEXT) for _ in range(num_listeners)], whole, {})
    finally:
        gateway.process.kill()
        gateway.process.communicate()
        door.kill()


Attempt = Callable[[str, NativeClient], Awaitable[str]]


async def _measure(
    way: StoppableProxy, url: str, listeners: list[Listener], whole: bytes, more: dict[str, Attempt]
) -> dict[str, object]:
    found: dict[str, object] = {}
    async with asyncio.TaskGroup() as group:
        for listener in listeners:
            group.create_task(listener.run())
        await asyncio.sleep(EVENT_S)
        session = await open_session(url)
        way.stop()
        stopped_s = time.monotonic()
        while await _is_ready(url):  # noqa: ASYNC110 another process decides
            await asyncio.sleep(POLL_S)
        found["detected_after_s"] = round(time.monotonic() - stopped_s, 2)
        for name, attempt in {"handshake": _handshake, "POST /v1/audio/speech": _speech, **more}.items():
            found[name] = await _time(attempt, url, session)
        way.go_on()
    await session.aclose()
    return found | report(listeners, whole)


async def _time(attempt: Attempt, url: str, session: NativeClient) -> dict[str, object]:
    answers: Counter[str] = Counter()
    elapsed_ms = []
    for _ in range(NUM_REQUESTS):
        begun_s = time.monotonic()
        answers[await attempt(url, session)] += 1
        elapsed_ms.append(1_000 * (time.monotonic() - begun_s))
    return {"answers": dict(answers), "ms": percentiles(elapsed_ms)}


async def _handshake(url: str, _: NativeClient) -> str:
    try:
        async with await open_session(url):
            return "opened"
    except InvalidStatus as refusal:
        return str(refusal.response.status_code)


async def _speech(url: str, _: NativeClient) -> str:
    return await _post("/v1/audio/speech", url, SPEECH)


async def _create_in_session(_: str, session: NativeClient) -> str:
    await session.send(ev.ResponseCreate(text="Hello.", end=True))
    async for event in session:
        match event:
            case ev.ErrorEvent():
                return event.code
            case ev.ResponseDone():
                return f"begun, then {event.error.code if event.error else event.status}"
    return "closed"


async def _post(path: str, url: str, body: dict[str, str] | None = None, timeout_s: float = 30.0) -> str:
    async with httpx.AsyncClient(trust_env=False, verify=NO_CERTIFICATES, timeout=timeout_s) as client:
        method = "GET" if body is None else "POST"
        return str((await client.request(method, url.replace("ws", "http", 1) + path, json=body)).status_code)


async def _is_ready(url: str) -> bool:
    """A probe that was sent before the cut is known has no answer."""
    try:
        return await _post("/readyz", url, timeout_s=PROBE_TIMEOUT_S) == "200"
    except httpx.TimeoutException:
        return True
