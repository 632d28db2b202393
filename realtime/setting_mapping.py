"""Converts settings between the native wire and sessions."""

from __future__ import annotations

import secrets
from dataclasses import fields, replace
from typing import Any

import msgspec

from engine.api import SamplingParams, TextLayout
from realtime.config_sections import SpeechDefaults
from realtime.protocol import events as ev
from sessions.config import AudioFormat, Encoding, Markup, SpeechSettings
from sessions.errors import UnsupportedFormat

# Encodings of the native wire and their sample rates where a client names none.
NATURAL_RATES = {Encoding.OPUS: 24_000, Encoding.PCM_S16LE: 24_000, Encoding.MULAW: 8_000, Encoding.ALAW: 8_000}

# Larger integers are rounded in JavaScript.
MAX_JSON_INT_BITS = 53
# Fields with the same name and meaning in both.
SAME_FIELDS = (
    "voice",
    "language",
    "instruct",
    "speed",
    "word_times",
    "checkpoints",
    "speakers",
    "max_frames",
    "chunk_frames",
)


def default_settings(defaults: SpeechDefaults) -> SpeechSettings:
    return SpeechSettings(
        voice=defaults.voice,
        language=defaults.language,
        format=AudioFormat(
            encoding=Encoding(defaults.encoding),
            sample_rate=defaults.sample_rate,
            bitrate=defaults.bitrate,
            application=defaults.opus_application,
        ),
        lead_ms=defaults.lead_ms,
        avoid_dead_air=defaults.avoid_dead_air,
    )


def speech_settings(given: ev.NativeSpeechSettings, base: SpeechSettings, default_lead_ms: int) -> SpeechSettings:
    """Return ``base`` with the client's settings applied. Raises ``UnsupportedFormat`` for an unknown encoding."""
    seed = {} if given.seed is None else {"seed": given.seed}
    return replace(
        base,
        **given_fields(given, *SAME_FIELDS),
        lexicon_names=base.lexicon_names if given.lexicons is None else given.lexicons,
        markup=base.markup if given.markup is None else Markup(given.markup),
        layout=base.layout if given.text_layout is None else TextLayout(given.text_layout),
        format=_format(given.format, base.format),
        lead_ms=_lead_ms(given, base.lead_ms, default_lead_ms),
        sampling=msgspec.structs.replace(base.sampling, **seed, **given_fields(given.sampling)),
    )


def can_replay(speech: SpeechSettings) -> bool:
    """Return whether a client's text and checkpoints are all that a response consists of."""
    return not speech.reads_markup and not speech.lexicon_names


def with_seed(speech: SpeechSettings) -> SpeechSettings:
    """Draw the seed of a response with checkpoints, which must be known to speak it again.

    A response that cannot be replayed gets no checkpoints.
    """
    speech = replace(speech, checkpoints=speech.checkpoints and can_replay(speech))
    if not speech.checkpoints or speech.sampling.seed is not None:
        return speech
    seed = secrets.randbits(MAX_JSON_INT_BITS)
    return replace(speech, sampling=msgspec.structs.replace(speech.sampling, seed=seed))


def wire_settings(speech: SpeechSettings) -> ev.NativeSpeechSettings:
    """Return session settings in the native wire's fields, complete."""
    return ev.NativeSpeechSettings(
        voice=speech.voice,
        language=speech.language,
        instruct=speech.instruct or None,
        seed=speech.sampling.seed,
        format=_wire_format(speech.format),
        pace="burst" if speech.lead_ms is None else "lead",
        lead_ms=speech.lead_ms,
        word_times=speech.word_times or None,
        checkpoints=speech.checkpoints or None,
        speed=None if speech.speed == 1.0 else speech.speed,
        markup="ssml" if speech.markup is Markup.SSML else None,
        speakers=dict(speech.speakers) or None,
        lexicons=speech.lexicon_names or None,
        text_layout=speech.layout.value,
        max_frames=speech.max_frames,
        chunk_frames=speech.chunk_frames or None,
        sampling=_wire_sampling(speech.sampling),
    )


def given_fields(struct: msgspec.Struct | None, *names: str) -> dict[str, Any]:
    """Return the named fields (default: all) that are not ``None``."""
    if struct is None:
        return {}
    values = {name: getattr(struct, name) for name in names or struct.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None}


def _format(given: ev.NativeAudioFormat | None, base: AudioFormat) -> AudioFormat:
    changes = given_fields(given)
    if "encoding" in changes:
        try:
            changes["encoding"] = {encoding.value: encoding for encoding in NATURAL_RATES}[changes["encoding"]]
        except KeyError:
            known = ", ".join(NATURAL_RATES)
            raise UnsupportedFormat(
                f"encoding must be one of {known}, is {changes['encoding']!r}", "encoding"
            ) from None
        changes.setdefault("sample_rate", NATURAL_RATES[changes["encoding"]])
    return replace(base, **changes)


def _lead_ms(given: ev.NativeSpeechSettings, base_ms: int | None, default_ms: int) -> int | None:
    if given.pace == "burst":
        return None
    if given.lead_ms is not None:
        return given.lead_ms
    return default_ms if given.pace == "lead" and base_ms is None else base_ms


def _wire_format(audio: AudioFormat) -> ev.NativeAudioFormat:
    if audio.encoding is not Encoding.OPUS:
        return ev.NativeAudioFormat(encoding=audio.encoding, sample_rate=audio.sample_rate)
    # A complexity that follows from the bitrate is absent: an echo with another bitrate would keep it.
    names = (field.name for field in fields(audio) if field.name in ev.NativeAudioFormat.__struct_fields__)
    return ev.NativeAudioFormat(**{name: getattr(audio, name) for name in names})


def _wire_sampling(sampling: SamplingParams) -> ev.NativeSamplingOptions | None:
    known = {name: getattr(sampling, name) for name in ev.NativeSamplingOptions.__struct_fields__}
    return ev.NativeSamplingOptions(**known) if any(value is not None for value in known.values()) else None
