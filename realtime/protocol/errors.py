"""Whose fault a broken conversation is. Nothing here knows what a socket does about it."""

from __future__ import annotations


class ProtocolError(Exception):
    """Base of both; ``code`` is stable and machine-readable."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class RemoteProtocolError(ProtocolError):
    """The peer sent what it must not; ``code`` says what, ``param`` where."""


class LocalProtocolError(ProtocolError):
    """The server tried to send an invalid message."""

    def __init__(self, message: str) -> None:
        super().__init__("internal_error", message)
