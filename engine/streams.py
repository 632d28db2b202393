"""Requests as the asyncio side sees them: one stream each, and the table that hands events to them.

A stream keeps what another engine needs to go on with its request: the text, the seed and the codes so far.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

import msgspec

from engine.api import (
    EngineDead,
    FinishReason,
    InvalidRequest,
    RequestFinished,
    ResumePoint,
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

# An engine died so often without audio in between: the request may be why.
MAX_INTERRUPTIONS = 1

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
        self._text_pushed: list[str] = []
        resume = request.resume
        # Those of a replay come with its chunks again.
        self._codes = bytearray(resume.codes if resume and not resume.is_replay else b"")
        self._codes_ahead = b""
        self._num_interruptions = 0
        # Samples played, and when that was so.
        self._playback: tuple[int, float] | None = None

    @property
    def request_id(self) -> str:
        return self._request_id

    @property
    def has_ended(self) -> bool:
        """Return whether the terminal event is known, read or not."""
        return self._ended

    def push_text(self, text: str) -> None:
        if self._closed and not self._ended:
            raise InvalidRequest("text cannot follow the end of the text", "text")
        if not self._ended:
            text = replace_surrogates(text)
            self._text_pushed.append(text)
            self._send(PushRequestText(self._epoch, text))

    def end_input(self) -> None:
        if not self._closed and not self._ended:
            self._send(EndRequestInput(self._epoch))
        self._closed = True

    def report_playback(self, played_samples: int) -> None:
        if not self._ended:
            self._playback = played_samples, time.monotonic()
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
            if self._codes_ahead:
                event = msgspec.structs.replace(event, codes=self._codes_ahead + event.codes)
                self._codes_ahead = b""
            self._record_chunk(event)
        self._ended = isinstance(event, RequestFinished)
        self._events.append(event)
        self._wake()

    def fail(self, message: str) -> None:
        self.enqueue(RequestFinished(self._request_id, FinishReason.ERROR, error=EngineDead(message).info))

    def mark_released(self) -> None:
        self._released.set()

    # Another engine

    def _record_chunk(self, chunk: SpeechChunk) -> None:
        self._num_samples = chunk.start_sample + len(chunk.pcm)
        self._codes += chunk.codes
        self._num_interruptions = 0
        if self._playback is None:
            self._playback = 0, time.monotonic()

    def interrupt(self) -> bool:
        """Return whether another engine may go on with this request, now that its engine has died."""
        self._num_interruptions += 1
        return not self._ended and self._num_interruptions <= MAX_INTERRUPTIONS

    def rebind(self, epoch: int, send: Callable[[Command], None]) -> None:
        """Belong to another engine from now on."""
        self._epoch, self._send = epoch, send

    def resume(self, sample_rate: int) -> None:
        """Let the engine go on behind the last chunk."""
        for command in self._resume_commands(sample_rate):
            self._send(command)

    def _resume_commands(self, sample_rate: int) -> Iterator[Command]:
        if not self._num_samples:
            self._codes.clear()
        point = ResumePoint(codes=bytes(self._codes), num_samples=self._num_samples)
        if (replay := self.request.resume) is not None and replay.is_replay:
            # Those that did not come with chunks yet come with the next one.
            self._codes_ahead = replay.codes[len(point.codes) :] if point.num_samples else b""
            codes = point.codes + replay.codes[len(point.codes) :]
            point = msgspec.structs.replace(point, codes=codes, is_complete=replay.is_complete)
        request = msgspec.structs.replace(self.request, resume=point)
        yield SubmitRequest(self._epoch, request)
        if text := "".join(self._text_pushed):
            yield PushRequestText(self._epoch, text)
        if self._closed and not request.text_closed:
            yield EndRequestInput(self._epoch)
        if self._playback is not None:
            played_samples, then_s = self._playback
            now_samples = played_samples + round((time.monotonic() - then_s) * sample_rate)
            played_samples = max(played_samples, min(now_samples, self._num_samples))
            yield ReportRequestPlayback(self._epoch, played_samples)


class StreamTable:
    """Every request that has not been released, by epoch; ``send`` reaches the loop."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._send = send
        self._streams: dict[int, EngineStream] = {}
        self._epochs = itertools.count(1)

    def __len__(self) -> int:
        return len(self._streams)

    def submit(self, request: SpeechRequest, wake: Callable[[], None] | None = None) -> EngineStream:
        seed = secrets.randbits(48) if request.sampling.seed is None else request.sampling.seed
        request = msgspec.structs.replace(
            request,
            text=replace_surrogates(request.text),
            instruct=replace_surrogates(request.instruct),
            sampling=msgspec.structs.replace(request.sampling, seed=seed),
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
                self.release(epoch)
            else:
                stream.enqueue(event)

    def release(self, epoch: int) -> None:
        """No engine holds anything of this request."""
        if stream := self._streams.pop(epoch, None):
            stream.mark_released()

    def interrupt(self, message: str) -> None:
        """The engine is gone: keep the requests that another may go on with, end the others."""
        for epoch, stream in list(self._streams.items()):
            if not stream.interrupt():
                stream.fail(message)
                self.release(epoch)

    def resume(self, sample_rate: int) -> None:
        """Another engine goes on with all requests."""
        for stream in self._streams.values():
            stream.resume(sample_rate)

    def pop(self) -> EngineStream | None:
        """Give up the oldest request that has not ended. Its engine, if it still runs, drops it; what it has sent until
        then has no stream any more."""
        for epoch, stream in self._streams.items():
            if not stream.has_ended:
                del self._streams[epoch]
                self._send(CancelRequest(epoch))
                return stream
        return None

    def adopt(self, stream: EngineStream, sample_rate: int) -> None:
        epoch = next(self._epochs)
        stream.rebind(epoch, self._send)
        self._streams[epoch] = stream
        stream.resume(sample_rate)

    def cancel_all(self) -> list[EngineStream]:
        """The engine is being closed; returns the streams to release once it is."""
        streams = self._clear()
        for stream in streams:
            stream.cancel()
        return streams

    def fail_all(self, message: str) -> None:
        """The engine is gone: each request ends with ``engine_dead``, and holds nothing any more."""
        for stream in self._clear():
            stream.fail(message)
            stream.mark_released()

    def _clear(self) -> list[EngineStream]:
        streams, self._streams = list(self._streams.values()), {}
        return streams
