"""Sizes of every part of a CosyVoice3 checkpoint; the defaults are the released ones (specs/cosyvoice3.md 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from engine.layers.transformer import TransformerConfig

# Rows of the speech table past the codes.
NUM_CONTROL_IDS = 200
# The talker's context (spec 2.1), whatever more the backbone's file promises.
MAX_POSITIONS = 32_768
# Upper bound of top-k for every request: graphs rank this many.
MAX_TOP_K = 128
# Ids of a history that a draw may look at.
MAX_WINDOW = 64

Dilations = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class SpeechIds:
    """Of the speech table: codes first, then what steers (spec 2.2)."""

    num_codes: int = 6561

    @property
    def sos(self) -> int:
        return self.num_codes

    @property
    def eos(self) -> int:
        return self.num_codes + 1

    @property
    def task(self) -> int:
        return self.num_codes + 2

    @property
    def fill(self) -> int:
        return self.num_codes + 3

    @property
    def table_size(self) -> int:
        return self.num_codes + NUM_CONTROL_IDS


@dataclass(frozen=True, slots=True)
class RasConfig:
    """Repetition-aware sampling (spec 2.5)."""

    top_p: float = 0.8
    top_k: int = 25
    window: int = 10
    tau: float = 0.1


RELEASED_BACKBONE = TransformerConfig(
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    head_dim=64,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    qk_norm=False,
    qkv_bias=True,
)


@dataclass(frozen=True, slots=True)
class CosyTalkerConfig:
    transformer: TransformerConfig = RELEASED_BACKBONE
    text_vocab_size: int = 151_936
    max_positions: int = MAX_POSITIONS
    speech_ids: SpeechIds = SpeechIds()
    # Text ids, and speech ids behind them, of one block of live text (spec 3).
    block_text: int = 5
    block_speech: int = 15
    ras: RasConfig = RasConfig()


@dataclass(frozen=True, slots=True)
class DitConfig:
    dim: int = 1024
    depth: int = 22
    heads: int = 16
    head_dim: int = 64
    ff_mult: int = 2
    mel_bins: int = 80
    # Frames that see each other in chunk mode.
    block_frames: int = 50
    conv_pos_kernel: int = 31
    conv_pos_groups: int = 16


@dataclass(frozen=True, slots=True)
class FlowConfig:
    # Of a token's embedding; as wide as the mel.
    input_size: int = 80
    vocab_size: int = 6561
    spk_embed_size: int = 192
    pre_lookahead_tokens: int = 3
    pre_lookahead_hidden: int = 1024
    token_mel_ratio: int = 2
    dit: DitConfig = DitConfig()
    ode_steps: int = 10
    cfg_rate: float = 0.7


@dataclass(frozen=True, slots=True)
class HiftConfig:
    mel_bins: int = 80
    base_channels: int = 512
    num_harmonics: int = 8
    sample_rate: int = 24_000
    nsf_alpha: float = 0.1
    nsf_sigma: float = 0.003
    voiced_threshold_hz: float = 10.0
    upsample_rates: tuple[int, ...] = (8, 5, 3)
    upsample_kernels: tuple[int, ...] = (16, 11, 7)
    istft_n_fft: int = 16
    istft_hop: int = 4
    resblock_kernels: tuple[int, ...] = (3, 7, 11)
    resblock_dilations: Dilations = ((1, 3, 5),) * 3
    source_resblock_kernels: tuple[int, ...] = (7, 7, 11)
    source_resblock_dilations: Dilations = ((1, 3, 5),) * 3
    lrelu_slope: float = 0.1
    audio_limit: float = 0.99
    look_right_frames: int = 4
    f0_channels: int = 512

    @property
    def frame_samples(self) -> int:
        """Of one mel frame."""
        return math.prod(self.upsample_rates) * self.istft_hop


@dataclass(frozen=True, slots=True)
class CosyVoice3Config:
    talker: CosyTalkerConfig = CosyTalkerConfig()
    flow: FlowConfig = field(default_factory=FlowConfig)
    hift: HiftConfig = field(default_factory=HiftConfig)
    token_rate: int = 25

    @property
    def sample_rate(self) -> int:
        return self.hift.sample_rate

    @property
    def frame_samples(self) -> int:
        """Of one speech token: the codec frame of this family, 40 ms."""
        return self.flow.token_mel_ratio * self.hift.frame_samples
