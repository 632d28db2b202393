"""The flow block by block over static buffers: one ODE step for many blocks at once, each at a step of its own.

A *cell* is one block of one row on its way from noise to mel. It lives at a *place*: its frames ``x``, and what the
estimator's conditions, which stay the same for all steps. A cell's keys, values and convolution tails
go to its page before any cell of the call reads them, so that blocks of one row can go through the steps side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.cosyvoice3.dit import DitAttention
from engine.models.cosyvoice3.flow import NOISE_FRAMES, Flow, ode_timesteps, positional_noise
from engine.models.cosyvoice3.flow_ops import FlowOps
from engine.models.cosyvoice3.flow_page_store import BRANCHES, ZERO_PAGE, FlowPageStore
from engine.program.buffers import DeviceEvent

DUMMY_WORKSPACE = 0
# Sets of inputs on their way to the device at once.
NUM_HOST_BUFFERS = 4


class FlowTaskView(Protocol):
    """A cell as a call sees it: ``table`` lists the pages of the blocks it sees, its own last."""

    workspace: int
    step: int
    block: int
    num_frames: int
    table: list[int]


class InputColumns:
    """Of one row of the inputs; the table follows."""

    PLACE, STEP, PAGE, BEFORE, BLOCK, COUNT, FRAMES = range(7)
    TABLE = 7


class FlowLayerWeights(NamedTuple):
    qkv: tuple[Tensor, Tensor]
    out: nn.Linear
    wide: nn.Linear
    back: nn.Linear


class GroupedConvWeights(NamedTuple):
    """A causal grouped convolution, one product a group: weight [groups, kernel, in, out], bias [groups, 1, out]."""

    weight: Tensor
    bias: Tensor

    @staticmethod
    def of(conv: nn.Conv1d) -> GroupedConvWeights:
        weight = conv.weight.unflatten(0, (conv.groups, -1)).permute(0, 3, 2, 1)
        return GroupedConvWeights(weight.contiguous(), conv.bias.view(conv.groups, 1, -1))

    def __call__(self, joined: Tensor) -> Tensor:
        """joined [B, kernel - 1 + T, dim] -> [B, T, dim]."""
        groups, kernel = self.weight.shape[:2]
        windows = joined.unflatten(-1, (groups, -1)).unfold(1, kernel, 1)
        batch, length = windows.shape[:2]
        flat = windows.permute(2, 0, 1, 4, 3).reshape(groups, batch * length, -1)
        out = torch.baddbmm(self.bias, flat, self.weight.flatten(1, 2))
        return out.view(-1, batch, length, out.shape[-1]).permute(1, 2, 0, 3).flatten(2)


class FlowCall(NamedTuple):
    """The cells of one call, as their lines of the pages: ``own`` and ``before`` [n * 2], ``seen`` [n * 2, blocks];
    ``num_seen`` [n * 2] frames of these; ``angles`` [n * 2, frames, head_dim / 2]."""

    own: Tensor
    before: Tensor
    visible: Tensor
    num_visible: Tensor
    angles: Tensor


class FlowHostStaging:
    """Where inputs leave the host, and when they have left."""

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
    """``inputs`` and ``x``, ``told`` never move: a graph of ``run`` holds their addresses."""

    def __init__(
        self, flow: Flow, pages: FlowPageStore, ops: FlowOps, max_cells: int, num_workspaces: int, max_blocks: int
    ) -> None:
        dit = flow.dit.config
        self.flow, self.pages, self.ops = flow, pages, ops
        self.device, self.frames, self.dtype = flow.device, dit.block_frames, pages.keys.dtype
        self.heads = dit.heads
        width = InputColumns.TABLE + max_blocks
        self.inputs = torch.zeros(max_cells, width, dtype=torch.int64, device=self.device)
        self.stagings = [FlowHostStaging(max_cells, width, self.device) for _ in range(NUM_HOST_BUFFERS)]
        fresh = {"device": self.device, "dtype": torch.float32}
        self.x = torch.zeros(num_workspaces + 1, self.frames, dit.mel_bins, **fresh)
        self.conditions = torch.zeros(num_workspaces + 1, self.frames, dit.dim, **fresh)
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

    def open(self, places: Tensor, blocks: Tensor, inputs: Tensor) -> None:
        """Put blocks [n] of rows at ``places`` [n], as noise; inputs [n, frames, cond + mu + spk]."""
        self.conditions.index_copy_(0, places, F.linear(inputs, self.condition_weight, self.bias))
        at = blocks[:, None] * self.frames + torch.arange(self.frames, device=self.device)
        self.x.index_copy_(0, places, self.noise[at % NOISE_FRAMES])

    def stage(self, cells: Sequence[FlowTaskView], num_cells: int) -> None:
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
        x = self.x.index_select(0, place)
        h = self.embed(x, place)
        h = self.position_frames(h, call)
        blocks, outputs = (values.index_select(0, step) for values in self.moments)
        told, free = self.velocity(*self.run_blocks(h, blocks, call), outputs).unbind(1)
        weights, dt = self.flow.guidance, self.time_steps.index_select(0, step)[:, None, None]
        x = x + dt * (weights.conditioned * told - weights.free * free)
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
        """x [n, frames, mel] -> [n * 2, frames, dim]; the free branch is told nothing."""
        own = F.linear(x, self.x_weight)
        return torch.stack((own + self.conditions.index_select(0, place), own + self.bias), 1).flatten(0, 1)

    def position_frames(self, h: Tensor, call: FlowCall) -> Tensor:
        y = h
        for conv, tails in zip(self.convs, self.pages.tails, strict=True):
            y = y.to(self.dtype)
            tails.index_copy_(0, call.own, y[:, -tails.shape[1] :])
            y = self.ops.mish_conv(conv, torch.cat((tails.index_select(0, call.before), y), 1))
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
