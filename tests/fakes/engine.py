"""A speech engine without a model: it follows a script (how long, how fast, what goes wrong) and hums.

It keeps every promise of ``engine.api`` and runs on the event loop's clock, so it works in virtual time too.
How text is cut into pushes never changes the audio.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from engine.api import (
    ClonedVoice,
    EngineDead,
    EngineError,
    EngineInfo,
    EngineOverloaded,
    EngineStats,
    InvalidRequest,
    ReferenceAudio,
    RequestTooLong,
    SpeechRequest,
    UnknownLanguage,
    UnknownVoice,
)
from tests.fakes.engine_script import FAKE_INFO, FRAME_S, FRAME_SAMPLES, SAMPLE_RATE, FakeScript, tone
from tests.fakes.engine_stream import FakeSpeechStream

__all__ = [
    "FAKE_INFO",
    "FRAME_S",
    "FRAME_SAMPLES",
    "SAMPLE_RATE",
    "FakeScript",
    "FakeSpeechEngine",
    "FakeSpeechStream",
    "tone",
]

BLOCKS_PER_SLOT = 64


class FakeSpeechEngine:
    """Implements ``engine.api.SpeechEngine``. ``script_next`` scripts the coming requests, ``script`` all others."""

    def __init__(
        self,
        script: FakeScript | None = None,
        *,
        info: EngineInfo = FAKE_INFO,
        num_slots: int = 64,
        max_queued_requests: int = 64,
        step_s: float = 0.02,
    ) -> None:
        self.script = script or FakeScript()
        # The resources of a request come free so long after its end.
        self.step_s = step_s
        self.slots = asyncio.Semaphore(num_slots)
        # Every request ever accepted, for assertions.
        self.requests: list[SpeechRequest] = []
        # Those that still hold resources, by request id.
        self.streams: dict[str, FakeSpeechStream] = {}
        self.prefetched: list[str] = []
        # Every recording it was asked to encode.
        self.samples: list[ReferenceAudio] = []
        self._info = info
        self._num_slots = num_slots
        self._max_waiting = max_queued_requests
        self._scripts: deque[FakeScript] = deque()
        self._alive = False
        self._num_finished = 0

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def is_alive(self) -> bool:
        return self._alive

    async def start(self) -> None:
        self._alive = True

    def script_next(self, *scripts: FakeScript) -> None:
        """Script the next requests, in the order of their submission."""
        self._scripts.extend(scripts)

    def submit(self, request: SpeechRequest, wake: Callable[[], None] | None = None) -> FakeSpeechStream:
        if not self._alive:
            raise EngineDead("the engine is not running")
        if request.request_id in self.streams:
            raise ValueError(f"request_id {request.request_id!r} is in use")
        refusal = self._refusal(request)
        script = self._scripts.popleft() if self._scripts and refusal is None else self.script
        stream = FakeSpeechStream(self, request, script, wake)
        self.streams[request.request_id] = stream
        if refusal is None:
            self.requests.append(request)
        else:
            stream.refuse(refusal)
        return stream

    def _refusal(self, request: SpeechRequest) -> EngineError | None:
        try:
            self._check(request)
        except EngineError as error:
            return error
        num_active = sum(not stream.ended for stream in self.streams.values())
        if request.segment == 0 and num_active >= self._num_slots + self._max_waiting:
            return EngineOverloaded(f"max_queued_requests is {self._max_waiting}", retry_after_ms=500)
        return None

    def _check(self, request: SpeechRequest) -> None:
        if isinstance(request.voice, ClonedVoice):
            if not self._info.can_clone:
                raise InvalidRequest("this checkpoint does not clone voices", "voice")
        elif request.voice is not None and request.voice not in {voice.name for voice in self._info.voices}:
            raise UnknownVoice(f"voice {request.voice!r} is unknown", "voice")
        if request.language not in self._info.languages:
            raise UnknownLanguage(f"language {request.language!r} is unknown", "language")
        if request.text_closed and not request.text.strip():
            raise InvalidRequest("text is empty", "text")
        num_tokens = len(request.text.split())
        if num_tokens > self._info.max_text_tokens:
            raise RequestTooLong(f"text has {num_tokens} tokens, max is {self._info.max_text_tokens}", "text")

    async def encode_voice(self, sample: ReferenceAudio) -> ClonedVoice:
        if not self._info.can_encode:
            raise InvalidRequest("this checkpoint does not clone voices", "voice")
        self.samples.append(sample)
        embedding = np.full(self._info.embedding_size, len(sample.pcm), np.float32)
        return ClonedVoice(embedding=embedding.tobytes(), transcript=sample.transcript)

    def prefetch_voices(self, voices: Sequence[str]) -> None:
        self.prefetched.extend(voices)

    def stats(self) -> EngineStats:
        running = [stream for stream in self.streams.values() if stream.has_slot]
        blocks_total = self._num_slots * BLOCKS_PER_SLOT
        return EngineStats(
            num_waiting=len(self.streams) - len(running),
            num_waiting_burst=sum(stream._request.is_burst for stream in self.streams.values() if not stream.has_slot),
            num_running=len(running),
            num_parked=sum(stream.parked for stream in running),
            num_steps=sum(stream.num_frames for stream in running),
            blocks_free=blocks_total - sum(stream.num_blocks for stream in running),
            blocks_total=blocks_total,
            slots_free=self._num_slots - len(running),
            slots_total=self._num_slots,
            step_ms=1000 * self.step_s,
            num_preemptions=0,
            num_finished=self._num_finished,
        )

    def crash(self) -> None:
        """Fail every request and refuse all further ones, until ``start`` is called again."""
        self._alive = False
        for stream in list(self.streams.values()):
            stream.fail(EngineDead.code, "the engine died")

    def release(self, stream: FakeSpeechStream) -> None:
        """Called by a stream that needs nothing any more."""
        if stream.has_slot:
            self.slots.release()
        del self.streams[stream.request_id]
        self._num_finished += 1

    async def aclose(self) -> None:
        self._alive = False
        streams = list(self.streams.values())
        for stream in streams:
            stream.cancel()
        for stream in streams:
            await stream.released()
