"""A session outlives its connection: any cut of the line, at any byte, changes no sample and loses no word."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiomqtt
import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from realtime.client import NativeClient, open_session
from realtime.protocol import events as ev
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.calls.test_sockets import told
from tests.realtime.live_server import LiveServer, SessionContext, close_code, hear, live_server, next_of, until
from tests.realtime.live_server import speak as say
from tests.realtime.mqtt.mqtt_client import Mosquitto, MqttTestClient, bridged, running
from tests.realtime.mqtt.mqtt_client import client as mqtt_client

TEXT = "One two three four five six seven. Eight nine ten, eleven twelve! Thirteen fourteen. " * 2
VONAGE = '{"event":"websocket:connected","content-type":"audio/l16;rate=16000","uuid":"U1"}'
FORMATS = {
    "pcm": ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=16_000),
    "opus": ev.NativeAudioFormat(encoding="opus", sample_rate=24_000),
}
RESUMABLE = "?resume=true"
SCRIPT = FakeScript(ms_per_char=20.0, first_chunk_s=0.005, real_time_factor=0.02)


class CuttingProxy:
    """Forwards TCP; each connection is reset after as many bytes as ``budgets`` has for it, by either side."""

    def __init__(self, port: int) -> None:
        self.upstream_port = port
        self.budgets: list[int] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        left = [self.budgets.pop(0)] if self.budgets else [2**40]

        async def forward(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while left[0] > 0 and (data := await source.read(4_096)):
                target.write(data[: left[0]])
                left[0] -= len(data)
                await target.drain()
            for side in (writer, upstream[1]):
                side.transport.abort()

        with contextlib.suppress(OSError):
            await asyncio.gather(forward(reader, upstream[1]), forward(upstream[0], writer))


@asynccontextmanager
async def cutting_proxy(port: int) -> AsyncIterator[tuple[CuttingProxy, str]]:
    proxy = CuttingProxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    async with server:
        yield proxy, f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


class Listener:
    """A client that resumes: it keeps what it has received, and sends again what the server lacks."""

    def __init__(self, url: str, settings: ev.NativeSpeechSettings, text: str = TEXT) -> None:
        self.url, self.settings, self.text = url + RESUMABLE, settings, text
        self.packets: list[bytes] = []
        self.num_samples = 0
        self.num_connections = 0
        self.done: list[ev.ResponseDone] = []
        self._token = self._session_id = ""
        self._was_created = False

    async def run(self) -> None:
        while not self.done:
            with contextlib.suppress(OSError, EOFError, WebSocketException):
                client = await open_session(self.url)
                self.num_connections += 1
                try:
                    await self._converse(client)
                finally:
                    if self.done:
                        await client.aclose()
                    client.abort()

    async def _converse(self, client: NativeClient) -> None:
        if self._token:
            position = ev.ResumePosition(response_id="r", received_samples=self.num_samples)
            await client.send(ev.SessionResume(session_id=self._session_id, token=self._token, responses=(position,)))
        else:
            self._session_id, self._token = client.created.session_id, client.created.resume_token
            await self._send_all(client, 0)
        async for event in client:
            await self._on_event(client, event)
            if self.done:
                return

    async def _on_event(self, client: NativeClient, event: ev.ServerEvent | ev.AudioMessage) -> None:
        match event:
            case ev.AudioMessage():
                self._on_audio(event)
            case ev.SessionResumed(responses=(resumed,)):
                self._token = event.token
                assert resumed.next_sample + resumed.discard_samples == max(self.num_samples, resumed.next_sample)
                if resumed.state == "unknown":
                    await self._send_all(client, 0)
                elif resumed.state == "open":
                    await self._send_text(client, resumed.received_chars)
            case ev.ResponseDone():
                self.done.append(event)
            case ev.ErrorEvent(code="resume_refused") if not self.num_samples:
                # No event had reached the server: there is nothing to resume.
                self._session_id, self._token = client.created.session_id, client.created.resume_token
                await self._send_all(client, 0)
            case ev.ErrorEvent():
                raise RuntimeError(event)

    async def _send_all(self, client: NativeClient, at: int) -> None:
        await client.send(ev.ResponseCreate(response_id="r", settings=self.settings))
        await self._send_text(client, at)

    async def _send_text(self, client: NativeClient, at: int) -> None:
        """In pieces, from a little before: what the server has is skipped."""
        at = max(at - 5, 0)
        for start in range(at, len(self.text), 11):
            await client.send(ev.TextAppend(response_id="r", text=self.text[start : start + 11], at=start))
        await client.send(ev.TextEnd(response_id="r"))

    def _on_audio(self, message: ev.AudioMessage) -> None:
        assert message.sample_time <= self.num_samples, "a gap"
        at = message.sample_time
        for packet in message.packets:
            size = 480 if message.kind is ev.AudioKind.OPUS else len(packet) // 2
            if at + size > self.num_samples:
                assert at == self.num_samples, "a packet that was cut"
                self.packets.append(packet)
                self.num_samples += size
            at += size


def settings_of(name: str, pace: str) -> ev.NativeSpeechSettings:
    return ev.NativeSpeechSettings(format=FORMATS[name], pace=pace, lead_ms=800 if pace == "lead" else None)


async def speak(live: LiveServer, settings: ev.NativeSpeechSettings) -> Listener:
    listener = Listener(live.url, settings)
    async with asyncio.timeout(60):
        await listener.run()
    return listener


# Bytes of the handshake and the session's first events.
OPENING_BYTES = 1_500
NUM_CUTS = 4


async def check_cut_reply(cut: Listener, proxy: CuttingProxy, whole: Listener, rng: random.Random) -> None:
    """Speak through a proxy that cuts the connection at any bytes: packets and end are those of ``whole``."""
    cut_bytes = sum(map(len, whole.packets)) // NUM_CUTS
    proxy.budgets = [rng.randrange(OPENING_BYTES) + rng.randrange(cut_bytes) for _ in range(NUM_CUTS)]
    async with asyncio.timeout(60):
        await cut.run()
    assert b"".join(cut.packets) == b"".join(whole.packets)
    ends = [msgspec.structs.replace(one.done[0], first_audio_ms=None) for one in (cut, whole)]
    assert ends[0] == ends[1]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("pace", "num_replies", "seed"),
    [("burst", 6, 0), ("lead", 2, 0), *(pytest.param("burst", 250, n, marks=pytest.mark.slow) for n in range(1, 6))],
)
@pytest.mark.parametrize("name", list(FORMATS))
async def test_cuts_at_any_byte_change_no_sample(name: str, pace: str, num_replies: int, seed: int) -> None:
    rng = random.Random(f"{name} {pace} {seed}")
    num_connections = 0
    async with live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=3) as live:
        whole = await speak(live, settings_of(name, pace))
        for _ in range(num_replies):
            async with cutting_proxy(live.port) as (proxy, url):
                cut = Listener(url, settings_of(name, pace))
                await check_cut_reply(cut, proxy, whole, rng)
            num_connections += cut.num_connections
        await live.freed()
    assert num_connections > 3 * num_replies


KEYS = "one:0123456789abcdef,two:fedcba9876543210"


async def start_reply(client: NativeClient, pace: str = "burst") -> tuple[str, str]:
    """Begin a reply whose text goes on, and return session id and token once its audio comes."""
    await client.send(ev.ResponseCreate(response_id="r", settings=settings_of("pcm", pace), text="One two three. Four"))
    async for event in client:
        if isinstance(event, ev.AudioMessage):
            break
    return client.created.session_id, client.created.resume_token


async def lose(client: NativeClient, live: LiveServer) -> None:
    client.abort()
    await until(lambda: all(not connection._is_running for connection in live.speech._connections))


async def resume(client: NativeClient, session_id: str, token: str, **position: float) -> ev.ServerEvent:
    responses = (ev.ResumePosition(response_id="r", **position),) if position else ()
    await client.send(ev.SessionResume(session_id=session_id, token=token, responses=responses))
    async for event in client:
        if not isinstance(event, ev.AudioMessage):
            return event
    raise AssertionError("closed")


@pytest.mark.parametrize("kind", ["session", "token", "key", "used"])
async def test_forged_and_foreign_tokens_are_refused(kind: str) -> None:
    async with live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=30, auth__api_keys=KEYS) as live:
        first = await open_session(live.url + RESUMABLE, api_key="0123456789abcdef")
        session_id, token = await start_reply(first)
        await lose(first, live)
        other = await open_session(
            live.url + RESUMABLE, api_key="fedcba9876543210" if kind == "key" else "0123456789abcdef"
        )
        if kind == "used":
            resumed = await resume(other, session_id, token, received_samples=0)
            assert isinstance(resumed, ev.SessionResumed)
            await other.send(ev.ResponseCancel(response_id="r"))
            async for event in other:
                if isinstance(event, ev.ResponseDone):
                    break
            await lose(other, live)
            other = await open_session(live.url + RESUMABLE, api_key="0123456789abcdef")
        wrong = {"session": ("0" * 16, token), "token": (session_id, token[::-1])}.get(kind, (session_id, token))
        refused = await resume(other, *wrong, received_samples=0)
        assert isinstance(refused, ev.ErrorEvent)
        assert (refused.code, refused.message.count(token)) == ("resume_refused", 0)
        # Nothing is lost: the refused connection has a session of its own, and the owner can still resume.
        await other.send(ev.ResponseCreate(response_id="own", text="Hello.", end=True))
        async for event in other:
            if isinstance(event, ev.ResponseDone):
                assert event.status == "completed"
                break
        assert live.speech.num_active_responses == (kind != "used")
        await other.aclose()
        rightful = await open_session(live.url + RESUMABLE, api_key="0123456789abcdef")
        if kind != "used":
            assert isinstance(await resume(rightful, session_id, token, received_samples=0), ev.SessionResumed)
            await rightful.send(ev.SessionClose())
        await rightful.aclose()
        live.speech.resumption.evict_all()


@pytest.mark.parametrize("samples", [2**31, -1])
async def test_positions_that_were_never_sent_cancel_the_reply(samples: int) -> None:
    """A position that is no count is an invalid event, which closes the connection."""
    async with live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=30) as live:
        first = await open_session(live.url + RESUMABLE)
        session_id, token = await start_reply(first)
        await lose(first, live)
        second = await open_session(live.url + RESUMABLE)
        answer = await resume(second, session_id, token, received_samples=samples, played_ms=100)
        if samples < 0:
            assert isinstance(answer, ev.ErrorEvent)
            assert answer.code == "invalid_event"
        else:
            done = await anext(aiter(second))
            assert isinstance(done, ev.ResponseDone)
            assert done.status == "cancelled"
            assert done.heard is not None
            assert done.heard.text + done.heard.remaining == "One two three. Four"
        await second.aclose()
        live.speech.resumption.evict_all()


@pytest.mark.parametrize("played_ms", [-5.0, 1e300])
async def test_last_position_counts_and_its_playback_is_bounded(played_ms: float) -> None:
    """Of a response that is listed twice the last position counts, and one that never was is unknown."""
    async with live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=30) as live:
        first = await open_session(live.url + RESUMABLE)
        session_id, token = await start_reply(first, "lead")
        await lose(first, live)
        second = await open_session(live.url + RESUMABLE)
        lie = ev.ResumePosition(response_id="r", received_samples=2**31)
        position = ev.ResumePosition(response_id="r", received_samples=480, played_ms=played_ms)
        positions = (lie, position, ev.ResumePosition(response_id="never"))
        await second.send(ev.SessionResume(session_id=session_id, token=token, responses=positions))
        resumed = await next_of(second, ev.SessionResumed)
        states = [(one.response_id, one.state) for one in resumed.responses]
        assert states == [("r", "open"), ("never", "unknown")]
        assert resumed.responses[0].next_sample <= 480
        await second.send(ev.ResponseCancel(response_id="r"))
        heard = (await hear(second)).done.heard
        assert heard is not None
        assert heard.text in ("", "One ")  # 30 ms were received, and the clock goes on from there
        await second.aclose()


async def test_unlisted_reply_is_cancelled_and_open_owner_is_replaced() -> None:
    async with live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=30) as live:
        first = await open_session(live.url + RESUMABLE)
        session_id, token = await start_reply(first)
        second = await open_session(live.url + RESUMABLE)
        resumed = await resume(second, session_id, token)
        assert isinstance(resumed, ev.SessionResumed)
        done = await anext(aiter(second))
        assert isinstance(done, ev.ResponseDone)
        assert done.status == "cancelled"
        async for _ in first:
            pass
        assert first.close_code == 4409
        # The former token is void once the new one was used, and the settings went along.
        late = await resume(second, session_id, token)
        assert isinstance(late, ev.ErrorEvent)
        await second.aclose()
        await live.freed()


async def test_takeover_while_the_lost_connection_ends_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=30) as live:
        for num_iterations in range(48):
            first = await open_session(live.url + RESUMABLE)
            second = await open_session(live.url + RESUMABLE)
            session_id, token = await start_reply(first, "lead")
            first.abort()
            for _ in range(num_iterations % 6):
                await asyncio.sleep(0)
            assert isinstance(await resume(second, session_id, token), ev.SessionResumed)
            await second.aclose()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("num_received", [0, 1_600])
@pytest.mark.parametrize("name", list(FORMATS))
async def test_tail_that_was_lost_after_the_end_is_sent_again(name: str, num_received: int) -> None:
    async with live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=30) as live:
        first = await open_session(live.url + RESUMABLE)
        whole = await say(first, TEXT, format=FORMATS[name])
        first.abort()
        second = await open_session(live.url + RESUMABLE)
        position = ev.ResumePosition(response_id="r", received_samples=num_received)
        created = first.created
        await second.send(ev.SessionResume(created.session_id, created.resume_token, responses=(position,)))
        async with asyncio.timeout(5):
            again = await hear(second)
        lacking = [message for message in whole.audio if message.sample_time >= num_received]
        assert again.audio[-len(lacking) :] == lacking
        assert again.done == whole.done
        await second.aclose()


NUM_VANISHED = 3
# Each is full with the replies of ``NUM_VANISHED`` clients.
FULL = {
    "responses": ({}, {"limits__max_active_responses": NUM_VANISHED}),
    "key": ({}, {"limits__max_active_responses_per_key": NUM_VANISHED}),
    "connections": ({}, {"limits__max_connections": NUM_VANISHED}),
    "connections of a key": ({}, {"limits__max_connections_per_key": NUM_VANISHED}),
    "slots": ({"num_slots": NUM_VANISHED}, {}),
    "queue": ({"num_slots": NUM_VANISHED - 1, "max_queued_requests": 1}, {}),
}


@pytest.mark.parametrize("limit", list(FULL))
async def test_vanished_clients_never_take_the_capacity_of_live_ones(limit: str) -> None:
    engine, settings = FULL[limit]
    async with live_server(
        FakeSpeechEngine(SCRIPT, **engine), limits__resume_grace_s=600, auth__api_keys=KEYS, **settings
    ) as live:
        vanished = []
        for _ in range(NUM_VANISHED):
            client = await open_session(live.url + RESUMABLE, api_key="0123456789abcdef")
            given = settings_of("pcm", "lead")
            await client.send(ev.ResponseCreate(response_id="r", settings=given, text=TEXT))
            await next_of(client, ev.ResponseCreated)
            vanished.append(client.created)
            await lose(client, live)
        async with live.session("0123456789abcdef") as other:
            async with asyncio.timeout(20):
                spoken = await say(other, "Hello there.", pace="lead")
            assert spoken.done.status == "completed"
        # The session that was lost first is over, and a client that comes back learns it.
        async with SessionContext(live.url + RESUMABLE, "0123456789abcdef") as first:
            refused = await resume(first, vanished[0].session_id, vanished[0].resume_token, received_samples=0)
            assert (isinstance(refused, ev.ErrorEvent), refused.code) == (True, "resume_refused")
        live.speech.resumption.evict_all()


async def test_only_as_many_suspended_sessions_end_as_live_ones_need() -> None:
    full = {"limits__max_active_responses_per_key": 2, "limits__resume_grace_s": 600}
    async with live_server(FakeSpeechEngine(SCRIPT), auth__api_keys=KEYS, **full) as live:
        created = []
        for key in ("fedcba9876543210", "0123456789abcdef", "0123456789abcdef"):
            client = await open_session(live.url + RESUMABLE, api_key=key)
            created.append((key, client.created.session_id, (await start_reply(client, "lead"))[1]))
            await lose(client, live)
        async with live.session("0123456789abcdef") as other:
            assert (await say(other, "Hello.")).done.status == "completed"
        for (key, session_id, token), is_over in zip(created, (False, True, False), strict=True):
            async with SessionContext(live.url + RESUMABLE, key) as client:
                answer = await resume(client, session_id, token, received_samples=0)
                assert isinstance(answer, ev.ErrorEvent) == is_over
                await client.send(ev.SessionClose())
                await client.send(ev.ResponseCancel(response_id="r"))
                await close_code(client)


@pytest.mark.parametrize("ending", ["grace", "closed", "drained"])
async def test_session_that_is_not_resumed_ends(ending: str) -> None:
    grace_s = 0.3 if ending == "grace" else 600
    async with live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=grace_s) as live:
        client = await open_session(live.url + RESUMABLE)
        await start_reply(client, "lead")
        if ending == "closed":
            await client.aclose()
        else:
            await lose(client, live)
            assert live.speech.num_active_responses == 1
        if ending == "drained":
            await live.speech.drain()
        await live.freed()


async def test_expired_tokens_are_refused() -> None:
    async with live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=0.1, auth__api_keys=KEYS) as live:
        async with dial_agent(live, resume="true") as agent:
            created = json.loads(await agent.recv())
            agent.transport.abort()
        client = await open_session(live.url + RESUMABLE, api_key="0123456789abcdef")
        session_id, token = await start_reply(client, "lead")
        client.abort()
        await until(lambda: live.speech.num_connections == 0)
        async with SessionContext(live.url + RESUMABLE, "0123456789abcdef") as second:
            refused = await resume(second, session_id, token, received_samples=0)
            assert (isinstance(refused, ev.ErrorEvent), refused.code) == (True, "resume_refused")
        with pytest.raises(InvalidStatus, match="409"):
            await dial_agent(live, **{name: created[name] for name in ("session_id", "resume_token")})


async def test_reply_whose_refusal_was_lost_is_unknown() -> None:
    async with live_server(FakeSpeechEngine(SCRIPT), limits__max_active_responses=1) as live:
        first = await open_session(live.url + RESUMABLE)
        session_id, token = await start_reply(first)
        await first.send(ev.ResponseCreate(response_id="full", text="One."))
        assert (await next_of(first, ev.ErrorEvent)).response_id == "full"
        await lose(first, live)
        second = await open_session(live.url + RESUMABLE)
        positions = tuple(ev.ResumePosition(response_id=name) for name in ("r", "full"))
        await second.send(ev.SessionResume(session_id=session_id, token=token, responses=positions))
        resumed = await next_of(second, ev.SessionResumed)
        assert [response.state for response in resumed.responses] == ["open", "unknown"]
        await second.aclose()


async def test_refusal_that_is_sent_again_is_counted_once() -> None:
    """The engine refuses the reply, and its end is lost with the connection."""
    full = FakeSpeechEngine(FakeScript(real_time_factor=1.0), num_slots=1, max_queued_requests=1)
    async with live_server(full) as live:
        first = await open_session(live.url + RESUMABLE)
        created = first.created
        for response_id in ("a", "b", "c"):
            await first.send(ev.ResponseCreate(response_id=response_id, text=TEXT, end=True))
        refused = (await hear(first, "c")).done
        assert refused.error is not None
        first.abort()
        second = await open_session(live.url + RESUMABLE)
        position = ev.ResumePosition(response_id="c")
        await second.send(ev.SessionResume(created.session_id, created.resume_token, responses=(position,)))
        assert (await hear(second, "c")).done == refused
        metrics = live.speech.metrics.exposition().decode()
        await second.aclose()
    assert 'voicewire_refusals_total{code="overloaded"} 1.0' in metrics
    assert 'voicewire_dialect_contexts_total{dialect="/v1/speech",status="failed"} 1.0' in metrics


@pytest.mark.parametrize("at", [0, 5, 19, 20])
async def test_text_is_appended_once_and_gaps_are_refused(at: int) -> None:
    whole = "One two three. Four five."
    async with live_server(FakeSpeechEngine(SCRIPT)) as live, live.session() as client:
        await start_reply(client)
        await client.send(ev.TextAppend(response_id="r", text=whole[at:], at=at))
        await client.send(ev.ResponseCancel(response_id="r", played_ms=0))
        answers = []
        async for event in client:
            if not isinstance(event, ev.AudioMessage):
                answers.append(event)
            if isinstance(event, ev.ResponseDone):
                break
        done = answers[-1]
        assert isinstance(done, ev.ResponseDone)
        assert done.heard is not None
        gap = [event.code for event in answers if isinstance(event, ev.ErrorEvent)]
        assert (done.heard.remaining, gap) == ((whole[:19], ["text_gap"]) if at > 19 else (whole, []))


@pytest.mark.parametrize("query", ["", "?resume=false"])
async def test_session_of_other_clients_ends_with_its_connection(query: str) -> None:
    async with live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=600) as live:
        client = await open_session(live.url + query)
        assert (client.created.resume_token, client.created.resume_grace_s) == ("", 0)
        await start_reply(client, "lead")
        client.abort()
        await live.freed()


async def test_resume_parameter_that_is_no_flag_is_refused() -> None:
    async with live_server(FakeSpeechEngine(SCRIPT)) as live:
        with pytest.raises(InvalidStatus) as refusal:
            await open_session(live.url + "?resume=yes")
        assert refusal.value.response.status_code == 400
        assert b"resume must be true or false, is 'yes'" in refusal.value.response.body


class ResumingAgent:
    """An agent of the calls API: it counts what it has received, and sends the commands that the server lacks."""

    def __init__(self, url: str, commands: list[str]) -> None:
        self.url, self.commands = url + "/v1/calls", commands
        self.events: list[dict[str, Any]] = []
        self.num_connections = 0
        self._session: dict[str, str] = {}

    async def run(self, num_events: int) -> None:
        while len(self.events) < num_events:
            query = {**self._session, "received_events": len(self.events)} if self._session else {"resume": "true"}
            with contextlib.suppress(OSError, EOFError, WebSocketException):
                async with connect(f"{self.url}?{urlencode(query)}", compression=None, proxy=None) as socket:
                    self.num_connections += 1
                    await self._converse(socket, num_events)
                    socket.transport.abort()

    async def _converse(self, socket: ClientConnection, num_events: int) -> None:
        first = json.loads(await socket.recv())
        self._session = {"session_id": first["session_id"], "resume_token": first["resume_token"]}
        for command in self.commands[first.get("received_commands", 0) :]:
            await socket.send(command)
        while len(self.events) < num_events:
            self.events.append(json.loads(await socket.recv()))


def key_press(digit: int) -> str:
    return json.dumps({"event": "websocket:dtmf", "digit": str(digit), "duration": 260})


@pytest.mark.parametrize("seed", range(5))
async def test_cut_agent_misses_no_event_and_repeats_no_command(seed: int) -> None:
    rng, num_keys, num_replies = random.Random(seed), 60, 20
    async with live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=30) as live, live.http() as http:
        async with connect(live.url + "/v1/calls/vonage", compression=None, proxy=None) as line:
            await line.send(VONAGE)
            async with cutting_proxy(live.port) as (proxy, url):
                proxy.budgets = [rng.randrange(200, 4_000) for _ in range(6)]
                while not (calls := (await http.get("/v1/calls")).json()["calls"]):
                    pass
                say = {"type": "say", "call_id": calls[0]["call_id"], "text": "Well,", "end": False}
                agent = ResumingAgent(url, [json.dumps(say | {"reply_id": f"r{n}"}) for n in range(num_replies)])
                async with asyncio.timeout(60):
                    running = asyncio.create_task(agent.run(1 + num_keys + num_replies))
                    await until(lambda: bool(agent.events))
                    for digit in range(num_keys):
                        await line.send(key_press(digit % 10))
                        await asyncio.sleep(0.002)
                    await running
        pressed = "".join(event["digit"] for event in agent.events if event["type"] == "call.dtmf")
        assert pressed == "0123456789" * 6
        accepted = [event["reply_id"] for event in agent.events if event["type"] == "reply.accepted"]
        assert accepted == [f"r{n}" for n in range(num_replies)]
        assert agent.num_connections > 1
        live.speech.resumption.evict_all()


def dial_agent(live: LiveServer, key: str = "0123456789abcdef", **query: str) -> connect:
    return connect(f"{live.url}/v1/calls?token={key}&{urlencode(query)}", compression=None, proxy=None)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"session_id": "0" * 16}, "resume_refused"),
        ({"session_id": "native"}, "resume_refused"),
        ({"resume_token": "x"}, "resume_refused"),
        ({"resume_token": ""}, "resume_refused"),
        ({"key": "fedcba9876543210"}, "resume_refused"),
        ({"received_events": "1"}, "resume_refused"),
        ({"received_events": "-1"}, "invalid_request"),
        ({"received_events": ""}, "invalid_request"),
        ({"received_events": "9" * 99}, "invalid_request"),
    ],
)
async def test_agent_without_right_to_a_session_takes_nothing(wrong: dict[str, str], code: str) -> None:
    async with (
        live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=30, auth__api_keys=KEYS) as live,
        SessionContext(live.url + RESUMABLE, "0123456789abcdef") as native,
        dial_agent(live, resume="true") as first,
    ):
        created = json.loads(await first.recv())
        given = {name: created[name] for name in ("session_id", "resume_token")} | {"received_events": "0"}
        if wrong == {"session_id": "native"}:
            wrong = {"session_id": native.created.session_id, "resume_token": native.created.resume_token}
        with pytest.raises(InvalidStatus) as refusal:
            await dial_agent(live, **given | wrong)
        assert json.loads(refusal.value.response.body)["error"]["code"] == code
        assert given["resume_token"].encode() not in refusal.value.response.body
        for _ in range(2):  # the answer to the first may have been lost
            async with dial_agent(live, **given) as second:
                resumed = json.loads(await second.recv())
                assert (resumed["type"], resumed["received_commands"]) == ("session.resumed", 0)
                second.transport.abort()
        with pytest.raises(ConnectionClosed):
            await first.recv()
        assert first.close_code == 4409
        async with dial_agent(live, **given | {"resume_token": resumed["resume_token"]}) as third:
            await third.send("{}")
            await told(third, "error")
            with pytest.raises(InvalidStatus):  # replayed
                await dial_agent(live, **given)


class MqttListener:
    """A client at a broker that resumes: it keeps what came in order, and sends again what the server lacks."""

    def __init__(self, broker: Mosquitto, name: str, **wanted: object) -> None:
        self.broker, self.name, self.wanted = broker, name, wanted
        self.packets: list[bytes] = []
        self.done: list[dict[str, Any]] = []
        self.num_connections = 0
        texts = [{"t": "text", "d": TEXT[at : at + 40]} for at in range(0, len(TEXT), 40)]
        self.messages = [one | {"seq": seq} for seq, one in enumerate([*texts, {"t": "end"}])]
        self._topic = f"voice/v1/s/{name}/1"

    async def run(self, cuts_s: Iterable[float]) -> None:
        will = aiomqtt.Will(f"voice/v1/c/{self.name}/gone", qos=1)
        cuts = iter(cuts_s)
        while not self.done:
            self.num_connections += 1
            async with mqtt_client(self.broker, self.name, will=will) as agent:
                try:
                    async with asyncio.timeout(next(cuts, 30.0)):
                        await self._converse(agent)
                except TimeoutError:
                    await agent.die()

    async def _converse(self, agent: MqttTestClient) -> None:
        if self.num_connections == 1:
            await agent.open(sid="1", resume=True, **self.wanted)
            await self._send(agent, self.messages)
        else:
            await self._send(agent, [{"t": "resume", "replies": [{"reply": 0, "received": len(self.packets)}]}])
        while not self.done:
            message = await agent.next_on_any(lambda _: True)
            if message.topic == f"{self._topic}/audio" and not message.last:
                self._on_audio(int(message.user["seq"]), message.payload)
            elif message.topic == f"{self._topic}/ev":
                await self._on_event(agent, message.json)

    def _on_audio(self, seq: int, packet: bytes) -> None:
        if seq == len(self.packets):
            self.packets.append(packet)
        elif seq < len(self.packets):
            assert self.packets[seq] == packet

    async def _on_event(self, agent: MqttTestClient, event: dict[str, Any]) -> None:
        if event["t"] == "resumed":
            await self._send(agent, self.messages[event["seq"] :])
        elif event["t"] == "done":
            self.done.append(event)
        assert event["t"] not in ("error", "closed"), event

    async def _send(self, agent: MqttTestClient, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            await agent.client.publish(f"{self._topic}/in", json.dumps(message), 1)


@pytest.mark.parametrize("lead_ms", [0, 800])
@pytest.mark.parametrize("encoding", ["pcm_s16le", "opus"])
async def test_cuts_at_a_broker_change_no_packet(tmp_path: Path, encoding: str, lead_ms: int) -> None:
    rng, wanted = random.Random(f"{encoding} {lead_ms}"), {"format": {"encoding": encoding}, "lead_ms": lead_ms}
    with running(tmp_path) as broker:
        engine = FakeSpeechEngine(FakeScript(ms_per_char=20.0, first_chunk_s=0.005, real_time_factor=0.4))
        async with bridged(broker, engine, limits__resume_grace_s=30) as live:
            whole, cut = MqttListener(broker, "whole", **wanted), MqttListener(broker, "cut", **wanted)
            await whole.run([])
            await cut.run([rng.uniform(0.1, 0.3) for _ in range(8)])
            assert cut.packets == whole.packets
            assert cut.done == whole.done
            assert cut.num_connections > 2
            live.speech.resumption.evict_all()


@pytest.mark.parametrize(
    ("wanted", "grace_s", "drains"), [({}, 600, False), ({"resume": True}, 0.5, False), ({"resume": True}, 600, True)]
)
async def test_session_at_a_broker_ends_without_its_client(
    tmp_path: Path, wanted: dict[str, bool], grace_s: float, drains: bool
) -> None:
    engine, limits = FakeSpeechEngine(SCRIPT), {"limits__resume_grace_s": grace_s}
    with running(tmp_path) as broker:
        async with bridged(broker, engine, **limits) as live, mqtt_client(broker, "away") as agent:
            session = await agent.open(**wanted)
            await session.say({"t": "text", "d": TEXT})
            await until(lambda: live.speech.num_active_responses == 1)
            live.speech.draining = drains
            await agent.client.publish("voice/v1/c/away/gone", b"", 1)
            async with asyncio.timeout(10):
                await until(lambda: live.speech.num_active_responses == 0)
            if wanted:
                assert (await session.told("closed"))["reason"] == "leave"


async def test_suspended_session_at_a_broker_gives_way_to_a_live_client(tmp_path: Path) -> None:
    limits = {"limits__resume_grace_s": 600, "limits__max_active_responses": 1}
    with running(tmp_path) as broker:
        async with bridged(broker, FakeSpeechEngine(SCRIPT), **limits) as live, mqtt_client(broker) as agent:
            session = await agent.open(resume=True)
            await session.say({"t": "text", "d": TEXT}, {"t": "lost"})
            await until(lambda: live.speech.resumption._suspended != {})
            assert live.speech.num_active_responses == 1
            async with live.session() as other:
                assert (await say(other, "Hello there.")).done.status == "completed"
            assert (await session.told("done"))["status"] == "cancelled"
            assert (await session.told("closed"))["reason"] == "leave"


@pytest.mark.parametrize("limits", [{"mqtt__max_sessions": 2}, {"mqtt__max_sessions_per_client": 2}], ids=str)
async def test_suspended_session_gives_its_place_at_a_broker(tmp_path: Path, limits: dict[str, int]) -> None:
    with running(tmp_path) as broker:
        async with (
            bridged(broker, FakeSpeechEngine(SCRIPT), limits__resume_grace_s=600, **limits) as live,
            mqtt_client(broker) as agent,
        ):
            lost, kept = await agent.open(resume=True), await agent.open(resume=True)
            await lost.say({"t": "lost"})
            await until(lambda: live.speech.resumption._suspended != {})
            new = await agent.open(resume=True)
            ends = [heard.json for heard in agent.heard if heard.topic == lost.events]
            assert (ends[-1] if ends else await lost.told("closed")) == {"t": "closed", "reason": "leave"}
            # Nobody else is lost, so that nobody gives way.
            assert (await agent.refused(b"{}"))["code"] == "limit_exceeded"
            for session in (kept, new):
                await session.say({"t": "leave"})
                await session.told("closed")


@pytest.mark.parametrize(
    ("wanted", "message", "code"),
    [
        ({}, {"t": "resume"}, "resume_refused"),
        ({"resume": True}, {"t": "resume", "replies": [{"reply": 0, "received": -1}]}, "invalid_event"),
        ({"resume": True}, {"t": "resume", "replies": [{"reply": 0}] * 65}, "invalid_event"),
        ({"resume": True}, {"t": "resume", "token": "x"}, "invalid_event"),
        ({"resume": True}, {"t": "resume", "replies": [{"reply": 0, "received": 2**40}]}, None),
        ({"resume": True}, {"t": "resume", "replies": [{"reply": 7, "received": 0}]}, None),
    ],
)
async def test_resume_at_a_broker_that_lies(
    tmp_path: Path, wanted: dict[str, bool], message: dict[str, Any], code: str | None
) -> None:
    """A position that was never sent cancels its reply; a reply that never was is nothing."""
    with running(tmp_path) as broker:
        async with bridged(broker, FakeSpeechEngine(SCRIPT)) as live, mqtt_client(broker) as agent:
            session = await agent.open(**wanted)
            await session.say({"t": "text", "d": "One two three."})
            await until(lambda: live.speech.num_active_responses == 1)
            await session.say(message)
            if code is None:
                assert (await session.told("resumed"))["replies"] == [0]
            else:
                assert (await session.told("error"))["error"]["code"] == code
            await session.say({"t": "end"})
            done = await session.told("done")
            await session.say({"t": "leave"})
            assert done["status"] == ("cancelled" if "0}" not in str(message) and code is None else "completed")
