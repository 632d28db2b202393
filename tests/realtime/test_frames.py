"""Messages that go past the general parser of WebSockets are what that parser makes of them."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from realtime.config import load_config
from realtime.transports import listener
from realtime.transports.listener import SpeechWebSocketProtocol, UvicornConfig
from realtime.transports.websocket_frames import FrameSplitter, payload

REQUEST = (
    b"GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
MASK = b"\x11\x22\x33\x44"
MAX_BYTES = 4 * 4_096


def frame(first: int, data: bytes = b"", masked: bool = True) -> bytes:
    width = 0 if len(data) < 126 else 2 if len(data) <= 0xFFFF else 8
    length = bytes([{0: len(data), 2: 126, 8: 127}[width]]) + len(data).to_bytes(8, "big")[8 - width :]
    if not masked:
        return bytes([first]) + length + data
    hidden = bytes(byte ^ MASK[at % 4] for at, byte in enumerate(data))
    return bytes([first, length[0] | 0x80]) + length[1:] + MASK + hidden


TEXT, BYTES, CONTINUED, CLOSE, PING, PONG = 0x81, 0x82, 0x80, 0x88, 0x89, 0x8A
# Not the last of their messages.
MORE_TEXT, MORE = 0x01, 0x00

lists_of_frames = st.lists(
    st.one_of(
        st.builds(frame, st.sampled_from([TEXT, BYTES]), st.binary(max_size=700).map(lambda data: data.hex().encode())),
        st.builds(frame, st.sampled_from([PING, PONG]), st.binary(max_size=20)),
        st.binary(max_size=90).map(lambda data: frame(MORE_TEXT, b"a" + data.hex().encode()) + frame(CONTINUED, b"b")),
    ),
    max_size=12,
)


class Pipe(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.told = b""
        self.ended = False

    def write(self, data: Any) -> None:
        self.told += bytes(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True

    abort = close


@asynccontextmanager
async def connected(own_frames: bool = True, early: bytes = b"") -> AsyncIterator[tuple[SpeechWebSocketProtocol, Pipe]]:
    """``early`` comes with the handshake."""
    config = load_config(
        environment={"VOICEWIRE_DEBUG": "1"},
        flags={"debug.constants.listen.fast_frame_parser": own_frames, "limits.max_message_bytes": MAX_BYTES // 4},
    )
    accepted = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        accepted.set()
        await asyncio.Event().wait()

    listening = UvicornConfig(app, config.listen, config.limits)
    listening.load()
    state = ServerState()
    protocol, pipe = SpeechWebSocketProtocol(listening, state, {}), Pipe()
    protocol.connection_made(pipe)
    protocol.data_received(REQUEST + early)
    await accepted.wait()
    yield protocol, pipe
    for task in state.tasks:
        task.cancel()
    await asyncio.gather(*state.tasks, return_exceptions=True)


async def outcome(pieces: list[bytes], own_frames: bool, early: bytes = b"") -> tuple[list[Any], bytes, bool]:
    """What the application is told, what the client is, and whether the line was closed."""
    async with connected(own_frames, early) as (protocol, pipe):
        for piece in pieces:
            protocol.data_received(piece)
        told = [protocol.queue.get_nowait() for _ in range(protocol.queue.qsize())]
        return told, pipe.told.partition(b"\r\n\r\n")[2], pipe.ended


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(ends)]


@settings(max_examples=100, deadline=None)
@given(frames=lists_of_frames, places=st.lists(st.integers(0, 10_000), max_size=10), num_early=st.integers(0, 2))
def test_application_receives_same_as_with_library_frames(
    frames: list[bytes], places: list[int], num_early: int
) -> None:
    early, pieces = b"".join(frames[:num_early]), cut(b"".join(frames[num_early:]), places)
    expected = asyncio.run(outcome(pieces, own_frames=False, early=early))
    assert asyncio.run(outcome(pieces, own_frames=True, early=early)) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(frame(TEXT, b"\xff\xfe"), id="no UTF-8"),
        pytest.param(frame(TEXT, b"plain", masked=False), id="not masked"),
        pytest.param(frame(0xC1, b"squeezed"), id="compressed, which was not agreed"),
        pytest.param(frame(0x83, b"what"), id="of no known kind"),
        pytest.param(frame(CONTINUED, b"of what"), id="goes on with nothing"),
        pytest.param(frame(MORE_TEXT, b"a") + frame(TEXT, b"b"), id="begins within another"),
        pytest.param(frame(PING, bytes(126)), id="a long ping"),
        pytest.param(frame(TEXT, bytes(MAX_BYTES + 1)), id="too long"),
        pytest.param(frame(TEXT, bytes(MAX_BYTES + 1))[:20], id="too long, and not even there"),
        pytest.param(frame(CLOSE, b"\x03\xe8"), id="a close"),
        pytest.param(frame(CLOSE, b"\x00\x01"), id="a close with a code that is none"),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1_000_000])
def test_what_is_wrong_ends_alike(wrong: bytes, step: int) -> None:
    whole = [frame(TEXT, b"before"), wrong, frame(TEXT, b"after")]
    data = b"".join(whole)
    expected = until_its_end(asyncio.run(outcome(whole, own_frames=False)))
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    assert expected[0][0] == {"type": "websocket.receive", "text": "before"}
    assert until_its_end(asyncio.run(outcome(pieces, own_frames=True))) == expected


def until_its_end(found: tuple[list[Any], bytes, bool]) -> tuple[list[Any], bytes, bool]:
    """The general parser tells of an end again with every piece that comes after it."""
    told, *rest = found
    ends = [at for at, event in enumerate(told) if event["type"] == "websocket.disconnect"]
    return told[: ends[0] + 1] if ends else told, *rest


@given(
    sizes=st.lists(st.sampled_from([0, 1, 125, 126, 300, 0xFFFF, 0x10000]), max_size=4),
    places=st.lists(st.integers(0, 200_000), max_size=20),
)
@settings(max_examples=50, deadline=None)
def test_frames_are_cut_where_they_end(sizes: list[int], places: list[int]) -> None:
    texts = [bytes(range(256)) * (size // 256) + b"x" * (size % 256) for size in sizes]
    frames = [frame(BYTES, text) for text in texts]
    cutter = FrameSplitter(0x10000)
    found = [one for piece in cut(b"".join(frames), places) for one in cutter.push(piece)]
    assert found == frames
    assert [payload(one) for one in found] == texts
    assert not cutter.is_broken


def forbid_other_way(patch: pytest.MonkeyPatch, protocol: SpeechWebSocketProtocol, own_frames: bool) -> None:
    """Let messages be sent either past the general parser or by it only."""

    def forbidden(data: bytes) -> None:
        raise AssertionError("sent the other way")

    if own_frames:
        patch.setattr(protocol.conn, "send_text", forbidden)
        patch.setattr(protocol.conn, "send_binary", forbidden)
    else:
        patch.setattr(listener, "whole_frame", forbidden)


async def sent(messages: list[str | bytes], own_frames: bool, closes_after: int) -> bytes:
    """Send messages, with a close after some of them, and return what the client gets."""
    async with connected(own_frames) as (protocol, pipe):
        with pytest.MonkeyPatch.context() as patch:
            forbid_other_way(patch, protocol, own_frames)
            for at, message in enumerate(messages):
                if at == closes_after:
                    await protocol.send({"type": "websocket.close", "code": 1000})
                kind = "text" if isinstance(message, str) else "bytes"
                with suppress(RuntimeError):  # uvicorn refuses what follows a close
                    await protocol.send({"type": "websocket.send", kind: message})
        return pipe.told.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("closes_after", [2, 99])
async def test_messages_are_sent_as_by_the_library(closes_after: int) -> None:
    messages: list[str | bytes] = ["", "é" * 60, "é" * 63, bytes(125), bytes(126), bytes(0xFFFF), bytes(0x10000), b""]
    expected = await sent(messages, own_frames=False, closes_after=closes_after)
    assert await sent(messages, own_frames=True, closes_after=closes_after) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"text": None},
        {"text": None, "bytes": b"data"},
        {"text": "text", "bytes": None},
        {"text": "text", "bytes": b"data"},
        {"text": b"text"},
        {"bytes": "data"},
        {"bytes": bytearray(b"data")},
        {"type": "websocket.accept", "text": "text"},
    ],
)
async def test_other_messages_are_left_to_the_library(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, object]
) -> None:
    results = []
    for own_frames in (False, True):
        async with connected(own_frames) as (protocol, pipe):
            forbid_other_way(monkeypatch, protocol, own_frames=False)
            error = None
            try:
                await protocol.send({"type": "websocket.send"} | fields)
            except (AttributeError, RuntimeError, TypeError) as raised:
                error = repr(raised)
            results.append((error, pipe.told))
    assert results[0] == results[1]


async def test_messages_wait_for_a_client_that_reads_slowly() -> None:
    async with connected() as (protocol, pipe):
        before = pipe.told
        protocol.pause_writing()
        sending = asyncio.create_task(protocol.send({"type": "websocket.send", "text": "late"}))
        await asyncio.sleep(0)
        assert pipe.told == before
        protocol.resume_writing()
        await sending
        assert pipe.told == before + frame(TEXT, b"late", masked=False)


@pytest.mark.parametrize("own_frames", [True, False])
async def test_a_message_to_a_client_that_has_left_raises(own_frames: bool) -> None:
    async with connected(own_frames) as (protocol, _):
        protocol.connection_lost(ConnectionResetError())
        with pytest.raises(OSError, match=r"^$"):
            await protocol.send({"type": "websocket.send", "text": "late"})


@pytest.mark.parametrize("piece", [b"", b"a"], ids=["empty", "of one byte"])
async def test_incomplete_frame_uses_no_more_memory_than_its_bytes(piece: bytes) -> None:
    async with connected() as (protocol, _):
        protocol.data_received(frame(MORE_TEXT, b"a"))
        tracemalloc.start()
        for _ in range(10_000):
            protocol.data_received(frame(MORE, piece))
        num_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert num_bytes < 30_000
        protocol.data_received(frame(CONTINUED, b"b"))
        assert protocol.queue.get_nowait() == {"type": "websocket.receive", "text": "a" + 10_000 * piece.decode() + "b"}
