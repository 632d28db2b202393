"""``voicewire say``: speak a text, or what is still arriving on standard input, into a file or a player."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress

from engine.api import SamplingParams, SpeechEngine
from realtime.commands.streams import FORMATS, PLAYERS, Output, arriving_text, find_player, open_output, output_path
from realtime.config import ConfigError, load_config
from realtime.engine_factory import add_model_argument, running_engine
from realtime.protocol.events import ResponseDone as WireResponseDone
from sessions.config import AudioFormat, Encoding, RegistryLimits, SessionLimits, SpeechSettings
from sessions.events import ResponseAudio, ResponseFinished, ResponseStatus
from sessions.registry import SessionRegistry
from sessions.response import Response
from sessions.session import Session
from sessions.voices.store import VoiceStore
from sessions.voices.voice_file import voices_folder

EXIT_STATUS = {ResponseStatus.COMPLETED: 0, ResponseStatus.FAILED: 1, ResponseStatus.CANCELLED: 130}
WRONG_SETTINGS = 2
MAX_SEED = 2**31 - 1
PLAYER_LEAD_MS = 2_000
# One user types here, and a large model on a CPU is slow.
LIMITS = SessionLimits(max_response_chars=10_000_000, text_timeout_s=math.inf, engine_timeout_s=120.0)
PROGRESS_INTERVAL_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", help='what to say; "-" reads standard input and speaks while it arrives')
    suffixes = ", ".join(FORMATS)
    output_help = (
        f'write a file instead of playing, in the format of its suffix ({suffixes}); "-" writes WAV to standard output'
    )
    parser.add_argument("-o", "--output", type=output_path, metavar="FILE", help=output_help)
    parser.add_argument("--voice", help="one of `voicewire voices` (default: the first)")
    parser.add_argument("--language", default="auto", help="language of the text (default: auto)")
    parser.add_argument("--seed", type=int, help="the same seed gives the same speech (default: a random one)")
    add_model_argument(parser)
    parser.add_argument("--url", metavar="ws://HOST:PORT", help="use a server instead of a local engine")
    parser.add_argument(
        "--mqtt", metavar="mqtt://HOST:PORT", help="speak through a broker (mqtts for TLS; docs/guides/mqtt.md)"
    )
    parser.add_argument("--api-key", default=os.environ.get("VOICEWIRE_API_KEY"), help="(default: $VOICEWIRE_API_KEY)")


def run(args: argparse.Namespace) -> int:
    if args.output is None and find_player() is None:
        raise FileNotFoundError(f"no player here ({', '.join(PLAYERS)}): name a file with -o")
    if args.seed is None:
        args.seed = secrets.randbelow(MAX_SEED)
    if args.url is not None:
        from realtime.commands.say_remote import say_over_websocket

        return asyncio.run(say_over_websocket(args))
    if args.mqtt is not None:
        from realtime.commands.say_mqtt import say_over_mqtt

        return asyncio.run(say_over_mqtt(args))
    try:
        return asyncio.run(say(args))
    except ConfigError as error:
        print(f"voicewire say: {error}", file=sys.stderr)
        return WRONG_SETTINGS


async def say(args: argparse.Namespace) -> int:
    arriving, voices = args.text == "-", stored_voices()
    async with running_engine(args.model) as engine:
        sample_rate = engine.info.sample_rate
        async with single_session(engine, settings(args, sample_rate), voices) as session:
            output = await open_output(args.output, sample_rate)
            progress = SpeechProgress(sample_rate, args.seed)
            response = session.create_response(text="" if arriving else args.text, text_closed=not arriving)
            async with feed_stdin(response, sys.stdin.fileno()) if arriving else nullcontext():
                done = await speak(response, output, progress)
    return 1 if done.nothing_spoken else EXIT_STATUS[done.status]


def stored_voices() -> VoiceStore:
    """Return the voices that ``voicewire voices`` lists. Raises ``ConfigError``."""
    return VoiceStore(voices_folder(load_config(None, os.environ).voices.folder))


@asynccontextmanager
async def single_session(engine: SpeechEngine, settings: SpeechSettings, voices: VoiceStore) -> AsyncIterator[Session]:
    limits = RegistryLimits(session=LIMITS, expire_every_s=PROGRESS_INTERVAL_S)
    registry = SessionRegistry(engine, limits, voices=voices)
    watch = asyncio.create_task(registry.run(), name="voicewire time-outs")
    try:
        yield registry.create(settings=settings)
    finally:
        watch.cancel()
        await asyncio.wait([watch])
        await registry.aclose()


def settings(args: argparse.Namespace, sample_rate: int) -> SpeechSettings:
    return SpeechSettings(
        voice=args.voice,
        language=args.language,
        format=AudioFormat(encoding=Encoding.PCM_S16LE, sample_rate=sample_rate),
        lead_ms=None if args.output else PLAYER_LEAD_MS,
        sampling=SamplingParams(seed=args.seed),
    )


@asynccontextmanager
async def feed_stdin(response: Response, descriptor: int) -> AsyncIterator[None]:
    """While this lasts, what arrives on the descriptor becomes the response's text."""
    typing = asyncio.create_task(pump_text(response, descriptor))
    try:
        yield
    finally:
        typing.cancel()
        with suppress(asyncio.CancelledError):
            await typing


async def pump_text(response: Response, descriptor: int) -> None:
    async for piece in arriving_text(descriptor):
        if response.is_done:
            return
        response.push_text(piece)
    response.end_input()


async def speak(response: Response, output: Output, progress: SpeechProgress) -> ResponseFinished:
    """Hand the audio over until the response ends, by itself or by Ctrl-C."""
    try:
        with cancel_on_sigint(response):
            done = await write_audio(response, output, progress)
        progress.print_summary(done)
        if done.status is ResponseStatus.COMPLETED:
            await output.finish()
    finally:
        await output.abort()
    return done


async def write_audio(response: Response, output: Output, progress: SpeechProgress) -> ResponseFinished:
    async for event in response:
        match event:
            case ResponseAudio():
                await output.write(b"".join(event.packets))
                progress.add(event.num_samples)
            case ResponseFinished():
                return event
    raise AssertionError("the last event of a response is ResponseDone")


@contextmanager
def cancel_on_sigint(response: Response) -> Iterator[None]:
    """Cancel only the response on Ctrl-C, so that its end is printed and the output stays whole."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, response.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


class SpeechProgress:
    """Progress of the speech: one line on standard error, rewritten as it grows where that is a terminal."""

    def __init__(self, sample_rate: int, seed: int) -> None:
        self._sample_rate = sample_rate
        self._seed = seed
        self._start_s = time.monotonic()
        self._spoken_s = 0.0
        self._live = sys.stderr.isatty()

    def add(self, num_samples: int) -> None:
        self._spoken_s += num_samples / self._sample_rate
        if self._live:
            print(f"\r{self._spoken_s:.1f} s spoken ", end="", file=sys.stderr, flush=True)

    def print_summary(self, done: ResponseFinished | WireResponseDone) -> None:
        elapsed_s = time.monotonic() - self._start_s
        parts = [f"{done.status}: {self._spoken_s:.2f} s spoken in {elapsed_s:.2f} s"]
        if done.error is not None:
            parts.append(done.error.message)
        if done.nothing_spoken:
            parts.append("the text holds nothing that can be spoken")
        if done.first_audio_ms is not None and self._spoken_s:
            parts.append(f"first audio after {done.first_audio_ms:.0f} ms")
            parts.append(f"real-time factor {elapsed_s / self._spoken_s:.2f}")
        print("\r" * self._live + ", ".join([*parts, f"seed {self._seed}"]), file=sys.stderr)
