"""The only door to the engine: plain structs in, plain structs out, one Protocol. No torch here.

``sessions`` and ``realtime`` import this module and nothing else of ``engine``. Commands and events hold only
numbers, strings and PCM, so that the engine may live in a thread or in a child process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from engine.errors import (
    INTERNAL_ERROR,
    CheckpointError,
    CodedError,
    EngineDead,
    EngineError,
    EngineOverloaded,
    ErrorInfo,
    InvalidRequest,
    RequestTooLong,
    SpeechError,
    UnknownLanguage,
    UnknownVoice,
)
from engine.process import (
    RunDirectory,
    available_cores,
    child_environment,
    freeze_gc,
    reserve_descriptors,
    trim_heap,
)

__all__ = [
    "INTERNAL_ERROR",
    "SAMPLING_RANGES",
    "CheckpointError",
    "CheckpointReport",
    "ClonedVoice",
    "CodedError",
    "EngineDead",
    "EngineError",
    "EngineInfo",
    "EngineOverloaded",
    "EngineStats",
    "ErrorInfo",
    "FinishReason",
    "InvalidRequest",
    "ReferenceAudio",
    "RequestFinished",
    "RequestParked",
    "RequestTimings",
    "RequestTooLong",
    "ResumePoint",
    "RunDirectory",
    "SamplingFields",
    "SamplingParams",
    "SpeechChunk",
    "SpeechEngine",
    "SpeechError",
    "SpeechEvent",
    "SpeechRequest",
    "SpeechStream",
    "TextLayout",
    "UnknownLanguage",
    "UnknownVoice",
    "VoiceInfo",
    "available_cores",
    "check_sampling",
    "child_environment",
    "freeze_gc",
    "reserve_descriptors",
    "trim_heap",
]

Pcm = npt.NDArray[np.float32]


class FinishReason(StrEnum):
    """Why a request ended; every request ends with exactly one."""

    # The model ended its speech.
    STOP = "stop"
    # The frame cap was reached before the model ended its speech.
    LENGTH = "length"
    # Cut: nothing but near-silence for longer than the guard allows.
    SILENCE = "silence"
    # Cut: the same codes came again and again.
    LOOP = "loop"
    CANCELLED = "cancelled"
    ERROR = "error"


class TextLayout(StrEnum):
    """Layout of text rows in the talker's input (docs/design/models.md)."""

    # ``full`` when the text is closed at submit, else ``streaming``. In cloning ``streaming`` whatever is known, as in
    # the official code.
    AUTO = "auto"
    # One text row a frame, from the first token on.
    STREAMING = "streaming"
    # All text in the prompt; generation starts when the text is closed.
    FULL = "full"


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling options as wires take them, too; ``None`` takes the checkpoint's default."""

    # False takes the likeliest code 0 whatever the temperature.
    do_sample: bool | None = None
    # 0 means greedy; at most 2.
    temperature: float | None = None
    # 0 means no limit.
    top_k: int | None = None
    # In (0, 1].
    top_p: float | None = None
    # In [1, 2].
    repetition_penalty: float | None = None
    # Number of the request's latest code-0 tokens that the penalty covers; ``None`` covers all.
    repetition_window: int | None = None
    # As ``do_sample``, for the other codes of a frame.
    predictor_do_sample: bool | None = None
    predictor_temperature: float | None = None
    predictor_top_k: int | None = None
    predictor_top_p: float | None = None
    # Codec frames before which the model may not end its speech; ``None`` means 2.
    min_new_tokens: int | None = None


class SamplingParams(SamplingFields, frozen=True, kw_only=True):
    """Per-request sampling. Ranges are checked at submit."""

    # ``None`` draws one; the one used is reported in ``RequestFinished``.
    seed: int | None = None


# Least and most of every number in ``SamplingParams``.
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


def check_sampling(sampling: SamplingParams, limits: Mapping[str, tuple[float, float]] = MappingProxyType({})) -> None:
    """Check the ranges, of which ``limits`` replaces some. Raises ``InvalidRequest``; not a number is out of range."""
    for name, (low, high) in {**SAMPLING_RANGES, **limits}.items():
        value = getattr(sampling, name)
        if value is not None and not low <= value <= high:
            raise InvalidRequest(f"{name} must be {low} to {high}, is {value}", name)


# Frames that one chunk may be made of.
CHUNK_FRAMES = (1, 2, 4, 8)
# Entries of ``SpeechRequest.chunk_frames``.
MAX_CHUNK_STEPS = 16


class ReferenceAudio(msgspec.Struct, frozen=True, kw_only=True):
    """A recording of the speaker to clone."""

    # Mono float32 in [-1, 1] at ``EngineInfo.sample_rate``.
    pcm: bytes
    # What is said in it; with it the voice is cloned in context, without it by its speaker embedding alone.
    transcript: str = ""


class ClonedVoice(msgspec.Struct, frozen=True, kw_only=True):
    """Prepared state of a voice: small, and but for rounding the same wherever it was computed."""

    # float32 [EngineInfo.embedding_size].
    embedding: bytes
    # int16 [num_frames, num_codebooks] of the recording, for cloning in context; empty: by the embedding alone.
    codes: bytes = b""
    # Of ``codes``; 0 without.
    num_codebooks: int = 0
    # Of the recording; must be there with ``codes`` unless ``EngineInfo.transcript_optional``, and is ignored without.
    transcript: str = ""
    # float32 [num_frames * EngineInfo.mel_per_code, EngineInfo.mel_bins] of the recording, of models that ask for it;
    # there with ``codes``, and only then.
    mel: bytes = b""


class ResumePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where another engine left a request, which goes on from there with the same text and seed.

    Without codes it begins again: the other engine had accepted it, and sent no audio. It is not refused for load.
    """

    # int16: ``SpeechChunk.codes`` of all its chunks, joined.
    codes: bytes
    # Samples received; the next chunk begins there.
    num_samples: int
    # Whether the other engine had sampled all of the request: nothing is sampled behind the codes.
    is_complete: bool = False

    @property
    def is_replay(self) -> bool:
        """Return whether the audio of the codes is made again from its beginning: the gateway had died, too."""
        return self.num_samples == 0 and (bool(self.codes) or self.is_complete)


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One segment to be spoken as one utterance."""

    request_id: str
    # A name out of ``EngineInfo.voices``, or a voice of the caller's; ``None`` takes the first.
    voice: str | ClonedVoice | None = None
    language: str = "auto"
    instruct: str = ""
    # Text known at submit; more may follow by ``SpeechStream.push_text`` unless ``text_closed``.
    text: str = ""
    text_closed: bool = False
    layout: TextLayout = TextLayout.AUTO
    # Which of its response's requests it is: with the seed it keys the noise. Another than the first, 0, is submitted
    # once the response has been heard: a crowd refuses none of those, only the ceiling, ``max_queued_continuations``.
    segment: int = 0
    sampling: SamplingParams = SamplingParams()
    # Cap on codec frames; ``None`` derives one from the length of the text.
    max_frames: int | None = None
    # Frames of the first chunk, the second and so on, the last entry for all that follow; each out of ``CHUNK_FRAMES``.
    # A chunk is smaller only where nothing more is sampled for now. Empty takes the engine's own schedule, which also
    # sends what is there to a listener about to run dry.
    chunk_frames: tuple[int, ...] = ()
    # Most audio generated ahead of playback; ``None`` means as fast as it goes (burst).
    lead_ms: int | None = None
    # Whose request it is: groups share equally what paced requests leave. Any short string that is no secret.
    group: str = ""
    # All else must then be as it was at first, the seed given; text that came later is pushed again.
    resume: ResumePoint | None = None

    @property
    def is_burst(self) -> bool:
        """Return whether it has no deadline, so that paced requests go first."""
        return self.lead_ms is None

    @property
    def continues_reply(self) -> bool:
        """Return whether its reply has been heard, so that it waits where a new one is refused."""
        return self.segment > 0 or self.resume is not None

    @property
    def is_takeover(self) -> bool:
        """Return whether another engine had accepted it for a gateway that is there: it is not refused for load."""
        return self.resume is not None and not self.resume.is_replay


class RequestTimings(msgspec.Struct, frozen=True, array_like=True):
    """Milliseconds from a request's first text to its first chunk, by the engine's clock, in consecutive parts."""

    # Until it had a slot.
    queue_ms: float
    # Until the step that sampled its first frame.
    prefill_ms: float
    # Until the codes of that frame were known.
    first_frame_ms: float
    # Until the first chunk left.
    decode_ms: float


class SpeechChunk(msgspec.Struct, frozen=True):
    """A run of PCM. Chunks of a request arrive in order and abut exactly."""

    request_id: str
    # Position of ``pcm[0]`` in the request's audio, in samples at the engine's rate.
    start_sample: int
    # Mono float32 in [-1, 1].
    pcm: Pcm
    last: bool = False
    # int16: what was sampled since the chunk before, control tokens included.
    codes: bytes = b""
    # With the first chunk; ``None`` if its frames were sampled by another engine.
    timings: RequestTimings | None = None


@dataclass(frozen=True, slots=True)
class RequestParked:
    """The request has no text row to feed and sits out until ``push_text`` or ``end_input``.

    Said once each time it parks, and not before the first chunk of text.
    """

    request_id: str
    # Audio generated and, by the playback clock, not yet played.
    lead_ms: float


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """The terminal event: exactly one a request, after its last chunk."""

    request_id: str
    reason: FinishReason
    num_frames: int = 0
    num_samples: int = 0
    num_text_tokens: int = 0
    # Speech tokens drawn and left out, of models that hold themselves back in long silences.
    num_skipped_tokens: int = 0
    seed: int = 0
    # From the first text to the first step that held the request; 0 if that was before.
    queue_ms: float = 0.0
    # From the first final text token to the first chunk, by the engine's clock.
    first_audio_ms: float | None = None
    # Text tokens that had to be there before the first frame: 1 in the streaming layout (in context, as many as the
    # recording is longer than its transcript), all of them in the full one.
    num_prompt_tokens: int = 0
    # From the first final text token to the last of these, or to the end of a shorter text.
    prompt_wait_ms: float | None = None
    # With ``FinishReason.ERROR``.
    error: ErrorInfo | None = None


SpeechEvent = SpeechChunk | RequestParked | RequestFinished


class VoiceInfo(msgspec.Struct, frozen=True):
    name: str
    languages: tuple[str, ...]
    description: str = ""


class EngineInfo(msgspec.Struct, frozen=True):
    """Capabilities of the loaded checkpoint."""

    model: str
    sample_rate: int
    # Samples of one codec frame.
    frame_samples: int
    voices: tuple[VoiceInfo, ...]
    languages: tuple[str, ...]
    max_text_tokens: int
    # Whether text should pass the normaliser first (the embedded voice was trained on words only).
    normalize_text: bool
    # ``custom_voice`` (named speakers), ``voice_design`` (a voice described by ``instruct``) or ``base`` (cloning).
    task: str = "custom_voice"
    # Whether ``instruct`` changes anything; where it does not, a request with one is refused.
    takes_instruct: bool = False
    # All instructions that the model follows, where it does not follow any.
    instructions: tuple[str, ...] = ()
    # Whether ``SpeechRequest.voice`` may be a ``ClonedVoice``.
    can_clone: bool = False
    # Whether ``encode_voice`` works: the encoders of the checkpoint are there and loaded.
    can_encode: bool = False
    # Numbers in ``ClonedVoice.embedding``.
    embedding_size: int = 0
    num_codebooks: int = 0
    # ``ClonedVoice.codes`` lie in 0..codebook_size - 1.
    codebook_size: int = 0
    # Numbers in a frame of ``ClonedVoice.mel``; 0: the model takes none.
    mel_bins: int = 0
    mel_per_code: int = 0
    # Whether a voice may have codes without a transcript.
    transcript_optional: bool = False
    # Whether text may hold phonemes of CMU's dictionary in brackets: ``[T][AH0]``.
    reads_phonemes: bool = False
    # Least and most of numbers in ``SamplingParams`` that this model takes less of than ``SAMPLING_RANGES`` says.
    sampling_limits: dict[str, tuple[float, float]] = {}
    # Of ``SamplingParams`` and ``SpeechRequest``, without a meaning here: a request that sets one is refused.
    refused_fields: tuple[str, ...] = ()
    # The shortest recording that ``encode_voice`` takes.
    min_sample_s: float = 1.0
    max_sample_s: float = 30.0

    def check_options(self, sampling: SamplingParams, chunk_frames: tuple[int, ...]) -> None:
        """Check ranges, and that the model supports what is set. Raises ``InvalidRequest``, which names field, range
        and value.
        """
        if len(chunk_frames) > MAX_CHUNK_STEPS:
            found = f"chunk_frames has {len(chunk_frames)} entries"
            raise InvalidRequest(f"{found}, at most {MAX_CHUNK_STEPS} are allowed", "chunk_frames")
        for frames in chunk_frames:
            if frames not in CHUNK_FRAMES:
                known = ", ".join(map(str, CHUNK_FRAMES))
                raise InvalidRequest(f"chunk_frames must hold {known}, holds {frames}", "chunk_frames")
        for name in self.refused_fields:
            value = chunk_frames or None if name == "chunk_frames" else getattr(sampling, name)
            if value is not None:
                raise InvalidRequest(f"{name} is given; it has no meaning to {self.model}", name)
        check_sampling(sampling, self.sampling_limits)


class CheckpointReport(msgspec.Struct, frozen=True):
    """Contents of a checkpoint folder, inspected without loading it."""

    model: str
    task: str
    voices: tuple[str, ...]
    languages: tuple[str, ...]
    takes_instruct: bool
    # Of the tensors of each part, as they lie in the files.
    megabytes: dict[str, float]
    # What does not work, for it is not there, and what works nevertheless.
    notes: tuple[str, ...] = ()


class EngineStats(msgspec.Struct, frozen=True):
    """A snapshot of the loop, taken between two steps."""

    # For room; who waits for the next step alone is not counted.
    num_waiting: int
    num_running: int
    num_parked: int
    num_steps: int
    blocks_free: int
    blocks_total: int
    slots_free: int
    slots_total: int
    # Of the last step.
    step_ms: float
    num_preemptions: int
    num_finished: int
    # Of ``num_waiting``, those without a deadline.
    num_waiting_burst: int = 0
    # Requests so far that went on with less of their past for want of decoder memory (CosyVoice3).
    num_bounded: int = 0


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

        Negative: playback of this request begins after that number of samples, when what is before it has been played.
        """
        ...

    def cancel(self) -> None:
        """Fence all output at once; idempotent. ``RequestFinished(CANCELLED)`` is the next and last event."""
        ...

    async def released(self) -> None:
        """Wait until every engine resource of this request is free again."""
        ...

    def next_event(self) -> SpeechEvent | None:
        """Return the next event, or ``None`` if none has arrived; nothing follows ``RequestFinished``."""
        ...

    def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        """Yield events up to and including ``RequestFinished``. One reader uses either this or ``next_event``."""
        ...


@runtime_checkable
class SpeechEngine(Protocol):
    """Text and voice in, PCM out, many requests per step."""

    @property
    def info(self) -> EngineInfo: ...

    async def start(self) -> None:
        """Load and warm up; returns when the first request can run. Raises ``CheckpointError``."""
        ...

    def submit(self, request: SpeechRequest, wake: Callable[[], None] | None = None) -> SpeechStream:
        """Queue a request. ``wake`` is called on the event loop each time an event has arrived.

        A request that is invalid, or that there is no capacity for, ends at once with ``FinishReason.ERROR``. Raises
        ``EngineDead`` if the engine is not running.
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
