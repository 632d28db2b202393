"""``voicewire say --mqtt``: the same through a broker, over the topics of the bridge."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from realtime.commands.say import EXIT_STATUS, PLAYER_LEAD_MS, SpeechProgress
from realtime.commands.say_remote import BYTES_PER_SAMPLE, SAMPLE_RATE, ServerError
from realtime.commands.streams import Output, arriving_text, open_output
from realtime.mqtt.client import MqttAudio, MqttClientSession, open_session, settings_of
from realtime.mqtt.connection import BrokerDisconnected
from realtime.protocol.events import ResponseDone
from realtime.protocol.mqtt import messages
from sessions.events import ResponseStatus

BURST_LEAD_MS = 0
REPLY = "say"


async def say_over_mqtt(args: argparse.Namespace) -> int:
    """Returns the exit status. Raises ``OSError``, ``ServerError`` among them."""
    try:
        async with open_session(settings_of(args.mqtt), speech_options(args)) as session:
            done = await speak(session, args)
    except BrokerDisconnected as error:
        raise ServerError(f"the broker is lost: {error}") from None
    return 1 if done.nothing_spoken else EXIT_STATUS[ResponseStatus(done.status)]


async def speak(session: MqttClientSession, args: argparse.Namespace) -> ResponseDone:
    output = await open_output(args.output, SAMPLE_RATE)
    progress = SpeechProgress(SAMPLE_RATE, args.seed)
    try:
        async with feed_text(session, args.text), cancel_on_sigint(session):
            done = to_native_events(await write_audio(session, output, progress))
        progress.print_summary(done)
        if done.status == "completed":
            await output.finish()
    finally:
        await output.abort()
    return done


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


def speech_options(args: argparse.Namespace) -> messages.MqttOpen:
    return messages.MqttOpen(
        voice=args.voice,
        language=None if args.language == "auto" else args.language,
        seed=args.seed,
        lead_ms=BURST_LEAD_MS if args.output else PLAYER_LEAD_MS,
        format=messages.MqttFormat(encoding="pcm_s16le", sample_rate=SAMPLE_RATE),
    )


@asynccontextmanager
async def feed_text(session: MqttClientSession, text: str) -> AsyncIterator[None]:
    """Send the text while the context is open: at once, or as it arrives on standard input."""
    typing = asyncio.create_task(pump_text(session, text))
    try:
        yield
    finally:
        typing.cancel()
        with suppress(asyncio.CancelledError, BrokerDisconnected):
            await typing


async def pump_text(session: MqttClientSession, text: str) -> None:
    if text == "-":
        async for piece in arriving_text(sys.stdin.fileno()):
            await session.send(messages.MqttText(d=piece))
    else:
        await session.send(messages.MqttText(d=text))
    await session.send(messages.MqttEnd())


async def write_audio(session: MqttClientSession, output: Output, progress: SpeechProgress) -> messages.MqttDone:
    async for event in session:
        match event:
            case MqttAudio():
                await output.write(event.data)
                progress.add(len(event.data) // BYTES_PER_SAMPLE)
            case messages.MqttStarted():
                for warning in event.warnings:
                    print(warning, file=sys.stderr)
            case messages.MqttDone():
                return event
            case messages.MqttFailed():
                raise ServerError(event.error.message)
            case messages.MqttClosed():
                raise ServerError(f"the session was closed: {event.reason}")
    raise AssertionError("the last event of a session reports its close")


@asynccontextmanager
async def cancel_on_sigint(session: MqttClientSession) -> AsyncIterator[None]:
    """Cancel only the reply on Ctrl-C, so that its end is printed and the output stays whole."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
    cancels: list[asyncio.Task[None]] = []
    loop.add_signal_handler(
        signal.SIGINT, lambda: cancels.append(loop.create_task(session.send(messages.MqttCancel())))
    )
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
        await asyncio.gather(*cancels, return_exceptions=True)
