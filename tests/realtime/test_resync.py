"""A reply survives its gateway: its client goes on at a server that knows nothing of it, and no sample differs."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from realtime.client import NativeClient, open_session
from realtime.protocol import events as ev
from sessions.checkpoint import Checkpoint, EarlyCut
from tests.fakes.engine import FakeSpeechEngine
from tests.realtime.live_server import LiveServer, live_server
from tests.realtime.test_resume import (
    FORMATS,
    KEYS,
    NUM_CUTS,
    OPENING_BYTES,
    RESUMABLE,
    SCRIPT,
    TEXT,
    Listener,
    check_cut_reply,
    settings_of,
    speak,
)
from tests.realtime.test_session_relay import turning_proxy


class ResyncingListener(Listener):
    """Keeps checkpoints, and goes on from them where its session is gone."""

    def __init__(self, url: str, settings: ev.NativeSpeechSettings, text: str = TEXT) -> None:
        super().__init__(url, msgspec.structs.replace(settings, checkpoints=True), text)
        self.checkpoints: list[str] = []
        self.num_resyncs = 0
        # As the server knows them, with the seed that it drew.
        self._known: ev.NativeSpeechSettings | None = None

    async def _on_event(self, client: NativeClient, event: ev.ServerEvent | ev.AudioMessage) -> None:
        match event:
            case ev.ResponseCreated():
                self._known = event.settings
                assert event.next_sample + event.discard_samples == self.num_samples
            case ev.ResponseCheckpoint(index=index):
                assert index <= len(self.checkpoints)
                self.checkpoints[index:] = [event.data]
            case ev.SessionResumed(responses=(resumed,)):
                self._known = resumed.settings or self._known
                await super()._on_event(client, event)
            case ev.ErrorEvent(code="resume_refused") if self._known is not None:
                self._session_id, self._token = client.created.session_id, client.created.resume_token
                self.num_resyncs += 1
                await client.send(self.resync())
                await self._send_text(client, 0)
            case _:
                await super()._on_event(client, event)

    def resync(self) -> ev.ResponseCreate:
        assert self._known is not None
        position = ev.Resync(checkpoints=tuple(self.checkpoints), received_samples=self.num_samples)
        return ev.ResponseCreate(response_id="r", settings=self._known, resync=position)


@asynccontextmanager
async def strangers(**flags: object) -> AsyncIterator[list[LiveServer]]:
    """Two servers that share nothing: to each, a client of the other has lost its session."""
    async with (
        live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=1, **flags) as one,
        live_server(FakeSpeechEngine(SCRIPT), limits__resume_grace_s=1, **flags) as other,
    ):
        yield [one, other]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("pace", "num_replies", "seed"),
    [("burst", 4, 0), ("lead", 2, 0), *(pytest.param("burst", 250, n, marks=pytest.mark.slow) for n in range(1, 6))],
)
@pytest.mark.parametrize("name", list(FORMATS))
async def test_gateways_lost_at_any_byte_change_no_sample(name: str, pace: str, num_replies: int, seed: int) -> None:
    rng = random.Random(f"{name} {pace} {seed}")
    num_resyncs = 0
    async with strangers() as lives:
        settings = msgspec.structs.replace(settings_of(name, pace), seed=5)
        whole = await speak(lives[0], settings)
        for _ in range(num_replies):
            async with turning_proxy(lives) as (proxy, url):
                cut = ResyncingListener(url, settings)
                await check_cut_reply(cut, proxy, whole, rng)
            num_resyncs += cut.num_resyncs
    assert num_resyncs > num_replies


WATERMARK = {"watermark__enabled": True, "watermark__key": "a key of this deployment with 32 characters"}


@pytest.mark.parametrize("num_servers", [1, 2])
async def test_watermark_goes_on_where_it_was(num_servers: int) -> None:
    """By resume at the server, or by resync at another one, which needs the same key."""
    rng = random.Random(num_servers)
    settings = msgspec.structs.replace(settings_of("pcm", "burst"), seed=5)
    async with strangers() as plain, strangers(**WATERMARK) as marking:
        unmarked, whole = await speak(plain[0], settings), await speak(marking[0], settings)
        async with turning_proxy(marking[:num_servers]) as (proxy, url):
            num_bytes = sum(map(len, whole.packets))
            proxy.budgets = [OPENING_BYTES + rng.randrange(num_bytes // NUM_CUTS) for _ in range(NUM_CUTS)]
            cut = ResyncingListener(url, settings)
            async with asyncio.timeout(60):
                await cut.run()
        assert cut.num_connections > 1
        assert bool(cut.num_resyncs) == (num_servers > 1)
        assert b"".join(cut.packets) == b"".join(whole.packets) != b"".join(unmarked.packets)


GOOD = Checkpoint(0, False, False, b"\0\0", ()).encode()


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"checkpoints": ["?"]}, "invalid_request", "checkpoints"),
        ({"checkpoints": [GOOD, Checkpoint(7, False, False, b"").encode()]}, "invalid_request", "checkpoints"),
        (
            {"checkpoints": [Checkpoint(0, False, False, b"", (EarlyCut(10**9, 0),)).encode()]},
            "invalid_request",
            "checkpoints",
        ),
        ({"settings": {"voice": "of another key"}}, "unknown_voice", "voice"),
        ({"settings": {"seed": -1}}, "invalid_request", "seed"),
        ({"settings": {"markup": "ssml"}, "checkpoints": [GOOD]}, "invalid_request", "resync"),
    ],
)
async def test_forged_resync_is_refused_and_the_session_lives_on(
    changes: dict[str, object], code: str, param: str
) -> None:
    async with live_server(FakeSpeechEngine(SCRIPT), auth__api_keys=KEYS) as live:
        client = await open_session(live.url + RESUMABLE, api_key="0123456789abcdef")
        settings = msgspec.convert(changes.get("settings", {}), ev.NativeSpeechSettings)
        position = ev.Resync(checkpoints=tuple(changes.get("checkpoints", ())))  # type: ignore[arg-type]
        await client.send(ev.ResponseCreate(response_id="r", settings=settings, resync=position))
        await client.send(ev.TextAppend(response_id="r", text="passed over"))
        await client.send(ev.ResponseCreate(response_id="own", text="Hello.", end=True))
        events = [event async for event in until_done(client)]
        assert isinstance(events[0], ev.ErrorEvent)
        assert (events[0].code, events[0].param, events[0].response_id) == (code, param, "r")
        assert isinstance(events[-1], ev.ResponseDone)
        assert events[-1].status == "completed"
        await client.aclose()
        await live.freed()


async def test_marked_up_response_has_no_checkpoints() -> None:
    async with live_server(FakeSpeechEngine(SCRIPT)) as live:
        client = await open_session(live.url)
        settings = ev.NativeSpeechSettings(checkpoints=True, markup="ssml")
        await client.send(ev.ResponseCreate(response_id="r", settings=settings, text="Hello.", end=True))
        events = [event async for event in until_done(client)]
        assert [event.settings.checkpoints for event in events if isinstance(event, ev.ResponseCreated)] == [None]
        assert not any(isinstance(event, ev.ResponseCheckpoint) for event in events)
        await client.aclose()


@pytest.mark.parametrize("field", ["received_samples", "received_flushes", "received_words"])
async def test_counts_below_zero_are_invalid_events(field: str) -> None:
    async with live_server(FakeSpeechEngine(SCRIPT)) as live:
        client = await open_session(live.url)
        await client.send_raw(f'{{"type":"response.create","response_id":"r","resync":{{"{field}":-1}}}}')
        event = await anext(aiter(client))
        assert isinstance(event, ev.ErrorEvent)
        assert (event.code, event.param) == ("invalid_event", f"resync.{field}")
        await client.aclose()


async def test_resync_is_bounded_by_the_size_of_a_message() -> None:
    async with live_server(FakeSpeechEngine(SCRIPT), limits__max_message_bytes=4_096) as live:
        client = await open_session(live.url)
        position = ev.Resync(checkpoints=(GOOD,) * 1_000)
        with contextlib.suppress(EOFError):
            await client.send(ev.ResponseCreate(response_id="r", resync=position))
        events = [event async for event in client]
        assert isinstance(events[0], ev.ErrorEvent)
        assert events[0].code == "message_too_big"
        await live.freed()


async def test_reply_longer_than_a_message_goes_on_where_its_resync_fits() -> None:
    """Elsewhere the message ends its connection, and nothing of the session stays."""
    settings = msgspec.structs.replace(settings_of("pcm", "burst"), seed=5)
    async with live_server(FakeSpeechEngine(SCRIPT)) as large, live_server(limits__max_message_bytes=1_024) as small:
        cut = ResyncingListener(large.url, settings, TEXT * 2)
        async with asyncio.timeout(60):
            await cut.run()
        resync = cut.resync()
        assert len(msgspec.json.encode(resync)) > 1_024
        client = await open_session(small.url)
        await client.send(ev.ResponseCreate(response_id="own", text="Hello."))
        assert isinstance(await anext(aiter(client)), ev.ResponseCreated)
        with contextlib.suppress(EOFError):
            await client.send(resync)
        events = [event async for event in client if not isinstance(event, ev.AudioMessage)]
        assert [event.code for event in events if isinstance(event, ev.ErrorEvent)] == ["message_too_big"]
        assert client.close_code == 1009
        await small.freed()
        client = await open_session(large.url)
        await client.send(msgspec.structs.replace(resync, text=cut.text, end=True))
        events = [event async for event in until_done(client)]
        assert isinstance(events[0], ev.ResponseCreated)
        assert events[0].next_sample == cut.num_samples
        assert not any(isinstance(event, ev.AudioMessage) for event in events)
        assert events[-1].audio_samples == cut.done[0].audio_samples
        await client.aclose()


@pytest.mark.parametrize("played_ms", ["1e300", "-1e300", "-5"])
async def test_any_played_position_is_taken_as_the_nearest_possible_one(played_ms: str) -> None:
    async with live_server(FakeSpeechEngine(SCRIPT)) as live:
        client = await open_session(live.url)
        await client.send_raw(
            '{"type":"response.create","response_id":"r","text":"Hello.","end":true,'
            f'"resync":{{"received_samples":480,"played_ms":{played_ms}}}}}'
        )
        events = [event async for event in until_done(client)]
        assert isinstance(events[-1], ev.ResponseDone)
        await client.aclose()
        await live.freed()


async def until_done(client: NativeClient) -> AsyncIterator[ev.ServerEvent | ev.AudioMessage]:
    async for event in client:
        yield event
        if isinstance(event, ev.ResponseDone):
            return
