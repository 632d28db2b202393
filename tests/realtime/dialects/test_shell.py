"""The shell under all wires, over real sockets, with the smallest dialect there is."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from engine.api import ErrorInfo
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect, DialectRoute
from realtime.protocol.dialects.parsing import text_only
from realtime.transports import dialect_routes
from realtime.transports.transport import WebSocketTransport
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.live_server import QUICK, WAIT_S, LiveServer, live_server, until


class MinimalDialect(Dialect):
    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self.options = model.SpeechOptions(voice=handshake.query.get("voice"))
        self._turn = 0
        self._open = False

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        text = text_only(message)
        context = str(self._turn)
        if text.startswith("key "):
            yield model.AuthenticateKey(text.removeprefix("key "))
        elif text == "stop":
            yield model.CancelContext(context)
        elif text == "bye":
            yield model.FinishContexts()
        elif text:
            if not self._open:
                self._open = True
                yield model.OpenContext(context, self.options)
            yield model.AppendText(context, text + " ")
        else:
            yield model.EndContext(context)
            self._open, self._turn = False, self._turn + 1

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                yield model.SendMessage(event.data)
            case model.ContextEnded():
                yield model.SendMessage(
                    f"done {event.context} {event.status} {event.error.code if event.error else ''}".strip()
                )
            case model.AllContextsEnded():
                yield model.CloseConnection(1000)

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield model.SendMessage(f"error {error.code}")


class Pairs(MinimalDialect):
    """Two messages for each piece of audio."""

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        if isinstance(event, model.ContextAudio):
            yield model.SendMessage(f"begin {event.context} {event.start_ms}")
            yield model.SendMessage(f"end {event.context} {event.start_ms}")
        else:
            yield from super().send_event(event)


TINY_WIRES = (
    DialectRoute("/tiny", MinimalDialect, serial=True),
    DialectRoute("/tiny/at-once", MinimalDialect),
    DialectRoute("/tiny/late", MinimalDialect, late_key=True),
    DialectRoute("/tiny/pairs", Pairs),
)
KEY = "a-key-of-enough-characters"
TEXT = "Hello there, how are you?"
SLOW = FakeScript(ms_per_char=60.0, real_time_factor=0.25)


@pytest.fixture(autouse=True)
def tiny_wires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect_routes, "DIALECT_ROUTES", TINY_WIRES)


@pytest.fixture
async def live() -> AsyncIterator[LiveServer]:
    async with live_server() as server:
        yield server


def dial(live: LiveServer, path: str, **options: object) -> connect:
    return connect(live.url + path, compression=None, proxy=None, **options)  # type: ignore[arg-type]


async def heard(socket: ClientConnection, until_text: str) -> tuple[int, list[str]]:
    """Bytes of audio, and what was said beside, up to a message that begins so."""
    num_bytes, said = 0, []
    async with asyncio.timeout(WAIT_S):
        while True:
            message = await socket.recv()
            if isinstance(message, bytes):
                num_bytes += len(message)
            else:
                said.append(message)
                if message.startswith(until_text):
                    return num_bytes, said


async def code_of(socket: ClientConnection) -> tuple[int, list[str | bytes]]:
    said: list[str | bytes] = []
    async with asyncio.timeout(WAIT_S):
        try:
            while True:
                said.append(await socket.recv())
        except ConnectionClosed:
            assert socket.close_code is not None
            return socket.close_code, said


@pytest.mark.parametrize(("path", "in_order"), [("/tiny", True), ("/tiny/at-once", False)])
async def test_contexts_speak_in_turn_or_at_once(path: str, in_order: bool) -> None:
    engine = FakeSpeechEngine(SLOW)
    async with live_server(engine) as live, dial(live, path) as socket:
        for text in (TEXT * 3, "Hi there."):
            await socket.send(text)
            await socket.send("")
        first = (await heard(socket, "done"))[1][-1]
        second = (await heard(socket, "done"))[1][-1]
        assert [first[:6], second[:6]] == (["done 0", "done 1"] if in_order else ["done 1", "done 0"])


async def heard_first_audio(socket: ClientConnection) -> None:
    async with asyncio.timeout(WAIT_S):
        while not isinstance(await socket.recv(), bytes):
            pass


async def test_unknown_voice_falls_back_to_default_with_warning(live: LiveServer) -> None:
    async with dial(live, "/tiny?voice=zoe") as socket:
        assert "voice 'zoe' is unknown" in socket.response.headers["X-Voicewire-Warning"]
    async with dial(live, "/tiny?voice=BEN") as socket:
        assert "X-Voicewire-Warning" not in socket.response.headers


async def test_voices_of_vendors_can_be_given_ours(live: LiveServer) -> None:
    async with live_server(dialects__voice_aliases={"zoe": "ben"}) as other, dial(other, "/tiny?voice=zoe") as socket:
        assert "X-Voicewire-Warning" not in socket.response.headers
        await socket.send(TEXT)
        await until(lambda: bool(other.engine.requests))
        assert other.engine.requests[-1].voice == "ben"


async def test_contexts_beyond_the_limit_end_at_once() -> None:
    async with live_server(dialects__max_contexts_per_connection=1) as live, dial(live, "/tiny") as socket:
        await socket.send(TEXT * 3)
        await socket.send("")
        await socket.send(TEXT)
        assert (await heard(socket, "done 1"))[1] == ["done 1 failed limit_exceeded"]


async def test_pending_text_is_limited_across_contexts() -> None:
    engine = FakeSpeechEngine(QUICK)
    engine.script_next(SLOW)
    async with live_server(engine, limits__max_response_chars=200) as live, dial(live, "/tiny") as socket:
        for text in ("x" * 150, "y" * 90, "z" * 90):
            await socket.send(text)
            await socket.send("")
        await socket.send("w" * 90)
        failed = (await heard(socket, "done"))[1]
        assert failed == ["done 3 failed limit_exceeded"]
        await socket.send("")
        assert [(await heard(socket, "done"))[1] for _ in range(3)] == [[f"done {n} completed"] for n in range(3)]


async def test_a_late_key_takes_the_place_that_its_connection_has() -> None:
    limits = {"auth__api_keys": f"agent:{KEY}", "limits__max_connections": 1, "limits__max_connections_per_key": 1}
    async with live_server(**limits) as live, dial(live, "/tiny/late") as socket:
        await socket.send(f"key {KEY}")
        await socket.send(TEXT)
        await socket.send("")
        assert (await heard(socket, "done"))[1] == ["done 0 completed"]


async def test_late_key_at_its_session_limit_closes_connection() -> None:
    limits = {"auth__api_keys": f"agent:{KEY}", "limits__max_active_responses_per_key": 1}
    async with (
        live_server(FakeSpeechEngine(SLOW), **limits) as live,
        dial(live, f"/tiny/at-once?api_key={KEY}") as speaking,
        dial(live, "/tiny/late") as late,
    ):
        await speaking.send(TEXT * 3)
        await until(lambda: live.speech.num_active_responses == 1)
        await late.send(f"key {KEY}")
        assert await code_of(late) == (1008, ["error limit_exceeded"])


async def test_drain_does_not_wait_for_context_without_text() -> None:
    async with live_server(listen__drain_timeout_s=WAIT_S) as live, dial(live, "/tiny") as socket:
        await socket.send(" ")
        await until(lambda: live.speech.num_connections == 1)
        draining = asyncio.create_task(live.speech.drain())
        assert await code_of(socket) == (1012, ["error draining"])
        async with asyncio.timeout(WAIT_S / 2):
            await draining


async def test_drain_speaks_pending_turns_and_refuses_new_ones() -> None:
    async with (
        live_server(FakeSpeechEngine(SLOW), listen__drain_timeout_s=WAIT_S) as live,
        dial(live, "/tiny") as socket,
    ):
        for text in (TEXT, "Hi there."):
            await socket.send(text)
            await socket.send("")
        await until(lambda: live.speech.num_active_responses == 1)
        await heard_first_audio(socket)
        draining = asyncio.create_task(live.speech.drain())
        await until(lambda: live.speech.draining)
        await socket.send(TEXT)
        assert (await heard(socket, "done 2"))[1] == ["done 2 failed draining"]
        code, said = await code_of(socket)
        turns = [message for message in said if isinstance(message, str)]
        assert (code, turns) == (1012, ["done 0 completed", "done 1 completed", "error draining"])
        await draining


async def test_messages_of_one_event_stay_together(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    waits_s = itertools.cycle((0.002, 0.0, 0.0))

    async def stutter(transport: WebSocketTransport) -> bool:
        await asyncio.sleep(next(waits_s))
        return await writable(transport)

    writable = WebSocketTransport.writable
    monkeypatch.setattr(WebSocketTransport, "writable", stutter)
    async with dial(live, "/tiny/pairs") as socket:
        for _ in range(4):
            await socket.send(TEXT)
            await socket.send("")
        said = [message for _ in range(4) for message in (await heard(socket, "done"))[1]]
        pairs = [message for message in said if not message.startswith("done")]
        assert len(pairs) > 40
        assert [f"end {begun.removeprefix('begin ')}" for begun in pairs[::2]] == pairs[1::2]


async def test_metrics_distinguish_dialects(live: LiveServer) -> None:
    async with dial(live, "/tiny") as socket:
        await socket.send(TEXT)
        await socket.send("")
        await heard(socket, "done")
    told = live.speech.metrics.exposition().decode()
    assert 'voicewire_dialect_connections_total{dialect="/tiny"} 1.0' in told
    assert 'voicewire_dialect_contexts_total{dialect="/tiny",status="completed"} 1.0' in told


async def test_those_without_a_key_do_not_take_every_place() -> None:
    limits = {"auth__api_keys": f"agent:{KEY}", "dialects__max_unauthenticated_connections": 1}
    async with live_server(**limits) as live, dial(live, "/tiny/late") as silent:
        with pytest.raises(InvalidStatus) as refused:
            await dial(live, "/tiny/late")
        assert (refused.value.response.status_code, refused.value.response.headers["Retry-After"]) == (429, "1")
        async with dial(live, f"/tiny/late?api_key={KEY}"):
            await silent.send(f"key {KEY}")
            await until(lambda: live.speech.registry.statistics().num_sessions == 2)
            async with dial(live, "/tiny/late"):
                pass


async def test_nothing_is_read_after_the_reason_to_close() -> None:
    async with live_server(auth__api_keys=f"agent:{KEY}") as live:
        async with dial(live, "/tiny/late") as socket:
            for message in (f"key {KEY}x", f"key {KEY}", TEXT, TEXT):
                await socket.send(message)
            assert await code_of(socket) == (1008, ["error unauthorized"])
        assert 'refusals_total{code="unauthorized"} 1.0' in live.speech.metrics.exposition().decode()


async def test_a_key_that_never_comes() -> None:
    async with (
        live_server(auth__api_keys=f"agent:{KEY}", listen__handshake_timeout_s=0.3) as live,
        dial(live, "/tiny/late") as silent,
    ):
        assert await code_of(silent) == (1008, ["error unauthorized"])


async def test_a_key_with_all_its_places_taken_gets_429() -> None:
    limits = {"auth__api_keys": f"agent:{KEY}", "limits__max_active_responses_per_key": 1}
    async with (
        live_server(FakeSpeechEngine(SLOW), **limits) as live,
        dial(live, f"/tiny/at-once?api_key={KEY}") as socket,
    ):
        await socket.send(TEXT * 3)
        await socket.send("")
        await socket.send(TEXT)
        assert (await heard(socket, "done 1"))[1] == ["done 1 failed limit_exceeded"]
        with pytest.raises(InvalidStatus) as refused:
            await dial(live, f"/tiny?api_key={KEY}")
        assert (refused.value.response.status_code, refused.value.response.headers["Retry-After"]) == (429, "1")


async def test_idle_and_expired_connections_close_with_known_codes() -> None:
    async with live_server(limits__idle_timeout_s=0.1) as live, dial(live, "/tiny") as socket:
        assert await code_of(socket) == (1001, ["error idle_timeout"])
