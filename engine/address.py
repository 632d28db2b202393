"""Addresses of engines, and TLS between an engine and its gateways. No torch.

Both ends of a TLS connection show a certificate that the same CA has signed. Host names are not compared: the CA is for
engines and gateways alone.
"""

from __future__ import annotations

import re
import ssl
from ipaddress import ip_address
from typing import NamedTuple

from engine.errors import InvalidRequest

# Time for a peer to complete a TLS handshake.
HANDSHAKE_TIMEOUT_S = 5.0
# Limit of the system.
MAX_PATH_BYTES = 107
MAX_PORT = 65_535

_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^\s@/:\[\],]+):(\d{1,5})")


class EngineAddress(NamedTuple):
    """A Unix socket by its ``path``, or TCP by ``host`` and ``port``."""

    path: str = ""
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> EngineAddress:
        """Parse ``unix:/path`` or ``tcp://host:port``. Raises ``InvalidRequest``."""
        path = text.removeprefix("unix:")
        if text.startswith("unix:") and path.startswith("/"):
            if (size := len(path.encode())) > MAX_PATH_BYTES:
                raise InvalidRequest(f"the path in {text} has {size} bytes; the limit is {MAX_PATH_BYTES}")
            return cls(path)
        found = _TCP.fullmatch(text)
        if found is None or int(found[2]) > MAX_PORT:
            raise InvalidRequest(f"engine address is {text!r}; it must be unix:/path or tcp://host:port")
        return cls(host=found[1].strip("[]"), port=int(found[2]))

    def __str__(self) -> str:
        if not self.is_tcp:
            return f"unix:{self.path}"
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"

    @property
    def is_tcp(self) -> bool:
        return not self.path

    @property
    def is_local(self) -> bool:
        """Return whether no other machine can reach it."""
        if not self.is_tcp or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check_protected(self, tls: TlsFiles | None) -> None:
        """Raise ``InvalidRequest`` for an address that other machines can reach without TLS."""
        if tls is None and not self.is_local:
            raise InvalidRequest(f"{self} is not a loopback address: it needs tls_certificate, tls_key and tls_ca")


class TlsFiles(NamedTuple):
    """PEM files. They are read again for each connection, so that a renewed certificate needs no restart."""

    certificate: str
    key: str
    # Certificates of which one has signed that of the other end.
    ca: str

    @classmethod
    def from_settings(cls, certificate: str | None, key: str | None, ca: str | None) -> TlsFiles | None:
        """Return ``None`` if none is given. Raises ``InvalidRequest`` if one is missing or cannot be read."""
        if not (certificate or key or ca):
            return None
        if not (certificate and key and ca):
            given = {"tls_certificate": certificate, "tls_key": key, "tls_ca": ca}
            missing = next(name for name, value in given.items() if not value)
            raise InvalidRequest(f"{missing} is missing; TLS needs tls_certificate, tls_key and tls_ca", missing)
        files = cls(certificate, key, ca)
        files.server_context()
        return files

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0  # no session is resumed
        return self._configure(context)

    def client_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        return self._configure(context)

    def _configure(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.ca)
        except OSError as error:
            files = f"{self.certificate}, {self.key} and {self.ca}"
            raise InvalidRequest(f"the certificates in {files} cannot be used: {error}") from None
        return context
