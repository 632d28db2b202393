"""Engines that others start: a file of addresses, engines that come late, go, differ, drain or are cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from engine import client, remote_pool
from engine.api import EngineDead, InvalidRequest, SpeechEvent, SpeechRequest
from engine.remote_pool import MAX_FILE_BYTES, AddressSource, RemotePool
from engine.streams import EngineStream
from tests.engine.conftest import CARRIED_SHAPES
from tests.engine.served_engine import ServedEngine, StoppableProxy, write_addresses
from tests.engine.stream_recorder import RecordedStream, listen
from tests.engine.test_launch import TEXT, check_says, request, wait_until
from tests.fakes.checksum_model import ChecksumFamily

MakeEngine = Callable[..., ServedEngine]


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_pool, "POLL_INTERVAL_S", 0.02)
    monkeypatch.setattr(client, "MAX_RECONNECT_DELAY_S", 0.1)


@pytest.fixture(params=CARRIED_SHAPES)
def shape(request: pytest.FixtureRequest) -> ChecksumFamily:
    found: ChecksumFamily = request.param
    return found


@pytest.fixture
def make_engine(shape: ChecksumFamily) -> Iterator[MakeEngine]:
    made: list[ServedEngine] = []

    def make(listen: str = "tcp://127.0.0.1:0", **settings: object) -> ServedEngine:
        made.append(ServedEngine(shape, listen, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for engine in made:
        engine.stop()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "engines"


@asynccontextmanager
async def started(addresses: str) -> AsyncIterator[RemotePool]:
    pool = RemotePool(AddressSource(addresses))
    await pool.start()
    try:
        yield pool
    finally:
        await pool.aclose()


def is_free(pool: RemotePool) -> bool:
    """By the engines' last reports."""
    stats = pool.stats()
    return (stats.blocks_free, stats.slots_free) == (stats.blocks_total, stats.slots_total)


def num_available(pool: RemotePool) -> int:
    return sum(member.is_available for member in pool.clients)


class Replies:
    """Paced replies of which each has had audio; the rest is read and compared by ``check``."""

    def __init__(self, shape: ChecksumFamily, pool: RemotePool) -> None:
        self._shape, self._pool = shape, pool
        self._begun: list[tuple[SpeechRequest, EngineStream, list[SpeechEvent]]] = []

    @classmethod
    async def begin(cls, shape: ChecksumFamily, pool: RemotePool, num_replies: int = 4) -> Replies:
        replies = cls(shape, pool)
        for number in range(num_replies):
            spec = request(number, instruct="stop@58", lead_ms=0)
            spec = msgspec.structs.replace(spec, request_id=f"reply{number}/0")
            stream = pool.submit(spec)
            replies._begun.append((spec, stream, [await anext(aiter(stream))]))
        return replies

    async def check(self) -> None:
        """Nothing is missing or comes twice, and the engines hold nothing."""
        await self.check_heard()
        for _, stream, _ in self._begun:
            await stream.released()
        await wait_until(lambda: is_free(self._pool))

    async def check_heard(self) -> None:
        """No sample is missing, none comes twice, and each request has one end."""
        for spec, stream, events in self._begun:
            check_says(self._shape, RecordedStream([*events, *[event async for event in stream]]), spec)


# -- addresses ---------------------------------------------------------------------------------------------------


def test_addresses_are_listed_or_lines_of_a_file(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    listed = AddressSource("unix:/run/a, tcp://127.0.0.1:1")
    assert [str(address) for address in listed.read() or []] == ["unix:/run/a", "tcp://127.0.0.1:1"]
    assert listed.read() is None
    source = AddressSource(f"file:{file}")
    assert source.read() is None
    assert source.read() is None
    assert caplog.text.count("No such file") == 1
    write_addresses(file, "# engines", "", " tcp://127.0.0.1:1 ", "tcp://10.0.0.1:1", "nonsense")
    assert [str(address) for address in source.read() or []] == ["tcp://127.0.0.1:1"]
    assert f"line 4 of {file} is skipped: tcp://10.0.0.1:1 is not a loopback address" in caplog.text
    assert f"line 5 of {file} is skipped: engine address is 'nonsense'" in caplog.text
    assert source.read() is None
    write_addresses(file)
    assert source.read() == []
    file.write_bytes(b"\xff")
    assert source.read() is None
    file.write_bytes(bytes(MAX_FILE_BYTES + 1))
    assert source.read() is None
    assert f"the limit is {MAX_FILE_BYTES}" in caplog.text


@pytest.mark.parametrize("text", ["", "tcp://127.0.0.1:1,", "tcp://10.0.0.1:1", "engines.txt"])
def test_listed_addresses_that_are_wrong_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        AddressSource(text)


# -- members -----------------------------------------------------------------------------------------------------


async def test_engines_join_and_leave_while_they_speak(
    shape: ChecksumFamily, make_engine: MakeEngine, file: Path
) -> None:
    first, second = make_engine(), make_engine()
    write_addresses(file, first.address)
    async with started(f"file:{file}") as pool:
        replies = await Replies.begin(shape, pool)
        assert first.num_requests == 4
        write_addresses(file, first.address, second.address)
        await wait_until(lambda: num_available(pool) == 2)
        assert first.num_requests == 4, "a reply stays where it is"
        write_addresses(file, second.address)
        await wait_until(lambda: len(pool.clients) == 1)
        await wait_until(lambda: not first.host.gateways)
        await replies.check()
        check_says(shape, await listen(pool.submit(request(9))), request(9))
        assert pool.num_restarts == 0


async def test_the_last_engine_that_leaves_ends_its_replies(
    shape: ChecksumFamily, make_engine: MakeEngine, file: Path
) -> None:
    engine = make_engine()
    write_addresses(file, engine.address)
    async with started(f"file:{file}") as pool:
        replies = await Replies.begin(shape, pool)
        write_addresses(file)
        await wait_until(lambda: not pool.is_alive)
        with pytest.raises(EngineDead, match="no engine takes new replies"):
            pool.submit(request())
        later = msgspec.structs.replace(request(1, segment=1), request_id="reply1/1")
        check_says(shape, await listen(pool.submit(later)), later)
        await replies.check_heard()
        await wait_until(lambda: not pool.clients)
        with pytest.raises(EngineDead):
            pool.submit(later)
        with pytest.raises(EngineDead):
            pool.stats()
        write_addresses(file, engine.address)
        await wait_until(lambda: pool.is_alive)
        check_says(shape, await listen(pool.submit(request())), request())


async def test_the_pool_is_ready_with_its_first_engine(
    shape: ChecksumFamily, make_engine: MakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    late = f"unix:{tmp_path / 'late.sock'}"
    engine = make_engine()
    async with started(f"{late},{engine.address}") as pool:
        assert num_available(pool) == 1
        check_says(shape, await listen(pool.submit(request())), request())
        await wait_until(lambda: f"no connection to the engine at {late}" in caplog.text)
        make_engine(late)
        await wait_until(lambda: num_available(pool) == 2)
        assert pool.num_restarts == 0
        assert caplog.text.count(f"no connection to the engine at {late}") == 1, "the same failure is logged once"


async def test_a_pool_without_an_engine_waits_and_can_be_stopped(file: Path) -> None:
    pool = RemotePool(AddressSource(f"file:{file}"))
    starting = asyncio.create_task(pool.start())
    await asyncio.sleep(0.1)
    assert not starting.done()
    with pytest.raises(EngineDead):
        pool.info  # noqa: B018
    with pytest.raises(EngineDead):
        pool.submit(request(segment=1))
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting
    await pool.aclose()


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"max_text_chars": 50}, "option max_text_chars is 50, not"),
        ({"fingerprint": "other weights"}, "the files of the checkpoints are not the same"),
        ({"max_frames": 40}, "max_text_tokens is "),
    ],
    ids=["options", "weights", "model"],
)
async def test_an_engine_that_differs_is_refused_and_the_others_go_on(
    shape: ChecksumFamily,
    make_engine: MakeEngine,
    file: Path,
    caplog: pytest.LogCaptureFixture,
    other: dict[str, object],
    difference: str,
) -> None:
    first, different, third = make_engine(), make_engine(**other), make_engine(max_batch_size=4)
    write_addresses(file, first.address)
    async with started(f"file:{file}") as pool:
        write_addresses(file, first.address, different.address, third.address)
        await wait_until(lambda: num_available(pool) == 2)
        await wait_until(lambda: difference in caplog.text)
        assert f"no connection to the engine at {different.address}: CheckpointError" in caplog.text
        specs = [request(number) for number in range(6)]
        for spec, heard in zip(specs, await asyncio.gather(*(listen(pool.submit(s)) for s in specs)), strict=True):
            check_says(shape, heard, spec)
        assert not different.host.gateways or different.num_requests == 0


# -- drain -------------------------------------------------------------------------------------------------------


async def test_replies_of_an_engine_that_drains_move(
    shape: ChecksumFamily, make_engine: MakeEngine, file: Path
) -> None:
    """So do a reply that waits for text and one that was accepted a moment before."""
    draining, other = make_engine(), make_engine()
    write_addresses(file, draining.address)
    async with started(f"file:{file}") as pool:
        replies = await Replies.begin(shape, pool)
        waiting = pool.submit(request(8, text="", text_closed=False))
        waiting.push_text(TEXT[:5])
        write_addresses(file, draining.address, other.address)
        await wait_until(lambda: num_available(pool) == 2)
        assert other.num_requests == 0
        end = asyncio.create_task(asyncio.to_thread(draining.host.drain, 60.0))
        await wait_until(lambda: other.num_requests == 5)
        waiting.push_text(TEXT[5:])
        waiting.end_input()
        await end
        assert draining.num_requests == 0
        check_says(shape, await listen(waiting), waiting.request)
        await replies.check()
        check_says(shape, await listen(pool.submit(request(9))), request(9))


async def test_an_engine_that_drains_alone_ends_its_replies(shape: ChecksumFamily, make_engine: MakeEngine) -> None:
    engine = make_engine()
    async with started(str(engine.address)) as pool:
        replies = await Replies.begin(shape, pool)
        end = asyncio.create_task(asyncio.to_thread(engine.host.drain, 60.0))
        await wait_until(lambda: not pool.is_alive)
        with pytest.raises(EngineDead, match="no engine takes new replies"):
            pool.submit(request())
        later = msgspec.structs.replace(request(1, segment=1), request_id="reply1/1")
        check_says(shape, await listen(pool.submit(later)), later)
        await replies.check_heard()
        await end


async def test_a_drain_has_an_end(shape: ChecksumFamily, make_engine: MakeEngine) -> None:
    engine = make_engine()
    async with started(str(engine.address)) as pool:
        stream = pool.submit(request(text="", text_closed=False))
        await wait_until(lambda: engine.num_requests == 1)
        await asyncio.to_thread(engine.host.drain, 0.3)
        assert engine.num_requests == 1
        stream.cancel()


async def test_a_gateway_that_comes_during_a_drain_sends_nothing(
    shape: ChecksumFamily, make_engine: MakeEngine
) -> None:
    draining, other = make_engine(), make_engine()
    await asyncio.to_thread(draining.host.drain, 0.0)
    async with started(f"{draining.address},{other.address}") as pool:
        await wait_until(lambda: all(member.is_alive for member in pool.clients))
        await wait_until(lambda: num_available(pool) == 1)
        for number in range(3):
            check_says(shape, await listen(pool.submit(request(number))), request(number))
            assert not draining.num_requests


# -- partition ---------------------------------------------------------------------------------------------------


async def test_replies_of_an_engine_that_is_cut_off_move(
    shape: ChecksumFamily, make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Its sockets stay open, and what it has sent arrives later: none of it is delivered."""
    lost, other = make_engine(), make_engine()
    async with StoppableProxy(lost.address).open() as proxy, started(str(proxy.address)) as pool:
        replies = await Replies.begin(shape, pool)
        proxy.stop()
        pool._set_members([proxy.address, other.address])
        await wait_until(lambda: other.num_requests == 4)
        assert f"the engine at {proxy.address} is silent" in caplog.text
        proxy.go_on()
        await replies.check()
        await wait_until(lambda: lost.num_requests == 0)
        await wait_until(lambda: num_available(pool) == 2)


async def test_an_engine_that_is_cut_off_refuses_new_requests_at_once(
    shape: ChecksumFamily, make_engine: MakeEngine
) -> None:
    """Nothing is waited for once that is known: ``submit`` is no coroutine."""
    async with StoppableProxy(make_engine().address).open() as proxy, started(str(proxy.address)) as pool:
        proxy.stop()
        await wait_until(lambda: not pool.is_alive)
        with pytest.raises(EngineDead):
            pool.submit(request())
        proxy.go_on()
        await wait_until(lambda: pool.is_alive)
        check_says(shape, await listen(pool.submit(request())), request())
