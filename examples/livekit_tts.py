"""A TTS class for LiveKit Agents over the native protocol.

Tokens of the language model are sent as they arrive, audio is Opus, and words have times. The heard text of an
interrupted reply can be queried.

    pip install livekit-agents opuslib-next-bundled

    tts = VoicewireTTS(url="ws://127.0.0.1:8765", voice="clara")
    session = AgentSession(tts=tts, use_tts_aligned_transcript=True, ...)
    await session.start(agent, room=room)
    tts.follow(session, lambda heard: print(f"interrupted after: {heard}"))

    python livekit_tts.py ws://127.0.0.1:8765 "Hello there, how are you?" hello.wav

LiveKit's own plug-ins for vendors work too (docs/guides/livekit.md), but collect whole sentences, which takes 200 to
300 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sys
import wave
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from livekit.agents import (
    AgentSession,
    APIConnectionError,
    APIConnectOptions,
    APIStatusError,
    tts,
    utils,
)
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, USERDATA_TIMED_TRANSCRIPT
from livekit.agents.voice import SpeechHandle
from livekit.agents.voice.io import PlaybackFinishedEvent, TimedString
from native import Sound, Turn, Voicewire, VoicewireError, Word

SAMPLE_RATE = 24_000


class VoicewireTTS(tts.TTS):
    def __init__(
        self,
        *,
        url: str = "ws://127.0.0.1:8765",
        api_key: str | None = None,
        voice: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """``settings`` are those of the native protocol (docs/reference/native-protocol.md)."""
        capabilities = tts.TTSCapabilities(streaming=True, aligned_transcript=True)
        super().__init__(capabilities=capabilities, sample_rate=SAMPLE_RATE, num_channels=1)
        named = {"voice": voice} if voice else {}
        self.client = Voicewire(url, api_key, **named, **(settings or {}))
        # The turn that started to play last.
        self.last_turn: Turn | None = None
        # Turns of a speech in order, with audio, whose playback has not ended.
        self._unplayed: weakref.WeakKeyDictionary[SpeechHandle, deque[Turn]] = weakref.WeakKeyDictionary()
        self._asking: set[asyncio.Task[None]] = set()
        self._prewarming: asyncio.Task[None] | None = None
        self._streams: weakref.WeakSet[VoicewireStream] = weakref.WeakSet()

    @property
    def model(self) -> str:
        return "voicewire"

    @property
    def provider(self) -> str:
        return "voicewire"

    def prewarm(self) -> None:
        self._prewarming = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        with contextlib.suppress(VoicewireError):  # the first stream reports it
            await self.client.connect()

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.ChunkedStream:
        return self._synthesize_with_stream(text, conn_options=conn_options)

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> VoicewireStream:
        stream = VoicewireStream(self, conn_options)
        self._streams.add(stream)
        return stream

    def follow(self, session: AgentSession, on_heard: Callable[[str | None], None]) -> None:
        """Call ``on_heard`` after each interruption with the heard text of that reply.

        Call it after ``session.start``. A session synthesizes the next reply while one plays, so the turn that plays is
        found by its speech, not by the time at which its stream ended.
        """
        output = session.output.audio
        if output is None:
            raise ValueError("the session has no audio output yet; call follow after session.start")

        def on_playback_finished(event: PlaybackFinishedEvent) -> None:
            turn = self._pop_played(session.current_speech)
            if event.interrupted and turn is not None:
                asking = asyncio.create_task(self._ask(turn, event.playback_position, on_heard))
                self._asking.add(asking)
                asking.add_done_callback(self._asking.discard)

        output.on("playback_finished", on_playback_finished)

    async def heard(self, played_s: float) -> str | None:
        """Return the heard text of the turn that started to play last, without an ``AgentSession``.

        ``played_s`` is the playout position.
        """
        return None if self.last_turn is None else await self.last_turn.cancel(played_s)

    def on_first_sound(self, turn: Turn, speech: SpeechHandle | None) -> None:
        self.last_turn = turn
        if speech is not None:
            self._unplayed.setdefault(speech, deque()).append(turn)

    def _pop_played(self, speech: SpeechHandle | None) -> Turn | None:
        """Return the turn whose playback has ended; turns of one speech play in order."""
        turns = None if speech is None else self._unplayed.get(speech)
        return turns.popleft() if turns else None

    async def _ask(self, turn: Turn, played_s: float, on_heard: Callable[[str | None], None]) -> None:
        on_heard(await turn.cancel(played_s))

    async def aclose(self) -> None:
        if self._asking:
            await asyncio.wait(self._asking)
        if self._prewarming is not None:
            await utils.aio.cancel_and_wait(self._prewarming)
        for stream in list(self._streams):
            await stream.aclose()
        await self.client.aclose()


class VoicewireStream(tts.SynthesizeStream):
    def __init__(self, owner: VoicewireTTS, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=owner, conn_options=conn_options)
        self._owner = owner
        self._speech = speech_of_this_task()

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        output_emitter.initialize(
            request_id=utils.shortuuid(),
            sample_rate=SAMPLE_RATE,
            num_channels=1,
            mime_type="audio/pcm",
            stream=True,
        )
        try:
            turn = await self._owner.client.begin()
            output_emitter.start_segment(segment_id=turn.response_id)
            writing = asyncio.create_task(self._write(turn))
            try:
                await self._hear(turn, output_emitter)
            finally:
                await utils.aio.cancel_and_wait(writing)
                if not turn.over:
                    await turn.drop()
        except VoicewireError as error:
            if error.retryable:
                raise APIConnectionError(str(error)) from error
            raise APIStatusError(str(error), status_code=400, retryable=False) from error
        output_emitter.end_segment()

    async def _write(self, turn: Turn) -> None:
        async for piece in self._input_ch:
            if isinstance(piece, self._FlushSentinel):
                await turn.flush()
            else:
                self._mark_started()
                await turn.push(piece)
        await turn.end()

    async def _hear(self, turn: Turn, output_emitter: tts.AudioEmitter) -> None:
        has_sounded = False
        async for item in turn:
            match item:
                case Sound(pcm) if pcm:
                    if not has_sounded:
                        has_sounded = True
                        self._owner.on_first_sound(turn, self._speech)
                    output_emitter.push(pcm)
                case Word():
                    text = TimedString(item.text + " ", start_time=item.start_s, end_time=item.end_s)
                    output_emitter.push_timed_transcript(text)


def speech_of_this_task() -> SpeechHandle | None:
    """Return the speech that this task synthesizes; its context variable has no public name."""
    return next((value for value in contextvars.copy_context().values() if isinstance(value, SpeechHandle)), None)


async def main() -> None:
    url, text, path = sys.argv[1:4]
    speech = VoicewireTTS(url=url, api_key=os.environ.get("VOICEWIRE_API_KEY"))
    pcm = b""
    try:
        async with speech.stream() as stream:
            for token in text.split(" "):
                stream.push_text(token + " ")
            stream.end_input()
            async for event in stream:
                pcm += bytes(event.frame.data)
                for word in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, []):
                    print(f"{word.start_time:6.2f} {word.end_time:6.2f}  {word}")
    finally:
        await speech.aclose()
    with wave.open(path, "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        file.writeframes(pcm)


if __name__ == "__main__":
    asyncio.run(main())
