"""A client for the native protocol in one file: text deltas in, PCM and word times out.

One socket carries any number of turns. The plug-ins for pipecat and LiveKit use this file.

    pip install aiohttp opuslib-next-bundled
    python native.py ws://127.0.0.1:8765 "Hello there, how are you?" hello.wav
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import json
import os
import struct
import sys
import wave
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import opuslib_next

SUBPROTOCOL = "voicewire.v1"
# Header of an audio message: version, kind, packets, response, sequence, sample time.
HEADER = struct.Struct(">BBHIII")
MAX_PACKET_SAMPLES = 48_000 * 120 // 1000
CONNECT_TIMEOUT_S = 10.0
CLOSED: dict[str, Any] = {"type": "error", "code": "closed", "message": "the connection was lost", "retryable": True}


@dataclass(frozen=True)
class Sound:
    # s16le, mono, at ``Turn.sample_rate``.
    pcm: bytes


@dataclass(frozen=True)
class Word:
    """A word of the sent text; times are in seconds from the first sample of the turn."""

    text: str
    start_s: float
    end_s: float
    # Index in the text of the turn.
    place: int


class VoicewireError(Exception):
    def __init__(self, code: str, message: str, retryable: bool = False) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.retryable = retryable


class OpusDecoder:
    """Decode packets to s16le, without the pre-skip samples."""

    def __init__(self, sample_rate: int, pre_skip_samples: int) -> None:
        self._decoder = opuslib_next.Decoder(sample_rate, 1)
        self._skip_bytes = 2 * pre_skip_samples
        self._pcm = (ctypes.c_int16 * MAX_PACKET_SAMPLES)()

    def decode(self, packet: bytes) -> bytes:
        decode, state = opuslib_next.api.decoder.libopus_decode, self._decoder.decoder_state
        into = ctypes.cast(self._pcm, ctypes.POINTER(ctypes.c_int16))
        num_samples = decode(state, packet, len(packet), into, MAX_PACKET_SAMPLES, 0)
        if num_samples < 0:
            raise VoicewireError("malformed_audio", f"libopus error {num_samples}")
        pcm = bytes(memoryview(self._pcm).cast("B")[: 2 * num_samples])
        skipped, self._skip_bytes = self._skip_bytes, max(self._skip_bytes - len(pcm), 0)
        return pcm[skipped:]


class Turn:
    """One spoken reply. Iteration yields ``Sound`` and ``Word`` until its end or its cancel."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, response_id: str) -> None:
        self.response_id = response_id
        self.sample_rate = 24_000
        # Duration of the received audio.
        self.sent_s = 0.0
        # After ``cancel``: the heard text.
        self.heard: str | None = None
        self._socket = socket
        self._messages: asyncio.Queue[dict[str, Any] | bytes] = asyncio.Queue()
        self._decoder: OpusDecoder | None = None
        self._dropped = False
        self._over = asyncio.Event()
        self._answered = asyncio.Event()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    async def push(self, delta: str) -> None:
        """Send more text, in deltas of any length."""
        await self._send("text.append", text=delta)

    async def flush(self) -> None:
        """Synthesize all text so far without waiting for more."""
        await self._send("text.flush")

    async def end(self) -> None:
        """Mark the text as complete."""
        await self._send("text.end")

    async def cancel(self, played_s: float | None = None, timeout_s: float = 2.0) -> str | None:
        """Stop the turn and return its heard text.

        ``played_s`` is the playout position; without it the server uses its clock. Also works after the end of a turn,
        while its audio still plays.
        """
        played = {} if played_s is None else {"played_ms": 1000 * played_s}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self._socket.closed else timeout_s):
                if self._dropped:  # the first reply answers the earlier cancel
                    await self._over.wait()
                self.heard, self._dropped = None, True
                self._answered.clear()
                await self._send("response.cancel", **played)
                await self._answered.wait()
        return self.heard

    async def drop(self) -> None:
        """Stop the turn without waiting; ``cancel`` can query the heard text later."""
        if not self._dropped:
            self._dropped = True
            await self._send("response.cancel")

    def on_message(self, message: dict[str, Any] | bytes) -> None:
        """Process a message of the server."""
        if isinstance(message, dict) and message["type"] in ("response.done", "response.heard", "error"):
            heard = message.get("heard")
            self.heard = heard["text"] if heard else self.heard
            self._over.set()
            self._answered.set()
        self._messages.put_nowait(message)

    async def __aiter__(self) -> AsyncIterator[Sound | Word]:
        while True:
            message = await self._messages.get()
            if isinstance(message, bytes):
                yield Sound(self._decoded(message))
                continue
            match message["type"]:
                case "response.created":
                    audio = message["format"]
                    self.sample_rate = audio["sample_rate"]
                    if audio["encoding"] == "opus":
                        self._decoder = OpusDecoder(self.sample_rate, audio["pre_skip_samples"])
                case "response.words":
                    for word in message["words"]:
                        yield Word(word["text"], word["start_ms"] / 1000, word["end_ms"] / 1000, word["raw_start"])
                case "response.done":
                    if error := message["error"]:
                        raise VoicewireError(error["code"], error["message"], error["retryable"])
                    return
                case "error":
                    raise VoicewireError(message["code"], message["message"], message["retryable"])

    def _decoded(self, message: bytes) -> bytes:
        packets = _packets(message)
        pcm = b"".join(self._decoder.decode(packet) for packet in packets) if self._decoder else b"".join(packets)
        self.sent_s += len(pcm) / 2 / self.sample_rate
        return pcm

    def is_on(self, socket: aiohttp.ClientWebSocketResponse) -> bool:
        return self._socket is socket

    async def _send(self, kind: str, **fields: Any) -> None:
        """Send an event, unless the connection is lost, which ends the iteration with an error."""
        if not self._socket.closed:
            with contextlib.suppress(ConnectionError):
                await self._socket.send_str(json.dumps({"type": kind, "response_id": self.response_id, **fields}))


class Voicewire:
    """A client with one socket, which is opened when needed and reopened after it was lost."""

    def __init__(self, url: str = "ws://127.0.0.1:8765", api_key: str | None = None, **settings: Any) -> None:
        """``settings`` as in docs/reference/native-protocol.md: ``voice``, ``language``, ``seed``, ``lead_ms`` ..."""
        self._url = url.replace("http", "ws", 1).rstrip("/") + "/v1/speech"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._settings = {"word_times": True, **settings}
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._turns: dict[str, Turn] = {}
        self._numbers: dict[int, Turn] = {}
        self._serial = itertools.count(1)
        self._cancels: set[asyncio.Task[Any]] = set()

    async def connect(self) -> aiohttp.ClientWebSocketResponse:
        """Open the socket. Raises ``VoicewireError`` if the server rejects the connection."""
        async with self._connecting:
            if self._socket is None or self._socket.closed:
                self._http = self._http or aiohttp.ClientSession()
                try:
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        self._socket = await self._http.ws_connect(
                            self._url, headers=self._headers, protocols=[SUBPROTOCOL], heartbeat=20
                        )
                except aiohttp.WSServerHandshakeError as error:
                    raise VoicewireError(f"http_{error.status}", error.message, error.status in (429, 503)) from error
                except (aiohttp.ClientError, TimeoutError) as error:
                    raise VoicewireError("unreachable", str(error), retryable=True) from error
                self._reading = asyncio.create_task(self._read(self._socket))
            return self._socket

    async def begin(self, **settings: Any) -> Turn:
        """Start a turn; turns run concurrently. Raises ``VoicewireError``."""
        for _ in range(2):  # a lost connection may not have been detected yet
            with contextlib.suppress(ConnectionError):
                return await self._begin(await self.connect(), settings)
        raise VoicewireError(CLOSED["code"], CLOSED["message"], retryable=True)

    async def _begin(self, socket: aiohttp.ClientWebSocketResponse, settings: dict[str, Any]) -> Turn:
        turn = Turn(socket, f"turn-{next(self._serial)}")
        self._evict_turns()
        self._turns[turn.response_id] = turn
        create = {"type": "response.create", "response_id": turn.response_id, "settings": self._settings | settings}
        try:
            await socket.send_str(json.dumps(create))
        except ConnectionError:
            self._turns.pop(turn.response_id, None)
            await socket.close()
            raise
        except asyncio.CancelledError:  # the event may have been sent
            cancel = asyncio.ensure_future(turn.cancel())
            self._cancels.add(cancel)
            cancel.add_done_callback(self._cancels.discard)
            raise
        return turn

    async def __aenter__(self) -> Voicewire:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self._cancels:
            await asyncio.wait(self._cancels)
        if self._socket is not None:
            await self._socket.close()
        if self._reading is not None:
            await asyncio.wait([self._reading])
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    self._dispatch_audio(message.data)
                elif message.type is aiohttp.WSMsgType.TEXT:
                    self._dispatch(json.loads(message.data))
        finally:
            self._on_disconnected(socket)
            await socket.close()

    def _on_disconnected(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Fail the turns of a lost socket; those of a newer one continue."""
        lost = [turn for turn in self._turns.values() if turn.is_on(socket)]
        for turn in lost:
            del self._turns[turn.response_id]
            turn.on_message(CLOSED)
        self._numbers = {number: turn for number, turn in self._numbers.items() if not turn.is_on(socket)}

    def _dispatch_audio(self, message: bytes) -> None:
        turn = self._numbers.get(HEADER.unpack_from(message)[3])
        if turn is not None:
            turn.on_message(message)

    def _dispatch(self, message: dict[str, Any]) -> None:
        turn = self._turns.get(message.get("response_id") or "")
        if turn is None:
            return
        if message["type"] == "response.created":
            self._numbers[message["response"]] = turn
        turn.on_message(message)
        if message["type"] == "response.done":
            self._numbers.pop(message["response"], None)

    def _evict_turns(self, max_retained: int = 8) -> None:
        """Remove the oldest ended turns; the last ones are retained for queries of their heard text."""
        over = [name for name, turn in self._turns.items() if turn.over]
        for name in over[:-max_retained]:
            del self._turns[name]


def _packets(message: bytes) -> list[bytes]:
    packets, at = [], HEADER.size
    for _ in range(HEADER.unpack_from(message)[2]):
        size = int.from_bytes(message[at : at + 2], "big")
        packets.append(message[at + 2 : at + 2 + size])
        at += 2 + size
    return packets


async def main() -> None:
    url, text, path = sys.argv[1:4]
    pcm = b""
    async with Voicewire(url, os.environ.get("VOICEWIRE_API_KEY")) as client:
        turn = await client.begin()
        for delta in text.split(" "):
            await turn.push(delta + " ")
        await turn.end()
        async for item in turn:
            match item:
                case Sound():
                    pcm += item.pcm
                case Word():
                    print(f"{item.start_s:6.2f} {item.end_s:6.2f}  {item.text}")
    with wave.open(path, "wb") as file:
        file.setparams((1, 2, turn.sample_rate, 0, "NONE", ""))
        file.writeframes(pcm)


if __name__ == "__main__":
    asyncio.run(main())
