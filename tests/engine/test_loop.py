"""The engine's threads: commands, steps and events; recordings that wait to be encoded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from engine import loop as loop_module
from engine.api import (
    ClonedVoice,
    EngineDead,
    EngineOverloaded,
    FinishReason,
    ReferenceAudio,
    RequestFinished,
    SpeechRequest,
)
from engine.config import EngineConfig
from engine.ipc import CancelRequest, PushRequestText, SubmitRequest
from engine.load import encode_exclusively
from engine.loop import MAX_WAITING_SAMPLES, EngineLoop, VoiceEncodingThread
from engine.program.capture import CAPTURE_LOCK
from engine.runtime.engine import Engine
from engine.runtime.request import Emitted, RequestReleased
from tests.engine.runtime.test_engine import LIMITS
from tests.fakes.checksum_model import ChecksumFamily

WAIT_S = 60.0


class Heard:
    """What a loop delivered, and how it died."""

    def __init__(self) -> None:
        self.events: list[Emitted] = []
        self.died_of: list[BaseException] = []
        self._more = threading.Condition()

    def deliver(self, events: list[Emitted]) -> None:
        with self._more:
            self.events += events
            self._more.notify_all()

    def until_released(self, epoch: int) -> RequestFinished:
        with self._more:
            assert self._more.wait_for(
                lambda: any(e == epoch and isinstance(x, RequestReleased) for e, x in self.events), WAIT_S
            )
            (end,) = (event for e, event in self.events if e == epoch and isinstance(event, RequestFinished))
        return end


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def make_engine(shape: ChecksumFamily) -> Callable[[], Engine]:
    config = EngineConfig(**(LIMITS | dict(num_blocks=200, max_running_requests=4, max_batch_size=4)))
    return lambda: Engine(shape.make_model(), shape.make_stage(config), config)


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Counts how often; to be asked for before ``loop``."""
    given_back = threading.Semaphore(0)
    monkeypatch.setattr(loop_module, "IDLE_CLEANUP_AFTER_S", 0.01)
    monkeypatch.setattr(loop_module, "trim_heap", given_back.release)
    return given_back


@pytest.fixture
def loop(make_engine: Callable[[], Engine], heard: Heard) -> Iterator[EngineLoop]:
    loop = EngineLoop(make_engine, heard.deliver, heard.died_of.append)
    loop.start()
    yield loop
    loop.stop()
    loop.join()


def request(name: str = "r", text: str = "hello there", text_closed: bool = True) -> SpeechRequest:
    return SpeechRequest(request_id=name, text=text, text_closed=text_closed)


def test_a_loop_stopped_before_its_start_runs_no_thread(make_engine: Callable[[], Engine], heard: Heard) -> None:
    loop = EngineLoop(make_engine, heard.deliver, heard.died_of.append)
    loop.stop()
    loop.join()
    with pytest.raises(EngineDead):
        loop.start()
    assert not loop._thread.is_alive()


def test_the_engine_is_made_on_the_thread_that_runs_it(make_engine: Callable[[], Engine], heard: Heard) -> None:
    threads = []

    def make() -> Engine:
        threads.append(threading.current_thread().name)
        return make_engine()

    loop = EngineLoop(make, heard.deliver, heard.died_of.append)
    loop.start()
    loop.stop()
    loop.join()
    assert threads == ["voicewire-engine"]


def test_an_engine_that_cannot_be_made_is_the_starters_error(heard: Heard) -> None:
    def make() -> Engine:
        raise MemoryError("no room")

    loop = EngineLoop(make, heard.deliver, heard.died_of.append)
    with pytest.raises(MemoryError, match="no room"):
        loop.start()
    loop.join()
    assert not heard.died_of, "it never ran"


def test_a_command_that_raises_costs_its_request_alone(
    loop: EngineLoop, heard: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def push_text(epoch: int, text: str) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(loop.engine.requests, "push_text", push_text)
    loop.send(SubmitRequest(1, request("one", text="", text_closed=False)))
    loop.send(PushRequestText(1, "my secret"))
    end = heard.until_released(1)
    assert (end.reason, end.error.code) == (FinishReason.ERROR, "engine_error")
    loop.send(PushRequestText(77, "of no request at all"))
    monkeypatch.undo()
    loop.send(SubmitRequest(2, request("two")))
    assert heard.until_released(2).error is None
    assert not heard.died_of
    assert "secret" not in caplog.text
    stats = loop.stats()
    assert (stats.blocks_free, stats.slots_free) == (stats.blocks_total, stats.slots_total)


def test_free_memory_is_given_back_once_in_each_pause(
    given_back: threading.Semaphore, loop: EngineLoop, heard: Heard
) -> None:
    for epoch in (1, 2):
        assert given_back.acquire(timeout=WAIT_S)
        loop.send(SubmitRequest(epoch, request()))
        assert heard.until_released(epoch).error is None
    assert given_back.acquire(timeout=WAIT_S)
    loop.send(CancelRequest(99))
    assert given_back.acquire(timeout=WAIT_S)
    assert not given_back.acquire(timeout=0.1), "nothing came, so there was nothing to give back"


def test_blocks_are_checked_in_a_pause(given_back: threading.Semaphore, loop: EngineLoop, heard: Heard) -> None:
    loop.engine.pool._free.append(loop.engine.pool._free[0])
    loop.send(SubmitRequest(1, request()))
    assert heard.until_released(1).error is None
    loop._thread.join(WAIT_S)
    (error,) = heard.died_of
    assert "200 blocks in all" in str(error)


def test_results_leave_before_the_step_ends(
    make_engine: Callable[[], Engine], heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[bool] = []
    closed = threading.Event()
    chosen_on: list[str] = []
    monkeypatch.setattr(Engine, "choose_device", lambda engine: chosen_on.append(threading.current_thread().name))

    def make() -> Engine:
        engine = make_engine()
        step = engine.run_step

        def watched() -> None:
            assert torch.is_inference_mode_enabled()
            step()
            found = list(engine.requests.events)
            engine.hand_over()
            left.append(not engine.requests.events and heard.events[len(heard.events) - len(found) :] == found)

        monkeypatch.setattr(engine, "run_step", watched)
        monkeypatch.setattr(engine, "close", closed.set)
        return engine

    loop = EngineLoop(make, heard.deliver, heard.died_of.append)
    loop.start()
    loop.send(SubmitRequest(1, request()))
    assert heard.until_released(1).error is None
    assert not closed.is_set()
    loop.stop()
    loop.join()
    assert left
    assert all(left)
    assert closed.is_set()
    assert chosen_on == ["voicewire-engine"], "once for all steps"


SAMPLE = ReferenceAudio(pcm=b"")


def blocked_by(gate: threading.Event) -> Callable[[ReferenceAudio], ClonedVoice]:
    def encode(sample: ReferenceAudio) -> ClonedVoice:
        gate.wait()
        return ClonedVoice(embedding=sample.pcm)

    return encode


def test_recordings_beyond_the_queue_are_refused() -> None:
    gate = threading.Event()
    thread = VoiceEncodingThread(blocked_by(gate))
    futures = [thread.submit(SAMPLE) for _ in range(MAX_WAITING_SAMPLES)]
    with pytest.raises(EngineOverloaded, match=str(MAX_WAITING_SAMPLES)):
        thread.submit(SAMPLE)
    gate.set()
    assert [future.result() for future in futures] == [ClonedVoice(embedding=b"")] * MAX_WAITING_SAMPLES
    assert thread.submit(SAMPLE).result()
    thread.close()


def test_close_drops_waiting_recordings_and_finishes_one() -> None:
    gate = threading.Event()
    thread = VoiceEncodingThread(blocked_by(gate))
    first, second = thread.submit(SAMPLE), thread.submit(SAMPLE)
    threading.Timer(0.05, gate.set).start()
    thread.close()
    assert first.done()
    assert second.cancelled()


def test_an_error_is_the_recordings_own() -> None:
    def encode(sample: ReferenceAudio) -> ClonedVoice:
        if sample.transcript:
            raise RuntimeError("no")
        return ClonedVoice(embedding=b"")

    thread = VoiceEncodingThread(encode)
    bad, good = thread.submit(ReferenceAudio(pcm=b"", transcript="x")), thread.submit(SAMPLE)
    assert isinstance(bad.exception(), RuntimeError)
    assert good.result()
    thread.close()


def test_nothing_is_encoded_while_a_graph_is_recorded() -> None:
    has_begun = threading.Event()

    def encode(sample: ReferenceAudio) -> ClonedVoice:
        has_begun.set()
        return ClonedVoice(embedding=sample.pcm)

    thread = VoiceEncodingThread(encode_exclusively(encode))
    with CAPTURE_LOCK:
        future = thread.submit(SAMPLE)
        assert not has_begun.wait(0.1)
    assert future.result()
    thread.close()
