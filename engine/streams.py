"""Requests as the asyncio side sees them: one stream each, and the table that hands events to them."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

import msgspec

from engine.api import (
    EngineDead,
    FinishReason,
    InvalidRequest,
    RequestFinished,
    SpeechChunk,
    SpeechEvent,
    SpeechRequest,
)
from engine.ipc import (
    CancelRequest,
    Command,
    EndRequestInput,
    PushRequestText,
    ReportRequestPlayback,
    SubmitRequest,
)
from engine.runtime.request import Emitted, RequestReleased

_SURROGATES = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Lone surrogates, which no encoding takes, become U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


class EngineStream:
    """One request; its events arrive on the event loop and are fenced here the moment it is cancelled."""

    def __init__(
        self,
        request: SpeechRequest,
        epoch: int,
        send: Callable[[Command], None],
        wake: Callable[[], None] | None = None,
    ) -> None:
        self.request = request
        self._request_id = request.request_id
        self._epoch = epoch
        self._send = send
        self._events: deque[SpeechEvent] = deque()
        self._arrived = asyncio.Event()
        self._wake = wake or self._arrived.set
        self._released = asyncio.Event()
        self._num_samples = 0
        self._closed = request.text_closed
        self._ended = False

    @property
    def request_id(self) -> str:
        return self._request_id

    def push_text(self, text: str) -> None:
        if self._closed and not self._ended:
            raise InvalidRequest("text cannot follow the end of the text", "text")
        if not self._ended:
            self._send(PushRequestText(self._epoch, replace_surrogates(text)))

    def end_input(self) -> None:
        if not self._closed and not self._ended:
            self._send(EndRequestInput(self._epoch))
        self._closed = True

    def report_playback(self, played_samples: int) -> None:
        if not self._ended:
            self._send(ReportRequestPlayback(self._epoch, played_samples))

    def cancel(self) -> None:
        terminal_event_was_read = self._ended and not self._events
        if terminal_event_was_read:
            return
        self._events.clear()
        self._ended = False
        self.enqueue(RequestFinished(self._request_id, FinishReason.CANCELLED, num_samples=self._num_samples))
        self._send(CancelRequest(self._epoch))

    async def released(self) -> None:
        await self._released.wait()

    async def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        while self._events or not self._ended:
            if self._events:
                yield self._events.popleft()
            else:
                self._arrived.clear()
                await self._arrived.wait()

    def next_event(self) -> SpeechEvent | None:
        return self._events.popleft() if self._events else None

    def enqueue(self, event: SpeechEvent) -> None:
        """An event for the reader; whatever follows the terminal one is dropped."""
        if self._ended:
            return
        if isinstance(event, SpeechChunk):
            self._num_samples = event.start_sample + len(event.pcm)
        self._ended = isinstance(event, RequestFinished)
        self._events.append(event)
        self._wake()

    def mark_released(self) -> None:
        self._released.set()


class StreamTable:
    """Every request that has not been released, by epoch; ``send`` reaches the loop."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._send = send
        self._streams: dict[int, EngineStream] = {}
        self._epochs = itertools.count(1)

    def __len__(self) -> int:
        return len(self._streams)

    def submit(self, request: SpeechRequest, wake: Callable[[], None] | None = None) -> EngineStream:
        request = msgspec.structs.replace(
            request, text=replace_surrogates(request.text), instruct=replace_surrogates(request.instruct)
        )
        epoch = next(self._epochs)
        stream = EngineStream(request, epoch, self._send, wake)
        self._send(SubmitRequest(epoch, request))
        self._streams[epoch] = stream
        return stream

    def dispatch(self, events: Iterable[Emitted]) -> None:
        for epoch, event in events:
            stream = self._streams.get(epoch)
            if stream is None:
                continue
            if isinstance(event, RequestReleased):
                del self._streams[epoch]
                stream.mark_released()
            else:
                stream.enqueue(event)

    def cancel_all(self) -> list[EngineStream]:
        """The engine is being closed; returns the streams to release once it is."""
        streams = self._clear()
        for stream in streams:
            stream.cancel()
        return streams

    def fail_all(self, message: str) -> None:
        """The engine is gone: each request ends with ``engine_dead``, and holds nothing any more."""
        for stream in self._clear():
            stream.enqueue(RequestFinished(stream.request_id, FinishReason.ERROR, error=EngineDead(message).info))
            stream.mark_released()

    def _clear(self) -> list[EngineStream]:
        streams, self._streams = list(self._streams.values()), {}
        return streams
