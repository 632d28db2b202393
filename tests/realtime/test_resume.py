"""A session outlives its connection: any cut of the line, at any byte, changes no sample and loses no word."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from websockets.exceptions import InvalidStatus, WebSocketException

from realtime.client import NativeClient, open_session
from realtime.protocol import events as ev
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.live_server import LiveServer, live_server, until

TEXT = "One two three four five six seven. Eight nine ten, eleven twelve! Thirteen fourteen. " * 2
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


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("pace", "num_replies", "seed"),
    [("burst", 12, 0), ("lead", 3, 0), *(pytest.param("burst", 250, n, marks=pytest.mark.slow) for n in range(1, 6))],
)
@pytest.mark.parametrize("name", list(FORMATS))
async def test_cuts_at_any_byte_change_no_sample(name: str, pace: str, num_replies: int, seed: int) -> None:
    rng = random.Random(f"{name} {pace} {seed}")
    num_connections = 0
    async with live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=3) as live:
        whole = await speak(live, settings_of(name, pace))
        num_bytes = sum(map(len, whole.packets))
        for _ in range(num_replies):
            async with cutting_proxy(live.port) as (proxy, url):
                proxy.budgets = [
                    rng.randrange(OPENING_BYTES) + rng.randrange(num_bytes // NUM_CUTS) for _ in range(NUM_CUTS)
                ]
                cut = Listener(url, settings_of(name, pace))
                async with asyncio.timeout(60):
                    await cut.run()
            assert b"".join(cut.packets) == b"".join(whole.packets)
            assert msgspec.structs.replace(cut.done[0], first_audio_ms=None) == msgspec.structs.replace(
                whole.done[0], first_audio_ms=None
            )
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
