"""HTTP requests: their bodies, and the answers for health, information, the page and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from engine.api import SAMPLING_RANGES, EngineInfo, ErrorInfo, SamplingFields
from realtime.auth import Principal
from realtime.config import ServerConfig
from realtime.errors import RequestRefused, http_status, openai_error, refusal_headers
from realtime.transports.transport import client_disconnected

if TYPE_CHECKING:
    from realtime.server import SpeechServer

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# No JSON has more values than these and one; a recording in base64 has one of them.
VALUE_MARKS = (b",", b"[", b"{")
# At least, so that a body of ``max_message_bytes`` is never refused for its values.
BYTES_PER_VALUE = 2


async def read_body(request: Request, server: SpeechServer, caller: Principal | None = None) -> bytes:
    """Read a body of at most ``max_message_bytes``; a ``caller`` can bring a recording beside them, unless it is a
    token. Raises ``RequestRefused``.

    The number of bodies with recordings is limited, and so is the number of their values: parsing takes a while.
    """
    max_bytes, voices = server.config.limits.max_message_bytes, server.config.voices
    can_upload = caller is not None and server.engine.info.can_encode and not caller.by_token
    max_upload_bytes = voices.max_upload_bytes * 4 // 3 + 4 if can_upload else 0
    body, num_values, max_values = bytearray(), 0, max_bytes // BYTES_PER_VALUE
    with ExitStack() as upload:
        async with BodyTimeout(server.config.listen.handshake_timeout_s) as deadline:
            async for piece in request.stream():
                was_small = len(body) <= max_bytes
                body += piece
                num_values += sum(map(piece.count, VALUE_MARKS))
                if len(body) <= max_bytes:
                    continue
                if was_small and can_upload:
                    upload.enter_context(server.cloning.uploads.acquire())
                    deadline.reschedule(asyncio.get_running_loop().time() + voices.upload_timeout_s)
                if len(body) > max_bytes + max_upload_bytes:
                    raise _body_too_big(max_bytes, can_upload, caller)
                if num_values > max_values:
                    message = f"a body longer than max_message_bytes has at most {max_values} values"
                    raise RequestRefused("message_too_big", message)
    return bytes(body)


class BodyTimeout:
    """Limit the time in which a body is read. Raises ``RequestRefused``, also if the client disconnects.

    A class, because a generator adds 20 us to a request."""

    def __init__(self, timeout_s: float) -> None:
        self._deadline = asyncio.timeout(timeout_s)

    async def __aenter__(self) -> asyncio.Timeout:
        return await self._deadline.__aenter__()

    async def __aexit__(self, *exc_info: Any) -> None:
        try:
            await self._deadline.__aexit__(*exc_info)
        except TimeoutError:
            raise RequestRefused("body_timeout", "the body did not arrive in time") from None
        if isinstance(exc_info[1], ClientDisconnect):
            raise client_disconnected() from None


def _body_too_big(max_bytes: int, can_upload: bool, caller: Principal | None) -> RequestRefused:
    message = f"the body is longer than max_message_bytes, {max_bytes}"
    if can_upload:
        message += " beside a recording"
    elif caller is not None and caller.by_token:
        message += "; ref_audio needs an API key"
    return RequestRefused("message_too_big", message)


@runtime_checkable
class RefusesInOwnShape(Protocol):
    """An endpoint of a vendor's API."""

    def refusal(self, info: ErrorInfo) -> Response: ...


def refusal_response(info: ErrorInfo) -> JSONResponse:
    """Any error as an HTTP answer: status, ``Retry-After``, and OpenAI's shape of body."""
    return JSONResponse({"error": openai_error(info)}, http_status(info), refusal_headers(info))


async def health(request: Request) -> Response:
    alive = server_of(request).is_healthy
    return JSONResponse({"status": "ok" if alive else "engine_dead"}, 200 if alive else 503)


async def readiness(request: Request) -> Response:
    server = server_of(request)
    state = "ready" if server.is_ready else "draining" if server.draining else "engine_dead"
    return JSONResponse({"status": state}, 200 if server.is_ready else 503)


async def metrics(request: Request) -> Response:
    server = server_of(request)
    server.gatekeeper.require_api_key(request)
    return Response(server.metrics.exposition(), media_type=METRICS_TYPE)


async def models(request: Request) -> Response:
    """The one model there is, in OpenAI's shape, with what it supports, and what the agent can do."""
    server = server_of(request)
    server.gatekeeper.authenticate(request)
    agent = "none" if server.agent is None else server.agent.ability
    return JSONResponse({"object": "list", "data": [describe_model(server.engine.info) | {"agent": agent}]})


def describe_model(info: EngineInfo) -> dict[str, Any]:
    """Describe a model in OpenAI's shape, with the settings of the native protocol that it honors and their ranges."""
    settings = ("chunk_frames", *(field.name for field in msgspec.structs.fields(SamplingFields)))
    honored = [name for name in settings if name not in info.refused_fields]
    ranges = {name: limits for name, limits in {**SAMPLING_RANGES, **info.sampling_limits}.items() if name in honored}
    sources = {"audio": info.can_encode, "embedding": info.can_clone}
    return {
        "id": info.model,
        "object": "model",
        "created": 0,
        "owned_by": "voicewire",
        "task": info.task,
        "supported_parameters": ["instruct", *honored] if info.takes_instruct else honored,
        "parameter_ranges": ranges,
        "voice_sources": [source for source, is_supported in sources.items() if is_supported],
        "embedding_size": info.embedding_size,
        "min_sample_s": info.min_sample_s,
        "max_sample_s": info.max_sample_s,
    }


def server_of(request: HTTPConnection) -> SpeechServer:
    server: SpeechServer = request.app.state.server
    return server


INFORMATION_ROUTES: list[BaseRoute] = [
    Route("/healthz", health),
    Route("/readyz", readiness),
    Route("/metrics", metrics),
    Route("/v1/models", models),
]


async def error_handler(request: Request, error: Exception) -> Response:
    """Starlette's handler of all errors, in the shape that the address has for them. An unexpected error keeps its
    text to itself, and is logged by the listener."""
    headers: Mapping[str, str] = {}
    if isinstance(error, HTTPException):
        headers = error.headers or {}
        error = _refused_by_starlette(request, error)
    info = ErrorInfo.from_error(error)
    server_of(request).metrics.refused(info.code)
    endpoint = request.scope.get("endpoint")
    answer = endpoint.refusal(info) if isinstance(endpoint, RefusesInOwnShape) else refusal_response(info)
    answer.headers.update(headers)
    return answer


def _refused_by_starlette(request: Request, error: HTTPException) -> RequestRefused:
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return RequestRefused("method_not_allowed", f"this address does not take {request.method[:16]}")
    return RequestRefused("unknown_path", "no such address on this server")


async def reject_unknown_websocket(websocket: WebSocket) -> None:
    """The endpoint of every WebSocket address that does not exist."""
    await websocket.send_denial_response(
        refusal_response(RequestRefused("unknown_path", "no such address on this server").info)
    )


# Beside the packages, in a checkout and in what a wheel installs.
PAGE = Path(__file__).parents[2] / "web_client"

CONTENT_POLICY = {
    "default-src": "'none'",
    "script-src": "'self' 'wasm-unsafe-eval'",  # the second for the Opus decoder in WebAssembly
    "style-src": "'self'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "worker-src": "'self'",
    "manifest-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {sources}" for name, sources in CONTENT_POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(self)",
    "Cache-Control": "no-cache",  # revalidated each time; 304 while nothing changed
}


class PageFiles(StaticFiles):
    """The page is for anyone, as long as a server without keys keeps to its own machine."""

    def __init__(self, server: SpeechServer, folder: Path) -> None:
        super().__init__(directory=folder, html=True)
        self._gatekeeper = server.gatekeeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._gatekeeper.has_keys:
            self._gatekeeper.authenticate(HTTPConnection(scope))
        await super().__call__(scope, receive, send)

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


class FallbackMount(Mount):
    """Addresses that no route before it knows; one that knows an address by another method answers for it (405)."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return Match.PARTIAL if match is Match.FULL else match, found


def page_folder(config: ServerConfig) -> Path | None:
    """Return the page's folder; None where none was installed."""
    folder = Path(config.listen.page or PAGE)
    return folder if folder.is_dir() else None


def page_routes(server: SpeechServer) -> list[BaseRoute]:
    """Return the routes of the web client, which must be the last."""
    folder = page_folder(server.config)
    return [FallbackMount("/", PageFiles(server, folder))] if folder else []
