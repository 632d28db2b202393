"""Short-lived tokens for browsers, in this server's format and the vendors': an API key in, a token out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from realtime.browser_tokens import TokenScope
from realtime.errors import RequestRefused
from realtime.speech_api.request import parse_object
from realtime.transports.http_routes import read_body, server_of


class IssuedToken(NamedTuple):
    token: str
    # Unix time.
    expires_s: int
    ttl_s: int


class TokenRoute(NamedTuple):
    """A route that issues tokens."""

    path: str
    # Field of the body with the lifetime; a dot separates nested fields.
    ttl_field: str | None
    default_ttl_s: int
    answer: Callable[[IssuedToken], dict[str, Any]]
    # Field of the body with the scopes; without it the token allows speech only.
    scopes_field: str | None = None


# This server's, ElevenLabs', Cartesia's, Deepgram's and OpenAI's.
TOKEN_ROUTES = (
    TokenRoute(
        "/v1/tokens", "ttl_s", 60, lambda minted: {"token": minted.token, "expires_at": minted.expires_s}, "scopes"
    ),
    TokenRoute("/v1/single-use-token/{kind}", None, 900, lambda minted: {"token": minted.token}),
    TokenRoute("/access-token", "expires_in", 60, lambda minted: {"token": minted.token}),
    TokenRoute(
        "/v1/auth/grant",
        "ttl_seconds",
        30,
        lambda minted: {"access_token": minted.token, "expires_in": minted.ttl_s},
    ),
    TokenRoute(
        "/v1/realtime/client_secrets",
        "expires_after.seconds",
        600,
        lambda minted: {"value": minted.token, "expires_at": minted.expires_s, "session": {"type": "realtime"}},
    ),
)


class TokenEndpoint:
    def __init__(self, mint: TokenRoute) -> None:
        self._mint = mint

    async def __call__(self, request: Request) -> Response:
        """Issue a token; raises ``RequestRefused``."""
        server = server_of(request)
        caller = server.gatekeeper.require_api_key(request)
        longest_s = server.config.auth.max_token_ttl_s
        body = await read_object(request)
        ttl_s, scopes = self._ttl_s(body, longest_s), self._scopes(body)
        token, expires_s = server.gatekeeper.issue_token(caller, ttl_s, scopes)
        answer = self._mint.answer(IssuedToken(token, expires_s, ttl_s))
        return JSONResponse(answer, headers={"Cache-Control": "no-store"})

    def _ttl_s(self, body: Mapping[str, Any], longest_s: int) -> int:
        name = self._mint.ttl_field
        requested = _found(body, name) if name else None
        if requested is None:
            return min(self._mint.default_ttl_s, longest_s)
        if isinstance(requested, bool) or not isinstance(requested, int) or not 1 <= requested <= longest_s:
            raise RequestRefused("invalid_request", f"{name} must be 1 to {longest_s} (auth.max_token_ttl_s)", name)
        return requested

    def _scopes(self, body: Mapping[str, Any]) -> frozenset[TokenScope]:
        if self._mint.scopes_field is None or (requested := body.get(self._mint.scopes_field)) is None:
            return frozenset({TokenScope.SPEECH})
        known = [scope.value for scope in TokenScope]
        if not isinstance(requested, list) or not requested or any(one not in known for one in requested):
            raise RequestRefused("invalid_request", f"scopes must be a list of {' or '.join(known)}", "scopes")
        return frozenset(map(TokenScope, requested))


def _found(body: Any, name: str) -> Any:
    for part in name.split("."):
        body = body.get(part) if isinstance(body, Mapping) else None
    return body


async def read_object(request: Request) -> dict[str, Any]:
    """The body, a JSON object or nothing. Raises ``RequestRefused``."""
    return parse_object(await read_body(request, server_of(request)) or b"{}")


def token_routes() -> list[BaseRoute]:
    return [Route(mint.path, TokenEndpoint(mint).__call__, methods=["POST"]) for mint in TOKEN_ROUTES]
