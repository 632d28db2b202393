"""``/v1/pronunciation-dictionaries`` of ElevenLabs: the lexicons of a key, as its packages create and read them."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from engine.api import ErrorInfo, InvalidRequest
from realtime.errors import RequestRefused, http_status, refusal_headers
from realtime.protocol.dialects.elevenlabs_common import error_answer
from realtime.protocol.dialects.parsing import integer, parse_json
from realtime.transports.http_routes import server_of
from realtime.transports.lexicon_routes import read_lexicon_body
from realtime.transports.vendor_voices import one_of
from realtime.transports.voice_routes import read_form
from sessions.lexicon_store import LexiconManifest, LexiconRecord
from sessions.text.lexicons.files import MAX_FILE_BYTES, ParsedLexicon, parse_lexicon, to_pls
from sessions.text.lexicons.lexicon import LexiconEntry
from sessions.voices.voice import SHARED

log = logging.getLogger("voicewire.voices")

T = TypeVar("T")
ADDRESS = "/v1/pronunciation-dictionaries"
MEDIA_TYPE = "application/pls+xml"
ID_BYTES = 10
DEFAULT_PAGE, MAX_PAGE = 30, 100
MAX_TITLE_CHARS, MAX_DESCRIPTION_CHARS = 200, 2_000
# ElevenLabs' names of sorts, and the field of a manifest.
SORTS = {"creation_time_unix": "created_s", "name": "title"}


class DictionaryRule(Struct):
    string_to_replace: str
    type: Literal["alias", "phoneme"]
    alias: str = ""
    phoneme: str = ""
    alphabet: str = "ipa"
    case_sensitive: bool = True
    word_boundaries: bool = True

    def to_entry(self) -> LexiconEntry:
        """Raises ``InvalidRequest``."""
        if not self.word_boundaries:
            raise InvalidRequest("word_boundaries must be true: rules match whole words", "rules.word_boundaries")
        spoken = {"alias": self.alias} if self.type == "alias" else {"phoneme": self.phoneme, "alphabet": self.alphabet}
        return LexiconEntry(text=self.string_to_replace, match_case=self.case_sensitive, **spoken)


class NewRules(Struct):
    rules: list[DictionaryRule]

    @property
    def entries(self) -> list[LexiconEntry]:
        return [rule.to_entry() for rule in self.rules]


class NewDictionary(NewRules):
    name: str
    description: str | None = None


class RemovedRules(Struct):
    rule_strings: list[str]


class DictionaryEndpoint:
    """A handler whose errors have ElevenLabs' shape."""

    def __init__(self, handle: Callable[[Request], Awaitable[Response]]) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._handle(Request(scope, receive))
        await response(scope, receive, send)

    def refusal(self, info: ErrorInfo) -> Response:
        return JSONResponse(error_answer(info), http_status(info), refusal_headers(info))


async def add_from_rules(request: Request) -> Response:
    server = server_of(request)
    caller = server.gatekeeper.require_api_key(request)
    body = await read_lexicon_body(request)

    def store() -> LexiconManifest:
        new = parse_json(body, NewDictionary)
        manifest = _new_manifest(caller.name, new.name, new.description or "")
        record = LexiconRecord.build(manifest, ParsedLexicon("", new.entries))
        server.lexicons.put(record)
        return record.manifest

    return JSONResponse(_added(await _stored(store)))


async def add_from_file(request: Request) -> Response:
    server = server_of(request)
    caller = server.gatekeeper.require_api_key(request)
    with server.cloning.uploads.acquire():
        limit = f"a lexicon has at most {MAX_FILE_BYTES} bytes"
        form = await read_form(request, MAX_FILE_BYTES, server.config.voices.upload_timeout_s, limit, "file")
    data = form.file("file")
    if data is None:
        raise RequestRefused("invalid_request", "file is missing", "file")

    def store() -> LexiconManifest:
        manifest = _new_manifest(caller.name, form.text("name"), form.text("description"))
        record = LexiconRecord.build(manifest, parse_lexicon(data))
        server.lexicons.put(record)
        return record.manifest

    return JSONResponse(_added(await _stored(store)))


async def list_dictionaries(request: Request) -> Response:
    server = server_of(request)
    caller = server.gatekeeper.require_api_key(request)
    owners = dict.fromkeys((caller.name, SHARED))
    lists = [await asyncio.to_thread(server.lexicons.list, owner) for owner in owners]
    manifests = [manifest for each in lists for manifest in each]
    query = request.query_params
    size = integer(query, "page_size", 1, MAX_PAGE) or DEFAULT_PAGE
    field = SORTS[one_of(query, "sort", tuple(SORTS))]
    is_reversed = one_of(query, "sort_direction", ("DESCENDING", "ASCENDING", "desc", "asc")).startswith(("D", "d"))
    manifests.sort(key=lambda manifest: getattr(manifest, field), reverse=is_reversed)
    start = _after(manifests, query.get("cursor"))
    page, has_more = manifests[start : start + size], start + size < len(manifests)
    return JSONResponse(
        {
            "pronunciation_dictionaries": [_metadata(manifest) for manifest in page],
            "next_cursor": page[-1].name if has_more else None,
            "has_more": has_more,
        }
    )


async def show_dictionary(request: Request) -> Response:
    record = await _find(request, request.path_params["id"])
    return JSONResponse(_metadata(record.manifest) | {"rules": [_rule(entry) for entry in record.entries]})


async def download_version(request: Request) -> Response:
    identity, version = request.path_params["id"], request.path_params["version"]
    record = await _find(request, f"{identity}@{version}")
    pls = await asyncio.to_thread(to_pls, record.entries, record.lexicon.language)
    return Response(pls, media_type=MEDIA_TYPE)


async def add_rules(request: Request) -> Response:
    """A new rule for a string takes the place of the former one."""
    body = await read_lexicon_body(request)

    def change(record: LexiconRecord) -> list[LexiconEntry]:
        new = parse_json(body, NewRules).entries
        return [*_without(record.entries, [entry.text for entry in new]), *new]

    return await _edit(request, change)


async def set_rules(request: Request) -> Response:
    body = await read_lexicon_body(request)
    return await _edit(request, lambda _: parse_json(body, NewRules).entries)


async def remove_rules(request: Request) -> Response:
    body = await read_lexicon_body(request)
    return await _edit(request, lambda record: _without(record.entries, parse_json(body, RemovedRules).rule_strings))


async def _edit(request: Request, change: Callable[[LexiconRecord], list[LexiconEntry]]) -> Response:
    server, identity = server_of(request), request.path_params["id"]
    caller = server.gatekeeper.require_api_key(request)

    def rebuild(record: LexiconRecord) -> LexiconRecord:
        return LexiconRecord.build(record.manifest, ParsedLexicon(record.lexicon.language, change(record)))

    manifest = await _stored(lambda: server.lexicons.edit(caller.name, identity, rebuild))
    if manifest is None:
        raise _unknown(identity)
    num_rules = manifest.num_entries + manifest.num_left_out
    return JSONResponse({"id": manifest.name, "version_id": manifest.version, "version_rules_num": num_rules})


async def _stored(store: Callable[[], T]) -> T:
    """Call in a worker thread. Raises ``SpeechError``."""
    try:
        return await asyncio.to_thread(store)
    except OSError:
        log.exception("storing lexicon failed")
        raise RequestRefused("internal_error", "the dictionary could not be stored") from None


async def _find(request: Request, name: str) -> LexiconRecord:
    server = server_of(request)
    caller = server.gatekeeper.require_api_key(request)
    for owner in dict.fromkeys((caller.name, SHARED)):
        if (record := await asyncio.to_thread(server.lexicons.read, owner, name)) is not None:
            return record
    raise _unknown(name)


def _unknown(name: str) -> RequestRefused:
    return RequestRefused(
        "lexicon_not_found", f"dictionary {name[:80]!r} is unknown, or it is not yours", "pronunciation_dictionary_id"
    )


def _new_manifest(owner: str, title: str, description: str) -> LexiconManifest:
    """Give a new dictionary its id. Raises ``InvalidRequest``."""
    for name, text, shortest, limit in (
        ("name", title, 1, MAX_TITLE_CHARS),
        ("description", description, 0, MAX_DESCRIPTION_CHARS),
    ):
        if not shortest <= len(text) <= limit:
            raise InvalidRequest(f"{name} has {len(text)} characters, {shortest} to {limit} are allowed", name)
    return LexiconManifest(name=secrets.token_hex(ID_BYTES), owner=owner, title=title, description=description)


def _after(manifests: Sequence[LexiconManifest], cursor: str | None) -> int:
    if not cursor:
        return 0
    for index, manifest in enumerate(manifests, 1):
        if manifest.name == cursor:
            return index
    raise RequestRefused("invalid_request", f"cursor must be a dictionary of the list, is {cursor[:40]!r}", "cursor")


def _without(entries: Sequence[LexiconEntry], texts: Sequence[str]) -> list[LexiconEntry]:
    removed = frozenset(texts)
    return [entry for entry in entries if entry.text not in removed]


def _added(manifest: LexiconManifest) -> dict[str, Any]:
    return _common(manifest) | {
        "version_id": manifest.version,
        "version_rules_num": manifest.num_entries + manifest.num_left_out,
    }


def _metadata(manifest: LexiconManifest) -> dict[str, Any]:
    return _common(manifest) | {
        "latest_version_id": manifest.version,
        "latest_version_rules_num": manifest.num_entries + manifest.num_left_out,
        "archived_time_unix": None,
    }


def _common(manifest: LexiconManifest) -> dict[str, Any]:
    return {
        "id": manifest.name,
        "name": manifest.title or manifest.name,
        "created_by": manifest.owner,
        "creation_time_unix": manifest.created_s,
        "description": manifest.description or None,
        "permission_on_resource": "viewer" if manifest.owner == SHARED else "admin",
    }


def _rule(entry: LexiconEntry) -> dict[str, Any]:
    fields = {"string_to_replace": entry.text, "case_sensitive": entry.match_case, "word_boundaries": True}
    if entry.alias:
        return fields | {"type": "alias", "alias": entry.alias}
    return fields | {"type": "phoneme", "phoneme": entry.phoneme, "alphabet": entry.alphabet}


DICTIONARY_ROUTES: list[BaseRoute] = [
    Route(f"{ADDRESS}{path}", DictionaryEndpoint(handle), methods=[method])
    for method, path, handle in (
        ("POST", "/add-from-file", add_from_file),
        ("POST", "/add-from-rules", add_from_rules),
        ("GET", "", list_dictionaries),
        ("GET", "/{id}", show_dictionary),
        ("POST", "/{id}/add-rules", add_rules),
        ("POST", "/{id}/set-rules", set_rules),
        ("POST", "/{id}/remove-rules", remove_rules),
        ("GET", "/{id}/{version}/download", download_version),
    )
]
