"""Every vendor's wire over real sockets, with the fake engine behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from realtime.protocol import events as ev
from sessions import response
from sessions.audio.pcm import Pcm
from sessions.events import HeardText
from sessions.timeline import ResponseTimeline, SegmentTimeline
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.fakes.engine_script import FRAME_SAMPLES
from tests.realtime.dialects.socket_client import (
    LEAST_BYTES,
    LONG,
    TEXT,
    dial,
    every,
    hear,
    hear_first_audio,
    hear_to_the_close,
    send,
    turn,
)
from tests.realtime.dialects.vendor_clients import CLIENTS, VendorClient
from tests.realtime.live_server import QUICK, WAIT_S, LiveServer, live_server, speak, until

SLOW = FakeScript(ms_per_char=60.0, real_time_factor=0.25)
STALL_FRAME = 12
# About a second of speech, and then none.
STALLED = FakeScript(ms_per_char=60.0, real_time_factor=0.25, stalls_s={STALL_FRAME: 1_000.0})


@every
async def test_two_turns_on_a_socket(live: LiveServer, client: VendorClient) -> None:
    async with dial(live, client) as socket:
        for name in ("t1",) if client.one_turn else ("t1", "t2"):
            assert len(await turn(socket, client, name)) > LEAST_BYTES
        if client.one_turn:
            assert (await hear_to_the_close(socket, client))[0] == 1000


@every
async def test_audio_equals_native_wire(client: VendorClient) -> None:
    async with live_server(FakeSpeechEngine(QUICK)) as live:
        async with live.session() as native:
            pcm = ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=24_000)
            spoken = await speak(native, TEXT, format=pcm)
            expected = b"".join(packet for message in spoken.audio for packet in message.packets)
        async with dial(live, client) as socket:
            assert (await turn(socket, client, "t1"))[: len(expected)] == expected


@every
async def test_an_interruption_and_a_turn_after_it(client: VendorClient) -> None:
    engine = FakeSpeechEngine(SLOW)
    async with live_server(engine) as live:
        async with dial(live, client) as socket:
            await send(socket, client, client.say("t1", LONG))
            await hear_first_audio(socket, client)
            if not client.cancel("t1"):
                return
            await send(socket, client, client.cancel("t1"))
            if not client.cancel_is_silent:
                _, said = await hear(socket, client, "t1")
                assert not any(map(client.is_error, said))
            engine.script = QUICK
            audio = await turn(socket, client, "t2")
            assert LEAST_BYTES < len(audio) < 3 * LEAST_BYTES
        await live.freed()


@every
async def test_unsent_word_times_delay_nothing(client: VendorClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next of a line begins when the one before has told its end."""
    kept: list[int] = []
    pushed: list[int] = []
    heard, num_kept, push = ResponseTimeline.heard_text, ResponseTimeline.num_pending_bytes, SegmentTimeline.push

    def count(segment: SegmentTimeline, pcm: Pcm) -> None:
        pushed.append(pcm.size)
        push(segment, pcm)

    def note(told: ResponseTimeline, played_samples: int, **how: bool) -> HeardText:
        kept.append(num_kept(told, played_samples))
        return heard(told, played_samples, **how)

    monkeypatch.setattr(ResponseTimeline, "heard_text", note)
    monkeypatch.setattr(SegmentTimeline, "push", count)
    monkeypatch.setattr(response, "MAX_INLINE_ALIGN_BYTES", 10**9)  # nothing is looked through before it is needed
    if not client.cancel("t1"):
        pytest.skip("nothing cancels but the end of the line")
    listening = live_server(FakeSpeechEngine(STALLED), speech__aligner="letters")
    async with listening as live, dial(live, client) as socket:
        await send(socket, client, client.say("t1", LONG) + client.end("t1"))
        await hear_first_audio(socket, client)
        spare_moments = live.speech.registry._services.idle_backlog
        await until(lambda: sum(pushed) == STALL_FRAME * FRAME_SAMPLES and not spare_moments.num_bytes)
        await send(socket, client, client.cancel("t1"))
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read_on(socket))
            while not kept:
                await asyncio.sleep(0.01)
            reading.cancel()
    assert not any(kept)


async def read_on(socket: ClientConnection) -> None:
    async for _ in socket:
        pass


@every
@pytest.mark.parametrize("text", ["", " ", "...", "😀"])
async def test_a_turn_with_nothing_to_say_ends_too(live: LiveServer, client: VendorClient, text: str) -> None:
    if client.name == "deepgram flux" and not text:
        pytest.skip("no text, no turn")
    async with dial(live, client) as socket:
        assert await turn(socket, client, "t1", text) == b""


LINES = [("ada", "Hello there."), ("ben", "Well, how are you?"), ("ada", "Good."), ("ada", "Bye."), ("ben", "Bye.")]


@pytest.mark.parametrize("name", ["elevenlabs dialogue", "elevenlabs single dialogue"])
async def test_each_line_of_a_dialogue_has_its_voice(live: LiveServer, name: str) -> None:
    """All lines at once or a line at a time: the same voices in the same order, one signal without a gap."""
    client = CLIENTS[name]
    inputs = [{"voice_id": voice, "text": text} for voice, text in LINES]
    for pieces in ([inputs], [[each] for each in inputs]):
        live.engine.requests.clear()
        async with dial(live, client) as socket:
            begin = {"context_id": "t1", "voices": ["ada", "ben"]}
            await send(
                socket, client, [begin, *({"context_id": "t1", "inputs": piece} for piece in pieces), *client.end("t1")]
            )
            audio, said = await hear(socket, client, "t1")
        assert [request.voice for request in live.engine.requests] == ["ada", "ben", "ada", "ben"]
        assert sum("is_final_audio_for_turn" in message for message in said) == 4
        assert sum("is_final" in message for message in said) == 1
        assert len(audio) > 2 * 24_000 * sum(len(text) for _, text in LINES) * 0.04 * 0.9


async def test_an_interruption_ends_all_lines_of_a_dialogue() -> None:
    client = CLIENTS["elevenlabs dialogue"]
    engine = FakeSpeechEngine(SLOW)
    async with live_server(engine) as live:
        async with dial(live, client) as socket:
            inputs = [{"voice_id": voice, "text": text * 20} for voice, text in LINES]
            await send(socket, client, [{"context_id": "t1", "voices": ["ada", "ben"], "inputs": inputs}])
            await hear_first_audio(socket, client)
            await send(socket, client, client.cancel("t1"))
            await hear(socket, client, "t1")
            assert [request.voice for request in engine.requests] == ["ada"]
            engine.script = QUICK
            assert await turn(socket, client, "t1")
        await live.freed()


async def test_more_voices_than_contexts_are_allowed_end_the_dialogue() -> None:
    client = CLIENTS["elevenlabs dialogue"]
    async with live_server(FakeSpeechEngine(QUICK), dialects__max_contexts_per_connection=3) as live:
        async with dial(live, client) as socket:
            inputs = [{"voice_id": voice, "text": text} for voice, text in [*LINES, *LINES]]
            await send(socket, client, [{"context_id": "t1", "voices": ["ada", "ben"], "inputs": inputs}])
            audio, said = await hear(socket, client, "t1")
            assert (audio, said[-2]["error"]) == (b"", "too_many_concurrent_requests")
        await live.freed()


@pytest.mark.parametrize("name", ["elevenlabs multi", "cartesia", "elevenlabs dialogue"])
async def test_word_times_on_sockets(live: LiveServer, name: str) -> None:
    client = CLIENTS[name]
    async with dial(live, client) as socket:
        await send(socket, client, client.say("t1", TEXT) + client.end("t1"))
        _, said = await hear(socket, client, "t1")
    assert "".join(spoken(message) for message in said).split() == TEXT.split()


def spoken(message: dict[str, Any]) -> str:
    if words := message.get("word_timestamps"):
        return " ".join(words["words"]) + " "
    return "".join((message.get("alignment") or {}).get("chars", ""))
