"""The list of voices as clients of ElevenLabs, Cartesia and Open WebUI request it: searched, sorted, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from engine.api import EngineInfo
from realtime.auth import Principal
from realtime.errors import RequestRefused
from realtime.protocol.dialects.parsing import integer
from realtime.transports.http_routes import server_of
from sessions.languages import CODES, NAMES
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


OPEN_WEBUI = "/open-webui"
DEFAULT_PAGE, MAX_PAGE = 10, 100
DEFAULT_LANGUAGE = "en"


async def search_elevenlabs(request: Request) -> Response:
    """``GET /v2/voices``: ``voices.search`` of ElevenLabs' packages."""
    model, voices = server_of(request).engine.info.model, await _voices(request)
    return JSONResponse(await asyncio.to_thread(elevenlabs_page, voices, request.query_params, model))


async def list_cartesia(request: Request) -> Response:
    """``GET /voices``: ``voices.list`` of Cartesia's packages."""
    voices = await _voices(request)
    return JSONResponse(await asyncio.to_thread(cartesia_page, voices, request.query_params))


async def list_open_webui(request: Request) -> Response:
    voices = await _voices(request)
    return JSONResponse({"voices": [{"id": voice.name, "name": voice.name} for voice in voices]})


async def list_open_webui_models(request: Request) -> Response:
    server = server_of(request)
    server.gatekeeper.authenticate(request)
    model = server.engine.info.model
    return JSONResponse({"models": [{"id": model, "name": model}]})


async def _voices(request: Request) -> list[ListedVoice]:
    server = server_of(request)
    caller = server.gatekeeper.authenticate(request)
    return await asyncio.to_thread(listed_voices, server.engine.info, server.voices, caller)


def elevenlabs_page(voices: list[ListedVoice], query: QueryParams, model: str) -> dict[str, Any]:
    """Filters by what voices here do not have (gender, age, accent) are passed over. Raises ``RequestRefused``."""
    size = integer(query, "page_size", 1, MAX_PAGE) or DEFAULT_PAGE
    wanted, category, text = query.getlist("voice_ids"), query.get("category"), query.get("search") or ""
    found = [
        voice
        for voice in _sorted(voices, query)
        if (not wanted or voice.name in wanted) and category in (None, _category(voice)) and voice.contains(text)
    ]
    after = position(found, query, "next_page_token")
    start = 0 if after is None else after + 1
    page, has_more = found[start : start + size], start + size < len(found)
    return {
        "voices": [_elevenlabs_voice(voice, model) for voice in page],
        "has_more": has_more,
        "total_count": len(found),
        "next_page_token": page[-1].name if has_more else None,
    }


def _sorted(voices: list[ListedVoice], query: QueryParams) -> list[ListedVoice]:
    field = one_of(query, "sort", ("", "name", "created_at_unix"))
    is_reversed = one_of(query, "sort_direction", ("asc", "desc")) == "desc"
    if field == "name":
        return sorted(voices, key=lambda voice: voice.name.lower(), reverse=is_reversed)
    if field == "created_at_unix":
        return sorted(voices, key=lambda voice: voice.created_s or 0, reverse=is_reversed)
    return voices


def _elevenlabs_voice(voice: ListedVoice, model: str) -> dict[str, Any]:
    return {
        "voice_id": voice.name,
        "name": voice.name,
        "category": _category(voice),
        "description": voice.description,
        "labels": {},
        "is_owner": voice.is_owner,
        "created_at_unix": voice.created_s,
        "verified_languages": [{"language": language, "model_id": model} for language in voice.languages],
    }


def _category(voice: ListedVoice) -> str:
    return "premade" if voice.is_built_in else "cloned"


def cartesia_page(voices: list[ListedVoice], query: QueryParams) -> dict[str, Any]:
    """Answer in the shape of ``Cartesia-Version`` 2025 and later. Raises ``RequestRefused``."""
    limit, owner = integer(query, "limit", 1, MAX_PAGE) or DEFAULT_PAGE, query.get("is_owner")
    text = query.get("q") or ""
    found = [
        voice for voice in voices if voice.contains(text) and owner in (None, "", "true" if voice.is_owner else "false")
    ]
    before, after = position(found, query, "ending_before"), position(found, query, "starting_after")
    if before is not None:
        page, has_more = found[max(before - limit, 0) : before], before > limit
        cursor = page[0].name if has_more else None
    else:
        start = 0 if after is None else after + 1
        page, has_more = found[start : start + limit], start + limit < len(found)
        cursor = page[-1].name if has_more else None
    return {"data": [_cartesia_voice(voice) for voice in page], "has_more": has_more, "next_page": cursor}


def _cartesia_voice(voice: ListedVoice) -> dict[str, Any]:
    languages = voice.languages or (DEFAULT_LANGUAGE,)
    created = datetime.fromtimestamp(voice.created_s or 0, UTC)
    return {
        "id": voice.name,
        "name": voice.name,
        "description": voice.description,
        "tagline": "",
        "language": languages[0],
        "locales": [{"locale": language, "is_native": not number} for number, language in enumerate(languages)],
        "is_owner": voice.is_owner,
        "access": "private" if voice.is_owner else "public",
        "visibility": "owner" if voice.is_owner else "all",
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "gender": None,
        "country": None,
    }


VENDOR_VOICE_ROUTES: list[BaseRoute] = [
    Route("/v2/voices", search_elevenlabs),
    Route("/voices", list_cartesia),
]


def open_webui_routes(api: list[BaseRoute]) -> list[BaseRoute]:
    """A second base path, ``/open-webui/v1``, for Open WebUI: its lists hold objects, and all else is the same API."""
    lists = [Route("/v1/audio/voices", list_open_webui), Route("/v1/audio/models", list_open_webui_models)]
    return [Mount(OPEN_WEBUI, routes=[*lists, *api])]
