"""Everything a client can get wrong, over a real socket: the documented error, and others go on unharmed."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from realtime.client import NativeClient
from realtime.errors import RULES
from realtime.protocol import events as ev
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.live_server import QUICK, LiveServer, close_code, hear, live_server, next_of, speak
from tests.realtime.message_fuzzer import random_message

TEXT = "Hello there, this is a reply that goes on for a while."


def format_settings(**fields: Any) -> ev.NativeSpeechSettings:
    return ev.NativeSpeechSettings(format=ev.NativeAudioFormat(**fields))


@asynccontextmanager
async def bystander(live: LiveServer) -> AsyncIterator[None]:
    """Another client, speaking all the while: it must hear its reply whole."""
    async with live.session() as client:
        settings = ev.NativeSpeechSettings(pace="lead", lead_ms=200)
        await client.send(ev.ResponseCreate(response_id="by", settings=settings, text="Still here.", end=True))
        yield
        done = (await hear(client)).done
        assert (done.status, done.error) == ("completed", None)
        assert done.audio_samples > 0


@pytest.mark.parametrize(
    ("message", "code", "param", "closes_with"),
    [
        ("{", "malformed_json", None, 1007),
        ("hello", "malformed_json", None, 1007),
        ('{"type":"text.append","response_id":"r","text":"\\ud800"}', "malformed_json", None, 1007),
        ('{"type":"text.shout","response_id":"r"}', "unknown_event", "type", 1007),
        ('{"type":"session.created"}', "unknown_event", "type", 1007),
        ('{"type":"text.append","response_id":"r","text":5}', "invalid_event", "text", 1007),
        ('{"type":"text.append","response_id":["r"],"text":"a"}', "invalid_event", "response_id", 1007),
        ('{"type":"text.append","response_id":"r","text":"a","loud":true}', "invalid_event", "loud", 1007),
        ('{"type":"playback.report","response_id":"r","played_ms":"5"}', "invalid_event", "played_ms", 1007),
        (b"\x01\x01\x00\x01", "binary_not_accepted", None, 1003),
        (b"", "binary_not_accepted", None, 1003),
        ('{"type":"text.append","response_id":"r","text":"' + "a" * 262_144 + '"}', "message_too_big", None, 1009),
        ('{"type":"text.append","response_id":"r","text":"' + "é" * 131_072 + '"}', "message_too_big", None, 1009),
    ],
)  # fmt: skip
async def test_protocol_violation_is_answered_and_closes_connection(
    live: LiveServer, message: str | bytes, code: str, param: str | None, closes_with: int
) -> None:
    async with bystander(live), live.session() as client:
        await client.send(ev.ResponseCreate(response_id="r", text=TEXT))
        await client.send_raw(message)
        error = await next_of(client, ev.ErrorEvent)
        assert (error.code, error.param, error.retryable) == (code, param, False)
        assert await close_code(client) == closes_with == RULES[code].close


async def test_a_message_far_above_the_limit_is_not_even_read(live: LiveServer) -> None:
    async with bystander(live), live.session() as client:
        await client.send_raw("a" * 1_100_000)
        assert await close_code(client) == 1009


async def refused(client_messages: list[ev.ClientEvent], live: LiveServer) -> ev.ErrorEvent:
    """Send all of them, and give the first error; the session must still work afterwards."""
    async with live.session() as client:
        for message in client_messages:
            await client.send(message)
            if isinstance(message, ev.ResponseCreate) and message.end:
                await next_of(client, ev.ResponseDone)
        error = await next_of(client, ev.ErrorEvent)
        assert (await speak(client, TEXT, "after")).done.status == "completed"
    return error


CREATE = ev.ResponseCreate(response_id="r", settings=ev.NativeSpeechSettings(pace="burst"))
WHOLE = ev.ResponseCreate(response_id="r", settings=ev.NativeSpeechSettings(pace="burst"), text="Hi there.", end=True)
APPEND, FLUSH, END = (
    ev.TextAppend(response_id="r", text="more"),
    ev.TextFlush(response_id="r"),
    ev.TextEnd(response_id="r"),
)
CANCEL, REPORT = ev.ResponseCancel(response_id="r"), ev.PlaybackReport(response_id="r", played_ms=1)


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([APPEND], "unknown_response"),
        ([FLUSH], "unknown_response"),
        ([END], "unknown_response"),
        ([CANCEL], "unknown_response"),
        ([REPORT], "unknown_response"),
        ([WHOLE, APPEND], "response_done"),
        ([WHOLE, FLUSH], "response_done"),
        ([WHOLE, END], "response_done"),
        ([CREATE, CANCEL, APPEND], "response_done"),
        ([CREATE, CANCEL, FLUSH], "response_done"),
        ([CREATE, CANCEL, END], "response_done"),
        ([CREATE, APPEND, END, APPEND], "text_closed"),
        ([CREATE, APPEND, END, FLUSH], "text_closed"),
        ([CREATE, APPEND, END, END], "text_closed"),
        ([CREATE, CREATE], "duplicate_response"),
        ([WHOLE, CREATE], "duplicate_response"),
    ],
)
async def test_events_that_come_at_the_wrong_time(live: LiveServer, messages: list[ev.ClientEvent], code: str) -> None:
    error = await refused(messages, live)
    assert (error.code, error.response_id, error.param) == (code, "r", "response_id")


@pytest.mark.parametrize(
    ("settings", "code", "param", "limit"),
    [
        (ev.NativeSpeechSettings(voice="nobody"), "unknown_voice", "voice", "nobody"),
        (ev.NativeSpeechSettings(language="xx"), "unknown_language", "language", "xx"),
        (format_settings(encoding="flac"), "unsupported_format", "encoding", "opus"),
        (format_settings(sample_rate=11_025), "unsupported_format", "sample_rate", "24000"),
        (format_settings(encoding="alaw", sample_rate=9), "unsupported_format", "sample_rate", "8000"),
        (format_settings(bitrate=1), "unsupported_format", "bitrate", "6000"),
        (format_settings(complexity=11), "unsupported_format", "complexity", "10"),
        (ev.NativeSpeechSettings(lead_ms=10_000_000), "limit_exceeded", "lead_ms", "60000"),
        (ev.NativeSpeechSettings(lead_ms=-5), "limit_exceeded", "lead_ms", "60000"),
        (ev.NativeSpeechSettings(instruct="x" * 1_500), "limit_exceeded", "instruct", "1000"),
        (ev.NativeSpeechSettings(instruct="x" * 5_000), "limit_exceeded", "instruct", "1000"),
        (ev.NativeSpeechSettings(chunk_frames=(1,) * 17), "invalid_request", "chunk_frames", "16"),
        (ev.NativeSpeechSettings(voice=""), "unknown_voice", "voice", "''"),
        (ev.NativeSpeechSettings(voice="x" * 200), "unknown_voice", "voice", "x" * 200),
        (format_settings(encoding=""), "unsupported_format", "encoding", "opus"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by", ["response.create", "session.update"])
async def test_settings_that_cannot_be_served(
    live: LiveServer, by: str, settings: ev.NativeSpeechSettings, code: str, param: str, limit: str
) -> None:
    update: ev.ClientEvent = ev.SessionUpdate(settings=settings)
    create: ev.ClientEvent = ev.ResponseCreate(response_id="r", settings=settings)
    error = await refused([create if by == "response.create" else update], live)
    assert (error.code, error.param, error.response_id) == (code, param, "r" if by == "response.create" else None)
    assert limit in error.message.replace(",", "")


async def test_text_on_its_way_to_a_refused_reply_is_not_answered(live: LiveServer) -> None:
    async with live.session() as client:
        await client.send(ev.ResponseCreate(response_id="r", settings=ev.NativeSpeechSettings(voice="nobody")))
        for event in (APPEND, APPEND, END):
            await client.send(event)
        spoken = await speak(client, TEXT, "r")
    assert [message.code for message in spoken.messages if isinstance(message, ev.ErrorEvent)] == ["unknown_voice"]
    assert spoken.done.status == "completed"


@pytest.mark.parametrize("text", ["", " ", " \n\t ", "😀", "🙂🙃 👩‍🚀", "...", "\u200b"])
async def test_unspeakable_text_completes_in_silence(live: LiveServer, text: str) -> None:
    async with bystander(live), live.session() as client:
        spoken = await speak(client, text)
        assert (spoken.done.status, spoken.done.audio_samples) == ("completed", 0)
        assert spoken.done.nothing_spoken
        assert spoken.audio == []
        assert (await speak(client, TEXT, "after")).done.status == "completed"


async def test_100_000_characters_are_too_many(live: LiveServer) -> None:
    async with bystander(live), live.session() as client:
        spoken = await speak(client, "word " * 20_000)
        assert spoken.done.status == "failed"
        assert spoken.done.error is not None
        assert spoken.done.error.code == "request_too_long"
        assert "50000" in spoken.done.error.message.replace(",", "").replace("_", "")


async def test_100_000_characters_in_pieces_are_too_many_as_well(live: LiveServer) -> None:
    async with live.session() as client:
        await client.send(CREATE)
        for _ in range(20):
            await client.send(ev.TextAppend(response_id="r", text="word " * 1_000))
        done = (await hear(client)).done
        assert done.status == "failed"
        assert done.error is not None
        assert done.error.code == "request_too_long"


async def test_text_for_failed_response_is_not_a_client_error(live: LiveServer) -> None:
    async with live.session() as client:
        await client.send(CREATE)
        await client.send(ev.TextAppend(response_id="r", text="word " * 11_000))
        for _ in range(150):  # more than max_errors
            await client.send(APPEND)
        assert (await hear(client)).done.status == "failed"
        for event in (APPEND, FLUSH, END):
            await client.send(event)
        spoken = await speak(client, TEXT, "after")
    assert spoken.done.status == "completed"
    assert not [message for message in spoken.messages if isinstance(message, ev.ErrorEvent)]


@pytest.mark.parametrize("reports", [[-1e9], [1e18], [1e308], [-1e308], [5_000, 0, 5_000], [0.0] * 50, [-0.5, 1e-300]])
async def test_playback_reports_of_a_skewed_clock_do_no_harm(live: LiveServer, reports: list[float]) -> None:
    async with bystander(live), live.session() as client:
        await client.send(
            ev.ResponseCreate(response_id="r", settings=ev.NativeSpeechSettings(lead_ms=200), text=TEXT[:20], end=True)
        )
        for played_ms in reports:
            await next_of(client, ev.AudioMessage)
            await client.send(ev.PlaybackReport(response_id="r", played_ms=played_ms))
            if played_ms == 0.0:
                break
        done = (await hear(client)).done
        assert done.status == "completed"
        assert done.audio_samples > 0


async def test_a_cancel_with_an_impossible_position_is_answered(live: LiveServer) -> None:
    async with live.session() as client:
        for number, played_ms in enumerate((-5.0, 1e15, 1e308, -1e308)):
            await client.send(ev.ResponseCreate(response_id=f"r{number}", text=TEXT, end=True))
            await next_of(client, ev.AudioMessage)
            await client.send(ev.ResponseCancel(response_id=f"r{number}", played_ms=played_ms))
            heard = (await hear(client)).done.heard
            assert heard is not None
            assert heard.text + heard.remaining == TEXT


async def test_too_many_errors_end_the_connection() -> None:
    async with live_server(limits__max_errors_per_connection=5) as live, live.session() as client:
        for _ in range(5):
            await client.send(APPEND)
        codes = [message.code async for message in client if isinstance(message, ev.ErrorEvent)]
        assert codes == ["unknown_response"] * 5 + ["too_many_errors"]
        assert client.close_code == 1008


async def test_more_replies_at_once_than_a_session_may_have() -> None:
    slow = FakeSpeechEngine(FakeScript(first_chunk_s=5.0))
    async with live_server(slow, limits__max_active_responses_per_session=2) as live, live.session() as client:
        for number in range(3):
            await client.send(ev.ResponseCreate(response_id=f"r{number}", text=TEXT))
        error = await next_of(client, ev.ErrorEvent)
        assert (error.code, error.response_id) == ("limit_exceeded", "r2")
        assert "2" in error.message


async def test_client_text_stays_out_of_the_log(live: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="voicewire")
    caplog.set_level("DEBUG", logger="sessions")
    async with live.session() as client:
        await client.send(ev.ResponseCreate(response_id="r", text="a secret sentence", end=True))
        await hear(client)
        await client.send(ev.TextAppend(response_id="r", text="a secret sentence"))
        await next_of(client, ev.ErrorEvent)
        await client.send_raw('{"type":"text.flush","response_id":"r","a secret sentence":1}')
        await close_code(client)
    assert {"session opened", "response ended", "client message rejected"} <= {
        record.message for record in caplog.records
    }
    assert not any("secret" in json.dumps(vars(record), default=str) for record in caplog.records)


async def send_any(client: NativeClient, message: str | bytes) -> None:
    """Also what is no UTF-8, as a text message."""
    data = message if isinstance(message, bytes) else message.encode("utf-8", "surrogatepass")
    try:
        await client._socket.send(data, text=isinstance(message, str))
    except ConnectionClosed:
        raise ConnectionError from None


async def test_text_that_is_no_utf_8_is_refused(live: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """And is no error of ours."""
    caplog.set_level("INFO")
    async with live.session() as client:
        await send_any(client, '{"type":"text.append","response_id":"r","text":"\ud83d"}')
        assert await close_code(client) == 1007
    await live.freed()
    closed = [vars(record) for record in caplog.records if record.message == "session closed"]
    assert [(one["session_id"], one.get("close_code")) for one in closed] == [(client.created.session_id, 1007)]
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert not any(record.exc_info for record in caplog.records)


async def fuzz(live: LiveServer, num_messages: int) -> None:
    """Connections that end are opened again; in the end the server must be as it was."""
    rng = random.Random(7)
    sent = num_connections = 0
    while sent < num_messages:
        num_connections += 1
        async with live.session() as client:
            reading = asyncio.create_task(close_code(client))
            with suppress(ConnectionError):
                while sent < num_messages and not reading.done():
                    await send_any(client, random_message(rng))
                    sent += 1
                    await asyncio.sleep(0)
            await client.aclose()
            assert await reading in {1000, *(int(rule.close) for rule in RULES.values() if rule.close)}
    assert num_connections > 10
    async with live.session() as client:
        assert (await speak(client, TEXT)).done.status == "completed"


async def test_some_generated_messages_against_a_live_server(live: LiveServer) -> None:
    await fuzz(live, 400)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_5_000_generated_messages_against_a_live_server() -> None:
    async with live_server(FakeSpeechEngine(QUICK)) as live:
        await fuzz(live, 5_000)
