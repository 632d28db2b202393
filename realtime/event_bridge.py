"""Wire event to session call, session event to wire event; nothing else."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable

import msgspec

from engine.api import SpeechError
from realtime.protocol import events as ev
from realtime.protocol.native import MAX_PACKET_BYTES, serialize, serialize_audio
from realtime.protocol.transitions import ResponseState, SessionState, SessionStateMachine
from realtime.setting_mapping import speech_settings, wire_settings
from realtime.transports.transport import MessageTransport
from sessions.config import Encoding
from sessions.events import (
    FlushCompleted,
    HeardText,
    ResponseAudio,
    ResponseFinished,
    ResponseStatus,
    ResponseWordTimes,
)
from sessions.response import Response
from sessions.session import Session

log = logging.getLogger("voicewire.responses")

KINDS = {
    Encoding.OPUS: ev.AudioKind.OPUS,
    Encoding.PCM_S16LE: ev.AudioKind.PCM_S16LE,
    Encoding.MULAW: ev.AudioKind.MULAW,
    Encoding.ALAW: ev.AudioKind.ALAW,
}
# Long runs of PCM are cut so; a whole number of samples of any encoding.
RUN_BYTES = MAX_PACKET_BYTES // 2 // 2 * 2


class EventBridge:
    """One session on one line. ``receive`` never waits for speech: each response is spoken by a task of ``tasks``."""

    def __init__(
        self,
        session: Session,
        link: MessageTransport,
        tasks: asyncio.TaskGroup,
        *,
        check_can_start: Callable[[], None],
        on_silent: Callable[[], None],
        default_lead_ms: int,
        max_retained_responses: int,
    ) -> None:
        self._session = session
        self._link = link
        self._tasks = tasks
        # Raises ``RequestRefused`` when no response may begin now.
        self._may_speak = check_can_start
        # Called when the last response has ended.
        self._on_silent = on_silent
        self._default_lead_ms = default_lead_ms
        self._conversation = SessionStateMachine(max_retained_responses)
        self._numbers = itertools.count(1)
        self._speaking: set[asyncio.Task[None]] = set()

    @property
    def closing(self) -> bool:
        """Whether the client has said goodbye."""
        return self._conversation.state is SessionState.CLOSING

    @property
    def num_live(self) -> int:
        return self._conversation.num_live

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until every response has been told its end, or so long. Not for a task that speaks one."""
        if self._speaking:
            await asyncio.wait(self._speaking, timeout=timeout_s)

    async def handle_event(self, event: ev.ClientEvent) -> None:
        """Act on one event. Raises ``SpeechError``."""
        self._session.touch()
        if isinstance(event, ev.ResponseCreate) and event.response_id is None:
            event = msgspec.structs.replace(event, response_id=f"resp_{secrets.token_hex(8)}")
        if self._conversation.apply_client_event(event):
            await self._dispatch(event)

    async def _dispatch(self, event: ev.ClientEvent) -> None:
        match event:
            case ev.TextAppend() | ev.TextFlush() | ev.TextEnd():
                self._write(event)
            case ev.PlaybackReport():
                self._session.response(event.response_id).report_playback(event.played_ms)
            case ev.ResponseCancel():
                await self._cancel(event)
            case ev.ResponseCreate():
                await self._create(event)
            case ev.SessionUpdate():
                self._session.update(speech_settings(event.settings, self._session.settings, self._default_lead_ms))
                await self._send(ev.SessionUpdated(settings=wire_settings(self._session.settings)))
            case ev.SessionClose():
                self._finish()

    def _write(self, event: ev.TextAppend | ev.TextFlush | ev.TextEnd) -> None:
        response = self._session.response(event.response_id)
        if response.is_done:  # it has failed, and who writes has not heard of it yet
            return
        match event:
            case ev.TextAppend():
                response.push_text(event.text)
            case ev.TextFlush():
                response.flush()
            case ev.TextEnd():
                response.end_input()

    async def _create(self, event: ev.ResponseCreate) -> None:
        assert event.response_id is not None
        try:
            self._may_speak()
            settings = speech_settings(event.settings, self._session.settings, self._default_lead_ms)
            response = self._session.create_response(
                event.response_id, settings=settings, text=event.text, text_closed=event.end
            )
        except SpeechError:
            self._conversation.on_refused(event.response_id)
            raise
        number = next(self._numbers)
        audio = ev.ResponseAudioFormat(
            encoding=response.format.encoding,
            sample_rate=response.format.sample_rate,
            pre_skip_samples=response.pre_skip_samples,
        )
        await self._send(
            ev.ResponseCreated(
                response_id=event.response_id, response=number, format=audio, settings=wire_settings(settings)
            )
        )
        task = self._tasks.create_task(
            self._stream_response(response, number), name=f"voicewire response {event.response_id}"
        )
        self._speaking.add(task)
        task.add_done_callback(self._speaking.discard)

    async def _cancel(self, event: ev.ResponseCancel) -> None:
        response = self._session.response(event.response_id)
        if self._conversation.response_state(event.response_id) in (ResponseState.DONE, ResponseState.FAILED):
            heard = await response.query_heard(event.played_ms)
            self._session.response(event.response_id)  # unknown, if others that ended since took its place
            await self._send(ev.ResponseHeard(response_id=event.response_id, heard=_to_heard_body(heard)))
        else:
            response.cancel(event.played_ms)

    def _finish(self) -> None:
        """Speak what is there: no more text will come."""
        for response_id in self._conversation.live:
            self._session.response(response_id).end_input()
        if not self._conversation.num_live:
            self._on_silent()

    async def _stream_response(self, response: Response, number: int) -> None:
        async for event in response:
            match event:
                case ResponseAudio():
                    message = _audio_message(event, response.format.encoding, number)
                    await self._link.send(serialize_audio(message), lambda: not response.is_done)
                case ResponseWordTimes():
                    await self._send(_words(event))
                case FlushCompleted():
                    await self._send(
                        ev.TextFlushed(response_id=event.response_id, flush=event.flush, end_sample=event.end_sample)
                    )
                case ResponseFinished():
                    self._conversation.on_response_done(event.response_id)
                    log.info("response ended", extra=self._facts(event))
                    await self._send(_done(event, number))
        if not self._conversation.num_live:
            self._on_silent()

    def _facts(self, done: ResponseFinished) -> dict[str, object]:
        """Log fields of a response, without its text."""
        return {
            "session_id": self._session.session_id,
            "response_id": done.response_id,
            "status": done.status.value,
            "code": done.error and done.error.code,
            "audio_ms": round(done.audio_ms),
            "first_audio_ms": done.first_audio_ms and round(done.first_audio_ms, 1),
        }

    async def _send(self, event: ev.ServerEvent) -> None:
        await self._link.send(serialize(event))


def _audio_message(audio: ResponseAudio, encoding: Encoding, number: int) -> ev.AudioMessage:
    packets = audio.packets
    if encoding is not Encoding.OPUS:
        packets = tuple(run[at : at + RUN_BYTES] for run in packets for at in range(0, len(run), RUN_BYTES))
    return ev.AudioMessage(KINDS[encoding], number, audio.sequence, audio.start_sample, packets)


def _words(event: ResponseWordTimes) -> ev.ResponseWords:
    names = ev.WordTiming.__struct_fields__
    words = tuple(ev.WordTiming(**{name: getattr(word, name) for name in names}) for word in event.words)
    return ev.ResponseWords(response_id=event.response_id, words=words)


def _done(event: ResponseFinished, number: int) -> ev.ResponseDone:
    completed = event.status is ResponseStatus.COMPLETED
    return ev.ResponseDone(
        response_id=event.response_id,
        response=number,
        status=event.status.value,
        audio_samples=event.audio_samples,
        audio_ms=event.audio_ms,
        nothing_spoken=event.nothing_spoken,
        first_audio_ms=event.first_audio_ms,
        heard=None if completed else _to_heard_body(event.heard),
        error=event.error,
    )


def _to_heard_body(heard: HeardText) -> ev.HeardBody:
    return ev.HeardBody(text=heard.text, remaining=heard.remaining, played_ms=heard.audio_ms)
