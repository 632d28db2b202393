"""CosyVoice3's decode stage: speech tokens to mel to PCM, in slices of ODE steps over the blocks of all slots.

Exact: a slot sees all its blocks before, so that what it says equals one pass over the whole. With
``context_blocks`` it sees that many (and its voice's), and its memory does not grow; a slot for which there is no page
goes on like that too. Every frame is rendered once, so chunks abut in both modes.

Nothing here waits for the device: ``step`` queues work on streams of its own, and hands over what has passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.memory.block_pool import SlotTable
from engine.models.base import DecodedAudio, VoiceReference
from engine.models.cosyvoice3.flow import LOOK_BACK_TOKENS, Flow
from engine.models.cosyvoice3.flow_memory import (
    BlockSequence,
    FlowBlockTask,
    FlowPagePool,
    FlowPageStore,
    PromptSequence,
    StreamSequence,
    num_pages,
    select_blocks,
)
from engine.models.cosyvoice3.flow_program import FlowRunner, prompt_of
from engine.models.cosyvoice3.hift import WITHHELD_FRAMES, Hift
from engine.models.cosyvoice3.settings import CosyVoice3Settings
from engine.models.cosyvoice3.vocoder_stage import HiftBatch, HiftGraphs, PcmTransfers, common_lengths
from engine.models.cosyvoice3.voice import FLOW_REST
from engine.ops.flow import select_flow_ops
from engine.program.buffers import DeviceEvent
from engine.program.decode_executor import new_stream
from engine.program.isolate import isolate

NO_PCM = np.zeros(0, dtype=np.float32)
ANY: Mapping[int, int] = {}
# Limit of flow calls queued on the device; a new request waits behind all of them. The vocoder takes less time.
MAX_QUEUED_SLICES = 2
PROMPT_WORKSPACES = 32
# Limit of blocks in flight per slot, so that a new request finds room in the queue.
MAX_HOPS_PER_STEP = 2


class CosyDecodeStage:
    def __init__(
        self,
        flow: Flow,
        hift: Hift,
        num_slots: int,
        settings: CosyVoice3Settings,
        device: torch.device,
        max_cached_voices: int,
    ) -> None:
        self.settings, self.device = settings.flow, device
        ops = select_flow_ops(device, settings.flow.triton_kernels)
        hift.use(ops)
        self.vocoder = self.make_vocoder(flow, hift, num_slots + 1, settings.vocoder.graphs)
        self.sample_rate: int = hift.config.sample_rate
        self.mel_samples: int = hift.config.frame_samples
        self.frame_samples = flow.config.token_mel_ratio * self.mel_samples
        pages = FlowPageStore(flow.config, num_pages(flow, settings.flow), flow.compute_dtype, device)
        self.max_cells_of_slot = MAX_HOPS_PER_STEP * max(settings.flow.chunk_blocks)
        num_places = num_slots * self.max_cells_of_slot + PROMPT_WORKSPACES
        self.runner = FlowRunner(flow, pages, ops, settings.flow.max_blocks_per_step, num_places, settings.flow.graphs)
        self.shape = self.runner.shape
        self.memory = FlowPagePool(settings.flow, self.shape, pages.num_pages, num_places, max_cached_voices)
        self.slots = SlotTable(num_slots)
        self.streams: dict[int, StreamSequence] = {}
        self.failed: list[StreamSequence] = []
        self.flights = PcmTransfers(device)
        self.slices: deque[DeviceEvent] = deque()
        # A vocoder call is many small kernels, so ODE steps of other blocks run beside it.
        self.stream, self.vocoder_stream = new_stream(device), new_stream(device)
        self.dummy_row = PromptSequence([], mel=self.runner.no_mel[:0])
        with torch.inference_mode():
            self.dummy_row.speaker = flow.speaker(torch.zeros(flow.config.spk_embed_size, device=device))
        DeviceEvent(device).wait()

    def make_vocoder(self, flow: Flow, hift: Hift, num_rows: int, graphs: bool) -> HiftBatch:
        if self.device.type != "cuda" or not graphs:
            return HiftBatch(hift, num_rows)
        frames = flow.config.dit.block_frames
        return HiftGraphs(hift, num_rows, common_lengths(frames, FLOW_REST * flow.config.token_mel_ratio))

    @torch.inference_mode()
    def record(self) -> None:
        """Capture the graphs of both parts before the first request; no effect without graphs."""
        self.runner.capture_graphs()
        if isinstance(self.vocoder, HiftGraphs):
            self.vocoder.capture_graphs()

    @property
    def chunk_frames(self) -> int:
        """One block, what it hears ahead, and what the vocoder withholds."""
        return self.shape.tokens + self.shape.lookahead + WITHHELD_FRAMES // self.shape.ratio

    @property
    def num_bounded(self) -> int:
        return self.memory.num_bounded

    # -- slots ---------------------------------------------------------------------------------------------------

    def reserve(self) -> int | None:
        pages = self.memory.admit() if self.slots.num_free else None
        slot = self.slots.reserve() if pages is not None else None
        if slot is None or pages is None:
            return None
        self.streams[slot] = row = StreamSequence([], reserved_pages=pages, slot=slot)
        row.begin(self.dummy_row)
        self.vocoder.open(slot)
        return slot

    @torch.inference_mode()
    def prime(self, slot: int, reference: VoiceReference) -> None:
        """Let a fresh slot speak like ``reference.prompt``, a ``VoicePrompt``; equal keys share its blocks.

        One that cannot be fails its slot, at the next step.
        """
        row = self.streams[slot]
        prompt = self.memory.prompts.find(reference.key)
        if prompt is None:
            try:
                prompt = self.prepare_prompt(reference)
            except Exception as error:
                self.fail(row, error)
                return
        row.begin(prompt)

    def resume(
        self, slot: int, reference: VoiceReference | None, frames: Sequence[Sequence[int]], num_received: int
    ) -> int:
        """A frame is made from all before it: all are made again."""
        if reference is not None:
            self.prime(slot, reference)
        for codes in frames:
            self.feed(slot, codes)
        return 0

    def prepare_prompt(self, reference: VoiceReference) -> PromptSequence:
        voice = reference.prompt
        tokens = voice.tokens.tolist()
        for token in tokens:
            self.check(token)
        if len(voice.mel) != self.shape.ratio * len(tokens):
            raise ValueError(f"the prompt has {len(tokens)} tokens and {len(voice.mel)} mel frames; 2 go to a token")
        if not (torch.isfinite(voice.mel).all() and torch.isfinite(voice.embedding).all()):
            raise ValueError("the prompt's mel and embedding must be finite")
        with torch.cuda.stream(self.stream):
            mel, speaker = self.runner.voice(voice.mel, voice.embedding)
        prompt = self.memory.prompt(reference.key, tokens)
        prompt.mel, prompt.speaker = mel, speaker
        return prompt

    def check(self, token: int) -> None:
        limit = self.runner.flow.config.vocab_size
        if not 0 <= token < limit:
            raise ValueError(f"token {token} is outside the codebook of {limit}")

    def feed(self, slot: int, codes: Sequence[int]) -> None:
        (token,) = codes
        self.check(token)
        row = self.streams[slot]
        row.tokens.append(token)
        row.num_fed += 1

    def finalize(self, slot: int) -> None:
        self.streams[slot].is_final = True

    def num_pending(self, slot: int) -> int:
        row = self.streams[slot]
        return row.num_fed - row.num_left

    def makes_first_chunk(self, slot: int) -> bool:
        """What its blocks hold of the prompt, and what the vocoder withholds, is no sound."""
        row = self.streams[slot]
        num_own = row.num_opened * self.shape.tokens - len(row.prompt.tokens)
        will_sound = num_own * self.shape.ratio > WITHHELD_FRAMES
        return row.num_left == 0 and will_sound and (bool(row.cells) or self.flights.holds(row))

    @property
    def busy(self) -> bool:
        rows = self.rows({})
        return bool(self.failed or self.flights) or any(row.cells or self.num_ready(row) for row in rows)

    def release(self, slot: int) -> None:
        """Work in flight for it is dropped when it lands; the next user of its memory comes behind it in the queue."""
        self.memory.release_prompt(self.streams.pop(slot))
        self.vocoder.close(slot)
        self.slots.release(slot)

    def release_quarantined(self) -> None:
        self.slots.release_quarantined()
        self.memory.pool.release_quarantined()

    # -- a step --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self, slack_s: Mapping[int, float], wanted_frames: Mapping[int, int] = ANY) -> list[DecodedAudio]:
        """Chunks are blocks, whatever is wanted."""
        with torch.cuda.stream(self.stream):
            while self.slices and self.slices[0].is_done:
                self.slices.popleft()
            if len(self.slices) < MAX_QUEUED_SLICES:
                rows = self.rows(slack_s)
                self.open_blocks(rows, slack_s)
                self.advance(rows)
                self.vocode(self.finish_blocks(rows))
        return self.failures() + self.collect_pcm()

    def rows(self, slack_s: Mapping[int, float]) -> list[BlockSequence]:
        """All that can go on, the most urgent first; a prompt is as urgent as who waits for it."""
        streams = [row for row in self.streams.values() if not row.error]
        urgent = sorted(streams, key=lambda row: (slack_s.get(row.slot, 0.0), row.num_left > 0, row.slot))
        ordered: dict[BlockSequence, None] = {}
        for row in urgent:
            if not row.prompt.is_done:
                ordered.setdefault(row.prompt)
            ordered.setdefault(row)
        return list(ordered)

    def num_ready(self, row: BlockSequence) -> int:
        if isinstance(row, PromptSequence):
            return row.num_blocks - row.num_opened
        assert isinstance(row, StreamSequence)
        return row.num_ready(self.shape)

    def num_to_open(self, row: BlockSequence, slack_s: Mapping[int, float]) -> int:
        """Blocks now: all of a prompt, a hop of a stream; one whose listener can wait waits for the whole hop."""
        ready = self.num_ready(row)
        if not isinstance(row, StreamSequence):
            return ready
        hops = self.settings.chunk_blocks
        hop = hops[min(row.num_hops, len(hops) - 1)]
        is_patient = slack_s.get(row.slot, 0.0) > self.settings.batching_slack_s and not row.is_final
        room = self.max_cells_of_slot - len(row.cells)
        return 0 if is_patient and ready < hop else min(ready, max(hops), room)

    def open_blocks(self, rows: Sequence[BlockSequence], slack_s: Mapping[int, float]) -> None:
        opened: list[FlowBlockTask] = []
        for row in rows:
            count = len(opened)
            for _ in range(self.num_to_open(row, slack_s)):
                if (cell := self.memory.open(row)) is None:
                    break
                opened.append(cell)
            if isinstance(row, StreamSequence):
                row.num_hops += len(opened) > count
        if opened:
            self.run_isolated(self.runner.open, opened)
        for row in {cell.row for cell in opened if isinstance(cell.row, StreamSequence)}:
            row.discard_before(row.num_opened * self.shape.tokens - LOOK_BACK_TOKENS)

    def advance(self, rows: Sequence[BlockSequence]) -> None:
        healthy = [row for row in rows if not row.error]
        cells, num_steps = select_blocks(healthy, self.settings.max_blocks_per_step, self.shape.steps)
        if not cells:
            return
        num_steps = min(num_steps, self.settings.ode_steps_per_engine_step)
        self.run_isolated(lambda some: self.runner.advance(some, num_steps), cells)
        self.slices.append(DeviceEvent(self.device))

    def run_isolated(self, work: Callable[[Sequence[FlowBlockTask]], None], cells: Sequence[FlowBlockTask]) -> None:
        """``work`` for all cells; when that raises, for each alone, and the rows of those that raise again fail."""

        def run(some: Sequence[FlowBlockTask]) -> list[None]:
            if healthy := [cell for cell in some if not cell.row.error]:
                work(healthy)
            return []

        isolate(run, cells, lambda cell, error: self.fail(cell.row, error))

    def fail(self, row: BlockSequence, error: Exception) -> None:
        """A fault of a prompt fails all requests with that voice and evicts the prompt."""
        row.error = f"{type(error).__name__}: {error}"
        if isinstance(row, StreamSequence):
            self.failed.append(row)
            return
        assert isinstance(row, PromptSequence)
        self.memory.prompts.remove(row)
        for user in self.streams.values():
            if user.prompt is row and not user.error:
                self.fail(user, error)

    def finish_blocks(self, rows: Sequence[BlockSequence]) -> dict[StreamSequence, list[Tensor]]:
        """Mel of the cells that are through, by row; a prompt's is thrown away."""
        mels: dict[StreamSequence, list[Tensor]] = {}
        for row in rows:
            while row.cells and row.cells[0].step == self.shape.steps:
                cell = self.memory.close(row)
                if not isinstance(row, StreamSequence) or row.error:
                    continue
                first = len(prompt_of(row).tokens) * self.shape.ratio - cell.block * self.runner.program.frames
                if first < cell.num_frames:
                    mels.setdefault(row, []).append(self.runner.mel(cell, max(0, first)))
        return mels

    def vocode(self, mels: Mapping[StreamSequence, Sequence[Tensor]]) -> None:
        """Through the vocoder, and off to the host."""
        if not mels:
            return
        rows, joined = list(mels), [torch.cat(list(p)) if len(p) > 1 else p[0] for p in mels.values()]
        lasts = [row.is_final and not row.cells and self.num_ready(row) == 0 for row in rows]
        finished = DeviceEvent(self.device)
        with torch.cuda.stream(self.vocoder_stream):
            finished.make_stream_wait()
            if self.vocoder_stream is not None:
                for mel in joined:
                    mel.record_stream(self.vocoder_stream)
            self.push_mel(rows, joined, lasts)

    def push_mel(self, rows: Sequence[StreamSequence], mels: Sequence[Tensor], lasts: Sequence[bool]) -> None:
        spoken: list[tuple[StreamSequence, Tensor, Tensor]] = []
        for row, mel, out in zip(rows, mels, self.vocoder.push_each([r.slot for r in rows], mels, lasts), strict=True):
            if isinstance(out, Exception):
                self.fail(row, out)
            else:
                spoken.append((row, mel, out))
        if spoken:
            rows_out, mels_out, pcm_out = zip(*spoken, strict=True)
            self.flights.send(rows_out, mels_out, pcm_out)

    def failures(self) -> list[DecodedAudio]:
        failed, self.failed = self.failed, []
        return [DecodedAudio(row.slot, NO_PCM, error=row.error) for row in failed if self.streams.get(row.slot) is row]

    def collect_pcm(self) -> list[DecodedAudio]:
        """Return finished chunks, at most one a slot, without released and failed slots."""
        found = []
        for row, pcm, is_finite in self.flights.collect():
            if self.streams.get(row.slot) is not row or row.error:
                continue
            row.num_left += len(pcm) // self.frame_samples
            if not is_finite:
                row.error = "what the flow or the vocoder made is not finite"
                self.memory.prompts.remove(row.prompt)
                found.append(DecodedAudio(row.slot, NO_PCM, error=row.error))
            elif len(pcm):
                found.append(DecodedAudio(row.slot, pcm))
        return found
