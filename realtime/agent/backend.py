"""HTTP to an OpenAI-compatible server: one address with its key, bounded answers, and errors without their text."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import msgspec

from engine.api import CodedError
from realtime.references import trusted_by_the_system
from realtime.version import VERSION

MAX_BODY_BYTES = 1_048_576
MAX_LINE_BYTES = 262_144
# Statuses after which the same request may succeed.
RETRYABLE_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504})


class BackendFailed(CodedError):
    """The server failed. The message holds nothing that the server or a user wrote."""

    def __init__(self, code: str, message: str, may_retry: bool = False) -> None:
        super().__init__(code, message)
        self.may_retry = may_retry


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_Model]


class Backend:
    """A server of a language model or of a recognizer. Call ``aclose``."""

    def __init__(self, name: str, code: str, url: str, key: str, connect_timeout_s: float) -> None:
        """``name`` and ``code`` stand in errors. The ``key`` may be empty."""
        self.name, self._code = name, code
        self._base = base_url(url)
        headers = {"User-Agent": f"voicewire/{VERSION}", "Accept-Encoding": "identity"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx.AsyncClient(
            headers=headers,
            # Other times are limited by the caller, as a whole and not by read.
            timeout=httpx.Timeout(None, connect=connect_timeout_s),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=30),
            verify=trusted_by_the_system()
            if self._base.startswith("https")
            else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    def failed(self, what: str, may_retry: bool = False) -> BackendFailed:
        return BackendFailed(self._code, f"the {self.name} {what}", may_retry)

    @asynccontextmanager
    async def post(self, path: str, **content: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request and give the pieces of the answer's body. Raises ``BackendFailed``, also within."""
        try:
            async with self._client.stream("POST", self._base + path, **content) as answer:
                if answer.status_code != 200:
                    raise self.failed(
                        f"answered with status {answer.status_code}", answer.status_code in RETRYABLE_STATUSES
                    )
                yield answer.aiter_raw()
        except httpx.HTTPError as error:
            raise self.failed(f"cannot be reached: {type(error).__name__}", may_retry=True) from None

    async def first_model(self) -> str:
        """Return the first model that the server lists. Raises ``BackendFailed``."""
        try:
            async with asyncio.timeout(5), self._client.stream("GET", self._base + "/models") as answer:
                body = await self.read_body(answer.aiter_raw())
            return msgspec.json.decode(body, type=_ModelList).data[0].id
        except (httpx.HTTPError, TimeoutError) as error:
            raise self.failed(f"cannot be reached: {type(error).__name__}", may_retry=True) from None
        except (msgspec.DecodeError, IndexError):
            raise self.failed("lists no model; name one with agent.llm_model") from None

    async def read_body(self, pieces: AsyncIterator[bytes]) -> bytes:
        """Raises ``BackendFailed`` for a body of more than ``MAX_BODY_BYTES``."""
        body = bytearray()
        async for piece in pieces:
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise self.failed(f"sent more than {MAX_BODY_BYTES} bytes")
        return bytes(body)

    async def read_lines(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Raises ``BackendFailed`` for a line of more than ``MAX_LINE_BYTES``."""
        rest = b""
        async for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line.rstrip(b"\r")
            if len(rest) > MAX_LINE_BYTES:
                raise self.failed(f"sent a line of more than {MAX_LINE_BYTES} bytes")
        if rest:
            yield rest


def base_url(url: str) -> str:
    """Return the address without a slash at its end; without a path it is that of ``/v1``."""
    url = url.rstrip("/")
    return url if "/" in url.partition("://")[2] else f"{url}/v1"


def as_json(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``Backend.post`` for a JSON body."""
    return {"content": msgspec.json.encode(body), "headers": {"Content-Type": "application/json"}}
