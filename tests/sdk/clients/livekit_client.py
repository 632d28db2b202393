"""LiveKit Agents speaks through this server: ``livekit_client.py SERVICE HTTP_URL MODE`` prints what came as JSON.

Modes: ``stream`` (two turns, token by token), ``cancel`` (the first turn is dropped while it speaks, the second is
heard whole), ``synthesize`` (a whole text over HTTP), ``forms`` (the first turn has a pause and phonemes in Rime's
forms). Of our own plug-in, before a turn: ``tail`` (a reply that came whole is interrupted while it is heard),
``early`` (replies are dropped before they sound), ``lost`` (lines break), ``session`` (an ``AgentSession`` is
interrupted and has to get the text of the reply that was playing). Runs in an environment of its own that has
livekit-agents.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from pathlib import Path
from typing import Any

from client_turns import (
    KEY,
    LONG,
    STORY,
    STORY_S,
    TURN_TIMEOUT_S,
    TURNS,
    check_pause,
    is_enough,
    keep_cut,
    played,
    with_rime_forms,
)
from livekit import rtc
from livekit.agents import Agent, AgentSession, llm, tts, utils
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT, FlushSentinel
from livekit.agents.voice import io
from livekit.plugins import cartesia, deepgram, elevenlabs, inworld, openai, rime

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))


def services(url: str) -> dict[str, Callable[[], tts.TTS]]:
    from livekit_tts import VoicewireTTS  # examples/livekit_tts.py

    return {
        "native": lambda: VoicewireTTS(url=url, api_key=KEY),
        "elevenlabs": lambda: elevenlabs.TTS(api_key=KEY, base_url=f"{url}/v1"),
        "elevenlabs_pcm": lambda: elevenlabs.TTS(api_key=KEY, base_url=f"{url}/v1", encoding="pcm_24000"),
        "elevenlabs_opus": lambda: elevenlabs.TTS(api_key=KEY, base_url=f"{url}/v1", encoding="opus_48000_32"),
        "elevenlabs_v3": lambda: elevenlabs.TTS(
            api_key=KEY, base_url=f"{url}/v1", model="eleven_v3", encoding="pcm_24000"
        ),
        "cartesia": lambda: cartesia.TTS(api_key=KEY, base_url=url),
        "deepgram": lambda: deepgram.TTS(api_key=KEY, base_url=f"{url}/v1/speak"),
        "openai": lambda: openai.TTS(api_key=KEY, base_url=f"{url}/v1"),
        "openai_tts1": lambda: openai.TTS(api_key=KEY, base_url=f"{url}/v1", model="tts-1", response_format="pcm"),
        "rime": lambda: rime.TTS(
            api_key=KEY, base_url=url.replace("http", "ws", 1), use_websocket=True, allow_custom_endpoint=True
        ),
        "rime_mist": lambda: rime.TTS(
            api_key=KEY,
            base_url=url.replace("http", "ws", 1),
            model="mistv2",
            pause_between_brackets=True,
            phonemize_between_brackets=True,
            use_websocket=True,
            allow_custom_endpoint=True,
        ),
        "rime_v1": lambda: rime.TTS(
            api_key=KEY,
            websocket_url=f"{url.replace('http', 'ws', 1)}/ws",
            model="coda",
            allow_custom_endpoint=True,
        ),
        "rime_v1_mist": lambda: rime.TTS(
            api_key=KEY,
            websocket_url=f"{url.replace('http', 'ws', 1)}/ws",
            model="mistv3",
            pause_between_brackets=True,
            phonemize_between_brackets=True,
            allow_custom_endpoint=True,
        ),
        "inworld": lambda: inworld.TTS(
            api_key=KEY, ws_url=url.replace("http", "ws", 1), base_url=url, timestamp_type="WORD"
        ),
        "deepgram_v2": lambda: deepgram.TTSv2(api_key=KEY, base_url=f"{url}/v2/speak"),
    }


async def speak(service: tts.TTS, text: str, has_forms: bool = False) -> dict[str, object]:
    written = with_rime_forms(text, "<1000>") if has_forms else text
    async with service.stream() as stream:
        for token in written.split(" "):
            stream.push_text(token + " ")
        stream.end_input()
        return await heard(stream, text, has_forms)


async def heard(stream: Any, text: str, has_pause: bool = False) -> dict[str, object]:
    pcm, rate, words = b"", 0, []
    async for event in stream:
        frame = event.frame
        pcm += bytes(frame.data)
        rate = frame.sample_rate
        told = frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])
        words += [(str(timed), timed.start_time, timed.end_time) for timed in told]
    if has_pause:
        check_pause(pcm, rate)
    return played(text, pcm, rate, words)


async def drop(service: tts.TTS) -> None:
    stream = service.stream()
    stream.push_text(LONG)
    stream.end_input()
    await keep_beginning(event.frame async for event in stream)
    if hasattr(service, "heard"):
        await asyncio.sleep(1.0)
    await stream.aclose()
    if hasattr(service, "heard"):
        check_heard(await service.heard(played_s=1.0), LONG)


async def keep_beginning(frames: AsyncIterable[rtc.AudioFrame]) -> None:
    """Enough of it to interrupt the turn."""
    pcm = b""
    async for frame in frames:
        pcm += bytes(frame.data)
        if is_enough(pcm, frame.sample_rate):
            keep_cut(pcm, frame.sample_rate)
            return
    raise AssertionError("it ended")


def check_heard(heard: str | None, text: str) -> None:
    assert heard, heard
    assert text.startswith(heard), heard
    assert len(heard) < 60, heard


async def interrupt_what_came_whole(service: tts.TTS) -> None:
    """The stream is over, the listener still at its first second. The next reply is not touched by the question."""
    async with service.stream() as stream:
        stream.push_text(TURNS[0])
        stream.end_input()
        assert [event async for event in stream]
    following = service.stream()
    following.push_text(TURNS[1])
    following.end_input()
    check_heard(await service.heard(played_s=1.0), TURNS[0])
    assert (await heard(following, TURNS[1]))["duration_s"] > 1.0
    await following.aclose()


class Speakers(io.AudioOutput):
    """Plays in real time and reports what was played, as an output of a room does."""

    def __init__(self) -> None:
        super().__init__(label="speakers", capabilities=io.AudioOutputCapabilities(pause=False))
        self._begun_s, self._pushed_s = 0.0, 0.0
        self._ending: asyncio.TimerHandle | None = None

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if not self._pushed_s:
            self._begun_s = time.monotonic()
            self.on_playback_started(created_at=time.time())
        self._pushed_s += frame.duration

    def flush(self) -> None:
        super().flush()
        if self._pushed_s:
            left_s = self._begun_s + self._pushed_s - time.monotonic()
            self._ending = asyncio.get_running_loop().call_later(max(left_s, 0.0), self._end, False)

    def clear_buffer(self) -> None:
        if self._pushed_s:
            self._end(True)

    @property
    def played_s(self) -> float:
        return min(time.monotonic() - self._begun_s, self._pushed_s) if self._pushed_s else 0.0

    def _end(self, interrupted: bool) -> None:
        if self._ending is not None:
            self._ending.cancel()
        played_s, self._pushed_s, self._ending = self.played_s, 0.0, None
        self.on_playback_finished(playback_position=played_s, interrupted=interrupted)


class NoModel(llm.LLM):
    """There, so that a session generates replies; ``Replies`` writes them."""

    def chat(self, **_: object) -> llm.LLMStream:
        raise NotImplementedError


class Replies(Agent):
    """Writes the given replies; the parts of one are spoken as segments of their own."""

    def __init__(self, replies: list[list[str]]) -> None:
        super().__init__(instructions="")
        self._replies = replies

    async def llm_node(self, *_: object) -> AsyncIterator[str | FlushSentinel]:
        for number, part in enumerate(self._replies.pop(0)):
            if number:
                yield FlushSentinel()
            for token in part.split(" "):
                yield token + " "


async def interrupt_a_session(service: tts.TTS) -> None:
    """The text that was heard is that of the reply, or segment of one, that plays, whatever is spoken meanwhile."""
    first, second = "One of the first words of a story. " * 12, "Two more words come afterwards. " * 12
    heard: asyncio.Queue[str | None] = asyncio.Queue()
    async with AgentSession(llm=NoModel(), tts=service) as session:
        session.output.audio = speakers = Speakers()
        await session.start(Replies([[first], [second], [first, second]]))
        service.follow(session, heard.put_nowait)
        await session.say(TURNS[0])
        session.say(LONG)  # its stream goes on, that of the reply before has ended
        check_heard(await interrupted(session, speakers, heard), LONG)
        session.generate_reply(user_input="a")
        waiting = session.generate_reply(user_input="b")  # is made while the first plays
        check_heard(await interrupted(session, speakers, heard), first)
        await waiting
        session.generate_reply(user_input="c")  # its second segment is made while the first plays
        check_heard(await interrupted(session, speakers, heard), first)
        assert heard.empty()


async def interrupted(session: AgentSession, speakers: Speakers, heard: asyncio.Queue[str | None]) -> str | None:
    async with asyncio.timeout(TURN_TIMEOUT_S):
        while speakers.played_s < 1.5:
            await asyncio.sleep(0.05)
        await session.interrupt(force=True)
        return await heard.get()


async def drop_early(service: tts.TTS) -> None:
    """Before anything sounds, sooner and later."""
    for num_steps in range(0, 60, 3):
        stream = service.stream()
        stream.push_text(LONG)
        for _ in range(num_steps):
            await asyncio.sleep(0)
        await stream.aclose()


async def lose_the_line(service: tts.TTS) -> None:
    """Where the session cannot be resumed, a stream is spoken to its end on the next line, sounded or not."""
    await service.client.connect()
    for sounded in (False, True):
        stream = service.stream()
        stream.push_text(STORY)
        first = await anext(aiter(stream)) if sounded else None
        service.client._token = "forged"
        service.client._socket._response.connection.transport.abort()
        stream.end_input()
        duration_s = (first.frame.duration if first else 0.0) + (await heard(stream, STORY))["duration_s"]
        assert abs(duration_s - STORY_S) < 0.2, duration_s  # segments are whole frames
        await stream.aclose()


async def talk(service: tts.TTS, mode: str) -> dict[str, object]:
    turns = []
    before = {
        "cancel": drop,
        "tail": interrupt_what_came_whole,
        "early": drop_early,
        "lost": lose_the_line,
        "session": interrupt_a_session,
    }.get(mode)
    if before is not None:
        await before(service)
    for text in TURNS if before is None else TURNS[1:]:
        if mode == "synthesize":
            async with service.synthesize(text) as stream:
                turns.append(await asyncio.wait_for(heard(stream, text), TURN_TIMEOUT_S))
        else:
            has_forms = mode == "forms" and text == TURNS[0]
            turns.append(await asyncio.wait_for(speak(service, text, has_forms), TURN_TIMEOUT_S))
    await service.aclose()
    return {"turns": turns, "errors": []}


async def converse(url: str, mode: str) -> dict[str, object]:
    """OpenAI's realtime model: what the user writes is what it speaks. Mode ``interrupt`` cuts the first turn."""
    model = openai.realtime.RealtimeModel(api_key=KEY, base_url=f"{url}/v1", turn_detection=None)
    session, turns, context = model.session(), [], llm.ChatContext.empty()
    if mode == "interrupt":
        message = await anext(aiter((await ask(session, context, LONG)).message_stream))
        await keep_beginning(message.audio_stream)
        session.interrupt()
        session.truncate(message_id=message.message_id, modalities=["audio"], audio_end_ms=300)
        await asyncio.sleep(0.3)
    for text in TURNS:
        message = await anext(aiter((await ask(session, context, text)).message_stream))
        pcm, rate = b"", 0
        async for frame in message.audio_stream:
            pcm, rate = pcm + bytes(frame.data), frame.sample_rate
        turns.append(played(text, pcm, rate))
    await session.aclose()
    return {"turns": turns, "errors": []}


async def ask(session: Any, context: llm.ChatContext, text: str) -> Any:
    context.add_message(role="user", content=text)
    await session.update_chat_ctx(context)
    return await asyncio.wait_for(session.generate_reply(), TURN_TIMEOUT_S)


async def main() -> None:
    name, url, mode = sys.argv[1:4]
    async with utils.http_context.open():
        if name == "realtime":
            print(json.dumps(await converse(url, mode)))
            return
        print(json.dumps(await talk(services(url)[name](), mode)))


if __name__ == "__main__":
    asyncio.run(main())
