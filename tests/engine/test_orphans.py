"""Requests of a gateway that vanished: kept for a while, and claimed by another gateway once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine import orphans
from engine.api import InvalidRequest, OrphanedRequest, ResumePoint, SpeechChunk, SpeechEngine, SpeechRequest
from engine.client import EngineClient
from engine.endpoint import EngineSocket
from engine.gateway_connection import GatewayConnection
from engine.ipc import encoded_size
from engine.launch import connect_engine
from engine.orphans import ORPHAN_GRACE_S, OrphanStore
from engine.remote_pool import AddressSource, RemotePool
from tests.engine.served_engine import ServedEngine
from tests.engine.test_client import process_of, request
from tests.engine.test_launch import wait_until
from tests.fakes.checksum_model import ChecksumFamily

SESSION = "session-1"
# Submits a request whose text comes later, prints a line at its first audio, and lives until it is killed.
GATEWAY = """
import asyncio, sys, msgspec
from engine.api import SpeechRequest
from engine.launch import connect_engine

async def main():
    engine = connect_engine(sys.argv[1])
    await engine.start()
    request = msgspec.json.decode(sys.argv[2], type=SpeechRequest)
    stream = engine.submit(msgspec.structs.replace(request, text="", text_closed=False))
    stream.push_text(request.text)
    stream.end_input()
    await anext(aiter(stream))
    print("audio", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def orphan(session_id: str, size: int = 0) -> OrphanedRequest:
    spec = SpeechRequest(request_id="r", session_id=session_id)
    return OrphanedRequest(request=spec, text="", text_closed=True, codes=bytes(size), num_samples=0)


def test_orphans_are_kept_for_the_grace_and_given_once() -> None:
    now_s = 0.0
    store = OrphanStore(lambda: now_s)
    store.keep([orphan("a"), orphan("b"), orphan("a")])
    assert store.claim("a") == [orphan("a")] * 2
    assert store.claim("a") == []
    assert store.claim("c") == []
    now_s = ORPHAN_GRACE_S - 1
    store.keep([orphan("c")])
    now_s = ORPHAN_GRACE_S
    assert store.claim("b") == []
    assert store.claim("c") == [orphan("c")]
    assert store._num_bytes == 0


def test_the_oldest_orphans_are_dropped_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    one = orphan("0", 1_000)
    monkeypatch.setattr(orphans, "MAX_ORPHAN_BYTES", 3 * encoded_size(one))
    store = OrphanStore()
    for number in range(5):
        store.keep([orphan(str(number), 1_000)])
    assert [len(store.claim(str(number))) for number in range(5)] == [0, 0, 1, 1, 1]


def active_gateways(served: ServedEngine) -> list[int]:
    """Numbers of the connections that have requests."""
    return [number for number, gateway in list(served.host.gateways.items()) if gateway.active]


async def speak_pushed(engine: SpeechEngine, spec: SpeechRequest, text: str) -> list[SpeechChunk]:
    stream = engine.submit(spec)
    stream.push_text(text)
    stream.end_input()
    return [event async for event in stream if isinstance(event, SpeechChunk)]


def joined(chunks: list[SpeechChunk]) -> np.ndarray:
    return np.concatenate([chunk.pcm for chunk in chunks])


@pytest.mark.timeout(300)
async def test_requests_of_a_killed_gateway_go_on_at_another(tiny_folder: Path) -> None:
    """The claimed codes and the rest together are the samples of an uninterrupted request."""
    process = process_of(tiny_folder)
    owner = EngineClient(process)
    await owner.start()
    survivor = connect_engine(str(process.address))
    await survivor.start()
    try:
        spec = msgspec.structs.replace(request("r", 60), session_id=SESSION, lead_ms=500)
        open_spec = msgspec.structs.replace(spec, text="", text_closed=False)
        uncut = joined(await speak_pushed(survivor, open_spec, spec.text))
        line = [sys.executable, "-c", GATEWAY, str(process.address), msgspec.json.encode(spec).decode()]
        gateway = await asyncio.create_subprocess_exec(*line, stdout=subprocess.PIPE)
        assert gateway.stdout is not None
        assert await gateway.stdout.readline() == b"audio\n"
        assert await survivor.claim(SESSION) == (), "its gateway is there"
        gateway.kill()
        await gateway.wait()
        claimed: tuple[OrphanedRequest, ...] = ()
        while not claimed:
            claimed = await survivor.claim(SESSION)
            await asyncio.sleep(0.02)
        assert await survivor.claim(SESSION) == ()
        [found] = claimed
        assert (found.text, found.text_closed, found.request.session_id) == (spec.text, True, SESSION)
        assert found.num_samples > 0
        point = ResumePoint(codes=found.codes, num_samples=found.num_samples)
        resumed = msgspec.structs.replace(found.request, resume=point)
        chunks = await speak_pushed(survivor, resumed, found.text)
        assert chunks[0].start_sample == found.num_samples
        np.testing.assert_allclose(joined(chunks), uncut[found.num_samples :], atol=1e-5)
    finally:
        await survivor.aclose()
        await owner.aclose()


async def test_nothing_is_kept_of_what_has_ended_or_said_goodbye(shape: ChecksumFamily) -> None:
    served = ServedEngine(shape)
    leaving, staying = (EngineClient(EngineSocket(served.address)) for _ in range(2))
    await leaving.start()
    await staying.start()
    spec = SpeechRequest(request_id="r", text="Hello.", text_closed=False, session_id=SESSION)
    cancelled = leaving.submit(spec)
    leaving.submit(msgspec.structs.replace(spec, session_id=""))
    leaving.submit(msgspec.structs.replace(spec, request_id="kept"))
    cancelled.cancel()
    await cancelled.released()
    assert leaving._writer is not None
    leaving._writer.transport.abort()
    leaving._streams._clear()  # it comes back, and must not resume them
    claimed: tuple[OrphanedRequest, ...] = ()
    while not claimed:
        claimed = await staying.claim(SESSION)
    assert [one.request.request_id for one in claimed] == ["kept"]
    staying.submit(spec)
    await wait_until(lambda: served.num_requests == 1)
    await staying.aclose()
    await wait_until(lambda: len(served.host.gateways) <= 1)
    pool = RemotePool(AddressSource(str(served.address)))
    await pool.start()
    assert await pool.claim(SESSION) == ()
    with pytest.raises(InvalidRequest, match="session_id has 200 characters; the limit is 128"):
        await pool.claim("x" * 200)
    await pool.aclose()
    await leaving.aclose()
    served.stop()


async def test_a_gateway_may_come_back_before_its_former_connection_ends(
    shape: ChecksumFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = ServedEngine(shape)
    keep, may_keep = served.host._keep_orphans, threading.Event()

    def keep_late(gateway: GatewayConnection) -> None:
        may_keep.wait(60)
        keep(gateway)
        may_keep.clear()

    monkeypatch.setattr(served.host, "_keep_orphans", keep_late)
    pool = RemotePool(AddressSource(str(served.address)))
    await pool.start()
    stream = pool.submit(SpeechRequest(request_id="r", text="Hello.", text_closed=False, session_id=SESSION))
    await wait_until(lambda: served.num_requests == 1)
    writer = pool.clients[0]._writer
    assert writer is not None
    writer.transport.abort()
    await wait_until(lambda: active_gateways(served) == [2])
    may_keep.set()
    await wait_until(lambda: not may_keep.is_set())
    assert served.host.orphans.claim(SESSION) == []
    may_keep.set()
    stream.cancel()
    await pool.aclose()
    served.stop()


async def test_a_gateway_that_comes_back_is_not_robbed(shape: ChecksumFamily) -> None:
    """Its requests go on there, and nobody else can claim them."""
    served = ServedEngine(shape)
    pool, other = (RemotePool(AddressSource(str(served.address))) for _ in range(2))
    await pool.start()
    await other.start()
    stream = pool.submit(SpeechRequest(request_id="r", text="Hello.", text_closed=False, session_id=SESSION))
    await wait_until(lambda: served.num_requests == 1)
    writer = pool.clients[0]._writer
    assert writer is not None
    writer.transport.abort()
    await wait_until(lambda: active_gateways(served) == [3])
    assert await other.claim(SESSION) == ()
    stream.cancel()
    await pool.aclose()
    await other.aclose()
    served.stop()
