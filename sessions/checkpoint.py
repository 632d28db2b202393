"""What a client keeps of a response, so that any gateway can speak it again sample for sample.

The sound of a response follows from its text, settings and seed, and from two things that time and chance decide: the
codes of its segments, and where segments were closed early. Checkpoints tell these as they come about, ahead of the
audio that they decide. Between segments there is nothing to tell: the silence of a flush is the same in all formats of
a wire with checkpoints.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from engine.api import InvalidRequest, ResumePoint


class EarlyCut(NamedTuple):
    """Where a segment was closed before its end, in characters and flushes of the text."""

    num_chars: int
    num_flushes: int


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """What became known of a segment since the last checkpoint."""

    # Number of the segment.
    segment: int
    # Whether all text of the segment was there when it was submitted: the model reads it in another layout.
    is_text_closed: bool
    # Whether no codes follow.
    is_complete: bool
    # As in ``SpeechChunk.codes``.
    codes: bytes
    # New ones, of any segment.
    cuts: tuple[EarlyCut, ...] = ()

    def encode(self) -> str:
        return base64.b64encode(msgspec.msgpack.encode(self)).decode()

    @classmethod
    def decode(cls, data: str) -> Checkpoint:
        """Raises ``ValueError``."""
        try:
            return msgspec.msgpack.decode(base64.b64decode(data, validate=True), type=cls)
        except (binascii.Error, msgspec.MsgspecError) as error:
            raise ValueError(str(error)) from None


@dataclass(slots=True)
class SpokenSegment:
    """A segment as far as it was spoken."""

    is_text_closed: bool
    codes: bytearray = field(default_factory=bytearray)
    is_complete: bool = False

    @property
    def point(self) -> ResumePoint | None:
        """What the engine needs to speak it again; ``None`` where that is the text alone."""
        point = ResumePoint(codes=bytes(self.codes), num_samples=0, is_complete=self.is_complete)
        return point if point.is_replay else None


@dataclass(frozen=True, slots=True)
class Replay:
    """A response that another gateway began, as its client knows it."""

    segments: Sequence[SpokenSegment] = ()
    cuts: Sequence[EarlyCut] = ()
    num_checkpoints: int = 0
    # Position of the listener, as ``ResponseAudio.start_sample`` counts.
    received_samples: int = 0
    # ``None``: all that was received.
    played_ms: float | None = None
    received_flushes: int = 0
    received_words: int = 0

    @classmethod
    def from_checkpoints(
        cls,
        checkpoints: Sequence[str],
        max_chars: int,
        *,
        received_samples: int = 0,
        played_ms: float | None = None,
        received_flushes: int = 0,
        received_words: int = 0,
    ) -> Replay:
        """Read what a client has kept, in order. The engine checks the codes. Raises ``InvalidRequest``."""
        segments: list[SpokenSegment] = []
        cuts: list[EarlyCut] = []
        for index, data in enumerate(checkpoints):
            try:
                _append(Checkpoint.decode(data), segments, cuts, max_chars)
            except ValueError as error:
                raise InvalidRequest(f"checkpoints[{index}] is not valid: {error}", "checkpoints") from None
        return cls(segments, cuts, len(checkpoints), received_samples, played_ms, received_flushes, received_words)


def _append(found: Checkpoint, segments: list[SpokenSegment], cuts: list[EarlyCut], max_chars: int) -> None:
    """Raises ``ValueError``."""
    if found.segment == len(segments) and all(segment.is_complete for segment in segments):
        segments.append(SpokenSegment(found.is_text_closed))
    last = segments[-1] if segments else None
    if last is None or found.segment != len(segments) - 1 or last.is_complete:
        raise ValueError(f"it is of segment {found.segment}; {len(segments)} were known")
    last.codes += found.codes
    last.is_complete = found.is_complete
    cuts += found.cuts
    for before, cut in itertools.pairwise([EarlyCut(0, 0), *cuts[-len(found.cuts) - 1 :]]):
        if not before <= cut or not before.num_flushes <= cut.num_flushes <= max_chars or cut.num_chars > max_chars:
            raise ValueError(f"cut {tuple(cut)} follows {tuple(before)}; the limit is {max_chars}")


class CheckpointLog:
    """Decides what is new to a client that knows a replay, while the response is spoken."""

    def __init__(self, replay: Replay) -> None:
        self._num_known = [(len(segment.codes), segment.is_complete) for segment in replay.segments]
        self._num_cuts_known = len(replay.cuts)
        self._num_bytes = 0
        # Of the next checkpoint.
        self.index = replay.num_checkpoints

    def add(
        self, segment: int, is_text_closed: bool, codes: bytes, cuts: Sequence[EarlyCut], is_complete: bool
    ) -> Checkpoint | None:
        """Return what is new of a segment's next codes, or of its end; ``cuts`` are all of the response so far.

        ``None`` if nothing is."""
        num_codes_known, was_complete = self._num_known[segment] if segment < len(self._num_known) else (0, False)
        new_codes = codes[max(num_codes_known - self._num_bytes, 0) :]
        self._num_bytes = 0 if is_complete else self._num_bytes + len(codes)
        new_cuts = tuple(cuts[self._num_cuts_known :])
        self._num_cuts_known += len(new_cuts)
        if not new_codes and not new_cuts and (was_complete or not is_complete):
            return None
        self.index += 1
        return Checkpoint(segment, is_text_closed, is_complete, new_codes, new_cuts)
