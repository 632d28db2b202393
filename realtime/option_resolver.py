"""Resolves options of vendors' clients to settings; unknown voices and languages become the default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from engine.api import EngineInfo
from realtime.protocol.model import RequestedFormat, SpeechOptions
from realtime.setting_mapping import given_fields
from realtime.speech_api.request import supported_instructions
from sessions.audio.time_stretch import MAX_SPEED, MIN_SPEED
from sessions.config import AudioFormat, Encoding, InlineForm, Markup, SpeechSettings
from sessions.errors import UnsupportedFormat
from sessions.languages import known_language

# HTTP: what was left out or replaced in a request that is served.
WARNING_HEADER = "X-Voicewire-Warning"
MAX_DISPLAY_CHARS = 64


@dataclass(frozen=True, slots=True)
class OptionResolver:
    """Resolves ``SpeechOptions`` to ``SpeechSettings``."""

    base: SpeechSettings
    info: EngineInfo
    # Vendors' voice ids -> voices of this server.
    aliases: Mapping[str, str]
    # Returns whether the caller has a stored voice of this name.
    is_stored: Callable[[str], bool]

    def resolve(self, options: SpeechOptions) -> tuple[SpeechSettings, tuple[str, ...]]:
        """Return the settings and warnings about replaced options. Raises ``UnsupportedFormat``."""
        voice, voice_warning = self._voice(options.voice)
        language, language_warning = self._language(options.language)
        speed, speed_warning = self._speed(options.speed)
        instruct, instruct_warning = supported_instructions(options.instruct, self.info)
        settings = replace(
            self.base,
            voice=voice,
            language=language,
            instruct=instruct or self.base.instruct,
            format=audio_format(options.format),
            word_times=options.word_times,
            inline_forms=tuple(map(InlineForm, options.inline_forms)),
            lexicon_names=options.lexicons or self.base.lexicon_names,
            markup=Markup.SSML if options.ssml else self.base.markup,
            lead_ms=None if options.burst else self.base.lead_ms if options.lead_ms is None else options.lead_ms,
            speed=speed,
            sampling=msgspec.structs.replace(self.base.sampling, seed=options.seed, **given_fields(options.sampling)),
        )
        return settings, tuple(filter(None, (voice_warning, language_warning, speed_warning, instruct_warning)))

    def resolve_voice(self, named: str) -> tuple[str | None, str]:
        """Return a voice of this server, and a warning if it is the default in place of an unknown one."""
        voice, warning = self._voice(named)
        first = next((voice.name for voice in self.info.voices), None)
        return voice or first, warning

    def _voice(self, named: str | None) -> tuple[str | None, str]:
        if not named:
            return self.base.voice, ""
        wanted = self.aliases.get(named, named)
        ours = next((voice.name for voice in self.info.voices if voice.name.lower() == wanted.lower()), None)
        if ours is None and self.is_stored(wanted):
            ours = wanted
        if ours is not None:
            return ours, ""
        return self.base.voice, f"voice {_truncate(named)} is unknown, the default one speaks"

    def _language(self, named: str | None) -> tuple[str, str]:
        if not named:
            return self.base.language, ""
        ours = known_language(named, self.info.languages)
        if ours is not None:
            return ours, ""
        return self.base.language, f"language {_truncate(named)} is unknown, the default is taken"

    def _speed(self, requested: float) -> tuple[float, str]:
        speed = min(max(requested, MIN_SPEED), MAX_SPEED)
        return speed, "" if speed == requested else f"speed is taken as {speed:g}, the nearest there is"


def audio_format(requested: RequestedFormat) -> AudioFormat:
    try:
        encoding = Encoding(requested.encoding)
    except ValueError:
        raise UnsupportedFormat(f"encoding {_truncate(requested.encoding)} cannot be served", "encoding") from None
    audio = AudioFormat(encoding=encoding, sample_rate=requested.sample_rate, packet_ms=requested.packet_ms)
    return audio if requested.bitrate is None else replace(audio, bitrate=requested.bitrate)


def _truncate(text: str) -> str:
    return repr(text if len(text) <= MAX_DISPLAY_CHARS else text[:MAX_DISPLAY_CHARS] + "...")
