"""Several engines as one: placement, and requests that go on at another engine when theirs dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.api import CheckpointError, EngineDead, FinishReason, InvalidRequest
from engine.child import EngineProcess
from engine.launch import create_engine
from engine.pool import EnginePool
from tests.engine.conftest import CARRIED_SHAPES
from tests.engine.stream_recorder import RecordedStream, listen
from tests.engine.test_client import request as long_request
from tests.engine.test_client import speak
from tests.engine.test_launch import Switch, all_free, check_says, make, request, wait_until
from tests.fakes.checksum_model import ChecksumFamily


@pytest.fixture
def switches() -> tuple[Switch, Switch]:
    return Switch(), Switch()


@pytest.fixture(params=CARRIED_SHAPES)
def shape(request: pytest.FixtureRequest) -> ChecksumFamily:
    found: ChecksumFamily = request.param
    return found


@pytest.fixture
async def pool(shape: ChecksumFamily, switches: tuple[Switch, Switch]) -> AsyncIterator[EnginePool]:
    pool = EnginePool([make(shape, switch) for switch in switches])
    await pool.start()
    yield pool
    await pool.aclose()


def num_streams(pool: EnginePool) -> list[int]:
    return [len(client._streams) for client in pool.clients]


async def test_replies_spread_and_their_segments_stay_together(shape: ChecksumFamily, pool: EnginePool) -> None:
    firsts = [msgspec.structs.replace(request(n, text_closed=False), request_id=f"reply{n}/0") for n in range(6)]
    streams = [pool.submit(spec) for spec in firsts]
    assert num_streams(pool) == [3, 3]
    for stream in streams:
        stream.end_input()
        check_says(shape, await listen(stream), stream.request)
    where = dict(pool._placements)
    for number in range(6):
        spec = msgspec.structs.replace(request(number, segment=1), request_id=f"reply{number}/1")
        check_says(shape, await listen(pool.submit(spec)), spec)
    assert dict(pool._placements) == where
    await all_free(pool, *streams)
    assert pool.stats().slots_total == sum(client.stats().slots_total for client in pool.clients)
    assert pool.stats().num_finished == 12


async def test_requests_go_on_at_another_engine(
    shape: ChecksumFamily, pool: EnginePool, switches: tuple[Switch, Switch]
) -> None:
    """The engine that died stays dead: nothing waits for it."""
    specs = [request(number, instruct="stop@58", lead_ms=0) for number in range(4)]
    streams = [pool.submit(spec) for spec in specs]
    events = [aiter(stream) for stream in streams]
    firsts = [await anext(one) for one in events]
    switches[0].step_fails = switches[0].making_fails = True
    await wait_until(lambda: not pool.clients[0].is_alive)
    assert pool.is_alive
    assert num_streams(pool) == [0, 4]
    for spec, first, rest in zip(specs, firsts, events, strict=True):
        check_says(shape, RecordedStream([first, *[event async for event in rest]]), spec)
    check_says(shape, await listen(pool.submit(request(9))), request(9))
    switches[0].making_fails = False
    await wait_until(lambda: pool.clients[0].is_alive)
    await all_free(pool, *streams)


async def test_requests_of_engines_that_all_died_go_on_at_the_first_that_returns(
    shape: ChecksumFamily, pool: EnginePool, switches: tuple[Switch, Switch]
) -> None:
    specs = [request(number, instruct="stop@58", lead_ms=0) for number in range(4)]
    streams = [pool.submit(spec) for spec in specs]
    events = [aiter(stream) for stream in streams]
    heard = [[await anext(one)] for one in events]
    for switch, client in zip(switches, pool.clients, strict=True):
        switch.step_fails = switch.making_fails = True
        await wait_until(lambda client=client: not client.is_alive)  # type: ignore[misc]
        if pool.is_alive:
            for events_so_far, stream, one in zip(heard, streams, events, strict=True):
                # Events of the first engine may still wait to be read.
                while stream._num_interruptions:
                    events_so_far.append(await anext(one))
    with pytest.raises(EngineDead):
        pool.submit(request(5))
    with pytest.raises(EngineDead):
        pool.stats()
    later = pool.submit(msgspec.structs.replace(request(6, segment=1), request_id="reply/1"))
    switches[1].making_fails = False
    for spec, first, rest in zip(specs, heard, events, strict=True):
        check_says(shape, RecordedStream([*first, *[event async for event in rest]]), spec)
    check_says(shape, await listen(later), later.request)
    assert not pool.clients[0].is_alive
    switches[0].making_fails = False


async def test_an_engine_that_cannot_start_stops_the_others(
    shape: ChecksumFamily, switches: tuple[Switch, Switch]
) -> None:
    pool = EnginePool([make(shape, switch) for switch in switches])
    switches[1].making_fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        await pool.start()
    assert not pool.is_alive


async def test_a_pool_of_different_models_does_not_start(tiny_folder: Path, shape: ChecksumFamily) -> None:
    one, other = make(shape, Switch()), create_engine(tiny_folder, device="cpu", lazy_graph_capture=True)
    pool = EnginePool([one, other])  # type: ignore[list-item]
    with pytest.raises(CheckpointError, match="the engines differ"):
        await pool.start()
    assert not pool.is_alive


def test_several_devices_need_processes() -> None:
    with pytest.raises(InvalidRequest, match="cpu,cpu"):
        create_engine(device="cpu,cpu", process=False)


@pytest.mark.slow  # three processes load a checkpoint; threads and ``test_client`` guard both parts
async def test_requests_of_a_killed_process_go_on_at_the_other(tiny_folder: Path) -> None:
    """``benchmarks.takeover`` measures the silence."""
    # No request is refused on busy cores.
    pool = create_engine(tiny_folder, device="cpu, cpu", lazy_graph_capture=True, admission_utilization=1e6)
    assert isinstance(pool, EnginePool)
    await pool.start()
    try:
        uncut, _ = await speak(pool, long_request("uncut", 40))
        specs = [msgspec.structs.replace(long_request(f"r{n}", 40), lead_ms=1_000) for n in range(4)]
        speaking = [asyncio.create_task(speak(pool, spec)) for spec in specs]
        await asyncio.sleep(1.0)
        process = pool.clients[0]._endpoint
        assert isinstance(process, EngineProcess)
        assert process.pid is not None
        assert min(num_streams(pool)) > 0
        os.kill(process.pid, signal.SIGKILL)
        await wait_until(lambda: not pool.clients[0].is_alive)
        assert num_streams(pool)[0] == 0, "nothing waits for the restart"
        for pcm, end in await asyncio.gather(*speaking):
            np.testing.assert_allclose(pcm, uncut, atol=1e-5)
            assert end.reason is FinishReason.LENGTH
        while pool.num_restarts < 1:
            await asyncio.sleep(0.05)
    finally:
        await pool.aclose()
