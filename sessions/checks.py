"""Whether settings can be served; the message names the field, the limit and the value."""

from __future__ import annotations

from engine.api import EngineInfo, InvalidRequest, SamplingParams, UnknownLanguage, UnknownVoice
from sessions.config import AudioFormat, Encoding, SessionLimits, SpeechSettings
from sessions.errors import LimitExceeded, UnsupportedFormat
from sessions.voicing import opus_settings

SAMPLE_RATES: dict[Encoding, tuple[int, ...]] = {
    Encoding.PCM_S16LE: (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
    Encoding.MULAW: (8_000,),
    Encoding.ALAW: (8_000,),
}
"""Those of Opus are checked with its other settings."""

SAMPLING_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_k": (0, 100_000),
    "top_p": (1e-6, 1.0),
    "repetition_penalty": (1.0, 2.0),
    "predictor_temperature": (0.0, 2.0),
    "predictor_top_k": (0, 100_000),
    "predictor_top_p": (1e-6, 1.0),
    "min_new_tokens": (0, 1000),
    "seed": (0, 2**64 - 1),
}
"""The engine's: it would refuse the rest too, but only when something is to be said."""


def check_settings(settings: SpeechSettings, info: EngineInfo, limits: SessionLimits) -> None:
    """Raises ``UnknownVoice``, ``UnknownLanguage``, ``UnsupportedFormat``, ``LimitExceeded`` or ``InvalidRequest``."""
    if settings.voice is not None and settings.voice not in {voice.name for voice in info.voices}:
        raise UnknownVoice(f"voice {settings.voice!r} is unknown", "voice")
    if settings.language not in {"auto", *info.languages}:
        raise UnknownLanguage(f"language {settings.language!r} is unknown", "language")
    if len(settings.instruct) > limits.max_instruct_chars:
        found = f"instruct has {len(settings.instruct)} characters"
        raise LimitExceeded(f"{found}, max_instruct_chars is {limits.max_instruct_chars}", "instruct")
    if settings.lead_ms is not None and not 0 <= settings.lead_ms <= limits.max_lead_ms:
        raise LimitExceeded(
            f"lead_ms must be 0 to {limits.max_lead_ms} (max_lead_ms), is {settings.lead_ms}", "lead_ms"
        )
    check_sampling(settings.sampling)
    check_format(settings.format)


def check_sampling(sampling: SamplingParams) -> None:
    for name, (low, high) in SAMPLING_RANGES.items():
        value = getattr(sampling, name)
        if value is not None and not low <= value <= high:
            raise InvalidRequest(f"{name} must be {low} to {high}, is {value}", name)


def check_format(audio: AudioFormat) -> None:
    if audio.encoding is Encoding.OPUS:
        opus_settings(audio)
    elif audio.sample_rate not in SAMPLE_RATES[audio.encoding]:
        allowed = " or ".join(str(rate) for rate in SAMPLE_RATES[audio.encoding])
        message = f"sample_rate of {audio.encoding} must be {allowed}, is {audio.sample_rate}"
        raise UnsupportedFormat(message, "sample_rate")
