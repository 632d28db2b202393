"""HTTP beside the WebSocket: health, metrics, the model, and how errors are told."""

from __future__ import annotations

import math

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.websockets import WebSocket

from realtime.errors import Refused, describe, http_status, rule_for
from realtime.server import SpeechServer
from sessions.errors import ErrorInfo

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def refusal_headers(info: ErrorInfo) -> dict[str, str]:
    headers = {}
    if info.retry_after_ms is not None:
        headers["Retry-After"] = str(math.ceil(info.retry_after_ms / 1000))
    if http_status(info) == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def refusal_response(error: Exception) -> JSONResponse:
    """Any error as an HTTP answer: status, ``Retry-After``, and OpenAI's shape of body."""
    info = describe(error)
    body = {
        "message": info.message,
        "type": f"{rule_for(info.code).fault}_error",
        "param": info.param,
        "code": info.code,
    }
    return JSONResponse({"error": body}, http_status(info), refusal_headers(info))


async def health(request: Request) -> Response:
    alive = server_of(request).healthy
    return JSONResponse({"status": "ok" if alive else "engine_dead"}, 200 if alive else 503)


async def readiness(request: Request) -> Response:
    server = server_of(request)
    state = "ready" if server.ready else "draining" if server.draining else "engine_dead"
    return JSONResponse({"status": state}, 200 if server.ready else 503)


async def metrics(request: Request) -> Response:
    server = server_of(request)
    server.gatekeeper.admit_holder(request)
    return Response(server.metrics.exposition(), media_type=METRICS_TYPE)


async def models(request: Request) -> Response:
    """The one model there is, in OpenAI's shape."""
    server = server_of(request)
    server.gatekeeper.admit(request)
    model = {"id": server.engine.info.model, "object": "model", "created": 0, "owned_by": "voicewire"}
    return JSONResponse({"object": "list", "data": [model]})


def server_of(request: HTTPConnection) -> SpeechServer:
    server: SpeechServer = request.app.state.server
    return server


INFORMATION_ROUTES: list[BaseRoute] = [
    Route("/healthz", health),
    Route("/readyz", readiness),
    Route("/metrics", metrics),
    Route("/v1/models", models),
]


async def refuse(request: Request, error: Exception) -> Response:
    """Starlette's handler of all errors that a client is told about."""
    if isinstance(error, HTTPException):
        error = Refused("unknown_path", "no such address on this server")
    server_of(request).metrics.refused(describe(error).code)
    return refusal_response(error)


async def refuse_socket(websocket: WebSocket) -> None:
    """The endpoint of every WebSocket address that does not exist."""
    await websocket.send_denial_response(refusal_response(Refused("unknown_path", "no such address on this server")))
