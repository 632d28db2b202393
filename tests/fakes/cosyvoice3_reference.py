"""The flow and the vocoder over a whole utterance in one pass: the slow reference of the programs in pieces."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.cosyvoice3.flow import (
    LOOK_BACK_TOKENS,
    NOISE_FRAMES,
    Dit,
    DitBlock,
    Flow,
    Modulation,
    PositionConv,
    ode_timesteps,
    positional_noise,
)
from engine.models.cosyvoice3.hift import Hift
from engine.models.cosyvoice3.hift_source import PITCH_KERNEL, PITCH_LOOK_RIGHT_FRAMES, F0Predictor, convolve
from engine.ops.flow import apply_rope_pairs, layer_norm


def chunk_mask(num_frames: int, block_frames: int, context_blocks: int | None = None, first_block: int = 0) -> Tensor:
    """[T, T], true where a frame (row) sees another: its own block and those before.

    With ``context_blocks`` only that many before, and always those before ``first_block``.
    """
    block = torch.arange(num_frames) // block_frames
    sees = block[None] <= block[:, None]
    if context_blocks is not None:
        sees &= (block[None] >= block[:, None] - context_blocks) | (block[None] < first_block)
    return sees


@torch.no_grad()  # type: ignore[untyped-decorator]
def mel_of_tokens(
    flow: Flow,
    tokens: Tensor,
    prompt_tokens: Tensor,
    prompt_mel: Tensor,
    embedding: Tensor,
    final: bool,
    mask: Literal["chunk", "full"] | Tensor = "chunk",
) -> Tensor:
    """tokens [n], prompt_tokens [P], prompt_mel [2P, 80], embedding [192] -> mel [2m, 80] of the m tokens.

    m = n when ``final``, else n - 3: the last three are lookahead only.
    """
    joined = torch.cat((prompt_tokens, tokens)).to(flow.device)
    inputs = conditions(flow, token_vectors(flow, joined, final), prompt_mel, flow.speaker(embedding))
    if mask == "chunk":
        mask = chunk_mask(len(inputs), flow.config.dit.block_frames)
    elif mask == "full":
        mask = torch.ones(len(inputs), len(inputs), dtype=torch.bool)
    assert isinstance(mask, Tensor)
    x = integrate(flow, inputs, mask.to(flow.device))
    return x[flow.config.token_mel_ratio * len(prompt_tokens) :]


def token_vectors(flow: Flow, tokens: Tensor, final: bool) -> Tensor:
    """mu [m, 80] of a prompt's and an utterance's tokens."""
    ahead = flow.config.pre_lookahead_tokens
    count = len(tokens) if final else max(0, len(tokens) - ahead)
    if count == 0:
        return flow.input_embedding.weight.new_zeros(0, flow.config.input_size)
    places = torch.arange(-LOOK_BACK_TOKENS, count + ahead, device=flow.device)
    known = tokens[places.clamp(0, len(tokens) - 1)]
    inside = (places >= 0) & (places < len(tokens))
    return flow.token_path(known[None], inside[None], inside[None, : count + LOOK_BACK_TOKENS])[0]


def conditions(flow: Flow, mu: Tensor, prompt_mel: Tensor, speaker: Tensor) -> Tensor:
    """mu [n, 80] of tokens from the first on -> [2n, cond + mu + spk]."""
    mu = mu.repeat_interleave(flow.config.token_mel_ratio, 0)
    cond = F.pad(prompt_mel, (0, 0, 0, max(0, len(mu) - len(prompt_mel))))[: len(mu)]
    return torch.cat((cond, mu, speaker.expand(len(mu), -1)), -1)


def integrate(flow: Flow, inputs: Tensor, mask: Tensor) -> Tensor:
    """Ten Euler steps from noise to mel; inputs [T, cond + mu + spk]."""
    noise = positional_noise(flow.config.dit.mel_bins).to(flow.device)
    if len(inputs) == 0:
        return noise[:0]
    x = noise[torch.arange(len(inputs), device=flow.device) % NOISE_FRAMES]
    both = torch.stack((inputs, torch.zeros_like(inputs)))
    blocks, outputs = flow.modulations()
    for k, dt in enumerate(ode_timesteps(flow.config.ode_steps).diff().tolist()):
        conditioned, free = velocity(flow.dit, x.expand(2, -1, -1), both, Modulation(blocks[k], outputs[k]), mask)
        x = x + dt * (flow.guidance.conditioned * conditioned - flow.guidance.free * free)
    return x


def velocity(dit: Dit, x: Tensor, inputs: Tensor, moment: Modulation, mask: Tensor) -> Tensor:
    """x [B, T, mel], inputs [B, T, cond + mu + spk], one moment, mask [T, T] -> [B, T, mel]."""
    h = linear_fp32(dit.input_embed.proj, torch.cat((x, inputs), -1))
    h = h + encode_positions(dit.input_embed.conv_pos_embed, h)
    angles = torch.arange(x.shape[1], device=x.device)[:, None] * dit.rotary_embed.inv_freq
    for block, parts in zip(dit.transformer_blocks, moment.blocks, strict=True):
        h = run_block(block, h, parts, angles, mask)
    scale, shift = moment.output
    return linear_fp32(dit.proj_out, layer_norm(h) * (1 + scale) + shift)


def linear_fp32(layer: nn.Linear, x: Tensor) -> Tensor:
    """In the weights' own precision; fp32 out."""
    return F.linear(x.to(layer.weight.dtype), layer.weight, layer.bias).float()


def encode_positions(layer: PositionConv, h: Tensor) -> Tensor:
    y = h.transpose(1, 2)
    for conv, mish in (layer.conv1, layer.conv2):
        y = mish(conv(F.pad(y.to(conv.weight.dtype), (conv.kernel_size[0] - 1, 0))).float())
    return y.transpose(1, 2)


def run_block(block: DitBlock, h: Tensor, parts: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
    shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = parts
    h = h + gate * attend(block, layer_norm(h) * (1 + scale) + shift, angles, mask)
    (inner, gelu), _, outer = block.ff.ff
    x = layer_norm(h) * (1 + scale_mlp) + shift_mlp
    return h + gate_mlp * linear_fp32(outer, gelu(linear_fp32(inner, x)))


def attend(block: DitBlock, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
    """x [B, T, dim], angles [T, head_dim / 2], mask [T, T]. Positions reach the first head alone."""
    attn, head_dim = block.attn, 2 * angles.shape[-1]
    q, k, v = (linear_fp32(layer, x).unflatten(-1, (-1, head_dim)) for layer in (attn.to_q, attn.to_k, attn.to_v))
    for turned in (q, k):
        turned[:, :, 0] = apply_rope_pairs(turned[:, :, 0], angles)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(head_dim)
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return linear_fp32(attn.to_out[0], torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(-2))


def pitch_of_mel(predictor: F0Predictor, mel: Tensor) -> Tensor:
    """mel [B, bins, F] -> f0 in Hz [B, F], fp64 inside."""
    ahead, *left = predictor.convolutions
    x = F.elu(convolve(ahead, F.pad(mel.double(), (0, PITCH_LOOK_RIGHT_FRAMES))))
    for layer in left:
        x = F.elu(convolve(layer, F.pad(x, (PITCH_KERNEL - 1, 0))))
    return predictor.pitch(x)


def pcm_of_mel(hift: Hift, mel: Tensor) -> Tensor:
    """mel [B, bins, F] -> PCM [B, F * frame_samples], with torch's own STFT."""
    pitch, config, window = pitch_of_mel(hift.f0_predictor, mel), hift.config, hift.spectra.window
    start = torch.zeros(len(mel), dtype=torch.long, device=mel.device)
    phase = torch.zeros(len(mel), hift.m_source.num_harmonics, dtype=torch.float64, device=mel.device)
    excitation, _ = hift.m_source(pitch, phase, start)
    sizes = config.istft_n_fft, config.istft_hop, config.istft_n_fft, window
    spectrum = torch.view_as_real(torch.stft(excitation.flatten(1), *sizes, return_complex=True))
    source = torch.cat(spectrum.unbind(-1), dim=1)
    x = hift.conv_pre(F.pad(mel, (0, config.look_right_frames)))
    for stage, down in enumerate(hift.source_downs):
        x = hift.upsample(stage, x, None)
        if stage == len(hift.ups) - 1:
            x = F.pad(x, (1, 0), mode="reflect")
        x = hift.mix(stage, x, down(F.pad(source, (down.num_past, 0))), None)
    return hift.limit(torch.istft(torch.polar(*hift.polar(x, None)), *sizes))
