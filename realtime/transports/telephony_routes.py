"""The routes of telephony providers and their dialects."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from engine.api import SpeechError
from realtime.auth import Principal
from realtime.browser_tokens import TokenScope
from realtime.calls.call_registry import CallRegistry
from realtime.calls.connection import CallConnection
from realtime.config import ConfigError
from realtime.errors import RequestRefused
from realtime.integration_config import CallSettings
from realtime.protocol.telephony.asterisk import AsteriskDialect
from realtime.protocol.telephony.base import TelephonyDialect
from realtime.protocol.telephony.plivo import PlivoDialect
from realtime.protocol.telephony.telnyx import TelnyxDialect
from realtime.protocol.telephony.twilio import TwilioDialect, is_signed
from realtime.protocol.telephony.vonage import VonageDialect
from realtime.transports.http_routes import refusal_response
from realtime.transports.transport import WebSocketTransport, write_timeout_s

if TYPE_CHECKING:
    from realtime.server import SpeechServer

log = logging.getLogger("voicewire.calls")

SIGNATURE = "x-twilio-signature"
SOCKET_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class TelephonyRoute(NamedTuple):
    path: str
    # Takes the id of the call for providers that give none.
    dialect: Callable[[str], TelephonyDialect]
    # Requests may carry Twilio's signature in place of a key.
    signed: bool = False


TELEPHONY_ROUTES: tuple[TelephonyRoute, ...] = (
    TelephonyRoute("/v1/calls/twilio", lambda _: TwilioDialect(), signed=True),
    TelephonyRoute("/v1/calls/telnyx", lambda _: TelnyxDialect()),
    TelephonyRoute("/v1/calls/plivo", lambda _: PlivoDialect()),
    TelephonyRoute("/v1/calls/vonage", VonageDialect),
    TelephonyRoute("/v1/calls/asterisk", lambda _: AsteriskDialect()),
)


class TelephonyEndpoint:
    """ASGI application of a provider."""

    def __init__(self, server: SpeechServer, switchboard: CallRegistry, phone: TelephonyRoute) -> None:
        self._server, self._switchboard, self._phone = server, switchboard, phone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        dialect = self._phone.dialect(f"line-{secrets.token_hex(8)}")
        try:
            caller = self._admit(websocket)
            self._server.check_connection_limits(caller)
            link = WebSocketTransport(scope, receive, send, write_timeout_s(self._server.config.limits))
            connection = CallConnection(self._server, self._switchboard, dialect, caller, link)
        except SpeechError as error:
            self._server.metrics.refused(error.code)
            log.info("call rejected", extra={"code": error.code, "dialect": dialect.name})
            await websocket.send_denial_response(refusal_response(error.info))
            return
        try:
            offered = dialect.subprotocol in scope.get("subprotocols", [])
            await websocket.accept(subprotocol=dialect.subprotocol if offered else None)
            await connection.run()
        finally:
            await connection.aclose()

    def _admit(self, request: HTTPConnection) -> Principal:
        """Authenticate a stream and check limits; raises ``RequestRefused``."""
        calls = self._server.config.calls
        if not self._phone.signed or calls.twilio_auth_token is None:
            return self._server.gatekeeper.authenticate(request, TokenScope.CALLS)
        if not is_signed(calls.twilio_auth_token, external_url(request, calls), request.headers.get(SIGNATURE, "")):
            raise RequestRefused("unauthorized", "X-Twilio-Signature is missing or wrong for this address", SIGNATURE)
        return default_call_owner(self._server)


def external_url(request: HTTPConnection, calls: CallSettings) -> str:
    """The address as the provider spells it."""
    scope = request.scope
    path = scope["path"] if not scope["query_string"] else f"{scope['path']}?{scope['query_string'].decode('latin-1')}"
    if calls.public_url is None:
        return f"wss://{request.headers.get('host', '')}{path}"
    public = urlsplit(calls.public_url)
    return f"{SOCKET_SCHEMES[public.scheme]}://{public.netloc}{public.path.rstrip('/')}{path}"


def check_public_url(url: str | None) -> None:
    """Check that a provider can reach the URL; raises ``ConfigError``."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        good = parts.scheme in SOCKET_SCHEMES and parts.hostname and not (parts.query or parts.fragment)
        good = good and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"calls.public_url = {url!r}: must be an address such as https://voice.example.com")


def default_call_owner(server: SpeechServer) -> Principal:
    """Whose the lines are that show no key. Raises ``ConfigError``."""
    return server.gatekeeper.resolve_owner("calls.default_key_name", server.config.calls.default_key_name)


def telephony_routes(server: SpeechServer, switchboard: CallRegistry) -> list[BaseRoute]:
    """Return the routes of all providers; raises ``ConfigError``."""
    check_public_url(server.config.calls.public_url)
    return [WebSocketRoute(phone.path, TelephonyEndpoint(server, switchboard, phone)) for phone in TELEPHONY_ROUTES]
