"""Compare the TTFA of each dialect with the native protocol, alternating, against a fake engine.

TTFA runs from the moment at which a whole text is sent. Every protocol uses PCM at 24 kHz if it has it, on a connection
that is already open. The time to silence runs from sending an interruption to the last audio message. Dialects whose
clients close the socket instead have none.

    python -m benchmarks.dialect_overhead [--rounds 40]

The last line is JSON, in milliseconds; ``ratio`` is relative to the native protocol. docs/design/audio.md has the codec
delay of each format.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2 as httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from realtime.client import NativeClient, open_session
from realtime.protocol import events as ev
from tests.realtime.dialects.vendor_clients import CLIENTS, PCM_CONFIG, RAW, VendorClient, read
from tests.realtime.server_process import server

QUICK = {"ms_per_char": 60.0, "first_chunk_s": 0.005, "real_time_factor": 0.02}
# Sound is still coming when it is interrupted.
STEADY = QUICK | {"real_time_factor": 0.5}
TEXT = "Hello there, how are you today?"
LONG = "This is one sentence of a very long story. " * 40
NATIVE = "native"
SPEAK_S, LISTEN_S = 0.3, 0.4
MAX_ADDED_MS, MAX_SILENCE_MS = 10.0, 100.0
# The wires over HTTP.
POSTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("/v1/text-to-speech/zoe/stream?output_format=pcm_24000", {"text": TEXT}),
    ("/v1/text-to-speech/zoe/stream/with-timestamps?output_format=pcm_24000", {"text": TEXT}),
    ("/v1/text-to-dialogue/stream?output_format=pcm_24000", {"inputs": [{"text": TEXT, "voice_id": "zoe"}]}),
    ("/tts/bytes", {"transcript": TEXT, "output_format": RAW}),
    ("/tts/sse", {"transcript": TEXT, "output_format": RAW}),
    ("/v1/speak?encoding=linear16&container=none", {"text": TEXT}),
    ("/v2/speak?model=flux-zoe-en&encoding=linear16&container=none", {"text": TEXT}),
    ("/api/tts_streaming", {"text": TEXT}),
    ("/tts/v1/voice:stream", {"text": TEXT, "voiceId": "zoe", "audioConfig": PCM_CONFIG}),
)


class NativeTurns:
    def __init__(self, client: NativeClient) -> None:
        self._client = client
        self._num = 0

    async def first_audio_ms(self) -> float:
        response_id = await self._speak(TEXT)
        start_s, first_s = time.perf_counter(), None
        async for message in self._client:
            if isinstance(message, ev.AudioMessage) and first_s is None:
                first_s = time.perf_counter()
            if isinstance(message, ev.ResponseDone) and message.response_id == response_id:
                break
        assert first_s is not None, "no audio"
        return 1000 * (first_s - start_s)

    async def silence_ms(self) -> float:
        response_id = await self._speak(LONG)
        speak_until_s, cut_s, last_s = time.perf_counter() + SPEAK_S, 0.0, 0.0
        async for message in self._client:
            if isinstance(message, ev.AudioMessage):
                last_s = time.perf_counter()
                if not cut_s and last_s >= speak_until_s:
                    await self._client.send(ev.ResponseCancel(response_id=response_id))
                    cut_s = last_s = time.perf_counter()
            if isinstance(message, ev.ResponseDone):
                break
        return 1000 * (last_s - cut_s)

    async def _speak(self, text: str) -> str:
        self._num += 1
        response_id = f"r{self._num}"
        settings = ev.NativeSpeechSettings(format=ev.NativeAudioFormat(encoding="pcm_s16le"), lead_ms=10_000)
        await self._client.send(ev.ResponseCreate(response_id=response_id, settings=settings, text=text, end=True))
        return response_id


class VendorTurns:
    def __init__(self, client: VendorClient, url: str) -> None:
        self._client = client
        self._url = url + client.path
        self._socket: ClientConnection | None = None
        self._num = 0

    @property
    def can_be_cancelled(self) -> bool:
        return bool(self._client.cancel("t"))

    async def first_audio_ms(self) -> float:
        socket, name = await self._line()
        start_s, first_s = time.perf_counter(), None
        await self._send(socket, self._client.say(name, TEXT) + self._client.end(name))
        ended = False
        while not ended:
            try:
                audio, message = read(self._client, await socket.recv())
            except ConnectionClosed:
                break
            if audio and first_s is None:
                first_s = time.perf_counter()
            ended = bool(message) and self._client.is_end(message, name)
        assert first_s is not None, "no audio"
        return 1000 * (first_s - start_s)

    async def silence_ms(self) -> float:
        socket, name = await self._line()
        await self._send(socket, self._client.say(name, LONG))
        until_s = time.perf_counter() + SPEAK_S
        while time.perf_counter() < until_s or not read(self._client, await socket.recv())[0]:
            await socket.recv()
        await self._send(socket, self._client.cancel(name))
        cut_s = last_s = time.perf_counter()
        try:
            async with asyncio.timeout(LISTEN_S):
                while True:
                    if read(self._client, await socket.recv())[0]:
                        last_s = time.perf_counter()
        except TimeoutError:
            return 1000 * (last_s - cut_s)

    async def aclose(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    async def _line(self) -> tuple[ClientConnection, str]:
        """Open a socket, and name the turn."""
        if self._socket is None or self._client.one_turn:
            await self.aclose()
            offered = self._client.subprotocols or None
            self._socket = await connect(self._url, compression=None, proxy=None, subprotocols=offered)
            await asyncio.sleep(0.02)
        self._num += 1
        return self._socket, f"t{self._num}"

    async def _send(self, socket: ClientConnection, messages: list[dict[str, object]]) -> None:
        for message in messages:
            await socket.send(self._client.pack(message))


class HttpTurns:
    def __init__(self, client: httpx.AsyncClient, path: str, body: dict[str, object]) -> None:
        self._client = client
        self._path = path
        self._body = body

    async def first_audio_ms(self) -> float:
        """Milliseconds to the first audio; of JSON bodies to the first line with audio."""
        start_s, first_s = time.perf_counter(), None
        async with self._client.stream("POST", self._path, json=self._body) as answer:
            answer.raise_for_status()
            async for piece in answer.aiter_raw():
                if piece and first_s is None:
                    first_s = time.perf_counter()
        assert first_s is not None, "no audio"
        return 1000 * (first_s - start_s)


async def first_audio(url: str, num_rounds: int) -> dict[str, list[float]]:
    async with lines(url) as turns:
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(num_rounds):
            for name, line in turns.items():
                found[name].append(await line.first_audio_ms())
        return found


async def silence(url: str, num_rounds: int) -> dict[str, list[float]]:
    async with lines(url) as turns:
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(num_rounds):
            for name, line in turns.items():
                if isinstance(line, NativeTurns) or (isinstance(line, VendorTurns) and line.can_be_cancelled):
                    found[name].append(await line.silence_ms())
        return found


@asynccontextmanager
async def lines(url: str) -> AsyncIterator[dict[str, NativeTurns | VendorTurns | HttpTurns]]:
    async with AsyncExitStack() as stack:
        native = NativeTurns(await stack.enter_async_context(await open_session(url)))
        vendors = {client.name: VendorTurns(client, url) for client in CLIENTS.values()}
        for turns in vendors.values():
            stack.push_async_callback(turns.aclose)
        http = httpx.AsyncClient(base_url=url.replace("ws", "http", 1), trust_env=False, timeout=60)
        await stack.enter_async_context(http)
        posts = {f"POST {path.partition('?')[0]}": HttpTurns(http, path, body) for path, body in POSTS}
        yield {NATIVE: native, **vendors, **posts}


def report(first: dict[str, list[float]], silence: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Report medians, the difference of each protocol to the native median, and the longest time to silence."""
    native_ms = statistics.median(first[NATIVE])
    return {
        name: {
            "first_audio_ms": round(statistics.median(times), 2),
            "added_ms": round(statistics.median(times) - native_ms, 2),
            "ratio": round(statistics.median(times) / native_ms, 3),
            **({"silence_worst_ms": round(max(silence[name]), 2)} if name in silence else {}),
        }
        for name, times in first.items()
    }


def beyond(result: dict[str, dict[str, float]]) -> list[str]:
    return [
        name
        for name, values in result.items()
        if values["added_ms"] > MAX_ADDED_MS or values.get("silence_worst_ms", 0.0) > MAX_SILENCE_MS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    with server(QUICK) as running:
        first = asyncio.run(first_audio(running.url, arguments.rounds))
    with server(STEADY) as running:
        result = report(first, asyncio.run(silence(running.url, max(3, arguments.rounds // 8))))
    for name, values in result.items():
        print(f"{name:55}" + "  ".join(f"{key} {value:8.2f}" for key, value in values.items()))
    print("beyond the limits:", ", ".join(beyond(result)) or "none")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
