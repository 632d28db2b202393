"""PCM to codes: the encoder of the 12 Hz speech tokenizer. Offline: a recording at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.transformer import LayerScale, Rope, apply_rope, attention
from engine.models.qwen3_tts.encoder_config import CodecEncoderConfig


class PaddedConv1d(nn.Module):
    """Causal: the past is padded by kernel minus stride, the end up to a whole stride."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel: int,
        stride: int = 1,
        dilation: int = 1,
        bias: bool = True,
        pad_mode: str = "constant",
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels_in, channels_out, kernel, stride, dilation=dilation, bias=bias)
        self.past = (kernel - 1) * dilation + 1 - stride
        self.stride, self.pad_mode = stride, pad_mode

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (self.past, -x.shape[-1] % self.stride), mode=self.pad_mode))


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, config: CodecEncoderConfig, dilation: int) -> None:
        super().__init__()
        narrow = channels // config.compress
        self.block = nn.ModuleList(
            [
                nn.ELU(),
                PaddedConv1d(channels, narrow, config.residual_kernel_size, dilation=dilation),
                nn.ELU(),
                PaddedConv1d(narrow, channels, 1),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.block:
            y = layer(y)
        return x + y


class WaveEncoder(nn.Module):
    """PCM down to ``hidden_size`` channels, ``prod(rates)`` times slower."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        channels = config.num_filters
        layers: list[nn.Module] = [PaddedConv1d(1, channels, config.kernel_size)]
        for rate in reversed(config.rates):
            dilations = (config.dilation_growth**j for j in range(config.num_residual_layers))
            layers += [ResidualBlock(channels, config, dilation) for dilation in dilations]
            layers += [nn.ELU(), PaddedConv1d(channels, 2 * channels, 2 * rate, rate)]
            channels *= 2
        layers += [nn.ELU(), PaddedConv1d(channels, config.hidden_size, config.last_kernel_size)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class EncoderAttention(nn.Module):
    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.num_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(size, inner, bias=False)
        self.k_proj = nn.Linear(size, inner, bias=False)
        self.v_proj = nn.Linear(size, inner, bias=False)
        self.o_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.head_dim)) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(attention(apply_rope(q, cos, sin), apply_rope(k, cos, sin), v, is_causal=True).flatten(-2))


class EncoderMlp(nn.Module):
    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class EncoderLayer(nn.Module):
    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.self_attn = EncoderAttention(config)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = EncoderMlp(config)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class EncoderTransformer(nn.Module):
    """Every position hears all before it; the window in the released file is not applied (spec 5.6)."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        self.rope = Rope(config.head_dim, config.rope_theta)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, hidden] -> the same shape."""
        cos, sin = self.rope(torch.arange(x.shape[1], device=x.device)[None], x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


class EncoderCodebook(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("embed_sum", torch.empty(size, width))
        self.register_buffer("cluster_usage", torch.empty(size))

    def table(self) -> Tensor:
        return self.embed_sum / self.cluster_usage.clamp(min=1e-5)[:, None]


class EncoderQuantizer(nn.Module):
    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.codebook = EncoderCodebook(config.codebook_size, config.codebook_dim)


class QuantizerChain(nn.Module):
    """Books one after the other, each on what those before it left; only the used ones are loaded."""

    def __init__(self, config: CodecEncoderConfig, num_books: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderQuantizer(config) for _ in range(num_books))
        self.input_proj = nn.Conv1d(config.hidden_size, config.codebook_dim, 1, bias=False)

    def encode(self, x: Tensor) -> Tensor:
        """[1, hidden, T] -> nearest codes [num_books, T], in fp32."""
        left = self.input_proj(x)[0].t().float()
        codes = []
        for layer in self.layers:
            table = layer.codebook.table().float()
            codes.append(torch.cdist(left[None], table[None])[0].argmin(-1))
            left = left - table[codes[-1]]
        return torch.stack(codes)


class EncoderQuantizers(nn.Module):
    """The semantic book and the acoustic chain hear the same features."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.semantic_residual_vector_quantizer = QuantizerChain(config, 1)
        self.acoustic_residual_vector_quantizer = QuantizerChain(config, config.num_used_books - 1)

    def encode(self, x: Tensor) -> Tensor:
        chains = (self.semantic_residual_vector_quantizer, self.acoustic_residual_vector_quantizer)
        return torch.cat([chain.encode(x) for chain in chains])


class CodecEncoder(nn.Module):
    """Under ``encoder.`` in the released speech_tokenizer file, by the released names, as far as encoding needs."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.config = config
        self.encoder = WaveEncoder(config)
        self.encoder_transformer = EncoderTransformer(config)
        self.downsample = PaddedConv1d(size, size, 4, 2, bias=False, pad_mode="replicate")
        self.quantizer = EncoderQuantizers(config)

    def forward(self, pcm: Tensor) -> Tensor:
        """pcm [T] at 24 kHz -> codes [ceil(T / frame_samples), num_used_books]."""
        x = self.encoder(pcm[None, None])
        x = self.encoder_transformer(x.transpose(1, 2)).transpose(1, 2)
        codes = self.quantizer.encode(self.downsample(x)).t()
        return codes[: -(-pcm.shape[0] // self.config.frame_samples)]
