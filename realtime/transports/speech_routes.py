"""``POST /v1/audio/speech``: a text in, its audio out while it is being spoken."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from engine.api import ErrorInfo, SpeechError
from realtime.auth import Principal
from realtime.errors import RequestRefused, http_status, openai_error
from realtime.option_resolver import WARNING_HEADER
from realtime.speech_api.request import Delivery, SpeechRequestBody, parse_body
from realtime.speech_api.speech_job import SpeechJob, prepare_job, start_response, usage, usage_headers
from realtime.transports.http_routes import read_body
from realtime.transports.transport import ClientLeft, HttpTransport, ResponseAborted, cancel_on_disconnect
from sessions.audio.formats.registry import finalize_file, stream_encoder
from sessions.errors import LimitExceeded
from sessions.events import ResponseAudio, ResponseFinished, ResponseStatus
from sessions.metrics import Metrics

if TYPE_CHECKING:
    from realtime.server import SpeechServer
    from sessions.response import Response
    from sessions.session import Session

log = logging.getLogger("voicewire.speech")

Parsed = TypeVar("Parsed")
# Maximum size of a body that is parsed on the event loop.
MAX_INLINE_BYTES = 65_536
EVENT_STREAM = "text/event-stream; charset=utf-8"
UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class SpeechEndpoint:
    """The ASGI application of ``POST /v1/audio/speech``."""

    def __init__(self, server: SpeechServer) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ``SpeechError`` before the first audio, and ``ResponseAborted`` after it."""
        request, link = Request(scope, receive), HttpTransport(scope, receive, send)
        caller = self._server.gatekeeper.authenticate(request)
        body = await decode(parse_body, await read_body(request, self._server, caller))
        check_limits(self._server, caller)
        try:
            await cancel_on_disconnect(request, self._answer(body, caller, link))
        except SpeechError as error:
            if not link.has_begun:
                raise
            if not isinstance(error, ClientLeft):
                raise ResponseAborted(error.code) from None

    async def _answer(self, body: SpeechRequestBody, caller: Principal, link: HttpTransport) -> None:
        job = await prepare_job(body, self._server, caller)
        session = self._server.open_session(caller)
        try:
            if job.delivery is Delivery.COMPLETE:
                await self._send_file(job, session, link)
            else:
                await stream_speech(job, start_response(job, session), link)
        finally:
            session.detach()
        await link.close()

    async def _send_file(self, job: SpeechJob, session: Session, link: HttpTransport) -> None:
        byte_budget = ByteBudget(self._server.config.limits.max_http_response_bytes)
        data, done = await speak_whole(job, session, byte_budget, self._server.metrics)
        session.detach()  # a slow client holds no session
        headers = usage_headers(done, job.num_reference_frames) | {"Content-Length": str(len(data))}
        link.head = lambda: (job.media_type, _warning_headers(job) | headers)
        await link.write(data)


async def stream_speech(job: SpeechJob, response: Response, link: HttpTransport) -> None:
    """Write audio as it is generated, plain or as server-sent events. Raises ``RequestRefused``."""
    is_events = job.delivery is Delivery.EVENTS
    media_type, headers = (EVENT_STREAM, UNBUFFERED) if is_events else (job.media_type, {})
    encode = _audio_event if is_events else bytes
    link.head = lambda: (media_type, _warning_headers(job) | headers)
    async for event in response:
        match event:
            case ResponseAudio():
                await link.write(encode(b"".join(event.packets)))
            case ResponseFinished(status=ResponseStatus.COMPLETED):
                if not link.has_begun:
                    await link.write(encode(stream_encoder(response.format).finish()))
                if is_events:
                    await link.write(_event("speech.audio.done", usage=usage(event, job.num_reference_frames)))
            case ResponseFinished():
                if not (is_events and link.has_begun):
                    raise _failure(event)
                info = _failure(event).info
                await link.write(_event("speech.audio.error", error=openai_error(info) | {"status": http_status(info)}))


def check_limits(server: SpeechServer, caller: Principal) -> None:
    """Check the limits before any work; raises ``RequestRefused`` or ``LimitExceeded``."""
    server.check_not_draining()
    server.check_response_limits(caller)


class ByteBudget:
    """Bytes of audio that an answer may hold before it is sent; all files of one answer share it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    def reserve(self, num_bytes: int) -> None:
        """Reserve memory; raises ``LimitExceeded`` and reserves nothing if too little is left."""
        if self._num_bytes + num_bytes > self._max_bytes:
            raise LimitExceeded(
                f"an answer that is not streamed has at most max_http_response_bytes, {self._max_bytes}"
            )
        self._num_bytes += num_bytes

    def release(self, num_bytes: int) -> None:
        self._num_bytes -= num_bytes


async def speak_whole(
    job: SpeechJob, session: Session, byte_budget: ByteBudget, metrics: Metrics
) -> tuple[bytes, ResponseFinished]:
    """The file, and how it ended. Speech that ran away is made once more with another seed, unless the request has one.

    What was made first is the answer if the second attempt fails. Raises what ``whole`` does.
    """
    data, done = await collect_file(start_response(job, session), byte_budget)
    if not done.has_runaway or job.settings.sampling.seed is not None:
        return data, done
    metrics.inc("runaways_retried_total")
    try:
        second = await collect_file(start_response(job, session), byte_budget)
    except SpeechError as error:
        log.info("a second attempt failed", extra={"code": error.code})
        return data, done
    byte_budget.release(len(data))
    return second


async def collect_file(response: Response, byte_budget: ByteBudget) -> tuple[bytes, ResponseFinished]:
    """The file, and how it ended. Raises ``RequestRefused`` or ``LimitExceeded``; then nothing more is spoken."""
    pieces: list[bytes] = []
    try:
        async for event in response:
            match event:
                case ResponseAudio():
                    byte_budget.reserve(sum(map(len, event.packets)))
                    pieces += event.packets
                case ResponseFinished(status=ResponseStatus.COMPLETED):
                    data = b"".join(pieces) or stream_encoder(response.format).finish()
                    return finalize_file(data, response.format, event.audio_samples), event
                case ResponseFinished():
                    raise _failure(event)
    except BaseException:
        response.cancel()
        byte_budget.release(sum(map(len, pieces)))
        raise
    raise AssertionError("a response without an end")


async def decode(parse: Callable[[bytes], Parsed], body: bytes) -> Parsed:
    """Parse a body, a large one in a thread. Raises ``RequestRefused``."""
    return parse(body) if len(body) <= MAX_INLINE_BYTES else await asyncio.to_thread(parse, body)


def _warning_headers(job: SpeechJob) -> dict[str, str]:
    return {WARNING_HEADER: job.warning} if job.warning else {}


def _audio_event(data: bytes) -> bytes:
    return _event("speech.audio.delta", audio=base64.b64encode(data).decode())


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode({"type": kind} | fields))


def _failure(done: ResponseFinished) -> RequestRefused:
    error = done.error or ErrorInfo("session_closed", "the speech was cancelled")
    return RequestRefused(error.code, error.message, error.param, error.retry_after_ms)
