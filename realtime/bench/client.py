"""Clients of a load run: each speaks with the server over a WebSocket, measured packet by packet."""

from __future__ import annotations

import asyncio
import base64
import os
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import numpy as np

from realtime.bench.plan import LoadPlan, ResponseResult, first_word_is_final_at, pieces
from realtime.bench.playback import START_AFTER_S, Playback
from realtime.client import NativeClient, open_session, speech_url
from realtime.protocol import events as ev
from realtime.protocol.events import ClientEvent, ServerEvent
from realtime.protocol.native import HEADER, SUBPROTOCOL, parse_server, serialize
from sessions.audio.opus import OpusDecoder
from sessions.clock import WakeEvent

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
FINAL = 0x80
MASKED = 0x80
NO_MASK = bytes(4)
SHORT, TWO_BYTES, EIGHT_BYTES = 125, 126, 127
HANDSHAKE_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class CountedAudio:
    """An audio message: how many packets, and when it came by the loop's clock, which is the machine's."""

    num_packets: int
    at_s: float


class PacketCountingClient(asyncio.Protocol):
    """A client session that counts packets; used as ``NativeClient``."""

    def __init__(self, handshake: bytes) -> None:
        self._handshake = handshake
        self._loop = asyncio.get_running_loop()
        self._alarm = WakeEvent()
        self._messages: deque[ServerEvent | CountedAudio] = deque()
        self._received = bytearray()
        self._is_open = False
        self.close_code: int | None = None
        self._error: OSError | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._handshake)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close_code = self.close_code or 1006
        self._alarm.set()

    def data_received(self, data: bytes) -> None:
        received, at_s = self._received, self._loop.time()
        received += data
        at = 0 if self._is_open else self._perform_handshake()
        while self._is_open and (frame := parse_frame(received, at)) is not None:
            opcode, start, end = frame
            self._on_frame(opcode, memoryview(received)[start:end], at_s)
            at = end
        del received[:at]
        self._alarm.set()

    def _perform_handshake(self) -> int:
        """Return the bytes of the server's answer; 0 while it is not all there."""
        end = self._received.find(HANDSHAKE_END)
        if end < 0:
            return 0
        status = bytes(self._received[:end].split(b" ", 2)[1]).decode()
        self._is_open = status == "101"
        if not self._is_open:
            self._error = ConnectionError(f"http_{status}")
            self._transport.abort()
        return end + len(HANDSHAKE_END)

    def _on_frame(self, opcode: int, payload: memoryview, at_s: float) -> None:
        with payload:
            if opcode == BINARY:
                self._messages.append(CountedAudio(HEADER.unpack_from(payload)[2], at_s))
            elif opcode == TEXT:
                self._messages.append(parse_server(bytes(payload)))
            elif opcode == PING:
                self._transport.write(build_frame(PONG, bytes(payload)))
            elif opcode == CLOSE:
                self.close_code = int.from_bytes(payload[:2], "big") or 1005
                self._transport.close()

    async def send(self, event: ClientEvent) -> None:
        """Send an event; raises ``ConnectionError`` if the connection is closed."""
        if self.close_code is not None:
            raise ConnectionError(f"closed_{self.close_code}")
        self._transport.write(build_frame(TEXT, serialize(event).encode()))

    def __aiter__(self) -> PacketCountingClient:
        return self

    async def __anext__(self) -> ServerEvent | CountedAudio:
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self.close_code is not None:
                raise StopAsyncIteration
            await self._alarm.wait()
        return self._messages.popleft()

    async def __aenter__(self) -> PacketCountingClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._transport.is_closing():
            self._transport.write(build_frame(CLOSE, (1000).to_bytes(2, "big")))
            self._transport.close()


def parse_frame(received: bytearray, at: int) -> tuple[int, int, int] | None:
    """(opcode, start and end of the payload) of a server's frame that is all there."""
    if len(received) < at + 2:
        return None
    size, start = received[at + 1], at + 2
    if size > SHORT:
        width = 2 if size == TWO_BYTES else 8
        start += width
        size = int.from_bytes(received[at + 2 : start], "big")
    return (received[at] & 0x0F, start, start + size) if len(received) >= start + size and start > at else None


def build_frame(opcode: int, payload: bytes) -> bytes:
    """A client's frame."""
    size = len(payload)
    if size <= SHORT:
        head = bytes((FINAL | opcode, MASKED | size))
    elif size < 1 << 16:
        head = struct.pack(">BBH", FINAL | opcode, MASKED | TWO_BYTES, size)
    else:
        head = struct.pack(">BBQ", FINAL | opcode, MASKED | EIGHT_BYTES, size)
    return head + NO_MASK + payload


async def open_packet_client(url: str, api_key: str | None = None) -> PacketCountingClient:
    """Connect; raises ``OSError``, with the message ``http_STATUS`` if the server refused."""
    parts = urlsplit(speech_url(url))
    if parts.scheme != "ws" or parts.hostname is None:
        raise OSError(f"url must be ws://HOST:PORT for light clients, is {url!r}")
    lines = [
        f"GET {parts.path} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL}",
        *([] if api_key is None else [f"Authorization: Bearer {api_key}"]),
    ]
    handshake = "\r\n".join(lines).encode() + HANDSHAKE_END
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: PacketCountingClient(handshake), parts.hostname, parts.port or 80)
    await anext(client)  # session.created
    return client


OPUS_RATE = 48_000
PACKET_S = 0.02
# Playback before the cancel.
CANCEL_AFTER_S = 1.0
# Consecutive texts that are long enough to be cancelled in the middle.
CANCEL_TEXTS = 3
AUDIBLE = 10 ** (-50 / 20)
now_s = time.monotonic


@dataclass(slots=True)
class BenchResponse:
    """Measures one response while its events arrive."""

    response_id: str
    deltas: Sequence[str]
    playback: Playback = field(default_factory=Playback)
    sounding: asyncio.Event = field(default_factory=asyncio.Event)
    begun_s: float = field(default_factory=now_s)
    first_delta_s: float = 0.0
    final_delta_s: float = 0.0
    audible_s: float | None = None
    cancelled_s: float | None = None
    decoder: OpusDecoder | None = None
    sample_rate: int = 0
    pre_skip_samples: int = 0

    def on_created(self, created: ev.ResponseCreated, decodes: bool) -> None:
        self.sample_rate = created.format.sample_rate
        self.pre_skip_samples = created.format.pre_skip_samples
        self.decoder = OpusDecoder(self.sample_rate, self.pre_skip_samples) if decodes else None

    def on_counted_audio(self, message: CountedAudio) -> None:
        self.playback.received(message.num_packets * PACKET_S, message.at_s)
        self.sounding.set()

    def on_audio(self, message: ev.AudioMessage, at_s: float) -> None:
        num_samples = 0
        for packet in message.packets:
            num_samples += self._packet_samples(packet, message.sample_time + num_samples, at_s)
        self.playback.received(num_samples / self.sample_rate, at_s)
        self.sounding.set()

    def _packet_samples(self, packet: bytes, sample_time: int, at_s: float) -> int:
        """Packets are 20 ms; they are decoded only until something can be heard."""
        if self.audible_s is None and self.decoder is not None:
            loud = np.flatnonzero(np.abs(self.decoder.decode(packet)) > AUDIBLE)
            if loud.size:
                first_s = self.playback.first_at_s or at_s
                position = max(0, sample_time - self.pre_skip_samples) + int(loud[0])
                self.audible_s = max(at_s, first_s + position / self.sample_rate)
                self.decoder = None
        return self.sample_rate // 50

    def to_result(self, session: int, done: ev.ResponseDone) -> ResponseResult:
        playback, final_s = self.playback, self.final_delta_s
        causes = playback.causes()
        last_s = playback.last_at_s or now_s()
        cancelled_s = self.cancelled_s
        return ResponseResult(
            session=session,
            status=done.status,
            error=done.error.code if done.error else None,
            begun_s=self.begun_s,
            ended_s=now_s(),
            ttfa_ms=_ms(final_s, playback.first_at_s),
            ttfa_first_delta_ms=_ms(self.first_delta_s, playback.first_at_s),
            ttfa_audible_ms=_ms(final_s, self.audible_s),
            audio_s=playback.received_s,
            work_s=last_s - final_s,
            underruns_text=causes.count("text"),
            underruns_engine=causes.count("engine"),
            cancel_ms=None if cancelled_s is None else max(0.0, 1000 * (last_s - cancelled_s)),
            cancel_done_ms=_ms(cancelled_s, now_s()),
        )


async def run_client(plan: LoadPlan, session: int, texts: Iterator[str]) -> list[ResponseResult]:
    """Run all responses of one session, the cancelled one last."""
    async with await _connect(plan) as client:
        outcomes = [await _run_response(client, plan, session, next(texts), f"r{n}") for n in range(plan.num_responses)]
        if plan.cancel:
            text = " ".join(next(texts) for _ in range(CANCEL_TEXTS))
            outcomes.append(await _run_response(client, plan, session, text, "cancelled", cancel=True))
        return outcomes


async def _connect(plan: LoadPlan) -> NativeClient | PacketCountingClient:
    if plan.count_packets:
        return await open_packet_client(plan.url, plan.api_key)
    OpusDecoder(OPUS_RATE)  # loads the library before anything is timed
    return await open_session(plan.url, api_key=plan.api_key)


async def _run_response(
    client: NativeClient | PacketCountingClient,
    plan: LoadPlan,
    session: int,
    text: str,
    response_id: str,
    cancel: bool = False,
) -> ResponseResult:
    reply = BenchResponse(response_id, pieces(text) if plan.tokens_per_second else [text])
    settings = _settings(plan, "burst" if plan.burst and not cancel else "lead")
    await client.send(ev.ResponseCreate(response_id=response_id, settings=settings))
    writing = asyncio.create_task(_write(client, reply, plan.tokens_per_second, cancel))
    try:
        done = await _receive_events(client, reply, decodes=not plan.count_packets)
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    return reply.to_result(session, done)


def _settings(plan: LoadPlan, pace: ev.Pace) -> ev.NativeSpeechSettings:
    if plan.frames is None:
        return ev.NativeSpeechSettings(voice=plan.voice, pace=pace)
    sampling = ev.NativeSamplingOptions(min_new_tokens=plan.frames)
    return ev.NativeSpeechSettings(voice=plan.voice, pace=pace, max_frames=plan.frames, sampling=sampling)


async def _write(
    client: NativeClient | PacketCountingClient, reply: BenchResponse, tokens_per_second: float, cancel: bool
) -> None:
    final_at = first_word_is_final_at(reply.deltas) if tokens_per_second else 0
    begun_s = reply.first_delta_s = now_s()
    for index, delta in enumerate(reply.deltas):
        if tokens_per_second:
            await asyncio.sleep(max(0.0, begun_s + index / tokens_per_second - now_s()))
        if index == final_at:
            reply.final_delta_s = now_s()
        reply.playback.sent(len(delta), now_s())
        await client.send(ev.TextAppend(response_id=reply.response_id, text=delta))
    if final_at == len(reply.deltas):
        reply.final_delta_s = now_s()
    reply.playback.sent(0, now_s(), ended=True)
    await client.send(ev.TextEnd(response_id=reply.response_id))
    if cancel:
        await _cancel(client, reply)


async def _cancel(client: NativeClient | PacketCountingClient, reply: BenchResponse) -> None:
    await reply.sounding.wait()
    await asyncio.sleep(START_AFTER_S + CANCEL_AFTER_S)
    reply.cancelled_s = now_s()
    played_ms = 1000 * reply.playback.played_s(reply.cancelled_s)
    await client.send(ev.ResponseCancel(response_id=reply.response_id, played_ms=played_ms))


async def _receive_events(
    client: NativeClient | PacketCountingClient, reply: BenchResponse, decodes: bool
) -> ev.ResponseDone:
    async for message in client:
        match message:
            case CountedAudio():
                reply.on_counted_audio(message)
            case ev.AudioMessage():
                reply.on_audio(message, now_s())
            case ev.ResponseCreated():
                reply.on_created(message, decodes)
            case ev.ResponseDone():
                return message
            case ev.ErrorEvent():
                raise ConnectionError(message.code)
    raise ConnectionError(f"closed_{client.close_code}")


def _ms(from_s: float | None, to_s: float | None) -> float | None:
    return None if from_s is None or to_s is None else 1000 * (to_s - from_s)
