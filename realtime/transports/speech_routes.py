"""``POST /v1/audio/speech``: a text in, its audio out while it is being spoken."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, suppress
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from engine.api import ErrorInfo, SpeechError
from realtime.auth import Principal
from realtime.errors import RequestRefused, http_status, openai_error
from realtime.server import SpeechServer
from realtime.speech_api.request import Delivery, SpeechRequestBody, parse_body
from realtime.speech_api.speech_job import SpeechJob, prepare_job, start_response, usage, usage_headers
from realtime.transports.http_routes import WARNING_HEADER, server_of
from realtime.transports.transport import ClientLeft, ResponseAborted, cancel_on_disconnect, client_disconnected
from sessions.audio.formats.registry import stream_encoder
from sessions.audio.wav import finalize_file
from sessions.errors import LimitExceeded
from sessions.events import ResponseAudio, ResponseFinished, ResponseStatus
from sessions.metrics import Metrics
from sessions.response import Response as SpokenResponse
from sessions.session import Session

log = logging.getLogger("voicewire.speech")

Parsed = TypeVar("Parsed")
# Maximum size of a body that is parsed on the event loop.
MAX_INLINE_BYTES = 65_536
# No JSON has more values than these and one; a recording in base64 has one of them.
VALUE_MARKS = (b",", b"[", b"{")
# At least, so that a body of ``max_message_bytes`` is never refused for its values.
BYTES_PER_VALUE = 2
EVENT_STREAM = "text/event-stream"
UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class SpeechFileResponse(StreamingResponse):
    """A body that is spoken as it is sent; whatever ends it ends its session."""

    def __init__(self, session: Session, content: AsyncIterator[bytes], **kwargs: object) -> None:
        super().__init__(content, **kwargs)  # type: ignore[arg-type]
        self._session = session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientLeft):
                await cancel_on_disconnect(Request(scope, receive), self.stream_response(send))
        finally:
            self._session.detach()


async def speech(request: Request) -> Response:
    """Serve ``POST /v1/audio/speech``; raises ``SpeechError`` before the first audio."""
    server = server_of(request)
    caller = server.gatekeeper.authenticate(request)
    body = await decode(parse_body, await read_body(request, server, caller))
    check_limits(server, caller)
    return await cancel_on_disconnect(request, _answered(body, server, caller))


def check_limits(server: SpeechServer, caller: Principal) -> None:
    """Check the limits before any work; raises ``RequestRefused`` or ``LimitExceeded``."""
    server.check_not_draining()
    server.check_response_limits(caller)


async def _answered(body: SpeechRequestBody, server: SpeechServer, caller: Principal) -> Response:
    """Answer from the first sound on; any failure before it ends the session."""
    order = await prepare_job(body, server, caller)
    session = server.open_session(caller)
    try:
        room = ByteBudget(server.config.limits.max_http_response_bytes)
        return await _answer(order, session, room, server.metrics)
    except BaseException:
        session.detach()
        raise


async def _answer(order: SpeechJob, session: Session, room: ByteBudget, metrics: Metrics) -> Response:
    headers = {WARNING_HEADER: order.warning} if order.warning else {}
    if order.delivery is Delivery.COMPLETE:
        data, done = await speak_whole(order, session, room, metrics)
        session.detach()
        all_headers = headers | usage_headers(done, order.num_reference_frames)
        return Response(data, media_type=order.media_type, headers=all_headers)
    response = start_response(order, session)
    is_events = order.delivery is Delivery.EVENTS
    content = _events(response, order) if is_events else _stream(response)
    first = await anext(content)
    if is_events:
        return SpeechFileResponse(
            session, _joined(first, content), media_type=EVENT_STREAM, headers=headers | UNBUFFERED
        )
    return SpeechFileResponse(session, _joined(first, content), media_type=order.media_type, headers=headers)


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
    order: SpeechJob, session: Session, room: ByteBudget, metrics: Metrics
) -> tuple[bytes, ResponseFinished]:
    """The file, and how it ended. Speech that ran away is made once more with another seed, unless the request has one.

    What was made first is the answer if the second attempt fails. Raises what ``whole`` does.
    """
    data, done = await collect_file(start_response(order, session), room)
    if not done.has_runaway or order.settings.sampling.seed is not None:
        return data, done
    metrics.inc("runaways_retried_total")
    try:
        second = await collect_file(start_response(order, session), room)
    except SpeechError as error:
        log.info("a second attempt failed", extra={"code": error.code})
        return data, done
    room.release(len(data))
    return second


async def collect_file(response: SpokenResponse, room: ByteBudget) -> tuple[bytes, ResponseFinished]:
    """The file, and how it ended. Raises ``RequestRefused`` or ``LimitExceeded``; then nothing more is spoken."""
    pieces: list[bytes] = []
    try:
        async for event in response:
            match event:
                case ResponseAudio():
                    room.reserve(sum(map(len, event.packets)))
                    pieces += event.packets
                case ResponseFinished():
                    _require_success(event)
                    data = b"".join(pieces) or stream_encoder(response.format).finish()
                    return finalize_file(data, response.format, event.audio_samples), event
    except BaseException:
        response.cancel()
        room.release(sum(map(len, pieces)))
        raise
    raise AssertionError("a response without an end")


async def read_body(request: Request, server: SpeechServer, caller: Principal) -> bytes:
    """Beyond ``max_message_bytes`` only bodies that can hold a recording, a limited number at once. Raises
    ``RequestRefused``.

    A token brings no recording.
    """
    limits, voices, loop = server.config.limits, server.config.voices, asyncio.get_running_loop()
    can_upload = server.engine.info.can_encode and not caller.by_token
    room = voices.max_upload_bytes * 4 // 3 + 4 if can_upload else 0
    body, num_values, max_values = bytearray(), 0, limits.max_message_bytes // BYTES_PER_VALUE
    with ExitStack() as upload:
        try:
            async with asyncio.timeout(server.config.listen.handshake_timeout_s) as deadline:
                async for piece in request.stream():
                    was_small = len(body) <= limits.max_message_bytes
                    body += piece
                    num_values += sum(map(piece.count, VALUE_MARKS))
                    if was_small and room and len(body) > limits.max_message_bytes:
                        upload.enter_context(server.cloning.uploads.acquire())
                        deadline.reschedule(loop.time() + voices.upload_timeout_s)
                    if len(body) > limits.max_message_bytes + room:
                        raise _too_big(limits.max_message_bytes, room, caller)
                    if len(body) > limits.max_message_bytes and num_values > max_values:
                        message = f"a body longer than max_message_bytes has at most {max_values} values"
                        raise RequestRefused("message_too_big", message)
        except ClientDisconnect:
            raise client_disconnected() from None
        except TimeoutError:
            raise RequestRefused("body_timeout", "the body did not arrive in time") from None
    return bytes(body)


async def decode(parse: Callable[[bytes], Parsed], body: bytes) -> Parsed:
    """Parse a body, a large one in a thread. Raises ``RequestRefused``."""
    return parse(body) if len(body) <= MAX_INLINE_BYTES else await asyncio.to_thread(parse, body)


def _too_big(max_message_bytes: int, room: int, caller: Principal) -> RequestRefused:
    message = f"the body is longer than max_message_bytes, {max_message_bytes}"
    if room:
        message += " beside a recording"
    elif caller.by_token:
        message += "; ref_audio needs an API key"
    return RequestRefused("message_too_big", message)


async def _stream(response: SpokenResponse) -> AsyncIterator[bytes]:
    """The first piece comes with the first audio. Raises ``RequestRefused`` before it and
    ``ResponseAborted`` after it.
    """
    begun = False
    async for event in response:
        match event:
            case ResponseAudio():
                yield b"".join(event.packets)
                begun = True
            case ResponseFinished():
                if begun and event.status is not ResponseStatus.COMPLETED:
                    raise ResponseAborted(_error_of(event).code)
                _require_success(event)
                yield b"" if begun else stream_encoder(response.format).finish()


async def _events(response: SpokenResponse, order: SpeechJob) -> AsyncIterator[bytes]:
    """Yield server-sent events; raises ``RequestRefused`` before the first audio, later an error is an event."""
    begun = False
    async for event in response:
        match event:
            case ResponseAudio():
                yield _audio_event(b"".join(event.packets))
                begun = True
            case ResponseFinished():
                if begun and event.status is not ResponseStatus.COMPLETED:
                    info = _error_of(event)
                    yield _event("speech.audio.error", error=openai_error(info) | {"status": http_status(info)})
                    return
                _require_success(event)
                head = b"" if begun else _audio_event(stream_encoder(response.format).finish())
                yield head + _event("speech.audio.done", usage=usage(event, order.num_reference_frames))


def _audio_event(data: bytes) -> bytes:
    return _event("speech.audio.delta", audio=base64.b64encode(data).decode())


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode({"type": kind} | fields))


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _error_of(done: ResponseFinished) -> ErrorInfo:
    return done.error or ErrorInfo("session_closed", "the speech was cancelled")


def _require_success(done: ResponseFinished) -> None:
    if done.status is not ResponseStatus.COMPLETED:
        error = _error_of(done)
        raise RequestRefused(error.code, error.message, error.param, error.retry_after_ms)
