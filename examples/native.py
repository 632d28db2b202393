"""A client for the native protocol in one file: text deltas in, PCM and word times out.

One socket carries any number of turns. If it or its server is lost, they go on over another one without a gap. The
plug-ins for pipecat and LiveKit use this file.

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
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import opuslib_next

SUBPROTOCOL = "voicewire.v1"
# Header of an audio message: version, kind, packets, response, sequence, sample time.
HEADER = struct.Struct(">BBHIII")
MAX_PACKET_SAMPLES = 48_000 * 120 // 1000
CONNECT_TIMEOUT_S = 10.0
# Pause between attempts to connect again; the first has none.
RETRY_S = 0.5
# Close codes after which connecting again is useless.
FINAL_CLOSE_CODES = (1000, 1003, 1007, 1008, 1009, 4409)
# Type and id of an event, at most.
ENVELOPE_BYTES = 256
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

    def __init__(self, send: Callable[[dict[str, Any]], None], response_id: str, settings: dict[str, Any]) -> None:
        self.response_id = response_id
        self.sample_rate = 24_000
        # Duration of the received audio.
        self.sent_s = 0.0
        # After ``cancel``: the heard text.
        self.heard: str | None = None
        # True once it was stopped.
        self.dropped = False
        self._send_event = send
        self._settings = settings
        # What was sent, for a server that lacks it: text, positions of flushes in it, and the end.
        self._text = ""
        self._flushes: list[int] = []
        self._ended = False
        self._messages: asyncio.Queue[dict[str, Any] | bytes] = asyncio.Queue()
        self._decoder: OpusDecoder | None = None
        self._encoding = ""
        # End of the received audio, as the headers of audio messages count.
        self._received_samples = 0
        # End of the received words in the text.
        self._received_chars = 0
        # What a server that lacks the session needs: settings with the seed, checkpoints, numbers of words and flushes.
        self._known_settings = settings
        self._checkpoints: list[str] = []
        self._num_words = self._words_end = self._num_flushed = 0
        self._is_lost = False
        self._over = asyncio.Event()
        self._answered = asyncio.Event()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    async def push(self, delta: str) -> None:
        """Send more text, in deltas of any length."""
        at, self._text = len(self._text), self._text + delta
        self._send("text.append", text=delta, at=at)

    async def flush(self) -> None:
        """Synthesize all text so far without waiting for more."""
        self._flushes.append(len(self._text))
        self._send("text.flush")

    async def end(self) -> None:
        """Mark the text as complete."""
        self._ended = True
        self._send("text.end")

    async def cancel(self, played_s: float | None = None, timeout_s: float = 2.0) -> str | None:
        """Stop the turn and return its heard text.

        ``played_s`` is the playout position; without it the server uses its clock. Also works after the end of a turn,
        while its audio still plays.
        """
        played = {} if played_s is None else {"played_ms": 1000 * played_s}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self._is_lost else timeout_s):
                if self.dropped:  # the first reply answers the earlier cancel
                    await self._over.wait()
                self.heard, self.dropped = None, True
                self._answered.clear()
                self._send("response.cancel", **played)
                await self._answered.wait()
        return self.heard

    async def drop(self) -> None:
        """Stop the turn without waiting; ``cancel`` can query the heard text later."""
        if not self.dropped:
            self.dropped = True
            self._send("response.cancel")

    def create(self) -> None:
        """Send everything, to a server that knows nothing of it."""
        self._send("response.create", settings=self._settings)
        self.send_again(0, 0)

    def resync(self, max_message_bytes: int) -> bool:
        """Go on at a server that lacks the session. Return False, and send nothing, if that is impossible: a longer
        message would end the session, with all other turns."""
        if not self._checkpoints or self.dropped:
            return False
        position = {
            "checkpoints": self._checkpoints,
            "received_samples": self._received_samples,
            "received_flushes": self._num_flushed,
            "received_words": self._num_words,
        }
        fields = {"settings": self._known_settings, "resync": position}
        if len(json.dumps(fields).encode()) + ENVELOPE_BYTES > max_message_bytes:
            return False
        self._send("response.create", **fields)
        self.send_again(0, 0)
        return True

    def send_again(self, received_chars: int, received_flushes: int) -> None:
        """Send what the server lacks."""
        for place in [*self._flushes[received_flushes:], len(self._text)]:
            if place > received_chars:
                self._send("text.append", text=self._text[received_chars:place], at=received_chars)
                received_chars = place
            if place in self._flushes[received_flushes:]:
                self._send("text.flush")
        if self._ended:
            self._send("text.end")

    def cancel_again(self) -> None:
        if self.dropped:
            self._send("response.cancel")

    @property
    def position(self) -> dict[str, Any]:
        return {"response_id": self.response_id, "received_samples": self._received_samples}

    @property
    def has_sounded(self) -> bool:
        return self._received_samples > 0

    def on_message(self, message: dict[str, Any] | bytes) -> None:
        """Process a message of the server."""
        if isinstance(message, bytes):
            start = HEADER.unpack_from(message)[5]
            if start < self._received_samples:  # sent again
                return
            self._received_samples = start + self._num_samples(message)
        elif message["type"] == "response.created":
            self._encoding, self.sample_rate = message["format"]["encoding"], message["format"]["sample_rate"]
            self._known_settings = message["settings"] or self._known_settings
        elif message["type"] == "response.checkpoint":
            self._checkpoints[message["index"] :] = [message["data"]]
        elif message["type"] == "text.flushed":
            self._num_flushed = message["flush"] + 1
        elif message["type"] == "response.words":
            for word in message["words"]:
                self._num_words += word["raw_start"] >= self._words_end
                self._words_end = max(word["raw_end"], self._words_end)
        elif self.over and message["type"] == "response.done":
            return
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
                    if audio["encoding"] == "opus" and self._decoder is None:
                        self._decoder = OpusDecoder(self.sample_rate, audio["pre_skip_samples"])
                case "response.words":
                    for word in message["words"]:
                        if word["raw_start"] < self._received_chars:  # sent again
                            continue
                        self._received_chars = word["raw_end"]
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

    def fail(self) -> None:
        """End the turn because its connection is lost."""
        self._is_lost = True
        self.on_message(CLOSED)

    def _num_samples(self, message: bytes) -> int:
        if self._encoding == "opus":
            return len(_packets(message)) * self.sample_rate // 50
        return sum(map(len, _packets(message))) // (2 if self._encoding == "pcm_s16le" else 1)

    def _send(self, kind: str, **fields: Any) -> None:
        self._send_event({"type": kind, "response_id": self.response_id, **fields})


class Voicewire:
    """A client with one socket, which is opened when needed. A lost one is replaced, and its turns go on."""

    def __init__(self, url: str = "ws://127.0.0.1:8765", api_key: str | None = None, **settings: Any) -> None:
        """``settings`` as in docs/reference/native-protocol.md: ``voice``, ``language``, ``seed``, ``lead_ms`` ..."""
        self._url = url.replace("http", "ws", 1).rstrip("/") + "/v1/speech?resume=true"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._settings = {"word_times": True, "checkpoints": True, **settings}
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._running: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        # Events for the socket. While there is none they are dropped, and sent again from the state of the turns.
        self._outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._is_ready = False
        self._session_id = self._token = ""
        self._grace_s = 0.0
        self._turns: dict[str, Turn] = {}
        self._numbers: dict[int, Turn] = {}
        self._serial = itertools.count(1)

    async def connect(self) -> None:
        """Open the socket. Raises ``VoicewireError`` if the server rejects the connection."""
        async with self._connecting:
            if self._running is None or self._running.done():
                socket, created = await self._open()
                self._use(socket, created["session_id"], created)
                self._is_ready = True
                self._running = asyncio.create_task(self._run(socket))

    async def begin(self, **settings: Any) -> Turn:
        """Start a turn; turns run concurrently. Raises ``VoicewireError``."""
        await self.connect()
        self._evict_turns()
        turn = Turn(self._send, f"turn-{next(self._serial)}", self._settings | settings)
        self._turns[turn.response_id] = turn
        turn.create()
        return turn

    async def __aenter__(self) -> Voicewire:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _open(self) -> tuple[aiohttp.ClientWebSocketResponse, dict[str, Any]]:
        """Return a socket and its first event. Raises ``VoicewireError``."""
        self._http = self._http or aiohttp.ClientSession()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                socket = await self._http.ws_connect(
                    self._url, headers=self._headers, protocols=[SUBPROTOCOL], heartbeat=20
                )
                return socket, await _receive(socket)
        except aiohttp.WSServerHandshakeError as error:
            raise VoicewireError(f"http_{error.status}", error.message, error.status in (429, 503)) from error
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise VoicewireError("unreachable", str(error), retryable=True) from error

    def _use(self, socket: aiohttp.ClientWebSocketResponse, session_id: str, event: dict[str, Any]) -> None:
        """Begin with a session: ``event`` is ``session.created`` or ``session.resumed``."""
        self._socket, self._session_id = socket, session_id
        self._token = event.get("resume_token") or event.get("token", "")
        self._grace_s = event.get("resume_grace_s") or event.get("grace_s", 0.0)

    async def _run(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Serve one socket after another until the session is over."""
        try:
            while True:
                writing = asyncio.create_task(self._write(socket))
                try:
                    await self._read(socket)
                finally:
                    self._is_ready = False
                    writing.cancel()
                    await asyncio.wait([writing])
                    await socket.close()
                if socket.close_code in FINAL_CLOSE_CODES or not self._active_turns:
                    return
                socket = await self._resume()
        except VoicewireError:
            return
        finally:
            self._fail_turns(list(self._turns.values()))

    async def _resume(self) -> aiohttp.ClientWebSocketResponse:
        """Connect again and go on with the session. Raises ``VoicewireError`` if that fails for too long."""
        lost_s = asyncio.get_running_loop().time()
        while True:
            try:
                socket, created = await self._open()
                try:
                    answer = await self._ask_to_resume(socket, created)
                except BaseException:
                    await socket.close()
                    raise
            except (VoicewireError, aiohttp.ClientError, ConnectionError) as error:
                is_final = isinstance(error, VoicewireError) and not error.retryable
                if is_final or asyncio.get_running_loop().time() - lost_s > self._grace_s:
                    raise VoicewireError("closed", CLOSED["message"], retryable=True) from error
                await asyncio.sleep(RETRY_S)
                continue
            self._go_on(socket, created, answer)
            return socket

    async def _ask_to_resume(self, socket: aiohttp.ClientWebSocketResponse, created: dict[str, Any]) -> dict[str, Any]:
        positions = [turn.position for turn in self._active_turns]
        event = {"type": "session.resume", "session_id": self._session_id, "token": self._token}
        await socket.send_str(json.dumps(event | {"responses": positions}))
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await _receive(socket)

    def _go_on(self, socket: aiohttp.ClientWebSocketResponse, created: dict[str, Any], answer: dict[str, Any]) -> None:
        """Send again what the server lacks.

        Turns that it does not know go on from their checkpoints, begin anew, or fail if they have sounded."""
        while not self._outgoing.empty():
            self._outgoing.get_nowait()
        is_resumed = answer["type"] == "session.resumed"
        self._use(socket, self._session_id if is_resumed else created["session_id"], answer if is_resumed else created)
        self._is_ready = True
        known = {one["response_id"]: one for one in answer["responses"]} if is_resumed else {}
        if not is_resumed:
            self._numbers.clear()
        for turn in self._active_turns:
            resumed = known.get(turn.response_id)
            if resumed is not None and resumed["response"] is not None:
                self._resume_turn(turn, resumed)
            elif turn.has_sounded or turn.dropped:
                if not turn.resync(created["limits"]["max_message_bytes"]):
                    self._fail_turns([turn])
            else:
                turn.create()

    def _resume_turn(self, turn: Turn, resumed: dict[str, Any]) -> None:
        if self._numbers.get(resumed["response"]) is not turn:  # response.created was lost
            self._dispatch({**resumed, "type": "response.created"})
        if resumed["state"] == "open":
            turn.send_again(resumed["received_chars"], resumed["received_flushes"])
        turn.cancel_again()

    @property
    def _active_turns(self) -> list[Turn]:
        return [turn for turn in self._turns.values() if not turn.over]

    def _fail_turns(self, turns: list[Turn]) -> None:
        for turn in turns:
            del self._turns[turn.response_id]
            turn.fail()
        self._numbers = {number: turn for number, turn in self._numbers.items() if turn not in turns}

    def _send(self, event: dict[str, Any]) -> None:
        if self._is_ready:
            self._outgoing.put_nowait(event)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        with contextlib.suppress(ConnectionError):  # the reader notices it, too
            while True:
                await socket.send_str(json.dumps(await self._outgoing.get()))

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                self._dispatch_audio(message.data)
            elif message.type is aiohttp.WSMsgType.TEXT:
                self._dispatch(json.loads(message.data))

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


async def _receive(socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    """Return the next event. Raises ``ConnectionError``."""
    message = await socket.receive()
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise ConnectionError(f"closed with {socket.close_code}")
    event: dict[str, Any] = json.loads(message.data)
    return event


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
