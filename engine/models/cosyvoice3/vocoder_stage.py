"""Utterances in the vocoder, by slots: which frames enter, which samples are given out; and their way to the host.

Law: after frames F of an utterance ``frame_samples * (F - WITHHELD_FRAMES)`` samples are out, and all of them after its
last push; how the mel was cut does not show in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.models.base import Pcm
from engine.models.cosyvoice3.flow_memory import StreamSequence
from engine.models.cosyvoice3.hift import LEAD_FRAMES, NO_END, WITHHELD_FRAMES, Hift, HiftState
from engine.program.buffers import DeviceEvent, to_device
from engine.program.capture import GraphSet, bucket_for
from engine.program.isolate import isolate

MAX_CALL_FRAMES = 100
# Rows times frames of one call: half a gigabyte of activations at the released size.
MAX_CALL_CELLS = 1600


@dataclass(slots=True)
class HiftUtterance:
    """Progress of one slot. ``early``: its first frames [k, bins], until there are ``LEAD_FRAMES`` of them."""

    early: Tensor | None
    num_frames: int = 0
    # Frames past the first ``LEAD_FRAMES`` that went through, silence behind the end included.
    num_processed: int = 0
    # Samples.
    num_out: int = 0
    is_over: bool = False


@dataclass(slots=True)
class HiftWork:
    """Frames [n, bins] of one slot that can be worked on, and what came out for them so far."""

    slot: int
    frames: Tensor
    pcm: list[Tensor]
    error: Exception | None = None

    def fail(self, error: Exception) -> None:
        self.error, self.frames = error, self.frames[:0]


class HiftBatch:
    def __init__(self, hift: Hift, num_slots: int) -> None:
        self.hift = hift
        self.state = hift.new_state(num_slots)
        self.utterances: dict[int, HiftUtterance] = {}
        # Opened, and not yet cleared.
        self.fresh: list[int] = []

    @property
    def device(self) -> torch.device:
        return self.state.values.device

    def open(self, slot: int) -> None:
        self.fresh.append(slot)
        self.utterances[slot] = HiftUtterance(early=self.state.values.new_zeros(0, self.hift.config.mel_bins))

    def clear_fresh(self) -> None:
        """Zero the states of all slots that were opened since: one by one, launches would delay their first steps."""
        if self.fresh:
            index = to_device(self.fresh, torch.int64, self.device)
            for values in (self.state.values, self.state.phase, self.state.num_frames):
                values.index_fill_(0, index, 0)
            self.fresh = []

    def close(self, slot: int) -> None:
        del self.utterances[slot]

    def push(self, slots: Sequence[int], mels: Sequence[Tensor], final: Sequence[bool]) -> list[Tensor]:
        """The next frames [F_i, bins] of different slots, F_i >= 0 -> the samples [n_i] that are ready; no waiting.

        Raises ``ValueError`` when a slot is pushed to after its final push, and whatever else was raised for one.
        """
        found = []
        for out in self.push_each(slots, mels, final):
            if isinstance(out, Exception):
                raise out
            found.append(out)
        return found

    @torch.inference_mode()
    def push_each(
        self, slots: Sequence[int], mels: Sequence[Tensor], final: Sequence[bool]
    ) -> list[Tensor | Exception]:
        """Push to several slots; a slot whose work raises gets the error in place of samples."""
        self.clear_fresh()
        works = [HiftWork(slot, mel[:0], []) for slot, mel in zip(slots, mels, strict=True)]
        for work, mel, is_final in zip(works, mels, final, strict=True):
            try:
                work.frames = self._enqueue_frames(work.slot, mel, is_final)
            except Exception as error:
                work.fail(error)
        open_works = [work for work in works if len(work.frames)]
        while open_works:
            for run, num_frames in split_into_calls(open_works):
                # A work that raises can be tried again: its state is written last.
                isolate(partial(self._advance, num_frames=num_frames), run, HiftWork.fail)
            open_works = [work for work in open_works if len(work.frames)]
        return [work.error or self._joined(work) for work in works]

    def _joined(self, work: HiftWork) -> Tensor:
        return torch.cat(work.pcm) if work.pcm else self.state.values.new_zeros(0)

    def _enqueue_frames(self, slot: int, mel: Tensor, is_final: bool) -> Tensor:
        """Return the frames that can be processed now; the first ones only enter the state."""
        utterance = self.utterances[slot]
        if utterance.is_over:
            raise ValueError(f"slot {slot} had its last frames before")
        utterance.num_frames += len(mel)
        utterance.is_over = is_final
        if is_final and utterance.num_frames == 0:
            return mel
        pieces = [mel] if utterance.early is None or not len(utterance.early) else [utterance.early, mel]
        if is_final:
            pieces.append(mel.new_zeros(WITHHELD_FRAMES, mel.shape[1]))
        frames = torch.cat(pieces) if len(pieces) > 1 else mel
        if utterance.early is None:
            return frames
        if len(frames) < LEAD_FRAMES:
            utterance.early = frames
            return frames[:0]
        utterance.early = None
        self.hift.fill(self.state, slot, frames[:LEAD_FRAMES].t())
        return frames[LEAD_FRAMES:]

    def _advance(self, works: Sequence[HiftWork], num_frames: int) -> list[None]:
        mel = torch.stack([work.frames[:num_frames] for work in works]).transpose(1, 2)
        ends = [self._end(work.slot) for work in works]
        pcm = self.decode([work.slot for work in works], mel, ends)
        for work, samples in zip(works, pcm, strict=True):
            work.frames = work.frames[num_frames:]
            work.pcm.append(self._collect(self.utterances[work.slot], samples, num_frames))
        return []

    def _end(self, slot: int) -> int:
        utterance = self.utterances[slot]
        return utterance.num_frames if utterance.is_over else NO_END

    def decode(self, slots: Sequence[int], mel: Tensor, ends: Sequence[int]) -> Tensor:
        """One call: mel [B, bins, n] -> [B, n * frame_samples]; the slots' state follows."""
        index, end = (to_device(values, torch.long, self.device) for values in (slots, ends))
        return run_rows(self.hift, self.state, index, mel, end)

    def _collect(self, utterance: HiftUtterance, samples: Tensor, num_frames: int) -> Tensor:
        """Without what lies before the first sample and behind the last."""
        size = self.hift.frame_samples
        begin = size if utterance.num_processed == 0 else 0
        utterance.num_processed += num_frames
        wanted = size * utterance.num_frames - utterance.num_out
        taken = samples[begin : begin + wanted]
        utterance.num_out += len(taken)
        return taken


def run_rows(hift: Hift, state: HiftState, index: Tensor, mel: Tensor, end: Tensor) -> Tensor:
    """``hift`` on the rows ``index`` [B] of ``state``, all different; only tensors, so that a graph can hold it."""
    rows = HiftState(state.values[index], state.phase[index], state.num_frames[index])
    pcm: Tensor = hift(mel, rows, end)
    state.values.index_copy_(0, index, rows.values)
    state.phase.index_copy_(0, index, rows.phase)
    state.num_frames.index_copy_(0, index, rows.num_frames)
    return pcm


def split_into_calls(works: Sequence[HiftWork]) -> Iterator[tuple[Sequence[HiftWork], int]]:
    """Works of as many frames each, and how many of them one call takes."""
    by_count = sorted(works, key=call_frames)
    for num_frames, group in groupby(by_count, key=call_frames):
        same = list(group)
        most = max(1, MAX_CALL_CELLS // num_frames)
        for start in range(0, len(same), most):
            yield same[start : start + most], num_frames


def call_frames(work: HiftWork) -> int:
    return min(len(work.frames), MAX_CALL_FRAMES)


DUMMY_SLOT = 0
ROWS = (1, 2, 4, 8, 16, 32, 64)


class HiftGraphs(HiftBatch):
    """Slot 0 is the dummy that fills calls up. ``lengths``: frames of the calls that are recorded."""

    def __init__(self, hift: Hift, num_slots: int, lengths: Sequence[int]) -> None:
        super().__init__(hift, num_slots)
        self.sizes = {n: [rows for rows in ROWS if rows * n <= MAX_CALL_CELLS] for n in lengths if n > 0}
        most_rows, most_frames = max(rows[-1] for rows in self.sizes.values()), max(self.sizes)
        fresh = {"device": self.device, "dtype": torch.float32}
        self.mel = torch.zeros(most_rows, hift.config.mel_bins, most_frames, **fresh)
        self.pcm = torch.zeros(most_rows, most_frames * hift.frame_samples, **fresh)
        self.slots = torch.zeros(most_rows, dtype=torch.int64, device=self.device)
        self.ends = torch.full_like(self.slots, NO_END)
        self.graphs = GraphSet(self.run, self.device)

    def run(self, num_rows: int, num_frames: int) -> None:
        pcm = run_rows(
            self.hift, self.state, self.slots[:num_rows], self.mel[:num_rows, :, :num_frames], self.ends[:num_rows]
        )
        self.pcm[:num_rows, : pcm.shape[1]] = pcm

    def capture_graphs(self) -> None:
        """Capture all graphs, largest first, before the first request."""
        for num_frames, sizes in sorted(self.sizes.items(), reverse=True):
            for rows in reversed(sizes):
                self.graphs.capture(rows, num_frames)

    def decode(self, slots: Sequence[int], mel: Tensor, ends: Sequence[int]) -> Tensor:
        num_rows, num_frames = len(slots), mel.shape[-1]
        sizes = self.sizes.get(num_frames, [])
        if not sizes or num_rows > sizes[-1]:
            return super().decode(slots, mel, ends)
        padded = bucket_for(sizes, num_rows)
        spare = padded - num_rows
        self.slots[:padded] = to_device([*slots, *[DUMMY_SLOT] * spare], torch.int64, self.device)
        self.ends[:padded] = to_device([*ends, *[NO_END] * spare], torch.int64, self.device)
        self.mel[:num_rows, :, :num_frames] = mel
        self.mel[num_rows:padded] = 0
        self.graphs.replay(padded, num_frames)
        return self.pcm[:num_rows, : num_frames * self.hift.frame_samples].clone()


def common_lengths(block_frames: int, prompt_rest_frames: int) -> tuple[int, ...]:
    """Frames of a block, of two, and of a first block behind a prompt of whole blocks, or of a trimmed one."""
    return block_frames, 2 * block_frames, block_frames - LEAD_FRAMES, block_frames - prompt_rest_frames - LEAD_FRAMES


class CompletedTransfer(NamedTuple):
    row: StreamSequence
    pcm: Pcm
    is_finite: bool


@dataclass(slots=True)
class PendingTransfer:
    """Of each row in order, the given number of samples, and of frames of mel that are finite or not."""

    rows: Sequence[StreamSequence]
    num_samples: list[int]
    num_frames: list[int]
    pcm: Tensor
    finite: Tensor
    done: DeviceEvent


class PcmTransfers:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.flights: deque[PendingTransfer] = deque()

    def __bool__(self) -> bool:
        return bool(self.flights)

    def holds(self, row: StreamSequence) -> bool:
        return any(row in flight.rows for flight in self.flights)

    def send(self, rows: Sequence[StreamSequence], mels: Sequence[Tensor], pcm: Sequence[Tensor]) -> None:
        """The mel [frames, bins] and the samples [n] of each row; in the current stream's order."""
        sizes = [len(samples) for samples in pcm], [len(mel) for mel in mels]
        finite = torch.isfinite(torch.cat(list(mels))).all(1)
        landing = self.to_host(torch.cat(list(pcm))), self.to_host(finite)
        self.flights.append(PendingTransfer(rows, *sizes, *landing, DeviceEvent(self.device)))

    def to_host(self, values: Tensor) -> Tensor:
        if self.device.type != "cuda":
            return values
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        return host.copy_(values, non_blocking=True)

    def collect(self) -> Iterator[CompletedTransfer]:
        """Return finished calls in order, up to a row that occurs again."""
        seen: set[int] = set()
        while self.flights and self.flights[0].done.is_done:
            slots = {row.slot for row in self.flights[0].rows}
            if seen & slots:
                return
            seen |= slots
            flight = self.flights.popleft()
            pieces = np.split(flight.pcm.numpy(), np.cumsum(flight.num_samples)[:-1])
            frames = np.split(flight.finite.numpy(), np.cumsum(flight.num_frames)[:-1])
            for row, pcm, finite in zip(flight.rows, pieces, frames, strict=True):
                yield CompletedTransfer(row, pcm.copy(), bool(finite.all() and np.isfinite(pcm).all()))
