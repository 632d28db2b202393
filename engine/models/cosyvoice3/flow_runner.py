"""Cells on the device: what they are told when they open, a slice of steps for some of them, their mel at the end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.cosyvoice3.flow import LOOK_BACK_TOKENS, Flow
from engine.models.cosyvoice3.flow_blocks import (
    BlockSequence,
    BlockShape,
    FlowBlockTask,
    PromptSequence,
    StreamSequence,
)
from engine.models.cosyvoice3.flow_ops import FlowOps
from engine.models.cosyvoice3.flow_page_store import FlowPageStore
from engine.models.cosyvoice3.flow_program import FlowProgram
from engine.program.buffers import to_device
from engine.program.capture import GraphSet

CELL_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def up_to(sizes: Sequence[int], limit: int) -> list[int]:
    return [*(size for size in sizes if size < limit), limit]


def prompt_of(row: BlockSequence) -> PromptSequence:
    voice = row.prompt if isinstance(row, StreamSequence) else row
    assert isinstance(voice, PromptSequence)
    return voice


class FlowRunner:
    """Knows nothing of who is heard when; ``pages`` and places are lent out by its owner."""

    def __init__(
        self, flow: Flow, pages: FlowPageStore, ops: FlowOps, max_cells: int, num_workspaces: int, graphs: bool
    ) -> None:
        self.flow, self.pages, self.device = flow, pages, flow.device
        config = flow.config
        tokens = config.dit.block_frames // config.token_mel_ratio
        self.shape = BlockShape(tokens, config.pre_lookahead_tokens, config.token_mel_ratio, config.ode_steps)
        self.program = FlowProgram(flow, pages, ops, max_cells, num_workspaces, pages.num_pages + 1)
        self.graphs = GraphSet(self.program.run, flow.device, enabled=graphs)
        self.cell_sizes = up_to(CELL_BUCKETS, max_cells)
        self.table_sizes = ops.table_sizes(pages.num_pages + 1)
        self.pads_tables = flow.device.type == "cuda"

    def capture_graphs(self) -> None:
        """Capture a graph for each number of blocks, over dummy blocks; widths of padded tables are not known
        beforehand.
        """
        self.program.stage([], self.cell_sizes[-1])
        if len(self.table_sizes) == 1:
            for num_cells in reversed(self.cell_sizes):
                self.graphs.capture(num_cells, self.table_sizes[0])

    def voice(self, mel: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """A prompt's mel on the device, and the estimator's conditions of the speaker."""
        mel = to_device(mel, torch.float32, self.device)
        return mel, self.flow.speaker(to_device(embedding, torch.float32, self.device))

    # -- opening -------------------------------------------------------------------------------------------------

    def open(self, cells: Sequence[FlowBlockTask]) -> None:
        """Put cells at their places, as noise."""
        mu = self.token_path(cells)
        voices = [prompt_of(cell.row) for cell in cells]
        cond = torch.stack([self.cond(voice, cell.block) for voice, cell in zip(voices, cells, strict=True)])
        speakers = torch.stack([voice.speaker for voice in voices])[:, None].expand(-1, mu.shape[1], -1)
        places = to_device([cell.workspace for cell in cells], torch.int64, self.device)
        blocks = to_device([cell.block for cell in cells], torch.int64, self.device)
        self.program.open(places, blocks, torch.cat((cond, mu, speakers), -1))

    def token_path(self, cells: Sequence[FlowBlockTask]) -> Tensor:
        """[n, frames, 80]."""
        size, back = self.shape.tokens, LOOK_BACK_TOKENS
        starts = [cell.block * size for cell in cells]
        windows = [
            cell.row.window(start - back, start + size + self.shape.lookahead)
            for cell, start in zip(cells, starts, strict=True)
        ]
        tokens = [[token or 0 for token in window] for window in windows]
        known = [[token is not None for token in window] for window in windows]
        past = [[start + i >= 0 for i in range(-back, size)] for start in starts]
        on_device = (to_device(tokens, torch.int64, self.device), to_device(known, torch.bool, self.device))
        mu = self.flow.token_path(*on_device, to_device(past, torch.bool, self.device))
        return mu.repeat_interleave(self.shape.ratio, 1)

    def cond(self, voice: PromptSequence, block: int) -> Tensor:
        """The prompt's mel where there is any, [frames, 80]."""
        frames = self.program.frames
        assert voice.mel is not None
        part = voice.mel[block * frames : (block + 1) * frames]
        return F.pad(part, (0, 0, 0, frames - len(part)))

    # -- going on ------------------------------------------------------------------------------------------------

    def advance(self, cells: Sequence[FlowBlockTask], num_steps: int) -> None:
        """Run ``count`` ODE steps for all of these together, or as many as are left."""
        num_cells = self.cell_sizes[bisect_left(self.cell_sizes, len(cells))]
        num_blocks = max(len(cell.table) for cell in cells)
        if self.pads_tables:
            num_blocks = self.table_sizes[bisect_left(self.table_sizes, num_blocks)]
        self.program.stage(cells, num_cells)
        for _ in range(min(num_steps, *(self.shape.steps - cell.step for cell in cells))):
            self.graphs.replay(num_cells, num_blocks)
            for cell in cells:
                cell.step += 1

    def mel(self, cell: FlowBlockTask, first_frame: int) -> Tensor:
        """Of a cell that is through: frames from ``first_frame`` on, [n, 80]."""
        return self.program.x[cell.workspace, first_frame : cell.num_frames].clone()
