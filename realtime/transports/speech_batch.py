"""``POST /v1/audio/speech/batch``: up to 32 texts in, all their files out, each with its own success or error."""

from __future__ import annotations

import asyncio
import base64
import secrets
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.api import ClonedVoice, EngineError, InvalidRequest
from realtime.auth import Caller
from realtime.errors import Refused, describe, rule_for
from realtime.server import SpeechServer
from realtime.speech_api.body import body_of, parse_object
from realtime.speech_api.order import begin, order_of
from realtime.speech_api.usage import usage
from realtime.speech_api.voice import Listener
from realtime.transports.http import server_of
from realtime.transports.speech import ended_by_leaving, read_body, whole
from sessions.errors import SessionError
from sessions.session import Session

MAX_ITEMS = 32
OF_STREAMS = ("stream", "stream_format")
"""A batch is sent as a whole; these are passed over."""


class HeardOnce:
    """Items that name the same recording share what was made of it, be it a voice or an error."""

    def __init__(self, listener: Listener) -> None:
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
class Batch:
    server: SpeechServer
    caller: Caller
    session: Session
    listener: HeardOnce
    at_once: asyncio.Semaphore


async def speech_batch(request: Request) -> Response:
    """Raises ``Refused`` for what is wrong with all of it."""
    server = server_of(request)
    caller = server.gatekeeper.admit(request)
    defaults = parse_object(await read_body(request, server))
    items = _items(defaults)
    server.may_speak()
    session = server.open_session(caller)
    async with ended_by_leaving(request, session):
        at_once = asyncio.Semaphore(server.config.limits.max_active_responses_per_session)
        batch = Batch(server, caller, session, HeardOnce(server.cloning), at_once)
        async with asyncio.TaskGroup() as tasks:
            spoken = [tasks.create_task(_speak(index, item, batch)) for index, item in enumerate(items)]
    session.detach()
    return JSONResponse(_summary([task.result() for task in spoken]))


def _items(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Each with the batch's own fields as its defaults. Raises ``Refused``."""
    items = body.pop("items", None)
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_ITEMS:
        found = f"{len(items)}" if isinstance(items, list) else "none"
        raise Refused("invalid_request", f"items must be a list of 1 to {MAX_ITEMS}, holds {found}", "items")
    return [body | item if isinstance(item, dict) else {"input": None} for item in items]


async def _speak(index: int, item: dict[str, Any], batch: Batch) -> dict[str, Any]:
    async with batch.at_once:
        try:
            return {"index": index, "status": "success"} | await _spoken(item, batch)
        except (Refused, SessionError, EngineError) as error:
            return {"index": index, "status": "error"} | _error(error)


async def _spoken(item: dict[str, Any], batch: Batch) -> dict[str, Any]:
    if batch.session.detached.is_set():
        raise Refused("session_closed", "the client has left")
    fields = {name: value for name, value in item.items() if name not in OF_STREAMS}
    order = await order_of(body_of(fields), batch.server, batch.caller, batch.listener)
    data, done = await whole(begin(order, batch.session))
    told = {
        "audio_data": base64.b64encode(data).decode(),
        "media_type": order.media_type,
        "usage": usage(done, order.num_reference_frames),
    }
    return told | ({"warning": order.warning} if order.warning else {})


def _error(error: Exception) -> dict[str, Any]:
    info = describe(error)
    body = {
        "message": info.message,
        "type": f"{rule_for(info.code).fault}_error",
        "param": info.param,
        "code": info.code,
    }
    return {"error": body}


def _summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    succeeded = sum(result["status"] == "success" for result in results)
    return {
        "id": f"speech-batch-{secrets.token_hex(8)}",
        "results": results,
        "total": len(results),
        "succeeded": succeeded,
        "failed": len(results) - succeeded,
    }
