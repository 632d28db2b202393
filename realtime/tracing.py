"""Traces by OpenTelemetry: one for each reply, exported over OTLP as the standard ``OTEL_*`` variables say.

Spans are made when a reply has ended, from the moments that it recorded. A thread of the SDK exports them, so that a
collector that hangs holds up no speech. Without the SDK, or without an endpoint, the API does nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import NoOpTracer, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.api import RequestTimings
from realtime.version import VERSION
from sessions.clock import now_s
from sessions.events import ResponseStatus
from sessions.tracing import ResponseTimes
from sessions.usage import UsageRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger("voicewire.traces")

NAME = "voicewire"
# Time that a server waits at its end for the collector.
SHUTDOWN_TIMEOUT_S = 2.0
NS_PER_S = 1_000_000_000
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
# Of the headers that can carry a context this one alone is read: others hold text of the client.
CARRIER_FIELD = "traceparent"
CARRIER_HEADER = CARRIER_FIELD.encode()


class Phase(NamedTuple):
    """A part of a reply, by the clock of the event loop."""

    name: str
    start_s: float
    end_s: float


def find_phases(times: ResponseTimes) -> Iterator[Phase]:
    """Yield the parts of a reply whose beginnings and ends are known."""
    sent_s = times.first_sent_s
    moments = (
        ("text_wait", times.created_s, times.submitted_s),
        ("encode", times.first_chunk_s, times.first_packet_s),
        ("first_packet", times.first_packet_s, sent_s),
        ("speech", sent_s, times.ended_s),
    )
    for name, start_s, end_s in moments:
        # A break at the beginning sounds before the first chunk.
        if start_s is not None and end_s is not None and start_s <= end_s:
            yield Phase(name, start_s, end_s)
    if times.engine is not None and times.submitted_s is not None:
        yield from find_engine_phases(times.engine, times.submitted_s)


def find_engine_phases(timings: RequestTimings, submitted_s: float) -> Iterator[Phase]:
    """Yield the parts that the engine reports as durations. What it took to reach it is behind the last one."""
    start_s = submitted_s
    parts = (timings.queue_ms, timings.prefill_ms, timings.first_frame_ms, timings.decode_ms)
    for name, duration_ms in zip(("queue", "prefill", "first_frame", "decode"), parts, strict=True):
        yield Phase(name, start_s, start_s := start_s + duration_ms / 1000)


class UnixClock:
    """Converts moments of the event loop's clock to Unix time, by the difference when it was made."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - round(now_s() * NS_PER_S)

    def to_ns(self, moment_s: float) -> int:
        return self._offset_ns + round(moment_s * NS_PER_S)


class SpanRecorder:
    """Implements ``sessions.tracing.ResponseTracer`` with the tracer provider of the process, or one of its own."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        """Without a ``tracer`` that of the process is used."""
        self.tracer = find_process_tracer() if tracer is None else tracer

    def find_parent(self) -> Context:
        return context.get_current()

    def find_carried_parent(self, carrier: Mapping[str, str]) -> Context | None:
        """Return the context that a carrier of ``traceparent`` names; ``None`` if it has none that is valid."""
        found = extract_context(carrier.get(CARRIER_FIELD, ""), Context())
        return found if trace.get_current_span(found).get_span_context().is_valid else None

    def record(self, parent: object, usage: UsageRecord, times: ResponseTimes) -> None:
        assert isinstance(parent, Context)
        to_ns = UnixClock().to_ns
        root = self.tracer.start_span("reply", parent, SpanKind.SERVER, start_time=to_ns(times.created_s))
        if not root.is_recording():
            return
        root.set_attributes(describe_reply(usage))
        if usage.status == ResponseStatus.FAILED:
            root.set_status(Status(StatusCode.ERROR))
        inner = trace.set_span_in_context(root, parent)
        for phase in find_phases(times):
            self.tracer.start_span(phase.name, inner, start_time=to_ns(phase.start_s)).end(to_ns(phase.end_s))
        root.end(to_ns(now_s() if times.ended_s is None else times.ended_s))

    @asynccontextmanager
    async def export(self, environment: Mapping[str, str]) -> AsyncIterator[None]:
        """Export spans while the context is open, if the environment names an endpoint."""
        provider = create_provider(environment)
        if provider is None:
            yield
            return
        self.tracer = provider.get_tracer(NAME, VERSION)
        try:
            yield
        finally:
            # It waits for an export, which may last longer than the end of a server should.
            shutdown = threading.Thread(target=provider.shutdown, name="traces shutdown", daemon=True)
            shutdown.start()
            await asyncio.to_thread(shutdown.join, SHUTDOWN_TIMEOUT_S)


def find_process_tracer() -> Tracer:
    """Return the tracer of the process; one that does nothing if ``OTEL_PYTHON_TRACER_PROVIDER`` cannot be loaded."""
    try:
        return trace.get_tracer(NAME, VERSION)
    except Exception:  # of an unknown name a StopIteration, else what the provider raises
        log.warning("tracer provider is not used", extra={"reason": "OTEL_PYTHON_TRACER_PROVIDER cannot be loaded"})
        return NoOpTracer()


@contextmanager
def use_parent(carrier: Mapping[str, str]) -> Iterator[None]:
    """Sessions that are opened meanwhile belong to the trace that a carrier names, if it names one that is valid."""
    token = context.attach(extract_context(carrier.get(CARRIER_FIELD, ""), context.get_current()))
    try:
        yield
    finally:
        context.detach(token)


def extract_context(value: str, outer: Context) -> Context:
    """Return the context that a ``traceparent`` names; ``outer`` if it is malformed."""
    return TraceContextTextMapPropagator().extract({CARRIER_FIELD: value}, outer)


def describe_reply(usage: UsageRecord) -> dict[str, str | int | bool]:
    """Return the attributes of a reply, none of which is text of a client."""
    attributes: dict[str, str | int | bool] = {
        "voicewire.request_id": usage.id,
        "voicewire.api_key_name": usage.key,
        "voicewire.status": usage.status,
        "voicewire.num_chars": usage.chars,
        "voicewire.audio_ms": usage.audio_ms,
        "voicewire.num_frames": usage.frames,
        "voicewire.resynced": usage.resynced,
    }
    return attributes if usage.code is None else attributes | {"error.type": usage.code}


def needs_export(environment: Mapping[str, str]) -> bool:
    """Return whether an endpoint is given, and traces are not switched off."""
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporters = environment.get("OTEL_TRACES_EXPORTER") or "otlp"
    return not is_disabled and "otlp" in exporters.split(",") and any(map(environment.get, ENDPOINTS))


def create_provider(environment: Mapping[str, str]) -> TracerProvider | None:
    """Return what exports spans; ``None`` without an endpoint, or if it cannot be made, which is logged."""
    if not needs_export(environment):
        return None
    protocol = next(filter(None, map(environment.get, PROTOCOLS)), PROTOCOL)
    if protocol != PROTOCOL:
        log.warning("traces are not exported", extra={"reason": f"the protocol must be {PROTOCOL}"})
        return None
    try:
        return build_provider()
    except ImportError:
        log.warning("traces are not exported", extra={"reason": "the extra voicewire[tracing] is not installed"})
    except Exception:  # also of plug-ins; its text may quote a header, which may be a secret
        log.warning("traces are not exported", extra={"reason": "an OTEL_ variable has a value that is not allowed"})
    return None


def build_provider() -> TracerProvider:
    """Build a provider from the ``OTEL_*`` variables of the process. Raises ``ImportError``, and others."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    given = OTELResourceDetector().detect().attributes
    resource = Resource.create({"service.name": NAME, "service.version": VERSION, **given})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class TraceParents:
    """ASGI middleware: replies to a request belong to the trace that its headers name."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope.get("headers", ())  # of a lifespan there are none
        found = next((value.decode("latin-1") for name, value in headers if name == CARRIER_HEADER), None)
        if found is None:
            await self._app(scope, receive, send)
            return
        with use_parent({CARRIER_FIELD: found}):
            await self._app(scope, receive, send)
