"""Twilio's signature of a request: HMAC-SHA1 with the account's token over the address and the form's fields."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit, urlunsplit

DEFAULT_PORTS = {"https": 443, "http": 80, "wss": 443, "ws": 80}


def sign(token: str, url: str, fields: Mapping[str, str] | None = None) -> str:
    """What ``X-Twilio-Signature`` says. ``fields`` are those of a form that is posted; a WebSocket has none."""
    text = url + "".join(name + value for name, value in sorted((fields or {}).items()))
    return base64.b64encode(hmac.digest(token.encode(), text.encode(), hashlib.sha1)).decode()


def is_signed(token: str, url: str, signature: str, fields: Mapping[str, str] | None = None) -> bool:
    """Whether the holder of ``token`` signed this address, as Twilio spells it: with or without the port, and for
    WebSockets with the slash at the end that some of its servers put there. An address that is none is not signed.

    A signature holds for the address alone, whenever and however often it is shown: it has to travel by TLS."""
    given = signature.encode("utf-8", "surrogateescape")
    try:
        known = list(url_variants(url))
    except ValueError:
        return False
    genuine = [hmac.compare_digest(sign(token, spelt, fields).encode(), given) for spelt in known]
    return any(genuine)


def url_variants(url: str) -> Iterator[str]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = parts.port or DEFAULT_PORTS.get(parts.scheme, 443)
    for place in dict.fromkeys((parts.netloc, host, f"{host}:{port}")):
        spelt = urlunsplit(parts._replace(netloc=place))
        yield spelt
        if parts.scheme in ("ws", "wss") and not parts.path.endswith("/"):
            yield urlunsplit(parts._replace(netloc=place, path=parts.path + "/"))
