"""The native wire, ``voicewire.v1``: JSON events and binary audio messages over one session.

Which event is legal when is in ``realtime.protocol.transitions``; how one message looks is in
``realtime.protocol.native``.
"""

from __future__ import annotations

import itertools
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec

from engine.api import ErrorInfo
from realtime.errors import CloseCode, RemoteProtocolError, RequestRefused, openai_error
from realtime.protocol import events as ev
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect, DialectRoute
from realtime.protocol.native import (
    MAX_PACKET_BYTES,
    PATH,
    SUBPROTOCOL,
    parse_client,
    parse_flag,
    serialize,
    serialize_audio,
)
from realtime.protocol.transitions import MAX_REMEMBERED_RESPONSES, ResponseState, SessionStateMachine

KINDS = {
    "opus": ev.AudioKind.OPUS,
    "pcm_s16le": ev.AudioKind.PCM_S16LE,
    "mulaw": ev.AudioKind.MULAW,
    "alaw": ev.AudioKind.ALAW,
}
# Long runs of PCM are cut so; a whole number of samples of any encoding.
RUN_BYTES = MAX_PACKET_BYTES // 2 // 2 * 2
WORD_FIELDS = ev.WordTiming.__struct_fields__


class OpenResponse(NamedTuple):
    """Number and audio kind of an open response."""

    number: int
    kind: ev.AudioKind


class NativeDialect(Dialect):
    """The native wire. A context is a response, its id the response id."""

    reports_heard_text = True
    reports_session = True
    refuses_when_full = False
    sends_error_last = True
    close_codes: ClassVar[Mapping[CloseCode, CloseCode]] = {}

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        if handshake.subprotocols and SUBPROTOCOL not in handshake.subprotocols:
            raise RequestRefused("unsupported_subprotocol", f"this address speaks {SUBPROTOCOL}")
        self.can_resume = parse_flag(handshake.query, "resume")
        self._states = SessionStateMachine()
        self._numbers = itertools.count(1)
        self._responses: dict[str, OpenResponse] = {}
        # Of the last ended responses, which a resume may open again.
        self._ended: OrderedDict[str, OpenResponse] = OrderedDict()

    @property
    def subprotocol(self) -> str | None:
        return SUBPROTOCOL if self.handshake.subprotocols else None

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return {"error": openai_error(error)}, {}

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        if isinstance(message, bytes):
            raise RemoteProtocolError("binary_not_accepted", "clients send text messages only")
        event = parse_client(message)
        given_id = getattr(event, "response_id", None)
        if isinstance(event, ev.ResponseCreate) and given_id is None:
            event = msgspec.structs.replace(event, response_id=f"resp_{secrets.token_hex(8)}")
        try:
            is_applied = self._states.apply_client_event(event)
        except RemoteProtocolError as error:
            yield model.SendMessage(_error(error.info, given_id), refused_code=error.code)
        else:
            if is_applied:
                yield from self._commands(event)

    def _commands(self, event: ev.ClientEvent) -> Iterator[model.DialectCommand]:
        match event:
            case ev.ResponseCreate(response_id=str() as response_id):
                yield model.CreateResponse(response_id, event.settings, event.text, event.end, event.resync)
            case ev.TextAppend(at=int() as at):
                yield model.AppendTextAt(event.response_id, event.text, at=at)
            case ev.TextAppend():
                yield model.AppendText(event.response_id, event.text)
            case ev.TextFlush():
                yield model.FlushContext(event.response_id)
            case ev.TextEnd():
                yield model.EndContext(event.response_id)
            case ev.PlaybackReport():
                yield model.ReportPlayback(event.response_id, event.played_ms)
            case ev.ResponseCancel():
                is_live = self._states.response_state(event.response_id) is ResponseState.CANCELLING
                command = model.CancelContext if is_live else model.QueryHeard
                yield command(event.response_id, event.played_ms)
            case ev.SessionResume():
                yield model.ResumeSession(event.session_id, event.token, event.responses)
            case ev.SessionUpdate():
                yield model.UpdateSettings(event.settings)
            case ev.SessionClose():
                yield from map(model.EndContext, self._states.live)
                yield model.FinishContexts()

    def send_session(self, event: model.SessionEvent) -> Iterator[model.DialectCommand]:
        yield _send(self._resumed(event) if isinstance(event, model.ResumedSession) else event)

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                yield model.SendMessage(serialize_audio(self._audio_message(event)))
            case model.ContextEnded(context=context) if context in self._responses:
                self._states.on_response_done(context)
                self._ended[context] = self._responses.pop(context)
                if len(self._ended) > MAX_REMEMBERED_RESPONSES:
                    self._ended.popitem(last=False)
                yield _send(_done(event, self._ended[context].number))
            case model.ContextEnded(context=context, error=ErrorInfo() as error):
                self._states.on_refused(context)
                yield model.SendMessage(_error(error, context))
            case model.HeardUnknown(context=context):
                error = ErrorInfo("unknown_response", f"response {context!r} is unknown", "response_id")
                yield model.SendMessage(_error(error, context), refused_code=error.code)
            case model.AllContextsEnded():
                yield model.CloseConnection()
            case _:
                yield from map(_send, self._events(event))

    def _events(self, event: model.DialectEvent) -> Iterator[ev.ServerEvent]:
        match event:
            case model.ResponseOpened(context=context, format=audio):
                number = next(self._numbers)
                self._responses[context] = OpenResponse(number, KINDS[audio.encoding])
                yield ev.ResponseCreated(
                    response_id=context,
                    response=number,
                    format=audio,
                    settings=event.settings,
                    next_sample=event.next_sample,
                    discard_samples=event.discard_samples,
                )
            case model.ContextCheckpoint():
                yield ev.ResponseCheckpoint(response_id=event.context, index=event.index, data=event.data)
            case model.ContextWords():
                yield ev.ResponseWords(response_id=event.context, words=tuple(map(_word, event.words)))
            case model.ContextFlushed():
                yield ev.TextFlushed(response_id=event.context, flush=event.flush, end_sample=event.end_sample)
            case model.ContextMark():
                yield ev.ResponseMark(
                    response_id=event.context, name=event.name, sample=event.sample, time_ms=event.time_ms
                )
            case model.ContextWarning():
                yield ev.ResponseWarning(
                    response_id=event.context, code=event.code, element=event.element, raw_start=event.raw_start
                )
            case model.HeardReported():
                heard = ev.HeardBody(text=event.heard, remaining=event.remaining, played_ms=event.played_ms)
                yield ev.ResponseHeard(response_id=event.context, heard=heard)

    def _resumed(self, event: model.ResumedSession) -> ev.SessionResumed:
        return ev.SessionResumed(
            session_id=event.session_id,
            token=event.token,
            grace_s=event.grace_s,
            settings=event.settings,
            responses=tuple(map(self._resumed_response, event.contexts)),
        )

    def _resumed_response(self, resumed: model.ResumedContext) -> ev.ResumedResponse:
        if resumed.had_ended:
            self._states.reopen(resumed.context)
            self._responses[resumed.context] = self._ended.pop(resumed.context)
        if resumed.format is None:  # also one whose refusal the client may lack
            return ev.ResumedResponse(response_id=resumed.context, state=ResponseState.UNKNOWN)
        return ev.ResumedResponse(
            response_id=resumed.context,
            state=self._states.response_state(resumed.context),
            response=self._responses[resumed.context].number,
            format=resumed.format,
            settings=resumed.settings,
            received_chars=resumed.received_chars,
            received_flushes=resumed.received_flushes,
            next_sample=resumed.next_sample,
            discard_samples=resumed.discard_samples,
        )

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield model.SendMessage(_error(error))

    def _audio_message(self, audio: model.ContextAudio) -> ev.AudioMessage:
        number, kind = self._responses[audio.context]
        packets = audio.packets
        if kind is not ev.AudioKind.OPUS:
            packets = tuple(run[at : at + RUN_BYTES] for run in packets for at in range(0, len(run), RUN_BYTES))
        return ev.AudioMessage(kind, number, audio.sequence, audio.start_sample, packets)


def _send(event: ev.ServerEvent) -> model.SendMessage:
    return model.SendMessage(serialize(event))


def _error(error: ErrorInfo, response_id: str | None = None) -> str:
    return serialize(ev.ErrorEvent.from_info(error, response_id))


def _word(word: model.TimedWord) -> ev.WordTiming:
    fields = {name: getattr(word, name) for name in WORD_FIELDS}
    return ev.WordTiming(**fields | {"speaker": word.speaker or msgspec.UNSET})


def _done(ended: model.ContextEnded, number: int) -> ev.ResponseDone:
    heard = ev.HeardBody(text=ended.heard, remaining=ended.remaining, played_ms=ended.played_ms)
    return ev.ResponseDone(
        response_id=ended.context,
        response=number,
        status=ended.status,
        audio_samples=ended.audio_samples,
        audio_ms=ended.audio_ms,
        nothing_spoken=ended.nothing_spoken,
        first_audio_ms=ended.first_audio_ms,
        heard=None if ended.status == "completed" else heard,
        error=ended.error,
    )


NATIVE_ROUTE = DialectRoute(PATH, NativeDialect)
