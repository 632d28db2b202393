"""The flow block by block over static buffers: one ODE step for many blocks at once, each at a step of its own.

A block task lives at a *workspace*: its frames ``x``, and the estimator's conditions, which stay the same for all
steps. Its keys, values and convolution tails go to its page before any task of the call reads them, so that blocks of
one row can go through the steps side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.cosyvoice3.flow import (
    LOOK_BACK_TOKENS,
    NOISE_FRAMES,
    DitAttention,
    Flow,
    ode_timesteps,
    positional_noise,
)
from engine.models.cosyvoice3.flow_memory import (
    BRANCHES,
    NO_TOKEN,
    ZERO_PAGE,
    BlockSequence,
    BlockShape,
    FlowBlockTask,
    FlowPageStore,
    PromptSequence,
    StreamSequence,
)
from engine.ops.flow import FlowCall, FlowOps, GroupedConvWeights
from engine.program.buffers import DeviceEvent, to_device
from engine.program.capture import GraphSet, bucket_for

DUMMY_WORKSPACE = 0
# Sets of inputs on their way to the device at once.
NUM_HOST_BUFFERS = 4


class InputColumns:
    """Layout of one row of the inputs; the table follows."""

    PLACE, STEP, PAGE, BEFORE, BLOCK, COUNT, FRAMES = range(7)
    TABLE = 7


class FlowLayerWeights(NamedTuple):
    qkv: tuple[Tensor, Tensor]
    out: nn.Linear
    wide: nn.Linear
    back: nn.Linear


class FlowHostStaging:
    """Host buffers of inputs, and the event that says when they were copied."""

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        self.rows = torch.zeros(num_rows, width, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.read = DeviceEvent(device)


def joint_qkv(attention: DitAttention) -> tuple[Tensor, Tensor]:
    """One product for three, for all who run these weights; they are not held twice."""
    if attention.joint is None:
        parts = attention.to_q, attention.to_k, attention.to_v
        weight, bias = (torch.cat([getattr(part, name) for part in parts]).detach() for name in ("weight", "bias"))
        for part, own in zip(parts, weight.chunk(3), strict=True):
            part.weight.data = own
        attention.joint = weight, bias
    return attention.joint


class FlowProgram:
    """Run ODE steps. ``inputs``, ``x`` and ``conditions`` never move: a graph of ``run`` holds their addresses."""

    def __init__(
        self, flow: Flow, pages: FlowPageStore, ops: FlowOps, max_cells: int, num_workspaces: int, max_blocks: int
    ) -> None:
        dit = flow.dit.config
        self.flow, self.pages, self.ops = flow, pages, ops
        self.device, self.frames, self.dtype = flow.device, dit.block_frames, pages.keys.dtype
        self.heads = dit.heads
        width = InputColumns.TABLE + max_blocks
        self.ratio, lookahead = flow.config.token_mel_ratio, flow.config.pre_lookahead_tokens
        self.tokens = dit.block_frames // self.ratio
        # Of blocks to open: workspace, block and tokens around; the prompt's mel; the speaker.
        window = LOOK_BACK_TOKENS + self.tokens + lookahead
        self.openings = torch.zeros(max_cells, 2 + window, dtype=torch.int64, device=self.device)
        self.inputs = torch.zeros(max_cells, width, dtype=torch.int64, device=self.device)
        self.stagings = [FlowHostStaging(max_cells, width, self.device) for _ in range(NUM_HOST_BUFFERS)]
        fresh = {"device": self.device, "dtype": torch.float32}
        self.x = torch.zeros(num_workspaces + 1, self.frames, dit.mel_bins, **fresh)
        self.conditions = torch.zeros(num_workspaces + 1, self.frames, dit.dim, **fresh)
        self.mels = torch.zeros(max_cells, self.frames, dit.mel_bins, **fresh)
        self.speakers = torch.zeros(max_cells, dit.mel_bins, **fresh)
        self.noise = positional_noise(dit.mel_bins).to(self.device)
        self.time_steps = ode_timesteps(flow.config.ode_steps).diff().to(self.device)
        self.moments = flow.modulations()
        self.layers = [
            FlowLayerWeights(joint_qkv(block.attn), block.attn.to_out[0], block.ff.ff[0][0], block.ff.ff[2])
            for block in flow.dit.transformer_blocks
        ]
        embed = flow.dit.input_embed
        self.convs = [
            GroupedConvWeights.of(conv[0]) for conv in (embed.conv_pos_embed.conv1, embed.conv_pos_embed.conv2)
        ]
        self.x_weight = embed.proj.weight[:, : dit.mel_bins].contiguous()
        self.condition_weight = embed.proj.weight[:, dit.mel_bins :].contiguous()
        self.bias = embed.proj.bias

    def open(self, num_cells: int) -> None:
        """Put the first blocks of ``openings`` at their workspaces, as noise."""
        given = self.openings[:num_cells]
        places, block, tokens = given[:, 0], given[:, 1:2], given[:, 2:]
        is_past = block * self.tokens + torch.arange(-LOOK_BACK_TOKENS, self.tokens, device=self.device) >= 0
        mu = self.flow.token_path(tokens.clamp(min=0), tokens != NO_TOKEN, is_past).repeat_interleave(self.ratio, 1)
        speakers = self.speakers[:num_cells, None].expand(-1, self.frames, -1)
        inputs = torch.cat((self.mels[:num_cells], mu, speakers), -1)
        self.conditions.index_copy_(0, places, F.linear(inputs, self.condition_weight, self.bias))
        at = block * self.frames + torch.arange(self.frames, device=self.device)
        self.x.index_copy_(0, places, self.noise[at % NOISE_FRAMES])

    def stage(self, cells: Sequence[FlowBlockTask], num_cells: int) -> None:
        """Tell the next calls which cells they work on, padded with dummies."""
        staging = self.stagings[0]
        self.stagings.append(self.stagings.pop(0))
        staging.read.wait()
        rows = staging.rows.numpy()[:num_cells]
        rows[:, InputColumns.TABLE :] = ZERO_PAGE
        rows[len(cells) :, : InputColumns.TABLE + 1] = (
            DUMMY_WORKSPACE,
            0,
            self.pages.scratch,
            ZERO_PAGE,
            0,
            1,
            1,
            self.pages.scratch,
        )
        for row, cell in zip(rows, cells, strict=False):
            before = cell.table[-2] if len(cell.table) > 1 else ZERO_PAGE
            row[: InputColumns.TABLE] = (
                cell.workspace, cell.step, cell.table[-1], before, cell.block, len(cell.table), cell.num_frames
            )  # fmt: skip
            row[InputColumns.TABLE : InputColumns.TABLE + len(cell.table)] = cell.table
        self.inputs[:num_cells].copy_(staging.rows[:num_cells], non_blocking=True)
        staging.read = DeviceEvent(self.device)

    def run(self, num_cells: int, num_blocks: int) -> None:
        """One Euler step of the staged cells, which are then at their next; tables are read up to ``num_blocks``."""
        given = self.inputs[:num_cells]
        place, step = given[:, InputColumns.PLACE], given[:, InputColumns.STEP]
        call = self.call(given, num_blocks)
        x = self.x[place]
        h = self.embed(x, place)
        h = self.position_frames(h, call)
        blocks, outputs = (values[step] for values in self.moments)
        conditioned, free = self.velocity(*self.run_blocks(h, blocks, call), outputs).unbind(1)
        weights, dt = self.flow.guidance, self.time_steps[step][:, None, None]
        x = x + dt * (weights.conditioned * conditioned - weights.free * free)
        self.x.index_copy_(0, place, x)
        self.x[DUMMY_WORKSPACE].zero_()
        step += 1
        step.remainder_(self.pages.num_steps)

    def call(self, given: Tensor, num_blocks: int) -> FlowCall:
        _, step, page, before, block, count, frames = given[:, : InputColumns.TABLE].unbind(1)
        lines, table = self.pages.flat_indices, given[:, InputColumns.TABLE : InputColumns.TABLE + num_blocks]
        positions = block[:, None] * self.frames + torch.arange(self.frames, device=self.device)
        angles = positions[..., None] * self.flow.dit.rotary_embed.inv_freq
        return FlowCall(
            own=lines(page, step).flatten(),
            before=lines(before, step).flatten(),
            visible=lines(table, step[:, None]).flatten(0, 1),
            num_visible=((count - 1) * self.frames + frames).repeat_interleave(BRANCHES),
            angles=angles.repeat_interleave(BRANCHES, 0),
        )

    def embed(self, x: Tensor, place: Tensor) -> Tensor:
        """x [n, frames, mel] -> [n * 2, frames, dim]; the free branch has no condition."""
        own = F.linear(x, self.x_weight)
        return torch.stack((own + self.conditions[place], own + self.bias), 1).flatten(0, 1)

    def position_frames(self, h: Tensor, call: FlowCall) -> Tensor:
        y = h
        for conv, tails in zip(self.convs, self.pages.tails, strict=True):
            y = y.to(self.dtype)
            tails.index_copy_(0, call.own, y[:, -tails.shape[1] :])
            y = self.ops.mish_conv(conv, torch.cat((tails[call.before], y), 1))
        return h + y

    def run_blocks(self, h: Tensor, moments: Tensor, call: FlowCall) -> tuple[Tensor, Tensor, Tensor]:
        """h [n * 2, frames, dim], moments [n, depth, 6, dim] -> h, what is still to be added, and its gate."""
        ops, added, gate = self.ops, None, None
        for number, layer in enumerate(self.layers):
            shift, scale, gate_heard, shift_mlp, scale_mlp, gate_mlp = moments[:, number].unbind(1)
            h, x = ops.modulate(h, added, gate, scale, shift, self.dtype)
            qkv = F.linear(x, *layer.qkv)
            heard = ops.attend(qkv, self.pages.keys[number], self.pages.values[number], call, self.heads)
            h, x = ops.modulate(h, layer.out(heard), gate_heard, scale_mlp, shift_mlp, self.dtype)
            added, gate = layer.back(ops.gelu(layer.wide(x))), gate_mlp
        return h, added, gate

    def velocity(self, h: Tensor, added: Tensor, gate: Tensor, outputs: Tensor) -> Tensor:
        """-> [n, 2, frames, mel]."""
        scale, shift = outputs.unbind(1)
        _, out = self.ops.modulate(h, added, gate, scale, shift, torch.float32)
        proj = self.flow.dit.proj_out
        return F.linear(out, proj.weight, proj.bias).unflatten(0, (-1, BRANCHES))


CELL_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


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
        # Launches one by one take longer than what they do, and a first chunk waits for them.
        self.openings = GraphSet(self.program.open, flow.device, enabled=graphs)
        self.cell_sizes = [*(size for size in CELL_BUCKETS if size < max_cells), max_cells]
        self.table_sizes = ops.table_sizes(pages.num_pages + 1)
        self.pads_tables = flow.device.type == "cuda"
        self.no_mel = torch.zeros(config.dit.block_frames, config.dit.mel_bins, device=self.device)

    def capture_graphs(self) -> None:
        """Capture a graph for each number of blocks, over dummy blocks; widths of padded tables are not known
        beforehand.
        """
        self.program.stage([], self.cell_sizes[-1])
        if len(self.table_sizes) == 1:
            for num_cells in reversed(self.cell_sizes):
                self.graphs.capture(num_cells, self.table_sizes[0])
        for num_cells in reversed(self.cell_sizes):
            self.openings.capture(num_cells)

    def voice(self, mel: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """A prompt's mel on the device by blocks, zeros behind it, and the estimator's conditions of the speaker."""
        frames = self.program.frames
        padded = F.pad(mel, (0, 0, 0, -len(mel) % frames)).unflatten(0, (-1, frames))
        mel = to_device(padded, torch.float32, self.device)
        return mel, self.flow.speaker(to_device(embedding, torch.float32, self.device))

    # -- opening -------------------------------------------------------------------------------------------------

    def open(self, cells: Sequence[FlowBlockTask]) -> None:
        """Put cells at their places, as noise."""
        most = self.cell_sizes[-1]
        for start in range(0, len(cells), most):
            self.open_some(cells[start : start + most])

    def open_some(self, cells: Sequence[FlowBlockTask]) -> None:
        count, program = len(cells), self.program
        num_cells = bucket_for(self.cell_sizes, count) if self.pads_tables else count
        given = [self.opening(cell) for cell in cells] + [[DUMMY_WORKSPACE] * program.openings.shape[1]] * (
            num_cells - count
        )
        program.openings[:num_cells] = to_device(given, torch.int64, self.device)
        voices = [prompt_of(cell.row) for cell in cells]
        mels = [self.cond(voice, cell.block) for voice, cell in zip(voices, cells, strict=True)]
        torch.stack(mels, out=program.mels[:count])
        torch.stack([voice.speaker for voice in voices], out=program.speakers[:count])
        self.openings.replay(num_cells)

    def opening(self, cell: FlowBlockTask) -> list[int]:
        start = cell.block * self.shape.tokens
        window = cell.row.window(start - LOOK_BACK_TOKENS, start + self.shape.tokens + self.shape.lookahead)
        return [cell.workspace, cell.block, *window]

    def cond(self, voice: PromptSequence, block: int) -> Tensor:
        """The prompt's mel where there is any, [frames, 80]."""
        assert voice.mel is not None
        return voice.mel[block] if block < len(voice.mel) else self.no_mel

    # -- going on ------------------------------------------------------------------------------------------------

    def advance(self, cells: Sequence[FlowBlockTask], num_steps: int) -> None:
        """Run ``count`` ODE steps for all of these together, or as many as are left."""
        num_cells = bucket_for(self.cell_sizes, len(cells))
        num_blocks = max(len(cell.table) for cell in cells)
        if self.pads_tables:
            num_blocks = bucket_for(self.table_sizes, num_blocks)
        self.program.stage(cells, num_cells)
        for _ in range(min(num_steps, *(self.shape.steps - cell.step for cell in cells))):
            self.graphs.replay(num_cells, num_blocks)
            for cell in cells:
                cell.step += 1

    def mel(self, cell: FlowBlockTask, first_frame: int) -> Tensor:
        """Return the result of a finished cell: frames from ``first_frame`` on, [n, 80]."""
        return self.program.x[cell.workspace, first_frame : cell.num_frames].clone()
