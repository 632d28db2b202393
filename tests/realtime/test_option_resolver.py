from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from realtime.option_resolver import OptionResolver
from realtime.protocol.model import RequestedFormat, SpeechOptions
from sessions.config import AudioFormat, Encoding, SpeechSettings
from sessions.errors import UnsupportedFormat
from tests.fakes.engine_script import FAKE_INFO

BASE = SpeechSettings(voice="ada", language="auto", lead_ms=10_000)
GRANTOR = OptionResolver(BASE, FAKE_INFO, {"21m00Tcm4TlvDq8ikWAM": "ben"}, lambda name: name == "mine")


def test_a_wish_for_nothing_is_the_servers_default() -> None:
    settings, warnings = GRANTOR.resolve(SpeechOptions())
    wanted = AudioFormat(encoding=Encoding.PCM_S16LE, sample_rate=24_000)
    assert (settings, warnings) == (replace(BASE, format=wanted), ())


@pytest.mark.parametrize(
    ("named", "voice"), [("ben", "ben"), ("Ben", "ben"), ("21m00Tcm4TlvDq8ikWAM", "ben"), ("mine", "mine"), ("", "ada")]
)
def test_voices_by_our_name_theirs_and_the_callers(named: str, voice: str) -> None:
    settings, warnings = GRANTOR.resolve(SpeechOptions(voice=named))
    assert (settings.voice, warnings) == (voice, ())


def test_what_we_do_not_have_becomes_the_default_and_is_told() -> None:
    settings, warnings = GRANTOR.resolve(SpeechOptions(voice="z" * 100, language="xx", speed=9.0))
    assert (settings.voice, settings.language, settings.speed) == ("ada", "auto", 4.0)
    assert warnings == (
        f"voice '{'z' * 64}...' is unknown, the default one speaks",
        "language 'xx' is unknown, the default is taken",
        "speed is taken as 4, the nearest there is",
    )


@pytest.mark.parametrize(("named", "language"), [("en", "en"), ("de-DE", "de"), ("English", "en"), ("EN", "en")])
def test_languages_by_any_name(named: str, language: str) -> None:
    assert GRANTOR.resolve(SpeechOptions(language=named))[0].language == language


def test_formats() -> None:
    wish = SpeechOptions(format=RequestedFormat("mp3", 44_100, 128_000), seed=7, word_times=True)
    settings = GRANTOR.resolve(wish)[0]
    assert settings.format == AudioFormat(encoding=Encoding.MP3, sample_rate=44_100, bitrate=128_000)
    assert (settings.sampling.seed, settings.word_times) == (7, True)
    with pytest.raises(UnsupportedFormat, match="encoding 'vorbis' cannot be served"):
        GRANTOR.resolve(SpeechOptions(format=RequestedFormat("vorbis")))


def test_instructions_go_to_models_that_take_them() -> None:
    can = replace(GRANTOR, info=msgspec.structs.replace(FAKE_INFO, takes_instruct=True))
    cannot = replace(GRANTOR, info=msgspec.structs.replace(FAKE_INFO, takes_instruct=False))
    assert can.resolve(SpeechOptions(instruct="calm"))[0].instruct == "calm"
    settings, warnings = cannot.resolve(SpeechOptions(instruct="calm"))
    assert (settings.instruct, warnings) == ("", ("this model takes no instructions, they are left out",))


def test_who_gets_it_whole_waits_for_no_listener() -> None:
    assert GRANTOR.resolve(SpeechOptions())[0].lead_ms == 10_000
    assert GRANTOR.resolve(SpeechOptions(burst=True))[0].lead_ms is None
