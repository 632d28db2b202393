"""The only door to the engine: plain structs in, plain structs out, one Protocol. No torch here.

``sessions`` and ``realtime`` import this module and nothing else of ``engine``. Commands and events hold only
numbers, strings and PCM, so that the engine may live in a thread or in a child process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from engine.errors import (
    CheckpointError,
    EngineDead,
    EngineError,
    EngineOverloaded,
    InvalidRequest,
    RequestTooLong,
    UnknownLanguage,
    UnknownVoice,
)

__all__ = [
    "SAMPLING_RANGES",
    "CheckpointError",
    "CheckpointReport",
    "ClonedVoice",
    "EngineDead",
    "EngineError",
    "EngineInfo",
    "EngineOverloaded",
    "EngineStats",
    "FinishReason",
    "InvalidRequest",
    "ReferenceAudio",
    "RequestFinished",
    "RequestParked",
    "RequestTooLong",
    "SamplingParams",
    "SpeechChunk",
    "SpeechEngine",
    "SpeechEvent",
    "SpeechRequest",
    "SpeechStream",
    "TextLayout",
    "UnknownLanguage",
    "UnknownVoice",
    "VoiceInfo",
]

Pcm = npt.NDArray[np.float32]


class FinishReason(StrEnum):
    """Why a request ended; every request ends with exactly one."""

    STOP = "stop"
    """The model ended its speech."""
    LENGTH = "length"
    """The frame cap was reached before the model ended its speech."""
    SILENCE = "silence"
    """Cut: nothing but near-silence for longer than the guard allows."""
    LOOP = "loop"
    """Cut: the same codes came again and again."""
    CANCELLED = "cancelled"
    ERROR = "error"


class TextLayout(StrEnum):
    """How text rows enter the talker (specs/qwen3-tts.md 3.4)."""

    AUTO = "auto"
    """``full`` when the text is closed at submit, else ``streaming``. In cloning ``streaming`` whatever is known, as in
    the official code."""
    STREAMING = "streaming"
    """One text row a frame, from the first token on."""
    FULL = "full"
    """All text in the prompt; generation starts when the text is closed."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Per-request sampling; ``None`` takes the checkpoint's default. Ranges are checked at submit."""

    do_sample: bool | None = None
    """False takes the likeliest code 0 whatever the temperature."""
    temperature: float | None = None
    """0 means greedy; at most 2."""
    top_k: int | None = None
    """0 means no limit."""
    top_p: float | None = None
    """In (0, 1]."""
    repetition_penalty: float | None = None
    """In [1, 2]."""
    repetition_window: int | None = None
    """The penalty is for the last so many code-0 tokens of the request; ``None`` means all."""
    predictor_do_sample: bool | None = None
    """As ``do_sample``, for the other codes of a frame."""
    predictor_temperature: float | None = None
    predictor_top_k: int | None = None
    predictor_top_p: float | None = None
    min_new_tokens: int | None = None
    """Codec frames before which the model may not end its speech; ``None`` means 2."""
    seed: int | None = None
    """``None`` draws one; the one used is reported in ``RequestFinished``."""


SAMPLING_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_k": (0, 100_000),
    "top_p": (1e-6, 1.0),
    "repetition_penalty": (1.0, 2.0),
    "repetition_window": (1, 100_000),
    "predictor_temperature": (0.0, 2.0),
    "predictor_top_k": (0, 100_000),
    "predictor_top_p": (1e-6, 1.0),
    "min_new_tokens": (0, 1000),
    "seed": (0, 2**64 - 1),
}
"""Least and most of every number in ``SamplingParams``."""

CHUNK_FRAMES = (1, 2, 4, 8)
"""Frames that one chunk may be made of."""
MAX_CHUNK_STEPS = 16
"""Entries of ``SpeechRequest.chunk_frames``."""


class ReferenceAudio(msgspec.Struct, frozen=True, kw_only=True):
    """A recording of somebody to speak like."""

    pcm: bytes
    """Mono float32 in [-1, 1] at ``EngineInfo.sample_rate``."""
    transcript: str = ""
    """What is said in it; with it the voice is cloned in context, without it by its speaker embedding alone."""


class ClonedVoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the model needs to know of a voice: small, and but for rounding the same wherever it was computed."""

    embedding: bytes
    """float32 [EngineInfo.embedding_size]."""
    codes: bytes = b""
    """int16 [num_frames, num_codebooks] of the recording, for cloning in context; empty: by the embedding alone."""
    num_codebooks: int = 0
    """Of ``codes``; 0 without."""
    transcript: str = ""
    """Of the recording; must be there with ``codes`` unless ``EngineInfo.transcript_optional``, and is ignored
    without."""
    mel: bytes = b""
    """float32 [num_frames * EngineInfo.mel_per_code, EngineInfo.mel_bins] of the recording, of models that ask for it;
    there with ``codes``, and only then."""


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One segment to be spoken as one utterance."""

    request_id: str
    voice: str | ClonedVoice | None = None
    """A name out of ``EngineInfo.voices``, or a voice of the caller's; ``None`` takes the first."""
    language: str = "auto"
    instruct: str = ""
    text: str = ""
    """Text known at submit; more may follow by ``SpeechStream.push_text`` unless ``text_closed``."""
    text_closed: bool = False
    layout: TextLayout = TextLayout.AUTO
    segment: int = 0
    """Which of its response's requests it is: with the seed it keys the noise. Another than the first, 0, is submitted
    once the response has been heard: a crowd refuses none of those, only the ceiling, ``max_waiting_segments``."""
    sampling: SamplingParams = SamplingParams()
    max_frames: int | None = None
    """Cap on codec frames; ``None`` derives one from the length of the text."""
    chunk_frames: tuple[int, ...] = ()
    """Frames of the first chunk, the second and so on, the last entry for all that follow; each out of
    ``CHUNK_FRAMES``. A chunk is smaller only where nothing more is sampled for now. Empty takes the engine's own
    schedule, which also sends what is there to a listener about to run dry."""
    lead_ms: int | None = None
    """Most audio generated ahead of playback; ``None`` means as fast as it goes (burst)."""
    group: str = ""
    """Whose request it is: groups share equally what paced requests leave. Any short string that is no secret."""

    @property
    def is_burst(self) -> bool:
        """Whether it has no deadline, so that paced requests go first."""
        return self.lead_ms is None


@dataclass(frozen=True, slots=True)
class SpeechChunk:
    """A run of PCM. Chunks of a request arrive in order; without a provisional tail they abut exactly."""

    request_id: str
    start_sample: int
    """Position of ``pcm[0]`` in the request's audio, in samples at the engine's rate."""
    pcm: Pcm
    """Mono float32 in [-1, 1]."""
    provisional_tail_samples: int = 0
    """So many samples at the end come again, rendered with more context, at the head of the next chunk."""
    last: bool = False


@dataclass(frozen=True, slots=True)
class RequestParked:
    """The request has no text row to feed and sits out until ``push_text`` or ``end_input``.

    Said once each time it parks, and not before the first chunk of text.
    """

    request_id: str
    lead_ms: float
    """Audio generated and, by the playback clock, not yet played."""


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """The terminal event: exactly one a request, after its last chunk."""

    request_id: str
    reason: FinishReason
    num_frames: int = 0
    num_samples: int = 0
    num_text_tokens: int = 0
    num_skipped_tokens: int = 0
    """Speech tokens drawn and left out, of models that hold themselves back in long silences."""
    seed: int = 0
    queue_ms: float = 0.0
    """From submit to the first step that held the request."""
    first_audio_ms: float | None = None
    """From the first final text token to the first chunk, by the engine's clock."""
    num_prompt_tokens: int = 0
    """Text tokens that had to be there before the first frame: 1 in the streaming layout (in context, as many as the
    recording is longer than its transcript), all of them in the full one."""
    prompt_wait_ms: float | None = None
    """From the first final text token to the last of these, or to the end of a shorter text."""
    code: str | None = None
    """Of the error, with ``FinishReason.ERROR``."""
    message: str | None = None
    retry_after_ms: int | None = None
    """Of one that was refused for want of room."""


SpeechEvent = SpeechChunk | RequestParked | RequestFinished


class VoiceInfo(msgspec.Struct, frozen=True):
    name: str
    languages: tuple[str, ...]
    description: str = ""


class EngineInfo(msgspec.Struct, frozen=True):
    """What the loaded checkpoint can do."""

    model: str
    sample_rate: int
    frame_samples: int
    """Samples of one codec frame."""
    voices: tuple[VoiceInfo, ...]
    languages: tuple[str, ...]
    max_text_tokens: int
    normalize_text: bool
    """Whether text should pass the normaliser first (the embedded voice was trained on words only)."""
    task: str = "custom_voice"
    """``custom_voice`` (named speakers), ``voice_design`` (a voice described by ``instruct``) or ``base`` (cloning)."""
    takes_instruct: bool = False
    """Whether ``instruct`` changes anything; where it does not, a request with one is refused."""
    can_clone: bool = False
    """Whether ``SpeechRequest.voice`` may be a ``ClonedVoice``."""
    can_encode: bool = False
    """Whether ``encode_voice`` works: the encoders of the checkpoint are there and loaded."""
    embedding_size: int = 0
    """Numbers in ``ClonedVoice.embedding``."""
    num_codebooks: int = 0
    codebook_size: int = 0
    """``ClonedVoice.codes`` lie in 0..codebook_size - 1."""
    mel_bins: int = 0
    """Numbers in a frame of ``ClonedVoice.mel``; 0: the model takes none."""
    mel_per_code: int = 0
    transcript_optional: bool = False
    """Whether a voice may have codes without a transcript."""
    sampling_limits: dict[str, tuple[float, float]] = {}
    """Least and most of numbers in ``SamplingParams`` that this model takes less of than ``SAMPLING_RANGES`` says."""
    refused_fields: tuple[str, ...] = ()
    """Of ``SamplingParams`` and ``SpeechRequest``, without a meaning here: a request that sets one is refused."""
    min_sample_s: float = 1.0
    """The shortest recording that ``encode_voice`` takes."""
    max_sample_s: float = 30.0


class CheckpointReport(msgspec.Struct, frozen=True):
    """What a checkpoint folder holds, told without loading it."""

    model: str
    task: str
    voices: tuple[str, ...]
    languages: tuple[str, ...]
    takes_instruct: bool
    megabytes: dict[str, float]
    """Of the tensors of each part, as they lie in the files."""
    notes: tuple[str, ...] = ()
    """What does not work, for it is not there, and what works nevertheless."""


class EngineStats(msgspec.Struct, frozen=True):
    """A snapshot of the loop, taken between two steps."""

    num_waiting: int
    """For room; who waits for the next step alone is not counted."""
    num_running: int
    num_parked: int
    num_steps: int
    blocks_free: int
    blocks_total: int
    slots_free: int
    slots_total: int
    step_ms: float
    """Of the last step."""
    num_preemptions: int
    num_finished: int
    num_waiting_burst: int = 0
    """Of ``num_waiting``, those without a deadline."""
    num_bounded: int = 0
    """Requests so far that went on with less of their past for want of decoder memory (CosyVoice3)."""


@runtime_checkable
class SpeechStream(Protocol):
    """One request from the asyncio side. All methods are called on the event loop that submitted it."""

    @property
    def request_id(self) -> str: ...

    def push_text(self, text: str) -> None:
        """Append text. Raises ``InvalidRequest`` once the text is closed; is ignored after the end."""
        ...

    def end_input(self) -> None:
        """Close the text; idempotent."""
        ...

    def report_playback(self, played_samples: int) -> None:
        """Say how much has been played by now; the playback clock runs on from there.

        Negative: playback of this request begins in so many samples, once what is before it has been played.
        """
        ...

    def cancel(self) -> None:
        """Fence all output at once; idempotent. ``RequestFinished(CANCELLED)`` is the next and last event."""
        ...

    async def released(self) -> None:
        """Wait until every engine resource of this request is free again."""
        ...

    def __aiter__(self) -> AsyncIterator[SpeechEvent]: ...


@runtime_checkable
class SpeechEngine(Protocol):
    """Text and voice in, PCM out, many requests per step."""

    @property
    def info(self) -> EngineInfo: ...

    async def start(self) -> None:
        """Load and warm up; returns when the first request can run. Raises ``CheckpointError``."""
        ...

    def submit(self, request: SpeechRequest) -> SpeechStream:
        """Queue a request.

        Raises ``InvalidRequest`` and its kin, ``EngineOverloaded`` or ``EngineDead``; then nothing was queued.
        """
        ...

    async def encode_voice(self, sample: ReferenceAudio) -> ClonedVoice:
        """Listen to a recording once, so that requests can speak like it.

        Raises ``InvalidRequest`` where ``EngineInfo.can_encode`` is false or the recording cannot be used.
        """
        ...

    def prefetch_voices(self, voices: Sequence[str]) -> None:
        """Compute and keep the prompt prefix of these voices, so that their next request starts sooner."""
        ...

    def stats(self) -> EngineStats: ...

    @property
    def is_alive(self) -> bool: ...

    async def aclose(self) -> None:
        """Cancel what runs, end the loop, free the device; idempotent."""
        ...
