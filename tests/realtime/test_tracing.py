"""Traces of replies at a real OTLP receiver: their parts, the callers' traces, and collectors that fail."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect

from realtime.logs import redact_opentelemetry_record
from realtime.tracing import create_provider, find_phases
from sessions.tracing import ResponseTimes
from tests.realtime.calls import twilio_simulator
from tests.realtime.calls.test_sockets import told
from tests.realtime.live_server import WAIT_S, LiveServer, live_server, speak, until
from tests.realtime.mqtt import mqtt_client
from tests.realtime.otlp_receiver import attributes_of, otlp_receiver

TEXT = "Zebras whisper quietly."
KEY = "a-key-of-enough-characters"
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
PARTS = ["text_wait", "queue", "prefill", "first_frame", "decode", "encode", "first_packet", "speech"]


async def test_reply_is_exported_as_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
    with otlp_receiver(monkeypatch) as collector:
        async with live_server(auth__api_keys=f"ann:{KEY}") as live, live.session(KEY) as client:
            first = (await speak(client, TEXT, "first")).done
            await speak(client, TEXT, "second")
        assert len({root.trace_id for root in collector.roots}) == 2
        resource = collector.resources[0]
        assert (resource["service.name"], resource["deployment.environment.name"]) == ("voicewire", "lab")
        root = collector.roots[0]
        parts = collector.parts_of(root)
        assert sorted(parts, key=PARTS.index) == PARTS
        spans = [parts[name] for name in PARTS]
        assert all(root.start_time_unix_nano <= span.start_time_unix_nano for span in spans)
        assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
        assert [span.start_time_unix_nano for span in spans] == sorted(span.start_time_unix_nano for span in spans)
        assert parts["speech"].end_time_unix_nano == root.end_time_unix_nano
        waited_ns = parts["speech"].start_time_unix_nano - parts["queue"].start_time_unix_nano
        assert waited_ns / 1e6 == pytest.approx(first.first_audio_ms, abs=0.01)
        given = attributes_of(root)
        assert (given["voicewire.api_key_name"], given["voicewire.status"]) == ("ann", "completed")
        assert (given["voicewire.num_chars"], given["voicewire.audio_ms"]) == (len(TEXT), round(first.audio_ms))
        for word in (*TEXT.rstrip(".").split(), KEY):
            assert not any(word.encode() in body for body in collector.bodies)


async def test_refused_and_cut_replies_are_traces_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with otlp_receiver(monkeypatch) as collector:
        async with live_server(limits__max_response_chars=30) as live:
            async with live.session() as client:
                await speak(client, "x" * 40, "long")
            async with live.http() as http, http.stream("POST", "/v1/audio/speech", json=spoken(TEXT)) as answer:
                await anext(answer.aiter_raw(1))
        by_status = {attributes_of(root)["voicewire.status"]: root for root in collector.roots}
        assert by_status.keys() == {"failed", "cancelled"}
        assert attributes_of(by_status["failed"])["error.type"] == "request_too_long"
        assert by_status["failed"].status.code == 2
        assert {"queue", "decode", "first_packet"} <= collector.parts_of(by_status["cancelled"]).keys()


def spoken(text: str) -> dict[str, str]:
    return {"input": text, "response_format": "pcm", "stream_format": "audio"}


async def receive_until(client: ClientConnection, kind: str) -> None:
    """Read until a text message of this type or event."""
    async with asyncio.timeout(WAIT_S):
        while isinstance(message := await client.recv(), bytes) or kind not in json.loads(message).values():
            pass


async def say_by_http(live: LiveServer, traceparent: str) -> None:
    async with live.http() as http:
        headers = {"traceparent": traceparent.encode("latin-1"), "x-api-key": KEY.encode()}
        assert (await http.post("/v1/audio/speech", json=spoken(TEXT), headers=headers)).status_code == 200


async def say_by_socket(live: LiveServer, traceparent: str) -> None:
    headers = {"traceparent": traceparent, "x-api-key": KEY}
    async with connect(live.url + "/v1/speech", compression=None, proxy=None, additional_headers=headers) as client:
        await client.send(json.dumps({"type": "response.create", "response_id": "r", "text": TEXT, "end": True}))
        await receive_until(client, "response.done")


async def say_into_call(live: LiveServer, header: str, parameter: str = "") -> None:
    caller = {"x-api-key": KEY}
    parameters = {"traceparent": parameter} if parameter else {}
    async with (
        connect(live.url + "/v1/calls", proxy=None, additional_headers=caller) as agent,
        connect(live.url + "/v1/calls/twilio", proxy=None, additional_headers=caller | {"traceparent": header}) as line,
    ):
        await line.send(twilio_simulator.start(**parameters))
        call_id = (await told(agent, "call.connected"))["call_id"]
        await agent.send(json.dumps({"type": "say", "call_id": call_id, "text": TEXT}))
        await receive_until(line, "media")
        await agent.send(json.dumps({"type": "hang_up", "call_id": call_id}))
        await told(agent, "call.hung_up")


async def say_into_call_with_parameter(live: LiveServer, parameter: str) -> None:
    await say_into_call(live, "", parameter)


@pytest.mark.parametrize("say", [say_by_http, say_by_socket, say_into_call, say_into_call_with_parameter])
async def test_reply_belongs_to_the_trace_of_its_caller(monkeypatch: pytest.MonkeyPatch, say) -> None:
    with otlp_receiver(monkeypatch) as collector:
        async with live_server(auth__api_keys=f"ann:{KEY}") as live:
            await say(live, PARENT)
        assert [(root.trace_id.hex(), root.parent_span_id.hex()) for root in collector.roots] == [(TRACE_ID, SPAN_ID)]


@pytest.mark.parametrize("value", ["", "00-1-2-3", f"00-{'0' * 32}-{SPAN_ID}-01", "x" * 4_000, "ÿ" * 55])
async def test_malformed_traceparent_is_ignored(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    with otlp_receiver(monkeypatch) as collector:
        async with live_server(auth__api_keys=f"ann:{KEY}") as live:
            await say_by_http(live, value)
        assert [root.parent_span_id for root in collector.roots] == [b""]


MESSAGES: list[tuple[str, dict[str, object]]] = [("open", {"lead_ms": 0}), ("say", {"text": TEXT})]


@pytest.mark.parametrize(("kind", "content"), MESSAGES, ids=["open", "say"])
@pytest.mark.parametrize("value", [PARENT, "00-1-2-3"], ids=["valid", "malformed"])
async def test_mqtt_reply_belongs_to_the_trace_of_its_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, content: dict[str, object], value: str
) -> None:
    with mqtt_client.running(tmp_path) as broker, otlp_receiver(monkeypatch) as collector:
        async with mqtt_client.bridged(broker), mqtt_client.client(broker) as agent:
            await agent.ask(f"voice/v1/{kind}", content, traceparent=value, other="my secret words")
            if kind == "open":
                session = mqtt_client.MqttTestSession(agent, (await agent.next_on(agent.answers)).json)
                for _ in range(2):
                    await session.say({"t": "text", "d": TEXT}, {"t": "end"})
                    await session.told("done")
            else:
                await agent.next_on(agent.answers, lambda answer: answer.last)
        found = {(root.trace_id.hex(), root.parent_span_id.hex()) for root in collector.roots}
        assert (found == {(TRACE_ID, SPAN_ID)}) == (value == PARENT)
        assert len(collector.roots) == (2 if kind == "open" else 1)
        assert not any(b"secret" in body for body in collector.bodies)


async def test_baggage_is_neither_read_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with live_server() as live, live.http() as http:
        answer = await http.post("/v1/audio/speech", json=spoken(TEXT), headers={"baggage": "my secret words"})
        assert answer.status_code == 200
    assert "secret" not in caplog.text


def test_break_before_the_first_word_makes_no_part_that_ends_before_it_begins() -> None:
    times = ResponseTimes(0.0, 0.1, first_chunk_s=1.0, first_packet_s=0.5, first_sent_s=0.6, ended_s=2.0)
    assert [phase.name for phase in find_phases(times)] == ["text_wait", "first_packet", "speech"]


def test_arguments_of_the_sdk_are_not_logged() -> None:
    record = logging.LogRecord("opentelemetry.util.re", logging.WARNING, "", 0, "Header %s is wrong", ("secret",), None)
    assert redact_opentelemetry_record(record)
    assert record.getMessage() == "Header ... is wrong"


async def test_callers_decision_not_to_sample_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    with otlp_receiver(monkeypatch) as collector:
        async with live_server(auth__api_keys=f"ann:{KEY}") as live:
            await say_by_http(live, PARENT.removesuffix("01") + "00")
        assert collector.spans == []


async def test_hanging_collector_delays_neither_speech_nor_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realtime.tracing.SHUTDOWN_TIMEOUT_S", 0.1)
    with otlp_receiver(monkeypatch, is_hanging=True) as collector:
        async with live_server() as live, live.session() as client:
            await speak(client, TEXT, "first")
            await until(collector.has_request.is_set)
            for number in range(3):
                assert (await speak(client, TEXT, str(number))).done.status == "completed"
        assert collector.spans == []


async def test_absent_collector_delays_neither_speech_nor_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realtime.tracing.SHUTDOWN_TIMEOUT_S", 0.1)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
        async with live_server() as live, live.session() as client:
            for number in range(3):
                assert (await speak(client, TEXT, str(number))).done.status == "completed"


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        ENDPOINT | {"OTEL_SDK_DISABLED": "true"},
        ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_an_endpoint_nothing_is_made(environment: dict[str, str]) -> None:
    assert create_provider(environment) is None


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-5", "OTEL_"),
        ("OTEL_PYTHON_METER_PROVIDER", "no such provider", "OTEL_"),
        ("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "no such provider", "OTEL_"),
    ],
)
def test_wrong_variable_stops_no_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert create_provider(ENDPOINT | {variable: value}) is None
    assert reason in caplog.records[-1].reason


async def test_unknown_tracer_provider_stops_no_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "no such provider")
    with otlp_receiver(monkeypatch) as collector:
        async with live_server() as live, live.session() as client:
            assert (await speak(client, TEXT, "first")).done.status == "completed"
        assert len(collector.roots) == 1
    reasons = [record.reason for record in caplog.records if record.name == "voicewire.traces"]
    assert reasons == ["OTEL_PYTHON_TRACER_PROVIDER cannot be loaded"]


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with caplog.at_level(logging.WARNING):
        assert create_provider(ENDPOINT) is None
    assert "voicewire[tracing]" in caplog.records[-1].reason
