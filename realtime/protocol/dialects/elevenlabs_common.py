"""Shared parts of ElevenLabs' wires: formats, keys, errors, how a handshake is read, and times of characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field

from engine.api import ErrorInfo
from realtime.errors import CloseCode
from realtime.protocol.dialects.parsing import integer, is_true, unsupported_format
from realtime.protocol.model import RequestedFormat, SpeechOptions, TimedWord

ENCODINGS = {
    "mp3": "mp3",
    "pcm": "pcm_s16le",
    "wav": "wav",
    "ulaw": "mulaw",
    "alaw": "alaw",
    "opus": "ogg_opus",
}
DEFAULT_FORMAT = "mp3_44100_128"
OUTPUT_FORMAT = re.compile(r"([a-z0-9]{3,4})_(\d{4,5})(?:_(\d{1,3}))?")
# ``eleven_v3``, ``eleven_flash_v2_5``
MODEL_VERSION = re.compile(r"_v(\d{1,3})(?:_|$)")
FIRST_VERSION_WITH_TAGS = 3
# The form of audio tags.
BRACKETS = ("brackets",)
MAX_SEED = 2**32 - 1
# ElevenLabs' error codes; other errors keep this server's codes.
STATUSES = {
    "unauthorized": "invalid_api_key",
    "unknown_voice": "voice_not_found",
    "limit_exceeded": "too_many_concurrent_requests",
    "too_many_connections": "too_many_concurrent_requests",
    "overloaded": "system_busy",
    "draining": "system_busy",
    "unsupported_format": "invalid_output_format",
    "request_too_long": "max_character_limit_exceeded",
}
# Names that differ between ElevenLabs and this server.
CLOSES: dict[int, int] = dict.fromkeys(
    (CloseCode.INVALID_DATA, CloseCode.UNSUPPORTED_DATA, CloseCode.GOING_AWAY), CloseCode.POLICY_VIOLATION
)


class ElevenLabsVoiceSettings(Struct):
    """The rest of theirs has no counterpart here."""

    speed: float | None = None


class DictionaryLocator(Struct):
    """A pronunciation dictionary; without a version the newest one."""

    pronunciation_dictionary_id: str
    version_id: str | None = None

    @property
    def lexicon(self) -> str:
        version = f"@{self.version_id}" if self.version_id else ""
        return self.pronunciation_dictionary_id + version


def lexicon_names(locators: Iterable[DictionaryLocator] | None) -> tuple[str, ...]:
    return tuple(locator.lexicon for locator in locators or ())


class ElevenLabsCredentials(Struct):
    """Base of messages that may hold the API key."""

    dashed_key: str | None = field(default=None, name="xi-api-key")
    xi_api_key: str | None = None
    authorization: str | None = None
    single_use_token: str | None = None

    @property
    def key(self) -> str | None:
        found = self.dashed_key or self.xi_api_key or self.authorization or self.single_use_token
        return found and found.removeprefix("Bearer ").strip()


def wire_format(name: str) -> RequestedFormat:
    """``mp3_22050_32`` and the like. Raises ``RemoteProtocolError``."""
    found = OUTPUT_FORMAT.fullmatch(name)
    if found is None or found[1] not in ENCODINGS:
        raise unsupported_format("output_format", (f"{codec}_RATE" for codec in ENCODINGS), name)
    return RequestedFormat(ENCODINGS[found[1]], int(found[2]), int(found[3]) * 1000 if found[3] else None)


def audio_tags(model_id: str | None) -> tuple[str, ...]:
    """Return the inline forms that this model of ElevenLabs reads: from version 3 on, tags in brackets."""
    version = MODEL_VERSION.search(model_id or "")
    return BRACKETS if version is not None and int(version[1]) >= FIRST_VERSION_WITH_TAGS else ()


def parse_options(query: Mapping[str, str], voice: str | None) -> SpeechOptions:
    """Return the speech options of a query. Raises ``RemoteProtocolError``."""
    return SpeechOptions(
        voice=voice,
        language=query.get("language_code"),
        format=wire_format(query.get("output_format") or DEFAULT_FORMAT),
        seed=integer(query, "seed", 0, MAX_SEED),
        word_times=True,
        ssml=is_true(query.get("enable_ssml_parsing")),
        inline_forms=audio_tags(query.get("model_id")),
    )


def error_fields(error: ErrorInfo, close: int) -> dict[str, Any]:
    fields = {"message": error.message, "error": STATUSES.get(error.code, error.code), "code": close}
    return fields if error.param is None else fields | {"param": error.param}


def error_answer(error: ErrorInfo) -> dict[str, Any]:
    """The body of an HTTP answer."""
    return {"detail": {"status": STATUSES.get(error.code, error.code), "message": error.message}}


def inactivity_s(query: Mapping[str, str], default: int, most: int) -> float:
    """Parse the inactivity timeout; raises ``RemoteProtocolError``."""
    return float(min(integer(query, "inactivity_timeout", 1, 86_400) or default, most))


class TimedChar(NamedTuple):
    text: str
    start_ms: float
    end_ms: float


def characters(words: Iterable[TimedWord], spoken: bool = False) -> list[TimedChar]:
    """The characters of words, each word with the space that ends it, so that no client waits for the next one."""
    found = []
    for word in words:
        text, ends_ms = (word.spoken, word.spoken_ends_ms) if spoken and word.spoken else (word.text, word.char_ends_ms)
        starts_ms = (word.start_ms, *ends_ms[:-1])
        found += [TimedChar(*each) for each in zip(text, starts_ms, ends_ms, strict=True)]
        if text and not _is_spaceless(text[-1]):
            found.append(TimedChar(" ", word.end_ms, word.end_ms))
    return found


def alignment(chars: Sequence[TimedChar], base_ms: float) -> dict[str, Any] | None:
    """Return character times of the sockets: whole milliseconds since ``base_ms``."""
    if not chars:
        return None
    starts = [round(char.start_ms - base_ms) for char in chars]
    ends = [round(char.end_ms - base_ms) for char in chars]
    return {
        "chars": [char.text for char in chars],
        "charStartTimesMs": starts,
        "charDurationsMs": [end - start for start, end in zip(starts, ends, strict=True)],
    }


def snake_alignment(chars: Sequence[TimedChar], base_ms: float) -> dict[str, Any] | None:
    """Return character times in the form of text-to-dialogue."""
    fields = alignment(chars, base_ms)
    names = {"chars": "chars", "charStartTimesMs": "char_start_times_ms", "charDurationsMs": "char_durations_ms"}
    return fields and {names[name]: values for name, values in fields.items()}


def alignment_s(chars: Sequence[TimedChar]) -> dict[str, Any] | None:
    """Return character times in the form of HTTP, in seconds."""
    if not chars:
        return None
    return {
        "characters": [char.text for char in chars],
        "character_start_times_seconds": [round(char.start_ms / 1000, 3) for char in chars],
        "character_end_times_seconds": [round(char.end_ms / 1000, 3) for char in chars],
    }


def _is_spaceless(character: str) -> bool:
    """Return whether the character's script writes words without spaces."""
    return unicodedata.category(character) == "Lo" and unicodedata.east_asian_width(character) in "WF"
