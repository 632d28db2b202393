"""``POST /v1/audio/speech`` in OpenAI's shape: a text in, its audio out while it is being spoken."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import NamedTuple, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from realtime.errors import Refused
from realtime.protocol.native import field_at_fault
from realtime.server import SpeechServer
from realtime.transports.http import server_of
from sessions.audio.ogg import OggOpusMuxer
from sessions.audio.opus import OpusPacket, OpusSettings
from sessions.audio.wav import wav_header
from sessions.config import AudioFormat, Encoding, SpeechSettings
from sessions.errors import ErrorInfo
from sessions.events import ResponseAudio, ResponseDone, ResponseStatus
from sessions.response import Response as SpokenResponse
from sessions.session import Session

FILE_RATE = 24_000
VOICE_WARNING = "X-Voicewire-Warning"


class NamedVoice(msgspec.Struct):
    id: str


class SpeechBody(msgspec.Struct, kw_only=True):
    """What OpenAI's clients send; fields that are not listed are ignored."""

    input: str
    voice: str | NamedVoice | None = None
    instructions: str = ""
    response_format: str = "wav"
    speed: float = 1.0
    stream_format: str = "audio"
    seed: int | None = None


class Container(Protocol):
    """Turns packets into a file that can be played while it grows."""

    def __init__(self) -> None: ...

    def begin(self, response: SpokenResponse) -> bytes: ...

    def push(self, audio: ResponseAudio) -> bytes: ...

    def end(self, done: ResponseDone) -> bytes: ...


class Pcm:
    def begin(self, response: SpokenResponse) -> bytes:
        return b""

    def push(self, audio: ResponseAudio) -> bytes:
        return b"".join(audio.packets)

    def end(self, done: ResponseDone) -> bytes:
        return b""


class Wav(Pcm):
    def begin(self, response: SpokenResponse) -> bytes:
        return wav_header(response.format.sample_rate)


class Ogg:
    """Holds the last packet back, because its page must tell where the sound ends."""

    def begin(self, response: SpokenResponse) -> bytes:
        settings = OpusSettings(sample_rate=response.format.sample_rate)
        self._muxer = OggOpusMuxer(settings, secrets.randbits(32))
        self._end_sample = -response.pre_skip_samples
        self._held: list[OpusPacket] = []
        return self._muxer.headers()

    def push(self, audio: ResponseAudio) -> bytes:
        num_samples = audio.num_samples // len(audio.packets)
        self._end_sample += audio.num_samples
        packets = [*self._held, *(OpusPacket(0, num_samples, data) for data in audio.packets)]
        self._held = [packets.pop()]
        return self._muxer.push(packets)

    def end(self, done: ResponseDone) -> bytes:
        padding_samples = self._end_sample - done.audio_samples
        return self._muxer.finish([replace(packet, padding_samples=padding_samples) for packet in self._held])


class FileFormat(NamedTuple):
    container: type[Container]
    encoding: Encoding
    media_type: str


FILE_FORMATS = {
    "wav": FileFormat(Wav, Encoding.PCM_S16LE, "audio/wav"),
    "pcm": FileFormat(Pcm, Encoding.PCM_S16LE, "audio/pcm"),
    "opus": FileFormat(Ogg, Encoding.OPUS, "audio/ogg"),
}


class SpokenFile(StreamingResponse):
    """A body that is spoken as it is sent; whatever ends it ends its session."""

    def __init__(self, session: Session, content: AsyncIterator[bytes], **kwargs: object) -> None:
        super().__init__(content, **kwargs)  # type: ignore[arg-type]
        self._session = session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._session.detach()


class SpeechFailed(Exception):
    """Speech broke off after the answer had begun; the connection is cut, so that the client can tell."""


async def speech(request: Request) -> Response:
    """Raises ``Refused``, ``SessionError`` or ``EngineError`` as long as no audio was sent."""
    server = server_of(request)
    caller = server.gatekeeper.admit(request)
    body = await _read_body(request, server)
    file_format = _check(body, server)
    settings, headers = _settings(body, file_format, server)
    server.may_speak()
    session = server.open_session(caller)
    leaving = asyncio.create_task(_detach_when_it_leaves(request, session), name="voicewire http client")
    try:
        response = session.create_response(settings=settings, text=body.input, text_closed=True)
        content = _content(response, file_format.container())
        first = await anext(content)
    except BaseException:
        session.detach()
        raise
    finally:
        leaving.cancel()
        await asyncio.wait([leaving])
    return SpokenFile(session, _joined(first, content), media_type=file_format.media_type, headers=headers)


async def _detach_when_it_leaves(request: Request, session: Session) -> None:
    """For the time before the first audio; later the streaming of the answer notices."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    session.detach()


async def _content(response: SpokenResponse, container: Container) -> AsyncIterator[bytes]:
    """The first piece comes with the first audio. Raises ``Refused`` before it and ``SpeechFailed`` after it."""
    head = container.begin(response)
    begun = False
    async for event in response:
        match event:
            case ResponseAudio():
                yield head + container.push(event)
                head, begun = b"", True
            case ResponseDone():
                _require_success(event, begun)
                yield head + container.end(event)


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _require_success(done: ResponseDone, begun: bool) -> None:
    if done.status is ResponseStatus.COMPLETED:
        return
    error = done.error or ErrorInfo("session_closed", "the speech was cancelled")
    if begun:
        raise SpeechFailed(error.code)
    raise Refused(error.code, error.message, error.param, error.retry_after_ms)


async def _read_body(request: Request, server: SpeechServer) -> SpeechBody:
    limit = server.config.limits.max_message_bytes
    body = b""
    try:
        async with asyncio.timeout(server.config.listen.handshake_timeout_s):
            async for piece in request.stream():
                body += piece
                if len(body) > limit:
                    raise Refused("message_too_big", f"the body is longer than max_message_bytes, {limit}")
    except TimeoutError:
        raise Refused("body_timeout", "the body did not arrive in time") from None
    try:
        return msgspec.json.decode(body, type=SpeechBody)
    except msgspec.ValidationError as error:
        raise Refused("invalid_event", str(error), field_at_fault(str(error))) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Refused("malformed_json", f"the body is not JSON: {error}") from None


def _check(body: SpeechBody, server: SpeechServer) -> FileFormat:
    limit = server.config.limits.max_speech_chars
    if not body.input.strip():
        raise Refused("invalid_request", "input is empty", "input")
    if len(body.input) > limit:
        found = f"input has {len(body.input)} characters"
        raise Refused("request_too_long", f"{found}, max_speech_chars is {limit}", "input")
    if body.speed != 1.0:
        raise Refused("invalid_request", f"speed must be 1, is {body.speed:g}", "speed")
    if body.stream_format != "audio":
        raise Refused("unsupported_format", f"stream_format must be audio, is {body.stream_format!r}", "stream_format")
    if body.response_format not in FILE_FORMATS:
        known = ", ".join(FILE_FORMATS)
        message = f"response_format must be one of {known}, is {body.response_format!r}"
        raise Refused("unsupported_format", message, "response_format")
    return FILE_FORMATS[body.response_format]


def _settings(body: SpeechBody, file_format: FileFormat, server: SpeechServer) -> tuple[SpeechSettings, dict[str, str]]:
    """How to speak, and headers to tell of it. Clients insist on OpenAI's voices: an unknown one becomes ours."""
    named = body.voice.id if isinstance(body.voice, NamedVoice) else body.voice
    known = named is None or named in {voice.name for voice in server.engine.info.voices}
    base = server.settings
    settings = replace(
        base,
        voice=named if named is not None and known else base.voice,
        instruct=body.instructions or base.instruct,
        format=AudioFormat(encoding=file_format.encoding, sample_rate=FILE_RATE),
        lead_ms=None,
        sampling=msgspec.structs.replace(base.sampling, seed=body.seed),
    )
    return settings, {} if known else {VOICE_WARNING: "the voice asked for is unknown, the default one spoke"}
