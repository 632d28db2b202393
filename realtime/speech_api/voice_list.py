"""The voices that a caller can name, as vendors' clients list them: searched, sorted, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import QueryParams

from engine.api import EngineInfo
from realtime.auth import Principal
from realtime.errors import RequestRefused
from realtime.speech_api.options import CODES, NAMES
from sessions.voices.lookup import voices_for
from sessions.voices.store import VoiceStore

MAX_QUOTED_CHARS = 40


@dataclass(frozen=True, slots=True)
class ListedVoice:
    # Name and id.
    name: str
    description: str
    # ISO 639-1 codes, the first one its own.
    languages: tuple[str, ...]
    is_built_in: bool = False
    # True if the caller stored it.
    is_owner: bool = False
    created_s: int | None = None

    def contains(self, text: str) -> bool:
        """Match the text in name or description, in any case."""
        return text.lower() in f"{self.name}\n{self.description}".lower()


def listed_voices(info: EngineInfo, store: VoiceStore, caller: Principal) -> list[ListedVoice]:
    """List the voices of the model, the caller's, then the shared ones. Reads files: call it in a worker thread."""
    built_in = [
        ListedVoice(voice.name, voice.description, iso_codes(voice.languages), is_built_in=True)
        for voice in info.voices
    ]
    languages = iso_codes(info.languages)
    return built_in + [
        ListedVoice(
            manifest.name,
            manifest.description,
            languages,
            is_owner=manifest.owner == caller.name,
            created_s=manifest.created_s,
        )
        for manifest in voices_for(store, caller.name)
    ]


def iso_codes(languages: Sequence[str]) -> tuple[str, ...]:
    """Languages of a checkpoint as ISO 639-1 codes; what has none is left out."""
    codes = (name if name in NAMES else CODES.get(name) for name in map(str.lower, languages))
    return tuple(code for code in codes if code is not None)


def whole_number(query: QueryParams, name: str, default: int, low: int, high: int) -> int:
    """Parse an integer of the query; raises ``RequestRefused``, which names parameter, range and value."""
    given = query.get(name) or str(default)
    if not (given.isascii() and given.isdecimal() and len(given) < 10 and low <= int(given) <= high):
        raise _refused(name, f"a whole number from {low} to {high}", given)
    return int(given)


def one_of(query: QueryParams, name: str, known: Sequence[str]) -> str:
    """The first one by default. Raises ``RequestRefused``, which names parameter, values and value."""
    given = query.get(name) or known[0]
    if given not in known:
        raise _refused(name, f"one of {', '.join(known)}", given)
    return given


def position(voices: Sequence[ListedVoice], query: QueryParams, name: str) -> int | None:
    """The index of the voice that a cursor names, ``None`` without a cursor. Raises ``RequestRefused``."""
    given = query.get(name)
    if not given:
        return None
    for index, voice in enumerate(voices):
        if voice.name == given:
            return index
    raise _refused(name, "a voice of the list", given)


def _refused(name: str, allowed: str, given: str) -> RequestRefused:
    return RequestRefused("invalid_request", f"{name} must be {allowed}, is {given[:MAX_QUOTED_CHARS]!r}", name)
