"""What a vendor's client wishes, as far as it can be had here: unknown voices and languages become the default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from engine.api import EngineInfo
from realtime.protocol.dialects.base import WireFormat, Wish
from sessions.config import AudioFormat, Encoding, SpeechSettings
from sessions.errors import UnsupportedFormat

MAX_SHOWN_CHARS = 64


class Grantor:
    """Turns wishes into settings. ``voices`` maps vendors' voice ids to ours."""

    def __init__(self, base: SpeechSettings, lead_ms: int | None, info: EngineInfo, voices: Mapping[str, str]) -> None:
        self._base = replace(base, lead_ms=lead_ms)
        self._voices = {voice.name.lower(): voice.name for voice in info.voices}
        self._aliases = voices
        self._languages = {language.lower(): language for language in info.languages}

    def grant(self, wish: Wish) -> tuple[SpeechSettings, tuple[str, ...]]:
        """The settings, and what to tell of them. Raises ``UnsupportedFormat``."""
        voice, voice_warning = self._voice(wish.voice)
        language, language_warning = self._language(wish.language)
        settings = replace(
            self._base,
            voice=voice,
            language=language,
            instruct=wish.instruct or self._base.instruct,
            format=audio_format(wish.format),
            word_times=wish.word_times,
            sampling=msgspec.structs.replace(self._base.sampling, seed=wish.seed),
        )
        return settings, tuple(filter(None, (voice_warning, language_warning, speed_warning(wish.speed))))

    def _voice(self, named: str | None) -> tuple[str | None, str]:
        if not named:
            return self._base.voice, ""
        ours = self._voices.get(self._aliases.get(named, named).lower())
        if ours is not None:
            return ours, ""
        return self._base.voice, f"voice {_shown(named)} is unknown, the default one speaks"

    def _language(self, named: str | None) -> tuple[str, str]:
        if not named:
            return self._base.language, ""
        for code in (named.lower(), named.lower().partition("-")[0]):
            if code in self._languages:
                return self._languages[code], ""
        return self._base.language, f"language {_shown(named)} is unknown, the default is taken"


def audio_format(wished: WireFormat) -> AudioFormat:
    try:
        encoding = Encoding(wished.encoding)
    except ValueError:
        raise UnsupportedFormat(f"encoding {_shown(wished.encoding)} cannot be served", "encoding") from None
    audio = AudioFormat(encoding=encoding, sample_rate=wished.sample_rate)
    return audio if wished.bitrate is None else replace(audio, bitrate=wished.bitrate)


def speed_warning(speed: float) -> str:
    return "" if speed == 1.0 else "speed cannot be changed, 1 is taken"


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "...")
