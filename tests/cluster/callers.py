"""Clients that speak one reply a connection, again and again, and count what became of each."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from websockets.exceptions import WebSocketException

from realtime.client import NativeClient, open_session
from realtime.protocol import events as ev
from tests.realtime.live_server import WAIT_S, hear

# 60 ms of speech a character, paced: it takes as long as it plays, less the lead of 2 s.
MS_PER_CHAR = 60
SETTINGS = ev.NativeSpeechSettings(format=ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=8_000))
RETRY_S = 0.3


async def speak_reply(url: str, text: str, trust: ssl.SSLContext | None = None) -> str:
    """Return ``completed`` for a whole reply, ``refused`` if it was not begun, else ``cut``, with what happened."""
    try:
        client = await open_session(url, trust=trust)
    except (OSError, EOFError, TimeoutError, WebSocketException) as error:
        return f"refused: {error!r}"
    async with client:
        try:
            await client.send(ev.ResponseCreate(response_id="r", settings=SETTINGS, text=text, end=True))
            spoken = await hear(client, "r")
        except (AssertionError, ConnectionError) as error:
            return f"{'refused' if 'draining' in str(error) else 'cut'}: {str(error)[-300:]}"
    if spoken.done.error is not None and spoken.done.error.code == "draining":
        return "refused: draining"
    num_samples = len(text) * MS_PER_CHAR * 8
    is_whole = spoken.done.status == "completed" and abs(spoken.done.audio_samples - num_samples) <= 8 * 80
    return "completed" if is_whole else f"cut: {spoken.done}"


class Load:
    """Callers at work. ``url`` is asked before each reply."""

    def __init__(self, url: Callable[[], Awaitable[str]], text: str) -> None:
        self._url, self._text = url, text
        self.outcomes: Counter[str] = Counter()
        self._is_over = False

    async def call(self) -> None:
        while not self._is_over:
            outcome = await speak_reply(await self._url(), self._text)
            self.outcomes[outcome] += 1
            if outcome != "completed":
                await asyncio.sleep(RETRY_S)

    @property
    def cut(self) -> list[str]:
        return [outcome for outcome in self.outcomes if outcome.startswith("cut")]

    def stop(self) -> None:
        """Let every caller finish its reply."""
        self._is_over = True


@asynccontextmanager
async def load(url: Callable[[], Awaitable[str]], num_callers: int, text: str = "x" * 60) -> AsyncIterator[Load]:
    """Keep callers at work within the context; at its end their last replies are heard out."""
    work = Load(url, text)
    async with asyncio.timeout(10 * WAIT_S), asyncio.TaskGroup() as group:
        for _ in range(num_callers):
            group.create_task(work.call())
        try:
            yield work
        finally:
            work.stop()


class Speaker:
    """A client of a gateway that begins long replies and hears them."""

    def __init__(self, client: NativeClient) -> None:
        self._client = client
        self._begun: dict[str, asyncio.Future[bool]] = {}
        self.num_ended = 0

    async def hear(self) -> None:
        async for message in self._client:
            if isinstance(message, ev.ResponseCreated):
                self._answer(message.response_id, True)
            elif isinstance(message, ev.ErrorEvent | ev.ResponseDone):
                self.num_ended += not self._answer(message.response_id or "", False)

    def _answer(self, response_id: str, has_begun: bool) -> bool:
        """Return False if it was answered before."""
        answer = self._begun[response_id]
        if answer.done():
            return False
        answer.set_result(has_begun)
        return True

    async def begin(self) -> bool:
        """Return whether there was a place for one more reply."""
        response_id = str(len(self._begun))
        self._begun[response_id] = asyncio.get_running_loop().create_future()
        await self._client.send(
            ev.ResponseCreate(response_id=response_id, settings=SETTINGS, text="x" * 2_000, end=True)
        )
        return await self._begun[response_id]

    async def cancel(self) -> None:
        """Cancel the first reply that has begun."""
        response_id = next(name for name, answer in self._begun.items() if answer.result())
        await self._client.send(ev.ResponseCancel(response_id=response_id))

    async def fill(self, wanted: int, max_refused: int = 10) -> int:
        """Begin replies until there are ``wanted``, or the lease has not grown for many exchanges."""
        num_begun, num_refused = 0, 0
        while num_begun < wanted and num_refused < max_refused:
            if await self.begin():
                num_begun, num_refused = num_begun + 1, 0
            else:
                num_refused += 1
                await asyncio.sleep(0.3)
        return num_begun


@asynccontextmanager
async def speakers(*urls: str) -> AsyncIterator[list[Speaker]]:
    clients = [await open_session(url) for url in urls]
    opened = [Speaker(client) for client in clients]
    hearing = [asyncio.create_task(speaker.hear()) for speaker in opened]
    try:
        yield opened
    finally:
        for client in clients:
            await client.aclose()
        await asyncio.gather(*hearing)
