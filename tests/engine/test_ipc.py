"""Events as pieces of one message: whatever is sent is read, in order, with the PCM that belongs to it."""

from __future__ import annotations

import socket
import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.api import FinishReason, RequestFinished, RequestParked, RequestTimings, SpeechChunk
from engine.gateway_connection import MAX_PIECES, send_all
from engine.ipc import (
    LENGTH,
    EventsMessage,
    decode_message,
    pack_events,
    unpack_events,
)
from engine.runtime.request import Emitted, RequestReleased

chunks = st.builds(
    lambda start, size, timings: SpeechChunk(
        "c", start, np.arange(size, dtype=np.float32) + start, last=size == 0, timings=timings
    ),
    st.integers(0, 1000),
    st.integers(0, 50),
    st.none() | st.just(RequestTimings(1.5, 0.0, 12.0, 3.0)),
)
others = st.sampled_from(
    [RequestParked("s", 12.5), RequestFinished("f", FinishReason.STOP, num_frames=3), RequestReleased("r")]
)
emitted = st.lists(st.tuples(st.integers(1, 2**40), chunks | others), max_size=12)


def read(connection: socket.socket) -> list[Emitted]:
    (size,) = LENGTH.unpack(connection.recv(LENGTH.size, socket.MSG_WAITALL))
    message = decode_message(connection.recv(size, socket.MSG_WAITALL))
    assert isinstance(message, EventsMessage)
    return list(unpack_events(message, connection.recv(message.num_pcm_bytes, socket.MSG_WAITALL)))


def check_same(found: list[Emitted], sent: list[Emitted]) -> None:
    assert len(found) == len(sent)
    for (epoch, event), (wanted_epoch, wanted) in zip(found, sent, strict=True):
        assert (epoch, type(event)) == (wanted_epoch, type(wanted))
        if isinstance(event, SpeechChunk) and isinstance(wanted, SpeechChunk):
            assert np.array_equal(event.pcm, wanted.pcm)
            assert (event.start_sample, event.last) == (wanted.start_sample, wanted.last)
            assert event.timings == wanted.timings
        else:
            assert event == wanted


def over_a_socket(events: list[Emitted]) -> list[Emitted]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        writer = threading.Thread(target=send_all, args=(ours, pack_events(events)))
        writer.start()
        found = read(theirs)
        writer.join()
    return found


@given(emitted)
def test_what_is_sent_is_read(events: list[Emitted]) -> None:
    check_same(over_a_socket(events), events)


def test_messages_larger_than_the_socket_arrive_whole() -> None:
    events: list[Emitted] = [
        (n, SpeechChunk("c", n, np.full(700, n, np.float32))) for n in range(1, 2 * MAX_PIECES + 5)
    ]
    check_same(over_a_socket(events), events)
