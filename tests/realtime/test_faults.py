"""Lines that stall, vanish or trickle, and an engine that fails: what was promised happens, and nothing leaks."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest
from websockets.client import ClientProtocol
from websockets.uri import parse_uri

from realtime.auth import LOCAL
from realtime.connection import MAX_PENDING_MESSAGES
from realtime.dialect_connection import DialectConnection
from realtime.protocol import events as ev
from realtime.protocol import model
from realtime.protocol.dialects.native import NATIVE_ROUTE
from realtime.protocol.native import SUBPROTOCOL, serialize
from realtime.transports.transport import MessageTransport, WebSocketTransport
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.live_server import QUICK, WAIT_S, LiveServer, close_code, hear, live_server, next_of, speak, until

TEXT = "Hello there, this is a reply that goes on for a while."
LONG = " ".join([TEXT] * 10)
TIMELY = FakeScript(first_chunk_s=0.01, real_time_factor=0.3)


class RawClient:
    """A socket and the WebSocket protocol, with nothing that reads or answers by itself."""

    def __init__(self, live: LiveServer, receive_buffer_bytes: int = 4_096) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.connect(("127.0.0.1", live.port))
        self.socket.setblocking(False)
        self.protocol = ClientProtocol(parse_uri(live.url + "/v1/speech"), subprotocols=[SUBPROTOCOL])
        self.protocol.send_request(self.protocol.connect())

    async def flush(self) -> None:
        for data in self.protocol.data_to_send():
            await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def send(self, event: ev.ClientEvent) -> None:
        self.protocol.send_text(serialize(event).encode())
        await self.flush()

    async def open(self) -> None:
        await self.flush()
        self.protocol.receive_data(await asyncio.get_running_loop().sock_recv(self.socket, 4_096))

    async def ends(self) -> bool:
        """Read until the server is done with this line; whether it ended."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(5):
                while await loop.sock_recv(self.socket, 65_536):
                    pass
        except ConnectionResetError:
            return True
        return True


@contextmanager
def raw_client(live: LiveServer) -> Iterator[RawClient]:
    client = RawClient(live)
    try:
        yield client
    finally:
        client.socket.close()


async def test_slow_reader_loses_response_and_then_connection() -> None:
    flags = {"limits__reader_timeout_s": 0.4, "listen__send_buffer_bytes": 4_096, "listen__write_buffer_bytes": 1_024}
    async with live_server(FakeSpeechEngine(QUICK), **flags) as live:
        with raw_client(live) as stalled:
            await stalled.open()
            pcm = ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=48_000)
            settings = ev.NativeSpeechSettings(pace="burst", format=pcm)
            await stalled.send(ev.ResponseCreate(response_id="r", settings=settings, text=TEXT + TEXT, end=True))
            async with live.session() as other:
                assert (await speak(other, TEXT)).done.status == "completed"
            await live.freed()
            ended = live.speech.metrics.exposition().decode()
            assert 'responses_total{status="failed"} 1.0' in ended
            assert await stalled.ends()


@pytest.mark.parametrize("how", ["abort", "close"])
async def test_a_client_that_vanishes_frees_its_work_at_once(live: LiveServer, how: str) -> None:
    live.engine.script = TIMELY
    async with live.session() as other:
        await other.send(ev.ResponseCreate(response_id="r", text=TEXT[:20], end=True))
        client = await live.session().__aenter__()
        for response_id in ("a", "b"):
            await client.send(ev.ResponseCreate(response_id=response_id, text=LONG))
        await next_of(client, ev.AudioMessage)
        if how == "abort":
            client.abort()
        else:
            await client.aclose()
        await until(lambda: live.speech.num_connections == 1)
        await until(lambda: live.speech.num_active_responses <= 1)
        assert (await hear(other)).done.status == "completed"
        await client.aclose()


async def test_a_client_process_that_is_killed_frees_its_work(live: LiveServer) -> None:
    live.engine.script = TIMELY
    code = (
        "import asyncio\n"
        "from realtime.client import open_session\n"
        "from realtime.protocol import events as ev\n"
        "async def main():\n"
        f"    client = await open_session({live.url!r})\n"
        f"    await client.send(ev.ResponseCreate(text={LONG!r}))\n"
        "    async for _ in client: print('heard', flush=True)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await live.freed()


async def test_text_that_trickles_is_waited_for_and_then_given_up() -> None:
    async with live_server(limits__text_timeout_s=0.6) as live, live.session() as client:
        await client.send(ev.ResponseCreate(response_id="r"))
        for character in "Hi the":
            await client.send(ev.TextAppend(response_id="r", text=character))
            await asyncio.sleep(0.15)
        done = (await hear(client)).done
        assert (done.status, done.error and done.error.code) == ("failed", "text_timeout")
        assert (await speak(client, TEXT, "after")).done.status == "completed"


async def trickle(writer: asyncio.StreamWriter, data: bytes) -> None:
    for byte in data:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)


async def test_a_handshake_that_trickles_is_cut() -> None:
    async with live_server(listen__handshake_timeout_s=0.5) as live:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        with pytest.raises(ConnectionError):
            await trickle(writer, b"GET /v1/speech HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n" * 10)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        async with asyncio.timeout(2):
            assert await reader.read() == b""
        writer.close()


async def test_a_session_that_does_nothing_is_closed() -> None:
    async with live_server(limits__idle_timeout_s=0.3) as live, live.session() as client:
        error = await next_of(client, ev.ErrorEvent)
        assert error.code == "idle_timeout"
        assert await close_code(client) == 4408


async def test_a_session_that_speaks_is_not_idle() -> None:
    async with live_server(limits__idle_timeout_s=0.3) as live, live.session() as client:
        settings = ev.NativeSpeechSettings(lead_ms=100)
        await client.send(ev.ResponseCreate(response_id="r", settings=settings, text=TEXT[:30], end=True))
        done = (await hear(client)).done
        assert done.status == "completed"
        assert done.audio_ms > 1_000


async def test_a_session_has_an_end() -> None:
    async with live_server(limits__max_session_duration_s=0.4) as live, live.session() as client:
        await client.send(ev.ResponseCreate(response_id="r", text=TEXT))
        error = await next_of(client, ev.ErrorEvent)
        assert error.code == "session_expired"
        assert await close_code(client) == 4410


async def test_a_client_that_answers_no_ping_is_cut() -> None:
    async with live_server(listen__ping_interval_s=0.2, listen__ping_timeout_s=0.2) as live:
        with raw_client(live) as silent:
            await silent.open()
            async with live.session() as lively:
                await until(lambda: live.speech.num_connections == 1)
                assert await silent.ends()
                assert (await speak(lively, TEXT)).done.status == "completed"


async def test_engine_error_in_mid_batch_fails_one_response(live: LiveServer) -> None:
    live.engine.script_next(FakeScript(first_chunk_s=0.01, fail_at_frame=5))
    async with live.session() as client:
        await client.send(ev.ResponseCreate(response_id="bad", text=TEXT, end=True))
        await client.send(ev.ResponseCreate(response_id="good", text=TEXT[:20], end=True))
        ends = [(await hear(client)).done, (await hear(client)).done]
    bad, good = sorted(ends, key=lambda done: done.response_id)
    assert (bad.status, bad.error and bad.error.code, bad.error and bad.error.retryable) == (
        "failed",
        "engine_error",
        True,
    )
    assert bad.heard is not None
    assert bad.heard.text + bad.heard.remaining == TEXT
    assert good.status == "completed"


async def test_dead_engine_fails_health_and_responses_then_recovers(live: LiveServer) -> None:
    live.engine.script = TIMELY
    async with live.session() as client, live.http() as http:
        await client.send(ev.ResponseCreate(response_id="r", text=LONG, end=True))
        await next_of(client, ev.AudioMessage)
        died_s = time.monotonic()
        live.engine.crash()
        assert (await http.get("/healthz")).status_code == 503
        assert (await http.get("/readyz")).json() == {"status": "engine_dead"}
        done = (await hear(client)).done
        assert (done.status, done.error and done.error.code, done.error and done.error.retryable) == (
            "failed", "engine_dead", True)  # fmt: skip
        assert time.monotonic() - died_s < 1
        await live.engine.start()  # engines see to this themselves
        assert (await http.get("/healthz")).status_code == 200
        assert (await speak(client, TEXT, "after")).done.status == "completed"


async def test_a_reply_asked_of_a_dead_engine_is_refused(live: LiveServer) -> None:
    async with live.session() as client:
        live.engine.crash()
        await client.send(ev.ResponseCreate(response_id="r", text=TEXT, end=True))
        async for message in client:
            if isinstance(message, ev.ErrorEvent | ev.ResponseDone):
                break
        error = message if isinstance(message, ev.ErrorEvent) else message.error
        assert error is not None
        assert (error.code, error.retryable) == ("engine_dead", True)


async def test_out_of_blocks_is_overload_and_worth_another_try() -> None:
    full = FakeSpeechEngine(TIMELY, num_slots=1, max_queued_requests=1)
    async with live_server(full) as live, live.session() as client:
        await client.send(ev.ResponseCreate(response_id="a", text=TEXT[:20], end=True))
        await next_of(client, ev.AudioMessage)
        for response_id in ("b", "c"):
            await client.send(ev.ResponseCreate(response_id=response_id, text=TEXT[:10], end=True))
        refused = (await hear(client, "c")).done
        assert refused.error is not None
        assert (refused.status, refused.error.code, refused.error.retryable) == ("failed", "overloaded", True)
        assert refused.error.retry_after_ms == 500
        assert (await hear(client, "b")).done.status == "completed"
        assert 'refusals_total{code="overloaded"} 1.0' in live.speech.metrics.exposition().decode()


async def test_internal_error_ends_one_connection_only(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with live.session() as unlucky, live.session() as other:
        session = live.speech.registry.find(unlucky.created.session_id)
        assert session is not None
        monkeypatch.setattr(session, "touch", lambda: 1 / 0)
        await unlucky.send(ev.ResponseCreate(response_id="r", text=TEXT, end=True))
        error = await next_of(unlucky, ev.ErrorEvent)
        assert (error.code, error.message) == ("internal_error", "internal error")
        assert await close_code(unlucky) == 1011
        assert "ZeroDivisionError" in caplog.text
        assert (await speak(other, TEXT)).done.status == "completed"


async def test_drain_deadline_ends_response_before_closing(live: LiveServer) -> None:
    async with live.session() as client:
        for response_id in ("a", "b"):
            await client.send(ev.ResponseCreate(response_id=response_id, text=LONG))
        await next_of(client, ev.AudioMessage)
        await live.speech.drain()
        told = [message async for message in client if not isinstance(message, ev.AudioMessage)]
        done = [message for message in told if isinstance(message, ev.ResponseDone)]
        assert {(end.response_id, end.status) for end in done} == {("a", "cancelled"), ("b", "cancelled")}
        assert all(end.heard and end.heard.text + end.heard.remaining == LONG for end in done)
        assert isinstance(told[-1], ev.ErrorEvent)
        assert (told[-1].code, client.close_code) == ("draining", 1012)


class BrokenConnection:
    def on_tick(self, now_s: float) -> None:
        raise RuntimeError("a fault of ours")

    def close(self, code: str) -> None:
        raise RuntimeError("a fault of ours")


async def test_a_fault_in_one_connection_is_none_of_the_others() -> None:
    async with live_server(limits__idle_timeout_s=0.3) as live, live.session() as client:
        broken = BrokenConnection()
        live.speech._connections |= {broken}
        assert await close_code(client) == 4408
        async with live.session() as last:
            await live.speech.drain()
            assert await close_code(last) == 1012
        live.speech._connections.remove(broken)


async def test_connection_failed_by_backpressure_ends_once(live: LiveServer) -> None:
    async with live.session() as client:
        await until(lambda: live.speech.num_connections == 1)
        connection = next(iter(live.speech._connections))
        assert isinstance(connection, DialectConnection)

        def fail(message: model.Message) -> list[model.DialectCommand]:
            raise RuntimeError("a fault of ours")

        connection._dialect.receive_message = fail  # type: ignore[method-assign]
        writable = cast(WebSocketTransport, connection._link)._line["writable"]  # type: ignore[index]
        writable.clear()
        await client.send(ev.SessionClose())
        assert connection._session is not None
        await until(connection._session.detached.is_set)
        connection.on_tick(time.monotonic())
        writable.set()
        assert await close_code(client) == 1011


class FloodedLink(MessageTransport):
    """Has all its messages at once; takes note of the turn in which each was read."""

    def __init__(self, num_messages: int, is_read: bool = True) -> None:
        self.num_left = num_messages
        self.turn = 0
        self.is_closed = False
        self.read_in: Counter[int] = Counter()
        self.unblocked = asyncio.Event()
        if is_read:
            self.unblocked.set()

    async def receive(self) -> str | None:
        self.read_in[self.turn] += 1
        self.num_left -= 1
        return serialize(ev.PlaybackReport(response_id="r", played_ms=1)) if self.num_left > 0 else None

    async def writable(self) -> bool:
        await self.unblocked.wait()
        return self.num_left > 0 and not self.is_closed

    async def write(self, message: str | bytes) -> None:
        pass

    async def close(self, code: int, reason: str = "") -> None:
        pass

    async def count_turns(self) -> None:
        while self.num_left > 0:
            await asyncio.sleep(0)
            self.turn += 1


def native_connection(live: LiveServer) -> DialectConnection:
    handshake = model.ClientHandshake(path={}, query={}, headers={}, request_id="r")
    connection = DialectConnection(live.speech, NATIVE_ROUTE, NATIVE_ROUTE.dialect(handshake))
    connection.open(LOCAL)
    return connection


async def test_a_flood_of_messages_lets_others_have_their_turn() -> None:
    async with live_server(limits__max_errors_per_connection=1_000_000) as live:
        link, connection = FloodedLink(1_000), native_connection(live)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.count_turns())
            tasks.create_task(connection.run(link))
        await connection.aclose()
        assert max(link.read_in.values()) <= 50


async def test_a_client_that_reads_no_answers_is_not_read() -> None:
    async with live_server(limits__max_errors_per_connection=1_000_000) as live:
        link, connection = FloodedLink(10_000, is_read=False), native_connection(live)
        run = asyncio.create_task(connection.run(link))
        await asyncio.sleep(0.3)
        num_read = link.read_in.total()
        await asyncio.sleep(0.1)
        assert MAX_PENDING_MESSAGES / 2 < link.read_in.total() == num_read <= MAX_PENDING_MESSAGES + 1
        link.unblocked.set()
        await run
        await connection.aclose()
        assert link.num_left <= 0


async def test_client_that_sent_much_and_left_is_released() -> None:
    async with live_server(limits__max_errors_per_connection=1_000_000) as live:
        link, connection = FloodedLink(1_000, is_read=False), native_connection(live)
        run = asyncio.create_task(connection.run(link))
        await until(lambda: link.read_in.total() > MAX_PENDING_MESSAGES / 2)
        link.is_closed = True
        link.unblocked.set()
        async with asyncio.timeout(WAIT_S):
            await run
        await connection.aclose()
