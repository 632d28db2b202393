"""``/v1/voices``: list, clone, rename, delete; uploads, and the lists that other vendors' clients ask for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from engine.api import ClonedVoice, EngineInfo, InvalidRequest, VoiceInfo
from realtime.auth import Principal
from realtime.errors import RequestRefused
from realtime.transports.http_routes import BodyTimeout, read_body, server_of
from realtime.transports.transport import cancel_on_disconnect
from realtime.voice_cloner import check_transcript
from sessions.voices.lookup import embedding_numbers, find_voice, is_built_in, resembles_built_in, voices_for
from sessions.voices.voice import SHARED, StoredVoice, VoiceManifest, check_manifest, check_name

if TYPE_CHECKING:
    from realtime.server import SpeechServer

MAX_FIELDS = 16
# An embedding of 2,048 numbers takes some 50,000.
MAX_FIELD_BYTES = 262_144


class Renaming(msgspec.Struct, frozen=True):
    name: str


@dataclass(frozen=True, slots=True)
class UploadForm:
    fields: dict[str, str]
    files: dict[str, bytes]

    def text(self, *names: str) -> str:
        """Return the value of the first of these fields that is present."""
        return next((self.fields[name].strip() for name in names if name in self.fields), "")

    def file(self, *names: str) -> bytes | None:
        return next((self.files[name] for name in names if name in self.files), None)


async def read_form(
    request: Request, max_file_bytes: int, timeout_s: float, limit_text: str = "", param: str = "audio_sample"
) -> UploadForm:
    """Read an upload; raises ``RequestRefused``, at once if a header is enough to decide.

    ``limit_text`` states the limit of a file that is no recording, ``param`` is its field."""
    message = limit_text or f"a recording has at most max_upload_bytes, {max_file_bytes}"
    too_big = RequestRefused("message_too_big", message, param)
    limit = max_file_bytes + MAX_FIELD_BYTES
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or b"boundary" not in options:
        raise RequestRefused("invalid_request", "the body must be multipart/form-data, with its boundary in the header")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > limit:
        raise too_big
    stream = _limited(request, limit, too_big)
    parser = MultiPartParser(request.headers, stream, max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
    try:
        async with BodyTimeout(timeout_s):
            return await _taken(await parser.parse(), max_file_bytes, too_big)
    except (MultiPartException, UnicodeError) as error:
        raise RequestRefused("invalid_request", f"the form cannot be read: {_why(error)}") from None


async def _limited(request: Request, limit: int, too_big: RequestRefused) -> AsyncGenerator[bytes, None]:
    num_bytes = 0
    async for piece in request.stream():
        num_bytes += len(piece)
        if num_bytes > limit:
            raise too_big
        yield piece


async def _taken(form: FormData, max_file_bytes: int, too_big: RequestRefused) -> UploadForm:
    """Return the form's content and close its temporary files."""
    taken = UploadForm({}, {})
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if (value.size or 0) > max_file_bytes:
                    raise too_big
                taken.files[name] = await value.read()
            else:
                taken.fields[name] = value
    finally:
        await form.close()
    return taken


def _why(error: Exception) -> str:
    return error.message if isinstance(error, MultiPartException) else type(error).__name__


log = logging.getLogger("voicewire.voices")

AUDIO_FIELDS = ("audio_sample", "audio", "file")
EMBEDDING_FIELD = "speaker_embedding"


async def list_voices(request: Request) -> Response:
    server = server_of(request)
    caller = server.gatekeeper.authenticate(request)
    info, stored = server.engine.info, await _stored(server, caller)
    names = [voice.name for voice in info.voices] + [manifest.name for manifest in stored]
    uploaded = [_describe_voice(manifest, caller) for manifest in stored]
    fields = {"model": info.model, "voices": names, "uploaded_voices": uploaded}
    return JSONResponse(fields | {"can_change": not caller.by_token})


async def list_voices_with_ids(request: Request) -> Response:
    server = server_of(request)
    caller = server.gatekeeper.authenticate(request)
    info, stored = server.engine.info, await _stored(server, caller)
    voices = [_describe_built_in(voice) for voice in info.voices]
    for manifest in stored:
        about = _voice_fields(manifest.name, info.languages, manifest.description)
        voices += [_describe_voice(manifest, caller) | about]
    return JSONResponse({"model": info.model, "voices": voices})


async def show_voice(request: Request) -> Response:
    server = server_of(request)
    caller, name = server.gatekeeper.authenticate(request), request.path_params["name"]
    for voice in server.engine.info.voices:
        if voice.name == name:
            return JSONResponse(_describe_built_in(voice))
    found = await asyncio.to_thread(find_voice, server.voices, caller.name, name)
    if found is None:
        raise _not_found(name)
    return JSONResponse(_describe_voice(found.manifest, caller))


async def show_embedding(request: Request) -> Response:
    """Return a stored voice's speaker embedding; tokens receive none, as they receive no transcript."""
    server = server_of(request)
    caller, name = server.gatekeeper.require_api_key(request), request.path_params["name"]
    if is_built_in(name, server.engine.info):
        raise InvalidRequest(f"voice {name!r} belongs to the model and has no speaker embedding", "name")
    found = await asyncio.to_thread(find_voice, server.voices, caller.name, name)
    if found is None:
        raise _not_found(name)
    embedding = embedding_numbers(found.clone)
    if not embedding:
        raise InvalidRequest(f"voice {name!r} has no speaker embedding", "name")
    return JSONResponse({"name": name, "model": found.manifest.model, "embedding": embedding})


async def add_voice(request: Request) -> Response:
    server = server_of(request)
    caller = server.gatekeeper.require_api_key(request)
    settings = server.config.voices
    with server.cloning.uploads.acquire():
        form = await read_form(request, settings.max_upload_bytes, settings.upload_timeout_s)
        manifest = _manifest(form, caller, server.engine.info)
        _check_free(server, manifest)
        clone, manifest = await cancel_on_disconnect(request, _cloned(server, form, manifest))
    await _store(server, StoredVoice(manifest, clone))
    return JSONResponse({"success": True, "voice": _describe_voice(manifest, caller)})


async def _store(server: SpeechServer, voice: StoredVoice) -> None:
    """Store a voice; raises ``SpeechError``."""
    try:
        await asyncio.to_thread(server.voices.add, voice)
    except OSError:
        log.exception("storing voice failed")
        raise RequestRefused("internal_error", "the voice could not be stored") from None


async def rename_voice(request: Request) -> Response:
    """Store a voice under another name, then delete it under the former one: it exists at every moment."""
    server = server_of(request)
    caller, name = server.gatekeeper.require_api_key(request), request.path_params["name"]
    new_name = _new_name(await read_body(request, server))
    found = await asyncio.to_thread(_own_voice, server, caller, name)
    renamed = msgspec.structs.replace(found.manifest, name=new_name)
    _check_free(server, renamed)
    await _store(server, StoredVoice(renamed, found.clone))
    if not await asyncio.to_thread(server.voices.remove, caller.name, name):
        # It was deleted or renamed meanwhile: that request was first.
        await asyncio.to_thread(server.voices.remove, caller.name, new_name)
        raise _not_found(name)
    return JSONResponse({"success": True, "voice": _describe_voice(renamed, caller)})


async def delete_voice(request: Request) -> Response:
    server = server_of(request)
    caller, name = server.gatekeeper.require_api_key(request), request.path_params["name"]
    await asyncio.to_thread(_own_voice, server, caller, name)
    if not await asyncio.to_thread(server.voices.remove, caller.name, name):
        raise _not_found(name)
    return JSONResponse({"success": True, "message": f"voice {name!r} was deleted"})


def _own_voice(server: SpeechServer, caller: Principal, name: str) -> StoredVoice:
    """Return a voice that the caller stored; raises ``RequestRefused`` for any other."""
    if is_built_in(name, server.engine.info):
        raise RequestRefused("voice_protected", f"voice {name!r} belongs to the model", "name")
    if (found := server.voices.find(caller.name, name)) is not None:
        return found
    if server.voices.find(SHARED, name):
        raise RequestRefused("voice_protected", f"voice {name!r} belongs to the operator", "name")
    raise _not_found(name)


def _new_name(body: bytes) -> str:
    """Return the name in the body of a renaming; raises ``InvalidRequest``."""
    try:
        new_name = msgspec.json.decode(body, type=Renaming).name
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidRequest(f"the body must be a JSON object with a name: {error}", "name") from None
    check_name(new_name)
    return new_name


async def _stored(server: SpeechServer, caller: Principal) -> list[VoiceManifest]:
    return await asyncio.to_thread(voices_for, server.voices, caller.name)


def _manifest(form: UploadForm, caller: Principal, info: EngineInfo) -> VoiceManifest:
    """Build the manifest of an upload; raises ``InvalidRequest`` for errors that need no decoding."""
    has_audio, has_embedding = form.file(*AUDIO_FIELDS) is not None, bool(form.text(EMBEDDING_FIELD))
    if has_audio == has_embedding:
        given = "both are given" if has_audio else "none is given"
        raise InvalidRequest(f"a voice is made of audio_sample or of speaker_embedding; {given}", "audio_sample")
    transcript = form.text("ref_text", "transcript") if has_audio else ""
    check_transcript(transcript)
    manifest = VoiceManifest(
        name=form.text("name"),
        owner=caller.name,
        model=info.model,
        created_s=int(time.time()),
        consent=form.text("consent"),
        description=form.text("speaker_description", "description"),
        transcript=transcript,
        source="audio" if has_audio else "embedding",
    )
    check_manifest(manifest)
    return manifest


def _check_free(server: SpeechServer, manifest: VoiceManifest) -> None:
    """Check the name and the limits before any work; the store checks again when it writes."""
    if resembles_built_in(manifest.name, server.engine.info):
        raise RequestRefused("voice_protected", f"voice {manifest.name!r} belongs to the model", "name")
    if server.voices.find(manifest.owner, manifest.name):
        raise RequestRefused("voice_exists", f"voice {manifest.name!r} exists already; delete it first", "name")


async def _cloned(server: SpeechServer, form: UploadForm, manifest: VoiceManifest) -> tuple[ClonedVoice, VoiceManifest]:
    audio = form.file(*AUDIO_FIELDS)
    if audio is None:
        return server.cloning.from_embedding(_numbers(form.text(EMBEDDING_FIELD))), manifest
    clone, sample_s = await server.cloning.from_upload(audio, manifest.transcript)
    return clone, msgspec.structs.replace(manifest, sample_s=round(sample_s, 2))


def _numbers(text: str) -> list[float]:
    """Parse an embedding; raises ``InvalidRequest``."""
    try:
        return msgspec.json.decode(text, type=list[float])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise InvalidRequest("speaker_embedding must be a JSON list of numbers", EMBEDDING_FIELD) from None


def _describe_voice(manifest: VoiceManifest, caller: Principal) -> dict[str, Any]:
    """Public fields of a stored voice; consent and transcript are for the owner's key only."""
    is_shared = manifest.owner == SHARED
    is_private = is_shared or caller.by_token
    entry = {
        "name": manifest.name,
        "created_at": manifest.created_s,
        "model": manifest.model,
        "source": manifest.source,
        "in_context": bool(manifest.transcript),
        "shared": is_shared,
    }
    more = {
        "sample_s": manifest.sample_s,
        "consent": "" if is_private else manifest.consent,
        "ref_text": "" if is_private else manifest.transcript,
        "speaker_description": manifest.description,
    }
    return entry | {field: value for field, value in more.items() if value}


def _describe_built_in(voice: VoiceInfo) -> dict[str, Any]:
    return _voice_fields(voice.name, voice.languages, voice.description) | {"built_in": True}


def _voice_fields(name: str, languages: tuple[str, ...], description: str) -> dict[str, Any]:
    return {"name": name, "voice_id": name, "languages": list(languages), "description": description}


def _not_found(name: str) -> RequestRefused:
    return RequestRefused("voice_not_found", f"voice {name!r} is unknown", "name")


VOICE_ROUTES: list[BaseRoute] = [
    Route("/v1/voices", list_voices_with_ids),
    Route("/v1/audio/voices", list_voices),
    Route("/v1/audio/voices", add_voice, methods=["POST"]),
    Route("/v1/audio/voices/{name}", show_voice),
    Route("/v1/audio/voices/{name}/embedding", show_embedding),
    Route("/v1/audio/voices/{name}", rename_voice, methods=["PATCH"]),
    Route("/v1/audio/voices/{name}", delete_voice, methods=["DELETE"]),
]
