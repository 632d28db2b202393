"""``POST /v1/audio/speech/batch``: up to 32 texts in, all their files out, each with its own success or error."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from engine.api import ClonedVoice, InvalidRequest, SpeechError
from realtime.auth import Principal
from realtime.errors import RequestRefused, openai_error
from realtime.speech_api.request import body_of, parse_object
from realtime.speech_api.selected_voice import ReferenceEncoder
from realtime.speech_api.speech_job import prepare_job, usage
from realtime.transports.http_routes import read_body, server_of
from realtime.transports.speech_routes import ByteBudget, check_limits, decode, speak_whole
from realtime.transports.transport import PROVENANCE_HEADER, cancel_on_disconnect
from sessions.audio.provenance import SOURCE_TYPE

if TYPE_CHECKING:
    from realtime.server import SpeechServer
    from sessions.session import Session

MAX_ITEMS = 32
AUDIO = "audio_data"
# A multiple of three, so that the base64 of pieces can be joined.
PIECE_BYTES = 3 * 16_384
# A batch is sent as a whole; these are passed over.
OF_STREAMS = ("stream", "stream_format")


class SharedReferenceEncoder:
    """Items that name the same recording share what was made of it, be it a voice or an error."""

    def __init__(self, listener: ReferenceEncoder) -> None:
        self._listener = listener
        self._made: dict[tuple[str, str], ClonedVoice | InvalidRequest] = {}
        self._one_at_a_time = asyncio.Lock()

    async def from_reference(self, reference: str, transcript: str) -> ClonedVoice:
        key = (reference, transcript)
        async with self._one_at_a_time:
            if key not in self._made:
                try:
                    self._made[key] = await self._listener.from_reference(reference, transcript)
                except InvalidRequest as error:
                    self._made[key] = error
            made = self._made[key]
        if isinstance(made, InvalidRequest):
            raise made
        return made


@dataclass(frozen=True, slots=True)
class SpeechBatch:
    server: SpeechServer
    caller: Principal
    session: Session
    listener: SharedReferenceEncoder
    byte_budget: ByteBudget
    concurrency: asyncio.Semaphore


async def speech_batch(request: Request) -> Response:
    """Serve a batch; raises ``RequestRefused`` or ``LimitExceeded`` for errors of the whole batch."""
    server = server_of(request)
    caller = server.gatekeeper.authenticate(request)
    items = _items(await decode(parse_object, await read_body(request, server, caller)))
    check_limits(server, caller)
    results = await cancel_on_disconnect(request, _synthesize_all(items, server, caller))
    headers = {PROVENANCE_HEADER: SOURCE_TYPE}
    return StreamingResponse(_encode_results(results), media_type="application/json", headers=headers)


async def _synthesize_all(items: list[dict[str, Any]], server: SpeechServer, caller: Principal) -> list[dict[str, Any]]:
    limits, session = server.config.limits, server.open_session(caller)
    at_once = asyncio.Semaphore(limits.max_active_responses_per_session)
    budget = ByteBudget(limits.max_http_response_bytes)
    batch = SpeechBatch(server, caller, session, SharedReferenceEncoder(server.cloning), budget, at_once)
    try:
        async with asyncio.TaskGroup() as tasks:
            spoken = [tasks.create_task(_synthesize_item(index, item, batch)) for index, item in enumerate(items)]
    finally:
        session.detach()
    return [task.result() for task in spoken]


def _items(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items with the fields of the batch as defaults; raises ``RequestRefused``."""
    items = body.pop("items", None)
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_ITEMS:
        found = f"{len(items)}" if isinstance(items, list) else "none"
        raise RequestRefused("invalid_request", f"items must be a list of 1 to {MAX_ITEMS}, holds {found}", "items")
    return [body | item if isinstance(item, dict) else {"input": None} for item in items]


async def _synthesize_item(index: int, item: dict[str, Any], batch: SpeechBatch) -> dict[str, Any]:
    async with batch.concurrency:
        try:
            return {"index": index, "status": "success"} | await _synthesize(item, batch)
        except SpeechError as error:
            return {"index": index, "status": "error", "error": openai_error(error.info)}


async def _synthesize(item: dict[str, Any], batch: SpeechBatch) -> dict[str, Any]:
    fields = {name: value for name, value in item.items() if name not in OF_STREAMS}
    order = await prepare_job(body_of(fields), batch.server, batch.caller, batch.listener)
    data, done = await speak_whole(order, batch.session, batch.byte_budget, batch.server.metrics)
    result = {AUDIO: data, "media_type": order.media_type, "usage": usage(done, order.num_reference_frames)}
    return result | ({"warning": order.warning} if order.warning else {})


async def _encode_results(results: list[dict[str, Any]]) -> AsyncIterator[bytes]:
    """The JSON of all of it, in pieces so small that others are served in between."""
    succeeded = sum(result["status"] == "success" for result in results)
    counts = {"total": len(results), "succeeded": succeeded, "failed": len(results) - succeeded}
    head = {"id": f"speech-batch-{secrets.token_hex(8)}"} | counts
    yield msgspec.json.encode(head)[:-1] + b',"results":['
    for index, result in enumerate(results):
        yield b"," if index else b""
        for piece in _encode_result(result):
            yield piece
    yield b"]}"


def _encode_result(result: dict[str, Any]) -> Iterator[bytes]:
    audio = result.pop(AUDIO, None)
    rest = msgspec.json.encode(result)
    if audio is None:
        yield rest
        return
    yield b'{"%s":"' % AUDIO.encode()
    for start in range(0, len(audio), PIECE_BYTES):
        yield base64.b64encode(audio[start : start + PIECE_BYTES])
    yield b'",' + rest[1:]
