"""One request inside the engine: its text, its place in memory, its listener's clock. No torch here."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from engine.api import FinishReason, InvalidRequest, Pcm, RequestTimings, ResumePoint, SpeechEvent, SpeechRequest
from engine.errors import ErrorInfo
from engine.models.base import SequenceState

if TYPE_CHECKING:
    from engine.text.tokenizer import IncrementalEncoder

# A listener cannot be further behind than a day.
MAX_DEADLINE_S = 86_400


class RequestPhase(Enum):
    # Holds nothing yet.
    WAITING = auto()
    # Holds a decoder slot and, unless preempted, KV blocks.
    RUNNING = auto()
    # The talker is done; frames are left to decode.
    DRAINING = auto()
    DONE = auto()


class ShareKey(NamedTuple):
    """Requests that share slots."""

    is_burst: bool
    group: str


class PlaybackClock:
    """Return when the listener will have heard everything emitted so far.

    Playback starts with the first chunk, runs in real time, and stands still while there is nothing to play.
    """

    def __init__(self, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self.num_emitted = 0
        self.dry_at_s: float | None = None
        # The listener has audio that is emitted again, and has played more than was emitted so far.
        self.is_behind = False

    def emit(self, num_samples: int, now_s: float) -> None:
        start = now_s if self.dry_at_s is None else self.dry_at_s if self.is_behind else max(self.dry_at_s, now_s)
        self.dry_at_s = start + num_samples / self.sample_rate
        # Half a sample for rounding.
        self.is_behind = self.is_behind and (now_s - self.dry_at_s) * self.sample_rate > 0.5
        self.num_emitted += num_samples

    def report(self, played_samples: int, now_s: float) -> None:
        """Negative: playback begins after that many samples, behind what plays before. Nothing to
        play sets no clock.
        """
        self.is_behind = played_samples > self.num_emitted
        if played_samples >= 0 and self.dry_at_s is None and not self.is_behind:
            return
        max_left = MAX_DEADLINE_S * self.sample_rate
        left = min(max(self.num_emitted - played_samples, -max_left), max_left)
        self.dry_at_s = now_s + left / self.sample_rate

    def lead_s(self, now_s: float) -> float:
        """Seconds emitted and not yet played; 0 before the first chunk."""
        return 0.0 if self.dry_at_s is None else max(0.0, self.dry_at_s - now_s)


@dataclass(slots=True)
class Resumption:
    """How a request comes back to where another engine left it: codes still to force, and PCM not to send again."""

    codes: deque[Sequence[int]]
    # Samples that the decode stage makes once more, and that were received.
    num_samples: int
    # Nothing is sampled behind the codes.
    is_complete: bool = False
    # Frames that the codes made, until the decode stage has them.
    frames: list[Sequence[int]] = field(default_factory=list)
    is_decoding: bool = False

    @classmethod
    def from_point(cls, point: ResumePoint, codes_per_step: int, frame_samples: int) -> Self:
        """Parse a point. Raises ``InvalidRequest`` if the codes cannot have made that number of samples."""
        step_bytes = 2 * codes_per_step
        if len(point.codes) % step_bytes:
            found = f"resume.codes has {len(point.codes)} bytes"
            raise InvalidRequest(f"{found}; each step has {step_bytes}", "resume.codes")
        steps = np.frombuffer(point.codes, np.int16).reshape(-1, codes_per_step).tolist()
        if not 0 <= point.num_samples <= len(steps) * frame_samples:
            limits = f"with these codes it must lie in 0..{len(steps) * frame_samples}"
            raise InvalidRequest(f"resume.num_samples is {point.num_samples}; {limits}", "resume.num_samples")
        return cls(deque(steps), point.num_samples, point.is_complete)

    def skip_received(self, pcm: Pcm) -> Pcm:
        num_skipped = min(self.num_samples, len(pcm))
        self.num_samples -= num_skipped
        return pcm[num_skipped:]


@dataclass(slots=True, eq=False)
class Request:
    """``epoch`` is unique for ever: late output of an earlier request with the same id finds no taker."""

    spec: SpeechRequest
    epoch: int
    seed: int
    row: SequenceState
    tokens: IncrementalEncoder
    clock: PlaybackClock
    silence: SilenceGuard
    loop: LoopGuard
    prefix_key: Hashable | None
    submitted_s: float
    # When its first text came.
    first_text_s: float
    # By the text so far.
    frame_cap: int
    phase: RequestPhase = RequestPhase.WAITING
    parked: bool = False
    # Text came, or closed, since the model was last asked for an input.
    has_new_text: bool = False
    # Preempted, or found no block for its next position.
    lacks_blocks: bool = False
    slot: int | None = None
    block_table: list[int] = field(default_factory=list)
    num_chars: int = 0
    num_frames: int = 0
    num_pending_frames: int = 0
    started_s: float | None = None
    first_token_s: float | None = None
    prompt_ready_s: float | None = None
    # When the step began that sampled the first frame, and when its codes were known.
    sampling_s: float | None = None
    first_frame_s: float | None = None
    first_chunk_s: float | None = None
    num_chunks: int = 0
    last_sent: bool = False
    # Of ``row.sampled_codes``, in chunks that left.
    num_codes_sent: int = 0
    resumption: Resumption | None = None
    finish_reason: FinishReason | None = None
    # (code, message).
    error: ErrorInfo | None = None
    # A copy: each step reads it several times for each row.
    is_burst: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_burst = self.spec.is_burst

    @property
    def share_key(self) -> ShareKey:
        return ShareKey(self.is_burst, self.spec.group)

    @property
    def held_slot(self) -> int:
        assert self.slot is not None
        return self.slot

    @property
    def is_new(self) -> bool:
        """Return whether it holds a slot, and nothing was computed of it."""
        is_running = self.phase is RequestPhase.RUNNING and self.resumption is None
        return is_running and not (self.row.num_computed or self.block_table)

    @property
    def waits_for_text(self) -> bool:
        return self.parked and not self.has_new_text

    @property
    def deadline_s(self) -> float:
        """Return when its listener runs out of audio: the order in which rows run. Rows without audio come first."""
        dry_at_s = self.clock.dry_at_s
        return 0.0 if dry_at_s is None else dry_at_s

    def timings(self) -> RequestTimings | None:
        """Return the parts of the time from the first text to the first chunk; ``None`` while one is not known."""
        moments = (self.submitted_s, self.started_s, self.sampling_s, self.first_frame_s, self.first_chunk_s)
        known = [max(moment_s, self.first_text_s) for moment_s in moments if moment_s is not None]
        if len(known) < len(moments):
            return None
        return RequestTimings(*(1000 * (end_s - start_s) for start_s, end_s in pairwise(known)))

    def generated_lead_s(self, now_s: float, frame_s: float) -> float:
        """Lead counting also frames sampled and not yet decoded, except those whose audio was received before."""
        lead_s = self.num_pending_frames * frame_s
        if self.resumption is not None:
            lead_s = max(0.0, lead_s - self.resumption.num_samples / self.clock.sample_rate)
        dry_at_s = self.clock.dry_at_s
        if dry_at_s is not None and (dry_at_s > now_s or self.clock.is_behind):
            lead_s += dry_at_s - now_s
        return max(0.0, lead_s)

    def priority(self) -> tuple[bool, float, float, int]:
        """Smaller is more urgent: paced before burst, then by deadline, then by age."""
        return (self.is_burst, self.deadline_s, self.submitted_s, self.epoch)


@dataclass(slots=True)
class ScheduledWork:
    """``count`` of a request's due inputs; ``sample`` when its last input is among them and is to be sampled."""

    request: Request
    count: int
    sample: bool


@dataclass(slots=True)
class StepBatch:
    """``steps`` have one input each and run as one forward; ``prefills`` have several and run one by one."""

    steps: list[ScheduledWork] = field(default_factory=list)
    prefills: list[ScheduledWork] = field(default_factory=list)

    def add(self, work: ScheduledWork) -> None:
        (self.steps if work.count == 1 else self.prefills).append(work)

    def drop(self, request: Request) -> None:
        self.steps = [work for work in self.steps if work.request is not request]
        self.prefills = [work for work in self.prefills if work.request is not request]

    @property
    def items(self) -> list[ScheduledWork]:
        return [*self.prefills, *self.steps]

    def record_sampling(self, now_s: float) -> None:
        """Note when the first sampling step of each request begins."""
        for work in self.items:
            if work.request.sampling_s is None and work.sample:
                work.request.sampling_s = now_s

    @property
    def num_prefill_positions(self) -> int:
        return sum(work.count for work in self.prefills)

    def __len__(self) -> int:
        return len(self.steps) + len(self.prefills)


PROBE_SAMPLES = 240


class LoopGuard:
    """Trips when code 0 repeats one pattern of at most ``max_period`` frames for ``limit_frames`` frames."""

    def __init__(self, limit_frames: int, max_period: int) -> None:
        self.limit_frames = limit_frames
        self.max_period = max_period
        self._history: deque[int] = deque(maxlen=max_period + 1)
        # By period; None while nothing repeats.
        self._run_lengths: list[int] | None = None

    def push(self, code: int) -> bool:
        history = self._history
        if code not in history:
            history.append(code)
            self._run_lengths = None
            return False
        history.append(code)
        runs = self._run_lengths = self._run_lengths or [0] * (self.max_period + 1)
        for period in range(1, self.max_period + 1):
            same = len(history) > period and history[-1 - period] == code
            runs[period] = runs[period] + 1 if same else 0
        return any(run + period >= self.limit_frames for period, run in enumerate(runs) if run)


class SilenceGuard:
    """Trips when ``limit_samples`` samples in a row stay below the level, counted only while armed."""

    def __init__(self, limit_samples: int, level_dbfs: float) -> None:
        self.limit_samples = limit_samples
        self.level = 10 ** (level_dbfs / 20)
        self._quiet_samples = 0

    def push(self, pcm: npt.NDArray[np.float32], armed: bool) -> bool:
        if not armed:
            self._quiet_samples = 0
            return False
        quiet = self._quiet_end(pcm)
        self._quiet_samples = quiet if quiet < len(pcm) else self._quiet_samples + quiet
        return self._quiet_samples >= self.limit_samples

    def _quiet_end(self, pcm: npt.NDArray[np.float32]) -> int:
        """Samples after the last loud one, looked for from the end on: in speech it is near."""
        end, size = len(pcm), PROBE_SAMPLES
        while end > 0:
            start = max(0, end - size)
            # The method, for the function calls five others: 13 us after a pause.
            (loud,) = (np.abs(pcm[start:end]) >= self.level).nonzero()
            if loud.size:
                return len(pcm) - 1 - start - int(loud[-1])
            end, size = start, 4 * size
        return len(pcm)


class RequestReleased(msgspec.Struct, frozen=True):
    """Every resource of the request is free again; follows ``RequestFinished``."""

    request_id: str


# (epoch, event).
Emitted = tuple[int, SpeechEvent | RequestReleased]
