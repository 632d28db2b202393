"""Recordings wait in line for one thread, and the line is bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from engine.api import ClonedVoice, EngineOverloaded, ReferenceAudio
from engine.load import encode_exclusively
from engine.loop import MAX_WAITING_SAMPLES, VoiceEncodingThread
from engine.program.capture import CAPTURE_LOCK

SAMPLE = ReferenceAudio(pcm=b"")


def blocked_by(gate: threading.Event) -> Callable[[ReferenceAudio], ClonedVoice]:
    def encode(sample: ReferenceAudio) -> ClonedVoice:
        gate.wait()
        return ClonedVoice(embedding=sample.pcm)

    return encode


def test_more_recordings_than_may_wait_are_refused_and_room_comes_back() -> None:
    gate = threading.Event()
    thread = VoiceEncodingThread(blocked_by(gate))
    futures = [thread.submit(SAMPLE) for _ in range(MAX_WAITING_SAMPLES)]
    with pytest.raises(EngineOverloaded, match=str(MAX_WAITING_SAMPLES)):
        thread.submit(SAMPLE)
    gate.set()
    assert [future.result() for future in futures] == [ClonedVoice(embedding=b"")] * MAX_WAITING_SAMPLES
    assert thread.submit(SAMPLE).result()
    thread.close()


def test_what_waits_is_dropped_at_the_end_and_what_is_under_way_is_finished() -> None:
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
