"""Settings of clients and of vendors become settings of a session, and back."""

from __future__ import annotations

from dataclasses import fields, replace

import msgspec
import pytest

from engine.api import SamplingParams, TextLayout
from realtime.config import ServerConfig
from realtime.config_sections import LimitSettings, SpeechDefaults
from realtime.option_resolver import OptionResolver
from realtime.protocol import events as ev
from realtime.protocol.model import RequestedFormat, SpeechOptions
from realtime.server import registry_limits
from realtime.setting_mapping import default_settings, speech_settings, wire_settings
from sessions.audio.formats.registry import opus_complexity
from sessions.config import AudioFormat, Encoding, RegistryLimits, SessionLimits, SpeechSettings
from sessions.errors import UnsupportedFormat
from tests.fakes.engine_script import FAKE_INFO

BASE = SpeechSettings(voice="ada", lead_ms=3_000)


def merged(given: ev.NativeSpeechSettings, base: SpeechSettings = BASE) -> SpeechSettings:
    return speech_settings(given, base, default_lead_ms=2_000)


def test_nothing_given_changes_nothing() -> None:
    assert merged(ev.NativeSpeechSettings()) == BASE


def test_what_is_given_goes_over_what_was() -> None:
    given = ev.NativeSpeechSettings(
        voice="ben",
        seed=7,
        sampling=ev.NativeSamplingOptions(top_k=5),
        format=ev.NativeAudioFormat(bitrate=16_000, fec=True),
    )
    settings = merged(given)
    assert (settings.voice, settings.sampling.seed, settings.sampling.top_k) == ("ben", 7, 5)
    assert settings.format == AudioFormat(bitrate=16_000, fec=True)
    assert settings.lead_ms == 3_000


def test_an_encoding_alone_takes_its_natural_rate() -> None:
    assert merged(ev.NativeSpeechSettings(format=ev.NativeAudioFormat(encoding="mulaw"))).format.sample_rate == 8_000
    opus_48 = SpeechSettings(format=AudioFormat(sample_rate=48_000))
    assert (
        merged(ev.NativeSpeechSettings(format=ev.NativeAudioFormat(complexity=1)), opus_48).format.sample_rate == 48_000
    )
    assert (
        merged(
            ev.NativeSpeechSettings(format=ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=16_000))
        ).format.sample_rate
        == 16_000
    )


def test_an_unknown_encoding_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedFormat, match="opus, pcm_s16le, mulaw, alaw, is 'flac'"):
        merged(ev.NativeSpeechSettings(format=ev.NativeAudioFormat(encoding="flac")))


@pytest.mark.parametrize(
    ("given", "base_ms", "lead_ms"),
    [
        (ev.NativeSpeechSettings(), 3_000, 3_000),
        (ev.NativeSpeechSettings(), None, None),
        (ev.NativeSpeechSettings(pace="burst"), 3_000, None),
        (ev.NativeSpeechSettings(pace="burst", lead_ms=500), 3_000, None),
        (ev.NativeSpeechSettings(pace="lead"), 3_000, 3_000),
        (ev.NativeSpeechSettings(pace="lead"), None, 2_000),
        (ev.NativeSpeechSettings(pace="lead", lead_ms=500), None, 500),
        (ev.NativeSpeechSettings(lead_ms=500), None, 500),
    ],
)
def test_pace(given: ev.NativeSpeechSettings, base_ms: int | None, lead_ms: int | None) -> None:
    assert merged(given, SpeechSettings(lead_ms=base_ms)).lead_ms == lead_ms


@pytest.mark.parametrize(
    "settings",
    [
        SpeechSettings(),
        SpeechSettings(voice="ada", language="en", instruct="calm", lead_ms=None),
        SpeechSettings(format=AudioFormat(encoding=Encoding.ALAW, sample_rate=8_000), lead_ms=500),
        merged(
            ev.NativeSpeechSettings(
                seed=3, sampling=ev.NativeSamplingOptions(temperature=0.5, top_p=0.9, repetition_penalty=1.1)
            )
        ),
    ],
)
def test_settings_survive_round_trip_through_client(settings: SpeechSettings) -> None:
    assert merged(wire_settings(settings), SpeechSettings()) == settings


def test_echoed_format_does_not_pin_the_complexity() -> None:
    base = default_settings(SpeechDefaults())
    echo = wire_settings(base).format
    assert opus_complexity(merged(ev.NativeSpeechSettings(format=echo), base).format) == 0
    changed = msgspec.structs.replace(echo, bitrate=32_000)
    assert opus_complexity(merged(ev.NativeSpeechSettings(format=changed), base).format) == 5


def test_the_servers_defaults() -> None:
    settings = default_settings(SpeechDefaults(voice="ben", encoding="mulaw", sample_rate=8_000, lead_ms=900))
    assert (settings.voice, settings.format.encoding, settings.lead_ms) == ("ben", Encoding.MULAW, 900)


def test_layout_frames_and_sampling_reach_session() -> None:
    given = ev.NativeSpeechSettings(
        text_layout="full",
        max_frames=9,
        chunk_frames=(1, 4),
        sampling=ev.NativeSamplingOptions(
            do_sample=False, repetition_window=5, predictor_do_sample=True, min_new_tokens=3
        ),
    )
    settings = merged(given)
    assert (settings.layout, settings.max_frames, settings.chunk_frames) == (TextLayout.FULL, 9, (1, 4))
    assert settings.sampling == SamplingParams(
        do_sample=False, repetition_window=5, predictor_do_sample=True, min_new_tokens=3
    )
    assert merged(wire_settings(settings), SpeechSettings()) == settings


def test_sessions_have_the_limits_of_the_settings() -> None:
    names = {field.name for limits in (RegistryLimits, SessionLimits) for field in fields(limits)}
    shared = sorted(names & set(LimitSettings.__struct_fields__) - {"max_active_responses_per_key"})
    defaults = {name: getattr(LimitSettings(), name) for name in shared}
    values = {name: not value if isinstance(value, bool) else (value or 1) + 1 for name, value in defaults.items()}
    settings = LimitSettings(**values)
    limits = registry_limits(ServerConfig(limits=settings), num_keys=1)
    found = {field.name: getattr(owner, field.name) for owner in (limits, limits.session) for field in fields(owner)}
    assert {name: found[name] for name in shared} == values
    assert len(values) >= 8
    assert limits.max_active_responses_per_key == limits.max_active_responses


RESOLVER_BASE = SpeechSettings(voice="ada", language="auto", lead_ms=10_000)
GRANTOR = OptionResolver(RESOLVER_BASE, FAKE_INFO, {"21m00Tcm4TlvDq8ikWAM": "ben"}, lambda name: name == "mine")


def test_empty_options_give_server_defaults() -> None:
    settings, warnings = GRANTOR.resolve(SpeechOptions())
    wanted = AudioFormat(encoding=Encoding.PCM_S16LE, sample_rate=24_000)
    assert (settings, warnings) == (replace(RESOLVER_BASE, format=wanted), ())


@pytest.mark.parametrize(
    ("named", "voice"), [("ben", "ben"), ("Ben", "ben"), ("21m00Tcm4TlvDq8ikWAM", "ben"), ("mine", "mine"), ("", "ada")]
)
def test_voices_by_our_name_theirs_and_the_callers(named: str, voice: str) -> None:
    settings, warnings = GRANTOR.resolve(SpeechOptions(voice=named))
    assert (settings.voice, warnings) == (voice, ())


def test_unsupported_option_becomes_default_with_warning() -> None:
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


def test_whole_file_waits_for_no_listener() -> None:
    assert GRANTOR.resolve(SpeechOptions())[0].lead_ms == 10_000
    assert GRANTOR.resolve(SpeechOptions(burst=True))[0].lead_ms is None
