"""A collector on loopback: it receives traces by OTLP over HTTP and parses them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra tracing is not installed")
trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")


class OtlpReceiver:
    """``spans`` are what came so far, and ``bodies`` the requests as they came."""

    def __init__(self, is_hanging: bool) -> None:
        self.spans: list = []
        self.resources: list = []
        self.bodies: list[bytes] = []
        self.has_request = threading.Event()
        # Requests are answered once this is set.
        self.is_answering = threading.Event()
        if not is_hanging:
            self.is_answering.set()

    def receive(self, body: bytes) -> None:
        self.bodies.append(body)
        for resource in trace_service.ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(attributes_of(resource.resource))
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    @property
    def roots(self) -> list:
        return [span for span in self.spans if span.name == "reply"]

    def parts_of(self, root: object) -> dict[str, object]:
        """The spans below one, by name."""
        return {span.name: span for span in self.spans if span.parent_span_id == root.span_id}


def attributes_of(source: object) -> dict[str, object]:
    values = {one.key: one.value for one in source.attributes}
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()}


@contextmanager
def otlp_receiver(monkeypatch: pytest.MonkeyPatch, *, is_hanging: bool = False) -> Iterator[OtlpReceiver]:
    """A receiver that the environment names as the collector."""
    receiver = OtlpReceiver(is_hanging)

    class CollectorHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.has_request.set()
            receiver.is_answering.wait()
            receiver.receive(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), CollectorHandler) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # a client that gave up
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="otlp receiver", daemon=True)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        try:
            yield receiver
        finally:
            receiver.is_answering.set()
            server.shutdown()
            thread.join()
