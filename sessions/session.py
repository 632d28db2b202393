"""One client's conversation: its settings, its current responses, and one way out."""

from __future__ import annotations

from typing import Protocol

from sessions.config import SpeechSettings
from sessions.response import Response


class Session(Protocol):
    """Made by ``SessionRegistry.create``; also an async context manager that ends with ``aclose``."""

    @property
    def session_id(self) -> str: ...

    @property
    def resume_token(self) -> str: ...

    @property
    def settings(self) -> SpeechSettings:
        """The defaults of coming responses."""
        ...

    def update(self, settings: SpeechSettings) -> None:
        """Change the defaults. Raises ``UnknownVoice``, ``UnknownLanguage``, ``UnsupportedFormat`` or
        ``LimitExceeded``; then nothing has changed."""
        ...

    def create_response(
        self,
        response_id: str | None = None,
        *,
        settings: SpeechSettings | None = None,
        text: str = "",
        text_closed: bool = False,
    ) -> Response:
        """Begin a spoken reply. With ``text_closed`` all of its text is known, which the engine can use.

        Raises ``DuplicateResponse``, ``LimitExceeded`` (maybe with ``retry_after_ms``), ``SessionClosed``, or what
        ``update`` raises; then nothing was begun. Whatever goes wrong later ends the response with an error.
        """
        ...

    def response(self, response_id: str) -> Response:
        """A current response, or one of the last ended. Raises ``UnknownResponse``."""
        ...

    def touch(self) -> None:
        """The client gave a sign of life: the idle time starts anew."""
        ...

    def detach(self, grace_s: float = 0.0) -> None:
        """The client is gone: cancel every response and take no more work. The only way out; idempotent.

        ``grace_s`` above 0 is refused until sessions can be resumed.
        """
        ...

    async def aclose(self) -> None:
        """Detach, and wait until every engine resource is free."""
        ...
