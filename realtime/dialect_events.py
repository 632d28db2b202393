"""Events of sessions and their responses as events for dialects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from realtime.protocol import events as ev
from realtime.protocol import model
from realtime.protocol.native import SUBPROTOCOL
from realtime.setting_mapping import wire_settings
from realtime.version import VERSION
from sessions.audio.provenance import SOURCE_TYPE
from sessions.events import (
    CheckpointAdded,
    FlushCompleted,
    MarkReached,
    MarkupWarned,
    ResponseAudio,
    ResponseEvent,
    ResponseFinished,
    ResponseWordTimes,
)
from sessions.ring import RESUME_WINDOW_S
from sessions.voices.lookup import voices_for

if TYPE_CHECKING:
    from engine.api import SpeechError
    from realtime.server import SpeechServer
    from sessions.alignment.word_times import WordTime
    from sessions.response import Response
    from sessions.session import Session

# Stored voices that are listed on connect; ``GET /v1/voices`` lists all.
MAX_LISTED_VOICES = 1_000


def audio_format(response: Response) -> ev.ResponseAudioFormat:
    return ev.ResponseAudioFormat(
        encoding=response.format.encoding,
        sample_rate=response.format.sample_rate,
        pre_skip_samples=response.pre_skip_samples,
    )


def to_dialect_event(context_id: str, response: Response, event: ResponseEvent) -> model.DialectEvent:
    """Return an event of a response with its positions as times of the audio that a client hears."""
    pre_skip, samples_per_ms = response.pre_skip_samples, response.format.sample_rate / 1000

    def ms(sample: int) -> float:
        return max((sample - pre_skip) / samples_per_ms, 0.0)

    match event:
        case ResponseAudio():
            return model.ContextAudio(
                context_id,
                b"".join(event.packets),
                ms(event.start_sample),
                ms(event.start_sample + event.num_samples),
                event.packets,
                event.sequence,
                event.start_sample,
            )
        case ResponseWordTimes():
            return model.ContextWords(context_id, tuple(_timed(word) for word in event.words))
        case CheckpointAdded():
            return model.ContextCheckpoint(context_id, event.index, event.data)
        case FlushCompleted():
            return model.ContextFlushed(context_id, ms(event.end_sample), event.flush, event.end_sample)
        case MarkReached():
            return model.ContextMark(context_id, event.name, event.sample, event.time_ms)
        case MarkupWarned():
            return model.ContextWarning(context_id, event.code, event.element, event.raw_start)
        case ResponseFinished():
            return context_ended(context_id, event)


def _timed(word: WordTime) -> model.TimedWord:
    return model.TimedWord(
        text=word.text,
        start_ms=word.start_ms,
        end_ms=word.end_ms,
        char_ends_ms=word.char_ends_ms,
        spoken=word.spoken,
        spoken_ends_ms=word.spoken_ends_ms,
        raw_start=word.raw_start,
        raw_end=word.raw_end,
        segment=word.segment,
        speaker=word.speaker,
    )


def context_ended(context_id: str, done: ResponseFinished, is_repeated: bool = False) -> model.ContextEnded:
    return model.ContextEnded(
        context_id,
        done.status.value,
        done.audio_ms,
        done.heard.text,
        done.heard.remaining,
        done.heard.audio_ms,
        error=done.error,
        audio_samples=done.audio_samples,
        nothing_spoken=done.nothing_spoken,
        first_audio_ms=done.first_audio_ms,
        is_repeated=is_repeated,
    )


def context_failed(context_id: str, error: SpeechError) -> model.ContextEnded:
    return model.ContextEnded(context_id, "failed", error=error.info)


async def describe_session(server: SpeechServer, session: Session, resume_token: str) -> ev.SessionCreated:
    """Return the native wire's first event. Reads the list of stored voices in a thread.

    Without ``resume_token`` the session cannot be resumed."""
    info, limits = server.engine.info, server.config.limits
    voices = [voice.name for voice in info.voices]
    if info.can_clone:
        stored = await asyncio.to_thread(voices_for, server.voices, session.key)
        voices += [manifest.name for manifest in stored[:MAX_LISTED_VOICES]]
    return ev.SessionCreated(
        session_id=session.session_id,
        resume_token=resume_token,
        protocol=SUBPROTOCOL,
        server_version=VERSION,
        model=info.model,
        voices=tuple(voices),
        languages=info.languages,
        settings=wire_settings(session.settings),
        limits=ev.SessionLimitsInfo(
            max_message_bytes=limits.max_message_bytes,
            max_response_chars=limits.max_response_chars,
            max_active_responses=limits.max_active_responses_per_session,
            idle_timeout_s=limits.idle_timeout_s,
            max_session_s=limits.max_session_duration_s,
        ),
        resume_grace_s=limits.resume_grace_s if resume_token else 0.0,
        resume_window_s=RESUME_WINDOW_S if resume_token else 0.0,
        digital_source_type=SOURCE_TYPE,
        watermark=server.watermark is not None,
    )
