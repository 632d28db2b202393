"""``voicewire say --mqtt``: the same through a broker, over the topics of the bridge."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from typing import Any

from engine.api import InvalidRequest
from realtime.commands.speaking import (
    SAMPLE_RATE,
    Done,
    Progress,
    ServerError,
    SpeechSource,
    lead_ms,
    shows_progress,
    speak,
)
from realtime.commands.speech_fields import VOICE_FIELDS, sampling_options
from realtime.mqtt.client import MqttAudio, MqttClientSession, open_session, settings_of
from realtime.mqtt.connection import BrokerDisconnected
from realtime.protocol.events import ResponseDone
from realtime.protocol.mqtt import messages

BURST_LEAD_MS = 0
REPLY = "say"


async def say_over_mqtt(args: argparse.Namespace, fields: dict[str, Any]) -> int:
    """Returns the exit status. Raises ``OSError``, ``ServerError`` among them, or ``InvalidRequest``."""
    for name in VOICE_FIELDS:
        if name in fields:
            raise InvalidRequest(f"{name} cannot be sent through a broker: store the voice, and name it", name)
    try:
        async with open_session(settings_of(args.mqtt), speech_options(args, fields)) as session:
            return await speak(MqttSpeech(session), args)
    except BrokerDisconnected as error:
        raise ServerError(f"the broker is lost: {error}") from None


def to_native_events(done: messages.MqttDone) -> ResponseDone:
    return ResponseDone(
        response_id=REPLY,
        response=done.reply,
        status=done.status,
        audio_samples=round(done.audio_ms * SAMPLE_RATE / 1000),
        audio_ms=done.audio_ms,
        nothing_spoken=done.status == "completed" and not done.audio_ms,
        error=done.error,
    )


def speech_options(args: argparse.Namespace, fields: dict[str, Any]) -> messages.MqttOpen:
    return messages.MqttOpen(
        voice=args.voice,
        language=None if args.language == "auto" else args.language,
        seed=args.seed,
        instruct=fields.get("instructions", ""),
        sampling=sampling_options(fields),
        word_times=shows_progress(args),
        lead_ms=lead_ms(args) or BURST_LEAD_MS,
        format=messages.MqttFormat(encoding="pcm_s16le", sample_rate=SAMPLE_RATE),
    )


class MqttSpeech(SpeechSource):
    disconnected = BrokerDisconnected

    def __init__(self, session: MqttClientSession) -> None:
        self._session = session

    async def begin(self, text: str, closed: bool) -> None:
        if closed:
            await self.push_text(text)
            await self.end()

    async def push_text(self, text: str) -> None:
        await self._session.send(messages.MqttText(d=text))

    async def end(self) -> None:
        await self._session.send(messages.MqttEnd())

    async def cancel(self) -> None:
        await self._session.send(messages.MqttCancel())

    async def __aiter__(self) -> AsyncIterator[bytes | Progress | Done]:
        async for event in self._session:
            match event:
                case MqttAudio():
                    yield event.data
                case messages.MqttStarted():
                    for warning in event.warnings:
                        print(warning, file=sys.stderr)
                case messages.MqttWordMarks():
                    yield Progress(event.words[-1].at + len(event.words[-1].text))
                case messages.MqttDone():
                    yield to_native_events(event)
                case messages.MqttFailed():
                    raise ServerError(event.error.message)
                case messages.MqttClosed():
                    raise ServerError(f"the session was closed: {event.reason}")
