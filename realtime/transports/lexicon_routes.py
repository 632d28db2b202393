"""``/v1/lexicons``: store, list, versions, delete."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from realtime.errors import RequestRefused
from realtime.transports.http_routes import BodyTimeout, server_of
from sessions.lexicon_store import LexiconManifest, LexiconRecord
from sessions.text.lexicons.files import MAX_FILE_BYTES, parse_lexicon
from sessions.voices.voice import SHARED, check_name

if TYPE_CHECKING:
    from realtime.server import SpeechServer

log = logging.getLogger("voicewire.voices")


async def list_lexicons(request: Request) -> Response:
    server = server_of(request)
    caller = server.gatekeeper.require_api_key(request)
    own = await asyncio.to_thread(server.lexicons.list, caller.name)
    shared = [] if caller.name == SHARED else await asyncio.to_thread(server.lexicons.list, SHARED)
    return JSONResponse({"lexicons": [_describe(manifest) for manifest in own + shared]})


async def show_lexicon(request: Request) -> Response:
    """Return a lexicon with its versions, the newest first."""
    server = server_of(request)
    caller, name = server.gatekeeper.require_api_key(request), request.path_params["name"]
    for owner in dict.fromkeys((caller.name, SHARED)):
        if (found := await asyncio.to_thread(server.lexicons.find, owner, name)) is not None:
            versions = await asyncio.to_thread(server.lexicons.versions, owner, name.partition("@")[0])
            return JSONResponse(_describe(found.manifest) | {"versions": [_version(each) for each in versions]})
    raise _not_found(name)


async def put_lexicon(request: Request) -> Response:
    server = server_of(request)
    caller, name = server.gatekeeper.require_api_key(request), request.path_params["name"]
    check_name(name)
    with server.cloning.uploads.acquire():
        data = await read_lexicon_body(request)
        try:
            manifest = await asyncio.to_thread(_store, server, caller.name, name, data)
        except OSError:
            log.exception("storing lexicon failed")
            raise RequestRefused("internal_error", "the lexicon could not be stored") from None
    return JSONResponse({"success": True, "lexicon": _describe(manifest)})


async def delete_lexicon(request: Request) -> Response:
    server = server_of(request)
    caller, name = server.gatekeeper.require_api_key(request), request.path_params["name"]
    if not await asyncio.to_thread(server.lexicons.remove, caller.name, name):
        raise _not_found(name)
    return JSONResponse({"success": True})


async def read_lexicon_body(request: Request) -> bytes:
    """Read a body as long as a lexicon may be. Raises ``RequestRefused``."""
    body = bytearray()
    async with BodyTimeout(server_of(request).config.voices.upload_timeout_s):
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_FILE_BYTES:
                raise RequestRefused("message_too_big", f"a lexicon has at most {MAX_FILE_BYTES} bytes", "lexicon")
    return bytes(body)


def _store(server: SpeechServer, owner: str, name: str, data: bytes) -> LexiconManifest:
    record = LexiconRecord.build(LexiconManifest(name=name, owner=owner), parse_lexicon(data))
    server.lexicons.put(record)
    return record.manifest


def _not_found(name: str) -> RequestRefused:
    return RequestRefused("lexicon_not_found", f"lexicon {name[:80]!r} is unknown, or it is not yours", "name")


def _describe(manifest: LexiconManifest) -> dict[str, Any]:
    return {
        "name": manifest.name,
        "version": manifest.version,
        "language": manifest.language,
        "entries": manifest.num_entries,
        "left_out": manifest.num_left_out,
        "created_at": manifest.created_s,
        "shared": manifest.owner == SHARED,
    }


def _version(manifest: LexiconManifest) -> dict[str, Any]:
    return {"version": manifest.version, "entries": manifest.num_entries, "created_at": manifest.created_s}


LEXICON_ROUTES: list[BaseRoute] = [
    Route("/v1/lexicons", list_lexicons),
    Route("/v1/lexicons/{name}", show_lexicon),
    Route("/v1/lexicons/{name}", put_lexicon, methods=["PUT"]),
    Route("/v1/lexicons/{name}", delete_lexicon, methods=["DELETE"]),
]
