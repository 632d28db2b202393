"""A client's conversation: its settings, its active responses, and one stream of events."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from sessions.admission import ResponseLimiter
from sessions.checkpoint import Replay
from sessions.clock import now_s
from sessions.config import ResponseParams, SpeechSettings
from sessions.errors import DuplicateResponse, LimitExceeded, SessionClosed, UnknownResponse
from sessions.quotas import KeyMeter
from sessions.response import Response
from sessions.session_services import SessionServices
from sessions.styles import resolve_speakers
from sessions.usage import ResponseAccount
from sessions.validation import resolve_settings
from sessions.weak import weak_method


class Session:
    """Made by ``SessionRegistry.create``. Call ``aclose``."""

    def __init__(
        self,
        session_id: str,
        key: str,
        services: SessionServices,
        admission: ResponseLimiter,
        on_detach: Callable[[Session], None],
        settings: SpeechSettings,
        key_limit: int | None = None,
        group: str = "",
        is_resumable: bool = False,
        meter: KeyMeter | None = None,
        is_bulk: bool = False,
        trace_parent: object = None,
    ) -> None:
        """``group`` shares the engine's burst capacity with other groups; by default the session is one of its own."""
        self.session_id = session_id
        self.key = key
        self.group = group or session_id
        # Context that the traces of its responses belong to.
        self.trace_parent = trace_parent
        # Set when the session has ended, for any reason.
        self.detached = asyncio.Event()
        self._services = services
        self._admission = admission
        self._on_detach = on_detach
        self._settings = settings
        self._key_limit = key_limit
        self._is_resumable = is_resumable
        self._meter = meter
        self._is_bulk = is_bulk
        self._text_queue = services.text_budget.create_queue()
        self._serial = itertools.count()
        # The active ones, and the last that ended.
        self._responses: dict[str, Response] = {}
        self._active: set[Response] = set()
        self._admitted: set[Response] = set()  # those that have had text and not ended
        self._last_sign_s = now_s()

    @property
    def settings(self) -> SpeechSettings:
        """The defaults of coming responses."""
        return self._settings

    @property
    def num_active_responses(self) -> int:
        return len(self._active)

    @property
    def is_generating(self) -> bool:
        return any(response.is_generating for response in self._active)

    def update(self, settings: SpeechSettings) -> None:
        """Change the defaults. Raises ``UnknownVoice``, ``UnknownLanguage``, ``UnsupportedFormat``,
        ``LimitExceeded`` or ``InvalidRequest``; then nothing has changed."""
        resolve_speakers(resolve_settings(settings, self.key, self._services), self.key, self._services)
        self._settings = settings

    def create_response(
        self,
        response_id: str | None = None,
        *,
        settings: SpeechSettings | None = None,
        text: str = "",
        text_closed: bool = False,
        replay: Replay | None = None,
        trace_parent: object = None,
    ) -> Response:
        """Begin a spoken reply. With ``text_closed`` all of its text is known, which the engine can use. A ``replay``
        goes on with one of another gateway. A ``trace_parent`` replaces the session's.

        Raises ``DuplicateResponse``, ``LimitExceeded`` (maybe with ``retry_after_ms``), ``SessionClosed``, or what
        ``update`` raises; then nothing was begun. Whatever goes wrong later ends the response with an error.
        """
        serial = next(self._serial)
        response_id = f"response-{serial}" if response_id is None else response_id
        self._check_capacity(response_id)
        settings = resolve_settings(settings or self._settings, self.key, self._services)
        self._admission.check(self.key, self._key_limit)
        if self._meter is not None:
            self._meter.check()
        params = ResponseParams(
            response_id=response_id,
            request_prefix=f"{self.session_id}/{serial}",
            group=self.group,
            settings=settings,
            is_resumable=self._is_resumable,
            replay=replay,
            is_bulk=self._is_bulk,
        )
        account = self._open_account(params.request_prefix, replay is not None, trace_parent)
        on_text, on_end = weak_method(self._admit), weak_method(self._on_response_end)
        response = Response(params, self._services, account, self._text_queue, on_text, on_end)
        self._active.add(response)
        self._responses[response_id] = response
        if not text_closed:  # else its request is on the way at once
            self._prefetch(settings)
        response.start(text, text_closed)
        return response

    def _open_account(self, request_id: str, is_resynced: bool, trace_parent: object) -> ResponseAccount:
        services = self._services
        parent = self.trace_parent if trace_parent is None else trace_parent
        return ResponseAccount(
            request_id, self.key, services.metrics, self._meter, services.usage, is_resynced, services.tracer, parent
        )

    def response(self, response_id: str) -> Response:
        """A current response, or one of the last ended. Raises ``UnknownResponse``."""
        try:
            return self._responses[response_id]
        except KeyError:
            raise UnknownResponse(f"response {response_id!r} is unknown", "response_id") from None

    def touch(self) -> None:
        """The client gave a sign of life: the idle time starts anew."""
        self._last_sign_s = now_s()

    def idle_s(self, now: float) -> float:
        """Since the last sign of life or the last response."""
        return 0.0 if self._active else now - self._last_sign_s

    def check_timeouts(self, now: float) -> None:
        """End responses that have waited too long. To be called now and then."""
        for response in list(self._active):
            response.check_timeouts(now)

    def detach(self) -> None:
        """The client is gone: cancel every response and take no more work. The only way out; idempotent."""
        if self.detached.is_set():
            return
        self.detached.set()
        for response in list(self._active):
            response.cancel()
        self._on_detach(self)

    async def aclose(self) -> None:
        """Detach, and wait until every engine resource is free."""
        self.detach()
        for response in list(self._responses.values()):
            await response.released()
            response.discard_timeline()

    def _prefetch(self, settings: SpeechSettings) -> None:
        """The voice's part of the prompt does not depend on the text."""
        names = [voice.name for voice in self._services.engine.info.voices]
        if settings.clone is None and names:
            self._services.engine.prefetch_voices([settings.voice or names[0]])

    def _check_capacity(self, response_id: str) -> None:
        limit = self._services.limits.max_active_responses_per_session
        if self.detached.is_set():
            raise SessionClosed(f"session {self.session_id} is closed")
        if response_id in self._responses:
            raise DuplicateResponse(f"response {response_id!r} exists already", "response_id")
        if len(self._active) >= limit:
            raise LimitExceeded(f"max_active_responses of a session is {limit}")

    def _admit(self, response: Response) -> None:
        """Count a response from its first text on. Raises ``LimitExceeded``."""
        if response not in self._admitted:
            self._admission.acquire(self.key, self._key_limit)
            self._admitted.add(response)

    def _on_response_end(self, response: Response) -> None:
        self._active.discard(response)
        if response in self._admitted:
            self._admitted.discard(response)
            self._admission.release(self.key)
        self.touch()
        self._evict_response()

    def _evict_response(self) -> None:
        ended = [response_id for response_id, response in self._responses.items() if response.is_released]
        for response_id in ended[: -self._services.limits.max_retained_responses]:
            self._responses.pop(response_id).discard_timeline()
