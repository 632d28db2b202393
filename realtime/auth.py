"""Authenticate callers: holders of an API key or, on a server without keys, this machine itself."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import itertools
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from realtime.browser_tokens import TokenScope, issue, parse, signing_key
from realtime.config import ConfigError
from realtime.config_sections import AuthSettings
from realtime.errors import RequestRefused
from sessions.quotas import NO_QUOTAS, KeyQuotas, quota_counter

# Browsers cannot set headers on a WebSocket: they offer ``voicewire.v1, voicewire.key.THE_KEY``.
KEY_SUBPROTOCOL = "voicewire.key."
KEY_SUBPROTOCOLS = (KEY_SUBPROTOCOL, "openai-insecure-api-key.")
# Deepgram's browsers offer ``token, THE_KEY``.
KEY_FOLLOWS = ("token", "bearer")
KEY_HEADERS = ("x-api-key", "xi-api-key", "kyutai-api-key")
KEY_QUERIES = ("api_key", "access_token", "authorization", "single_use_token", "auth_id", "token")
SCHEMES = ("bearer", "token")
# Maximum of keys in a request.
MAX_PRESENTED_KEYS = 8
# Number and length of the addresses and lists of header names that are remembered: clients on this machine send the
# same ones again.
MAX_REMEMBERED, MAX_REMEMBERED_CHARS = 64, 1_024
Found = TypeVar("Found")
# Headers that proxies, load balancers and content networks add to what they pass on.
PROXY_HEADER = re.compile(
    r"via|cdn-loop|x-scheme|x-varnish|x-nginx-proxy|x-cloud-trace-context|front-end-https"
    r"|.*forwarded.*"
    r"|.*(-|client|socket|source)ip|.*(remote|client|external|viewer)-?addr(ess)?"
    r"|(cf|fly|fastly|cloudfront|akamai|tailscale)-.*"
    r"|x-(original|rewrite|envoy|arr|azure|appengine|amzn|amz-cf|vercel|nf)-.*",
    re.IGNORECASE,
)
NO_KEYS = "this server has no API keys, so it answers its own machine only"
UNKNOWN_KEY = "an API key is needed, and this one is not known"


@dataclass(frozen=True, slots=True)
class Principal:
    """Caller of a request; limits that are ``None`` are the server's."""

    # Empty while the key is still to come.
    name: str = ""
    max_connections: int | None = None
    max_active_responses: int | None = None
    # Scopes of the token; ``None`` for the key itself.
    scopes: frozenset[TokenScope] | None = None
    quotas: KeyQuotas = NO_QUOTAS
    # Responses of the key have no deadline in the engine.
    is_bulk: bool = False

    @property
    def is_authenticated(self) -> bool:
        return bool(self.name)

    @property
    def by_token(self) -> bool:
        return self.scopes is not None

    def has_scope(self, scope: TokenScope | None) -> bool:
        """Return whether the token has the scope; none has ``None``."""
        return self.scopes is None or scope in self.scopes


LOCAL = Principal("local")
# Key of a request's scope under which its caller is.
PRINCIPAL = "voicewire.principal"


class Authenticator:
    """Authenticates a request, or refuses it."""

    def __init__(
        self,
        keys: Sequence[tuple[bytes, Principal]],
        token_secret: bytes | None = None,
        max_token_ttl_s: int = AuthSettings().max_token_ttl_s,
    ) -> None:
        """Without a secret, tokens are good for this object alone."""
        self._keys = tuple(keys)
        self._max_token_ttl_s = max_token_ttl_s
        self._secret = secret = token_secret or secrets.token_bytes()
        self._signing_keys = {caller.name: signing_key(secret, digest) for digest, caller in self._keys}
        self._signing_keys = self._signing_keys or {LOCAL.name: secret}

    @property
    def has_keys(self) -> bool:
        return bool(self._keys)

    @property
    def principals(self) -> list[Principal]:
        """Return all possible callers."""
        return [caller for _, caller in self._keys] or [LOCAL]

    @property
    def key_names(self) -> list[str]:
        return [caller.name for caller in self.principals]

    @property
    def quota_names(self) -> list[tuple[str, int]]:
        """Return the counters of all quotas, each with the seconds of its window."""
        given = ((caller.name, rule) for caller in self.principals for rule, _ in caller.quotas.given())
        return [(quota_counter(rule, name), rule.window_s) for name, rule in given]

    def derive_secret(self, purpose: bytes) -> bytes:
        """Return a secret for another purpose than tokens of browsers; the same in every process with the same one."""
        return hmac.digest(self._secret, purpose, hashlib.sha256)

    def authenticate(self, request: HTTPConnection, scope: TokenScope = TokenScope.SPEECH) -> Principal:
        """Return the caller of the request. A token must have the scope. Raises ``RequestRefused``."""
        return self.authenticate_deferred(request, scope) or self.principal_for_key("", scope)

    def require_api_key(self, request: HTTPConnection) -> Principal:
        """Return the caller of the request's key; no token is accepted. Raises ``RequestRefused``."""
        return self._admit(request, None) or self.principal_for_key("")

    def authenticate_deferred(self, request: HTTPConnection, scope: TokenScope = TokenScope.SPEECH) -> Principal | None:
        """``None`` if the request shows no key at all and may show it later. Raises ``RequestRefused``."""
        return self._admit(request, scope)

    def principal_for_key(self, key: str, scope: TokenScope = TokenScope.SPEECH) -> Principal:
        """Return the owner of a key or token. Raises ``RequestRefused``."""
        if (found := self._find(key) if self._keys else LOCAL) is None:
            raise RequestRefused("unauthorized", UNKNOWN_KEY)
        return _require_scope(found, scope)

    def _admit(self, request: HTTPConnection, scope: TokenScope | None) -> Principal | None:
        """Authenticate by the first valid one of several keys and tokens."""
        if not self._keys:
            _require_loopback(request)
            return LOCAL
        keys = list(itertools.islice(filter(None, _presented_keys(request)), MAX_PRESENTED_KEYS))
        if not keys:
            return None
        found = [caller for key in keys if (caller := self._find(key)) is not None]
        if not found:
            raise RequestRefused("unauthorized", UNKNOWN_KEY)
        caller = next((caller for caller in found if caller.has_scope(scope)), None) or _require_scope(found[0], scope)
        request.scope[PRINCIPAL] = caller
        return caller

    def principal_by_name(self, name: str | None) -> Principal | None:
        """Whose key has this name; of the first key without a name, of this machine without keys."""
        if not self._keys:
            return LOCAL if name is None else None
        return next((caller for _, caller in self._keys if name in (None, caller.name)), None)

    def resolve_owner(self, setting: str, name: str | None) -> Principal:
        """Whose work it is that shows no key: the value of this setting. Raises ``ConfigError``."""
        if (owner := self.principal_by_name(name)) is None:
            raise ConfigError(f"{setting} = {name!r}: no API key has this name")
        return owner

    def issue_token(
        self, caller: Principal, ttl_s: int, scopes: Iterable[TokenScope] = (TokenScope.SPEECH,)
    ) -> tuple[str, int]:
        """A token that stands for the caller, and when it expires."""
        expires_s = int(time.time()) + ttl_s
        return issue(caller.name, expires_s, self._signing_keys[caller.name], scopes), expires_s

    def _find(self, key: str) -> Principal | None:
        digest = key_digest(key)
        found = [caller for known, caller in self._keys if hmac.compare_digest(known, digest)]
        return found[0] if found else self._find_by_token(key)

    def _find_by_token(self, text: str) -> Principal | None:
        token = parse(text)
        secret = self._signing_keys.get(token.key_name) if token else None
        if token is None or secret is None or not token.is_genuine(secret):
            return None
        if not 0 < token.expires_s - time.time() <= self._max_token_ttl_s:
            return None
        caller = next(caller for _, caller in self._keys if caller.name == token.key_name)
        return replace(caller, scopes=token.scopes)


def key_digest(key: str) -> bytes:
    """Return what is stored of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _require_scope(caller: Principal, scope: TokenScope | None) -> Principal:
    if not caller.has_scope(scope):
        needed = "an API key is needed here" if scope is None else f"scope {scope.value!r} is needed here"
        raise RequestRefused("insufficient_scope", f"a token was shown; {needed}")
    return caller


def _presented_keys(request: HTTPConnection) -> Iterator[str]:
    """Yield every key in a request: headers, query and sub-protocols."""
    yield from _authorization_keys(request.headers.get("authorization", ""))
    yield from (request.headers.get(name, "") for name in KEY_HEADERS)
    yield from _subprotocol_keys(request.scope.get("subprotocols", ()))
    for name in KEY_QUERIES:
        yield from _authorization_keys(request.query_params.get(name, ""))


def _authorization_keys(value: str) -> Iterator[str]:
    scheme, space, token = value.strip().partition(" ")
    token = token.strip()
    if scheme.lower() in SCHEMES and space:
        yield token
    elif scheme.lower() == "basic" and space:
        yield from (token, *_basic_parts(token))
    else:
        yield value.strip()


def _basic_parts(token: str) -> Iterator[str]:
    """The user name and the password: some clients send the key as either."""
    try:
        user, _, password = base64.b64decode(token, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return
    yield from (user, password)


def _subprotocol_keys(offered: Sequence[str]) -> Iterator[str]:
    for before, name in itertools.pairwise(("", *offered)):
        if before.lower() in KEY_FOLLOWS:
            yield name
        prefix = next((prefix for prefix in KEY_SUBPROTOCOLS if name.startswith(prefix)), None)
        if prefix is not None:
            yield name.removeprefix(prefix)


def remember_short(find: Callable[[str], Found]) -> Callable[[str], Found]:
    """Remember what is found for the latest texts; long ones, which clients may make up, would fill the memory."""
    remembered = lru_cache(MAX_REMEMBERED)(find)
    return lambda text: (remembered if len(text) <= MAX_REMEMBERED_CHARS else find)(text)


def _require_loopback(request: HTTPConnection) -> None:
    """Let in what this machine itself asks for: no page of another site, no re-bound name, nothing forwarded."""
    client, headers = request.client, request.headers
    if client is None or not _is_loopback(client.host):
        raise RequestRefused("not_loopback", NO_KEYS)
    proxy_header = _find_proxy_header("\n".join(headers.keys()))
    if proxy_header is not None:
        raise RequestRefused("not_loopback", f"{NO_KEYS}; {proxy_header} shows that this request was passed on")
    host = headers.get("host", "").lower()
    if not _names_loopback(host):
        raise RequestRefused("forbidden_host", "the Host header names no loopback address")
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
        raise RequestRefused("forbidden_origin", "pages of another origin may not use a server without API keys")


@remember_short
def _find_proxy_header(names: str) -> str | None:
    """Return the first of the lines that names such a header."""
    return next(filter(PROXY_HEADER.fullmatch, names.split("\n")), None)


@remember_short
def _names_loopback(host: str) -> bool:
    """Return whether a Host header names a loopback address, with a port or without."""
    try:
        return _is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


@remember_short
def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
