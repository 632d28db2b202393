"""``voicewire say``: speak a text, or what is still arriving on standard input, into a file or a player."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.api import InvalidRequest, SamplingParams, SpeechEngine
from realtime.auth import LOCAL
from realtime.commands import speech_fields
from realtime.commands.speaking import (
    Done,
    Progress,
    SpeechSource,
    lead_ms,
    print_markup_warning,
    shows_progress,
    speak,
)
from realtime.commands.startup import WRONG_SETTINGS
from realtime.commands.streams import FORMATS, PLAYERS, find_player, output_path
from realtime.config import ConfigError, load_config
from realtime.engine_factory import add_model_argument, running_engine
from realtime.voice_cloner import VoiceCloner
from realtime.watermark import load_watermark
from sessions.audio.watermark.embedder import Watermark
from sessions.config import AudioFormat, Encoding, Markup, RegistryLimits, SessionLimits, SpeechSettings
from sessions.events import MarkupWarned, ResponseAudio, ResponseFinished, ResponseWordTimes
from sessions.owned_files import voices_folder
from sessions.registry import SessionRegistry
from sessions.response import Response
from sessions.session import Session
from sessions.text.lexicons.files import parse_lexicon
from sessions.text.lexicons.lexicon import Lexicon
from sessions.voices.store import VoiceStore

MAX_SEED = 2**31 - 1
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
    parser.add_argument("--play", action="store_true", help="with -o: play it as well")
    parser.add_argument("--voice", help="one of `voicewire voices` (default: the first)")
    parser.add_argument("--language", default="auto", help="language of the text (default: auto)")
    parser.add_argument(
        "--ssml", action="store_true", help="tags in the text control speech (docs/reference/ssml.md); not with --mqtt"
    )
    parser.add_argument(
        "--speaker",
        action="append",
        default=[],
        type=speaker,
        metavar="LABEL=VOICE",
        help="lines that begin with LABEL and a colon are spoken by this voice; repeatable; not with --mqtt",
    )
    parser.add_argument(
        "--lexicon",
        metavar="FILE",
        help="PLS, JSON or TOML file of words that are spoken in another form; with --url the name of a stored one",
    )
    parser.add_argument("--seed", type=int, help="the same seed gives the same speech (default: a random one)")
    speech_fields.add_arguments(parser)
    add_model_argument(parser)
    parser.add_argument("--url", metavar="ws://HOST:PORT", help="use a server instead of a local engine")
    parser.add_argument(
        "--mqtt", metavar="mqtt://HOST:PORT", help="speak through a broker (mqtts for TLS; docs/guides/mqtt.md)"
    )
    parser.add_argument("--api-key", default=os.environ.get("VOICEWIRE_API_KEY"), help="(default: $VOICEWIRE_API_KEY)")


def run(args: argparse.Namespace) -> int:
    if (args.output is None or args.play) and find_player() is None:
        raise FileNotFoundError(f"no player here ({', '.join(PLAYERS)}): name a file with -o, without --play")
    markup = {"--ssml": args.ssml, "--speaker": args.speaker, "--lexicon": args.lexicon}
    option = next((option for option, given in markup.items() if given), None)
    if args.mqtt is not None and option is not None:
        print(f"voicewire say: {option} needs a local engine or --url, and --mqtt is given", file=sys.stderr)
        return WRONG_SETTINGS
    if args.seed is None:
        args.seed = secrets.randbelow(MAX_SEED)
    try:
        return asyncio.run(say_on(args))
    except ConfigError as error:
        print(f"voicewire say: {error}", file=sys.stderr)
        return WRONG_SETTINGS


async def say_on(args: argparse.Namespace) -> int:
    """Speak by a local engine, a server or a broker. Returns the exit status."""
    fields = speech_fields.read_fields(args)
    if args.url is not None:
        from realtime.commands.say_remote import say_through_server

        return await say_through_server(args, fields)
    if args.mqtt is not None:
        from realtime.commands.say_mqtt import say_over_mqtt

        return await say_over_mqtt(args, fields)
    return await say(args, fields)


async def say(args: argparse.Namespace, fields: dict[str, Any]) -> int:
    from realtime.speech_api.request import body_of
    from realtime.speech_api.selected_voice import BROUGHT_VOICE, brought_voice, check_reference
    from realtime.speech_api.speech_job import sampling_of

    body = body_of({"input": "", **fields})
    check_reference(body, LOCAL)
    config = load_config(None, os.environ)
    async with running_engine(args.model) as engine:
        cloning = VoiceCloner(config, engine)
        try:
            clone = await brought_voice(body, cloning, cloning)
        except InvalidRequest as error:
            raise InvalidRequest(speech_fields.name_field(str(error), error.param), error.param) from None
        if clone is not None and args.voice is not None:
            print(BROUGHT_VOICE, file=sys.stderr)
        speech = replace(
            settings(args, engine.info.sample_rate),
            clone=clone,
            instruct=body.instructions or "",
            sampling=sampling_of(body, SamplingParams(seed=args.seed)),
        )
        voices = VoiceStore(voices_folder(config.voices.folder))
        async with single_session(engine, speech, voices, load_watermark(config.watermark)) as session:
            return await speak(LocalSpeech(session), args, engine.info.sample_rate)


@asynccontextmanager
async def single_session(
    engine: SpeechEngine, settings: SpeechSettings, voices: VoiceStore, watermark: Watermark | None
) -> AsyncIterator[Session]:
    limits = RegistryLimits(session=LIMITS, expire_every_s=PROGRESS_INTERVAL_S)
    registry = SessionRegistry(engine, limits, voices=voices, watermark=watermark)
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
        lexicons=() if args.lexicon is None else (read_lexicon(args.lexicon),),
        markup=Markup.SSML if args.ssml else Markup.NONE,
        speakers=dict(args.speaker),
        lead_ms=lead_ms(args),
        word_times=shows_progress(args),
    )


def speaker(given: str) -> tuple[str, str]:
    """Return label and voice of ``LABEL=VOICE``."""
    label, separator, voice = given.partition("=")
    if not (label and separator and voice):
        raise argparse.ArgumentTypeError(f"must be LABEL=VOICE, is {given[:80]!r}")
    return label, voice


def read_lexicon(path: str) -> Lexicon:
    """Raises ``OSError`` or ``InvalidRequest``."""
    parsed = parse_lexicon(Path(path).read_bytes())
    lexicon = parsed.build()
    if num_left_out := len(parsed.entries) - lexicon.num_entries:
        print(f"{path}: {num_left_out} entries cannot be read and are left out", file=sys.stderr)
    return lexicon


class LocalSpeech(SpeechSource):
    def __init__(self, session: Session) -> None:
        self._session = session
        # Set by ``begin``.
        self._response: Response

    async def begin(self, text: str, closed: bool) -> None:
        self._response = self._session.create_response(text=text, text_closed=closed)

    async def push_text(self, text: str) -> None:
        if not self._response.is_done:
            self._response.push_text(text)

    async def end(self) -> None:
        if not self._response.is_done:
            self._response.end_input()

    async def cancel(self) -> None:
        self._response.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes | Progress | Done]:
        async for event in self._response:
            match event:
                case ResponseAudio():
                    yield b"".join(event.packets)
                case MarkupWarned():
                    print_markup_warning(event)
                case ResponseWordTimes():
                    yield Progress(event.words[-1].raw_end)
                case ResponseFinished():
                    yield event
