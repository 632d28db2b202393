"""The client of an engine: streams, reconnects, and what ends with the connection."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from io import StringIO
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from engine.address import EngineAddress
from engine.api import (
    CheckpointError,
    EngineInfo,
    EngineStats,
    FinishReason,
    RequestFinished,
    ResumePoint,
    SamplingParams,
    SpeechChunk,
    SpeechEngine,
    SpeechRequest,
)
from engine.child import EngineProcess, host_command
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.endpoint import EngineSocket
from engine.ipc import (
    LENGTH,
    Command,
    DrainMessage,
    HelloMessage,
    Message,
    StatsMessage,
    SubmitRequest,
    encode,
    frame_message,
)
from engine.launch import create_engine
from engine.process import child_environment
from engine.streams import StreamTable, replace_surrogates
from tests.engine.served_engine import running_process
from tests.fakes.checkpoints import write_checkpoint

STATS = EngineStats(
    num_waiting=0,
    num_running=0,
    num_parked=0,
    num_steps=1,
    blocks_free=9,
    blocks_total=9,
    slots_free=3,
    slots_total=4,
    step_ms=1.0,
    num_preemptions=0,
    num_finished=0,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def process_of(folder: Path, niceness: int = 0) -> EngineProcess:
    return EngineProcess(
        folder, EngineConfig(lazy_graph_capture=True, process_nice=niceness), "cpu", "auto", is_embedded=False
    )


def owned(folder: Path) -> EngineClient:
    process = process_of(folder)
    return EngineClient(process)


@pytest.fixture(scope="module")
def listening(folder: Path) -> Iterator[Path]:
    """One engine process for the tests that leave it alive."""
    with running_process(process_of(folder)) as address:
        yield Path(address.path)


@pytest.fixture
async def engine(listening: Path) -> AsyncIterator[EngineClient]:
    engine = EngineClient(EngineSocket(EngineAddress(str(listening))))
    await engine.start()
    yield engine
    await engine.aclose()


def socket_of(engine: EngineClient) -> Path:
    assert isinstance(engine._endpoint, EngineSocket)
    return Path(engine._endpoint.address.path)


def all_have_audio(engine: EngineClient, num_requests: int) -> bool:
    streams = engine._streams._streams.values()
    return len(streams) == num_requests and all(stream._num_samples for stream in streams)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.02)


def request(name: str, num_frames: int = 12) -> SpeechRequest:
    sampling = SamplingParams(seed=7, min_new_tokens=num_frames)
    return SpeechRequest(
        request_id=name, text="Hello world, this is it.", text_closed=True, max_frames=num_frames, sampling=sampling
    )


async def speak(engine: SpeechEngine, spec: SpeechRequest) -> tuple[np.ndarray, RequestFinished]:
    stream = engine.submit(spec)
    chunks, end = [], None
    async for event in stream:
        if isinstance(event, SpeechChunk):
            chunks.append(event.pcm)
        elif isinstance(event, RequestFinished):
            end = event
    await stream.released()
    assert end is not None
    assert chunks, end
    return np.concatenate(chunks), end


async def test_a_process_speaks_the_same_samples_as_a_thread(folder: Path, engine: EngineClient) -> None:
    local = create_engine(folder, device="cpu", lazy_graph_capture=True)
    await local.start()
    here, _ = await speak(local, request("here"))
    there, end = await speak(engine, request("there"))
    await local.aclose()
    assert end.reason is FinishReason.LENGTH
    assert engine.info == local.info
    np.testing.assert_allclose(here, there, atol=1e-5)  # which frames decode together is a matter of timing


async def test_requests_go_on_after_their_process_was_killed(folder: Path, engine: EngineClient) -> None:
    """Samples are those of an uninterrupted request."""
    uncut, _ = await speak(engine, request("uncut", 30))
    killed = owned(folder)
    await killed.start()
    try:
        await check_recovery(killed, uncut)
    finally:
        await killed.aclose()


async def check_recovery(engine: EngineClient, uncut: np.ndarray) -> None:
    specs = [msgspec.structs.replace(request(f"r{i}", 30), lead_ms=200) for i in range(3)]
    speaking = [asyncio.create_task(speak(engine, spec)) for spec in specs]
    await until(lambda: all_have_audio(engine, num_requests=3))
    process = engine._endpoint
    assert isinstance(process, EngineProcess)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    for pcm, end in await asyncio.gather(*speaking):
        assert (end.reason, end.num_frames) == (FinishReason.LENGTH, 30)
        np.testing.assert_allclose(pcm, uncut, atol=1e-5)
    assert engine.num_restarts == 1
    pid = process.pid
    assert pid is not None
    await engine.aclose()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_vanished_gateway_frees_its_requests_alone(engine: EngineClient) -> None:
    guest = EngineClient(EngineSocket(EngineAddress(str(socket_of(engine)))))
    await guest.start()
    lost = guest.submit(request("lost", 900))
    await anext(aiter(lost))
    other = asyncio.create_task(speak(engine, request("other", 60)))
    assert guest._writer is not None
    guest._writer.transport.abort()
    await guest.aclose()
    _, end = await other
    assert end.num_frames == 60
    await until(lambda: not engine.stats().num_running and engine.stats().blocks_free == engine.stats().blocks_total)


@pytest.mark.parametrize("garbage", [LENGTH.pack(5) + b"\xc1\xff\x00\x01\x02", LENGTH.pack(2**31), b"\x00"])
async def test_garbage_closes_its_sender_alone(engine: EngineClient, garbage: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as rude:
        rude.connect(str(socket_of(engine)))
        rude.sendall(garbage)
        rude.shutdown(socket.SHUT_WR)
        while await asyncio.to_thread(rude.recv, 65536):
            pass
    _, end = await speak(engine, request("fine"))
    assert end.reason is FinishReason.LENGTH


async def test_invalid_engine_messages_end_the_connection(tmp_path: Path) -> None:
    hello = encode(HelloMessage(EngineInfo("fake", 24000, 1920, (), ("auto",), 100, False)))
    connections: list[asyncio.StreamWriter] = []

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.write(hello)

    path = tmp_path / "engine.sock"
    server = await asyncio.start_unix_server(greet, str(path))
    engine = EngineClient(EngineSocket(EngineAddress(str(path))))
    await engine.start()
    stream = engine.submit(SpeechRequest(request_id="r", text="Hello"))
    for number in range(2):
        await until(lambda number=number: len(connections) > number and engine.is_alive)  # type: ignore[misc]
        connections[number].write(frame_message(b"\xc1 no message"))
        await until(lambda number=number: engine.num_restarts > number)  # type: ignore[misc]
    events = [event async for event in stream]
    assert [event.error.code for event in events if isinstance(event, RequestFinished)] == ["engine_dead"]
    assert engine.is_alive
    await engine.aclose()
    for writer in connections:
        writer.close()
    server.close()


async def test_second_start_forgets_what_the_first_engine_reported(tmp_path: Path) -> None:
    """The first engine has reported its statistics and its drain; the second has reported nothing yet."""
    messages: list[Message] = [HelloMessage(EngineInfo("fake", 24000, 1920, (), ("auto",), 100, False))]
    connections: list[asyncio.StreamWriter] = []

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.writelines(map(encode, messages))

    path = tmp_path / "engine.sock"
    engine = EngineClient(EngineSocket(EngineAddress(str(path))))
    async with await asyncio.start_unix_server(greet, str(path)):
        for reports in ([StatsMessage(STATS), DrainMessage()], []):
            messages[1:] = reports
            await engine.start()
            await until(lambda draining=bool(reports): engine.is_draining == draining)  # type: ignore[misc]
            assert engine.is_available == (not reports)
            assert engine.num_free_places == (3 if reports else 0)
            await engine.aclose()
        for writer in connections:
            writer.close()


async def test_process_has_its_priority_and_ends_at_the_next_start(folder: Path, tmp_path: Path) -> None:
    process = process_of(folder, niceness=3)
    await process.start()
    first = process.pid
    assert first is not None
    assert os.getpriority(os.PRIO_PROCESS, first) == min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19)
    process.settings["folder"] = str(tmp_path)  # whether the next one speaks does not matter
    with pytest.raises(CheckpointError):
        await process.start()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    await process.stop()


async def test_request_beyond_capacity_ends_with_overloaded(folder: Path) -> None:
    limits = dict(max_running_requests=1, max_queued_requests=0, max_queued_continuations=1)
    engine = create_engine(folder, device="cpu", process=False, lazy_graph_capture=True, **limits)
    await engine.start()
    try:
        engine.submit(request("first", 900))
        engine.submit(msgspec.structs.replace(request("second"), segment=1))
        for segment, limit in ((0, 1), (1, 2)):
            refused = engine.submit(msgspec.structs.replace(request("third"), segment=segment))
            (end,) = [event async for event in refused if isinstance(event, RequestFinished)]
            assert end.error is not None
            assert end.error.message == f"2 requests are active; the limit is {limit}"
    finally:
        await engine.aclose()


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path) -> None:
    for name in ("json", "msgspec", "engine"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hijacked')")
    command = [*host_command({})[:-1], "no settings"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=child_environment(), input=b"", capture_output=True, check=False, timeout=60
    )
    assert b"hijacked" not in ended.stderr
    assert b"JSONDecodeError" in ended.stderr, "it came as far as reading its settings"


async def test_process_that_fails_to_start_reports_and_cleans_up(tmp_path: Path) -> None:
    process = process_of(tmp_path)
    engine = EngineClient(process)
    assert not process.socket.parent.exists(), "nothing is made before the start"
    with pytest.raises(CheckpointError, match=r"config\.json"):
        await engine.start()
    assert not process.socket.parent.exists()
    assert process.pid is None or not psutil.pid_exists(process.pid)
    await engine.aclose()


class EndingProcess:
    """A child whose end and a cancellation of its waiter come together."""

    returncode = None
    stdin = StringIO()

    def __init__(self) -> None:
        self.has_ended = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        await self.has_ended


@pytest.mark.parametrize("num_iterations", range(4))
async def test_cancellation_at_the_end_of_the_process_is_kept(tmp_path: Path, num_iterations: int) -> None:
    process, child = process_of(tmp_path), EndingProcess()
    process._process = child  # type: ignore[assignment]
    ending = asyncio.create_task(process.stop())
    await asyncio.sleep(0.01)
    child.has_ended.set_result(None)
    for _ in range(num_iterations):
        await asyncio.sleep(0)
    was_cancelled = ending.cancel()
    await asyncio.wait([ending])
    assert ending.cancelled() == was_cancelled


def test_a_submit_that_cannot_be_sent_leaves_nothing_behind() -> None:
    def refuse(command: Command) -> None:
        raise OverflowError("cannot be encoded")

    table = StreamTable(refuse)
    for _ in range(3):
        with pytest.raises(OverflowError):
            table.submit(SpeechRequest(request_id="r"))
    assert len(table) == 0


def test_replay_goes_on_at_another_engine_with_all_of_its_codes() -> None:
    """Those that the first engine did not send again come with the next chunk."""
    sent: list[Command] = []
    table = StreamTable(sent.append)
    point = ResumePoint(codes=b"aabbccdd", num_samples=0, is_complete=True)
    stream = table.submit(SpeechRequest(request_id="r", resume=point))
    table.interrupt("gone")
    table.resume(24_000)
    table.dispatch([(1, SpeechChunk("r", 0, np.zeros(9, np.float32), codes=b"aa"))])
    table.interrupt("gone")
    table.resume(24_000)
    table.dispatch([(1, SpeechChunk("r", 9, np.zeros(9, np.float32), codes=b"ee"))])
    points = [command.request.resume for command in sent if isinstance(command, SubmitRequest)]
    assert points == [point, point, msgspec.structs.replace(point, num_samples=9)]
    chunks = [stream.next_event(), stream.next_event()]
    assert [chunk.codes for chunk in chunks if isinstance(chunk, SpeechChunk)] == [b"aa", b"bbccddee"]


def test_lone_surrogates_reach_no_encoder() -> None:
    sent: list[Command] = []
    stream = StreamTable(sent.append).submit(SpeechRequest(request_id="r", text="a\ud800b"))
    stream.push_text("\udfff")
    submitted = sent[0]
    assert isinstance(submitted, SubmitRequest)
    assert submitted.request.text == "a\ufffdb"
    assert replace_surrogates("plain") == "plain"
    assert replace_surrogates("é\udc80") == "é\ufffd"
