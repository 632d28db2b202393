"""Reads ``cosyvoice3.yaml`` and the backbone's JSON as data, into the sizes of every part."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from engine.errors import CheckpointError
from engine.layers.transformer import TransformerConfig
from engine.models.config_file import ConfigSection, Count, Scale, Size, Sizes, read_json, read_transformer

# Rows of the speech table past the codes.
NUM_CONTROL_IDS = 200
# The talker's context (spec 2.1), whatever more the backbone's file promises.
MAX_POSITIONS = 32_768
# Upper bound of top-k for every request: graphs rank this many.
MAX_TOP_K = 128
# Ids of the history that sampling uses.
MAX_WINDOW = 64

Dilations = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class SpeechIds:
    """Ids of the speech table: codes first, then control ids (spec 2.2)."""

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

    top_p: Scale = 0.8
    top_k: int = 25
    window: int = 10
    tau: Scale = 0.1


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
    text_vocab_size: Size = 151_936
    max_positions: int = MAX_POSITIONS
    speech_ids: SpeechIds = SpeechIds()
    # Text ids, and speech ids behind them, of one block of live text (spec 3).
    block_text: int = 5
    block_speech: int = 15
    ras: RasConfig = RasConfig()


@dataclass(frozen=True, slots=True)
class DitConfig:
    dim: Size = 1024
    depth: Count = 22
    heads: Count = 16
    head_dim: Size = 64
    ff_mult: Count = 2
    mel_bins: Size = 80
    # Frames that see each other in chunk mode.
    block_frames: Size = 50
    conv_pos_kernel: int = 31
    conv_pos_groups: int = 16


@dataclass(frozen=True, slots=True)
class FlowConfig:
    # Of a token's embedding; as wide as the mel.
    input_size: Size = 80
    vocab_size: Size = 6561
    spk_embed_size: Size = 192
    pre_lookahead_tokens: Count = 3
    pre_lookahead_hidden: int = 1024
    token_mel_ratio: Count = 2
    dit: DitConfig = DitConfig()
    ode_steps: int = 10
    cfg_rate: float = 0.7


@dataclass(frozen=True, slots=True)
class HiftConfig:
    mel_bins: Size = 80
    base_channels: Size = 512
    num_harmonics: Count = 8
    sample_rate: Size = 24_000
    nsf_alpha: Scale = 0.1
    nsf_sigma: Scale = 0.003
    voiced_threshold_hz: float = 10.0
    upsample_rates: Sizes = (8, 5, 3)
    upsample_kernels: Sizes = (16, 11, 7)
    istft_n_fft: Size = 16
    istft_hop: Size = 4
    resblock_kernels: Sizes = (3, 7, 11)
    resblock_dilations: Dilations = ((1, 3, 5),) * 3
    source_resblock_kernels: Sizes = (7, 7, 11)
    source_resblock_dilations: Dilations = ((1, 3, 5),) * 3
    lrelu_slope: Scale = 0.1
    audio_limit: Scale = 0.99
    look_right_frames: Count = 4
    f0_channels: int = 512

    @property
    def frame_samples(self) -> int:
        """Samples of one mel frame."""
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
        """Samples of one speech token: the codec frame of this family, 40 ms."""
        return self.flow.token_mel_ratio * self.hift.frame_samples


# Key under which a mapping keeps what it was to be made into.
CLASS = "!"
MAX_BYTES = 2**20
# Followed one behind the other.
MAX_REFERENCES = 16
MAX_PRODUCT = 2**63
MAX_DISPLAY_CHARS = 80
REFERENCE = re.compile(r"<([A-Za-z_][A-Za-z0-9_]*)>")


# YAML 1.1 takes ``1e-6`` for a string; everybody means a number.
SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


class YamlReference(str):
    """The text of a ``!ref``: names in angle brackets, or a product of such and numbers."""


class _DataLoader(yaml.SafeLoader):
    """Knows every tag, and makes nothing but mappings, lists, strings and numbers.

    What YAML itself has for references is refused: a few lines of it can stand for any amount of data.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def _construct(loader: _DataLoader, tag: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {CLASS: tag, **loader.construct_mapping(node, deep=True)}
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    text = loader.construct_scalar(node)
    return YamlReference(text) if tag.startswith("ref") else text


_DataLoader.add_multi_constructor("!", _construct)
_DataLoader.add_implicit_resolver("tag:yaml.org,2002:float", SCIENTIFIC, list("-+0123456789."))


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in the file, references followed. Raises ``CheckpointError`` naming the file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{path}: has {path.stat().st_size} bytes; a configuration has at most {MAX_BYTES}")
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_DataLoader)
        if not isinstance(values, dict):
            raise CheckpointError(f"{path}: holds {type(values).__name__}, expected a mapping")
        return {key: _resolve(value, values, MAX_REFERENCES) for key, value in values.items()}
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}") from None
    except (OSError, UnicodeError, yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read as YAML: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _resolve(value: Any, names: Mapping[str, Any], num_left: int) -> Any:
    if isinstance(value, YamlReference):
        return _value_of(value, names, num_left)
    if isinstance(value, dict):
        return {key: _resolve(item, names, num_left) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, names, num_left) for item in value]
    return value


def _value_of(reference: YamlReference, names: Mapping[str, Any], num_left: int) -> Any:
    """A name, or a product of whole numbers; anything else stays the text that it is."""
    if not num_left:
        raise ValueError(f"{str(reference)!r} refers to itself")
    factors = [_factor(part.strip(), names, num_left) for part in reference.split("*")]
    if len(factors) == 1:
        return factors[0]
    if any(type(factor) is not int for factor in factors):
        return str(reference)
    product = 1
    for factor in factors:
        product *= factor
        if abs(product) > MAX_PRODUCT:
            raise ValueError(f"{str(reference)[:MAX_DISPLAY_CHARS]!r} makes more than {MAX_PRODUCT}")
    return product


def _factor(text: str, names: Mapping[str, Any], num_left: int) -> Any:
    found = REFERENCE.fullmatch(text)
    if found is None:
        return int(text) if text.isascii() and text.isdigit() else text
    if found[1] not in names:
        raise ValueError(f"{text} is nowhere defined")
    target = names[found[1]]
    # whole sections are referred to by training alone; copying them here would let a small file grow without end
    return _value_of(target, names, num_left - 1) if isinstance(target, YamlReference) else target


CONFIG_FILE = "cosyvoice3.yaml"
BACKBONE_FOLDER = "CosyVoice-BlankEN"


def read_config(folder: Path) -> CosyVoice3Config:
    """Read a folder's configuration. Raises ``CheckpointError`` naming file, key and value."""
    values = read_yaml(folder / CONFIG_FILE)
    top = ConfigSection(values, CONFIG_FILE)
    _instantiated_section(top, "llm", "CosyVoice3LM")
    config = CosyVoice3Config(
        talker=_talker(top.section("llm"), read_json(folder / BACKBONE_FOLDER / "config.json")),
        flow=_flow(_instantiated_section(top, "flow", "CausalMaskedDiffWithDiT")),
        hift=_hift(_instantiated_section(top, "hift", "CausalHiFTGenerator")),
        token_rate=top.positive("token_frame_rate"),
    )
    _check_consistency(top, config)
    return config


def _instantiated_section(top: ConfigSection, key: str, name: str) -> ConfigSection:
    section = top.section(key)
    found = str(section.values.get(CLASS, ""))
    if not found.endswith(f".{name}"):
        raise CheckpointError(f"{CONFIG_FILE}: {key!r} is made into {found!r}; what is built here: {name}")
    return section


def _check_consistency(top: ConfigSection, config: CosyVoice3Config) -> None:
    """Numbers that are written down in two places, or that follow from others."""
    flow, hift, width = config.flow, config.hift, config.talker.transformer.hidden_size
    for name, found, wanted in (
        ("sample_rate", top.positive("sample_rate"), hift.sample_rate),
        ("llm_input_size", top.positive("llm_input_size"), width),
        ("llm_output_size", top.positive("llm_output_size"), width),
        ("token_mel_ratio", top.positive("token_mel_ratio"), flow.token_mel_ratio),
        ("flow.vocab_size", flow.vocab_size, config.talker.speech_ids.num_codes),
        ("flow.input_size", flow.input_size, flow.dit.mel_bins),
        ("hift.in_channels", hift.mel_bins, flow.dit.mel_bins),
        ("token_frame_rate", config.token_rate * config.frame_samples, hift.sample_rate),
    ):
        if found != wanted:
            raise CheckpointError(f"{CONFIG_FILE}: {name!r} makes {found}, other values make it {wanted}")


def _talker(llm: ConfigSection, backbone: ConfigSection) -> CosyTalkerConfig:
    mix = llm.positives("mix_ratio")
    if len(mix) != 2:
        raise CheckpointError(f"{llm.where}: 'mix_ratio' is {list(mix)}; it must hold two numbers, text and speech ids")
    sampling = llm.section("sampling")
    return CosyTalkerConfig(
        transformer=_transformer(backbone),
        text_vocab_size=backbone.positive("vocab_size"),
        max_positions=min(MAX_POSITIONS, backbone.positive("max_position_embeddings")),
        speech_ids=SpeechIds(llm.positive("speech_token_size")),
        block_text=mix[0],
        block_speech=mix[1],
        ras=sampling.read(
            RasConfig,
            {"tau": "tau_r"},
            top_k=sampling.positive("top_k", MAX_TOP_K),
            window=sampling.positive("win_size", MAX_WINDOW),
        ),
    )


def _transformer(backbone: ConfigSection) -> TransformerConfig:
    backbone.require_one_of("model_type", "qwen2")
    backbone.require_one_of("hidden_act", "silu")
    backbone.require_one_of("use_sliding_window", False)
    heads, width = backbone.count("num_attention_heads"), backbone.positive("hidden_size")
    if width % heads or width // heads % 2:
        raise CheckpointError(
            f"{backbone.where}: hidden_size {width} and num_attention_heads {heads} make no heads of an even size"
        )
    return read_transformer(
        backbone,
        head_dim=width // heads,
        rope_theta=backbone.positive_number("rope_theta"),
        qk_norm=False,
        qkv_bias=True,
    )


def _flow(flow: ConfigSection) -> FlowConfig:
    decoder = flow.section("decoder")
    ahead = flow.section("pre_lookahead_layer")
    cfm = decoder.section("cfm_params").section("content")
    cfm.require_one_of("solver", "euler")
    cfm.require_one_of("t_scheduler", "cosine")
    return flow.read(
        FlowConfig,
        {"spk_embed_size": "spk_embed_dim", "pre_lookahead_tokens": "pre_lookahead_len"},
        pre_lookahead_hidden=ahead.positive("channels"),
        dit=_dit(decoder.section("estimator")),
        cfg_rate=cfm.number("inference_cfg_rate", 0.0),
    )


def _dit(dit: ConfigSection) -> DitConfig:
    bins = dit.positive("mel_dim")
    for key in ("mu_dim", "spk_dim", "out_channels"):
        dit.require_one_of(key, bins)
    return dit.read(DitConfig, {"head_dim": "dim_head", "mel_bins": "mel_dim", "block_frames": "static_chunk_size"})


def _hift(hift: ConfigSection) -> HiftConfig:
    istft, f0 = hift.section("istft_params"), hift.section("f0_predictor")
    f0.require_one_of("num_class", 1)
    keys = {
        "mel_bins": "in_channels",
        "num_harmonics": "nb_harmonics",
        "sample_rate": "sampling_rate",
        "upsample_kernels": "upsample_kernel_sizes",
        "resblock_kernels": "resblock_kernel_sizes",
        "source_resblock_kernels": "source_resblock_kernel_sizes",
        "look_right_frames": "conv_pre_look_right",
    }
    return hift.read(
        HiftConfig,
        keys,
        voiced_threshold_hz=hift.number("nsf_voiced_threshold", 0.0),
        istft_n_fft=istft.positive("n_fft"),
        istft_hop=istft.positive("hop_len"),
        resblock_dilations=_dilations(hift, "resblock_dilation_sizes"),
        source_resblock_dilations=_dilations(hift, "source_resblock_dilation_sizes"),
        f0_channels=f0.positive("cond_channels"),
    )


def _dilations(hift: ConfigSection, key: str) -> Dilations:
    rows: list[Any] = hift.get(key, list)
    return tuple(ConfigSection({key: row}, hift.where).positives(key) for row in rows)
