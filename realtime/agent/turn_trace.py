"""The trace of a turn of the agent: recognizer, language model, and the reply that speaks the answer."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from engine.api import ErrorInfo
from realtime.tracing import UnixClock
from sessions.clock import now_s


class TurnTrace:
    """The span ``turn``, from the end of the user's turn to ``end``, and its parts. They hold no text."""

    def __init__(self, tracer: Tracer, parent: Context, begun_s: float) -> None:
        self._tracer = tracer
        self._clock = UnixClock()
        self._span = tracer.start_span("turn", parent, SpanKind.SERVER, start_time=self._clock.to_ns(begun_s))
        # Parent of the reply that speaks the answer.
        self.context = trace.set_span_in_context(self._span, parent)

    def record(self, name: str, start_s: float, error: ErrorInfo | None = None, **attributes: float | None) -> None:
        """Record a part that ends now. Attributes that are ``None`` are left out."""
        span = self._tracer.start_span(name, self.context, SpanKind.CLIENT, start_time=self._clock.to_ns(start_s))
        span.set_attributes({f"voicewire.{key}": value for key, value in attributes.items() if value is not None})
        if error is not None:
            span.set_attribute("error.type", error.code)
            span.set_status(Status(StatusCode.ERROR))
        span.end(self._clock.to_ns(now_s()))

    def end(self) -> None:
        """End the turn; idempotent. Parts may still be recorded."""
        if self._span.is_recording():
            self._span.end(self._clock.to_ns(now_s()))
