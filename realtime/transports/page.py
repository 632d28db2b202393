"""The page: the files of ``web_client/``, as they are, and what a browser may do with them."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from realtime.config import ServerConfig
from realtime.server import SpeechServer

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
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",  # asked for again each time, answered by 304 while nothing changed
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
    """Where the page is; None where none was installed."""
    folder = Path(config.listen.page or PAGE)
    return folder if folder.is_dir() else None


def page_routes(server: SpeechServer) -> list[BaseRoute]:
    """To come last."""
    folder = page_folder(server.config)
    return [FallbackMount("/", PageFiles(server, folder))] if folder else []
