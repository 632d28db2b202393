"""Headers of HTTP answers that say what is left of the key's quotas, as the IETF draft of RateLimit names them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from realtime.auth import PRINCIPAL, Principal
from sessions.quotas import NO_QUOTAS, QuotaState

if TYPE_CHECKING:
    from realtime.server import SpeechServer


class QuotaHeaders:
    """ASGI middleware; answers to keys without quotas stay as they are."""

    def __init__(self, app: ASGIApp, server: SpeechServer) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = self._headers(scope.get(PRINCIPAL))
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)

    def _headers(self, caller: Principal | None) -> list[tuple[bytes, bytes]]:
        if caller is None or caller.quotas == NO_QUOTAS:
            return []
        states = list(self._server.meter_for(caller).states())
        return [
            (b"ratelimit-policy", ", ".join(map(_policy, states)).encode()),
            (b"ratelimit", ", ".join(map(_remainder, states)).encode()),
        ]


def _policy(state: QuotaState) -> str:
    return f'"{state.rule.name}";q={state.limit};w={state.rule.window_s}'


def _remainder(state: QuotaState) -> str:
    return f'"{state.rule.name}";r={state.remaining};t={math.ceil(state.reset_s)}'
