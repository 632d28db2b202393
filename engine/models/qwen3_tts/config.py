"""``config.json`` of a Qwen3-TTS folder as frozen dataclasses (docs/design/models.md).

Every size comes from the file. A missing key is an error that names it: the official class defaults differ from
the released values, so falling back to any default would load nonsense quietly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.api import SAMPLING_RANGES
from engine.errors import CheckpointError
from engine.layers.transformer import TransformerConfig
from engine.models.config_file import ConfigSection, Count, Id, Size, Sizes, read_json
from engine.models.config_file import read_transformer as read_sizes
from engine.models.qwen3_tts.encoder_config import EncoderConfigs, read_codec_encoder, read_speaker_encoder
from engine.text.tokenizer_files import SpecialIds

MODEL_TYPE = "qwen3_tts"
CODEC_MODEL_TYPE = "qwen3_tts_tokenizer_12hz"
# The top ids of the talker's vocabulary: never sampled, but for the end of speech (spec 4.2).
NUM_CONTROL_IDS = 1024


def read_transformer(section: ConfigSection, **extra: bool) -> TransformerConfig:
    for key, known in FIXED_VALUES.items():
        section.require_one_of(key, *known)
    return read_sizes(section, **extra)


@dataclass(frozen=True, slots=True)
class CodePredictorConfig:
    transformer: TransformerConfig
    vocab_size: Size
    num_code_groups: Count
    # Whether ``small_to_mtp_projection`` stands between the talker's width and the predictor's.
    projected: bool


@dataclass(frozen=True, slots=True)
class ControlIds:
    """Ids of the codec vocabulary that are no codes (spec 1.3)."""

    pad: Id
    bos: Id
    eos: Id
    think: Id
    nothink: Id
    think_bos: Id
    think_eos: Id


@dataclass(frozen=True, slots=True)
class QwenTalkerConfig:
    transformer: TransformerConfig
    code_predictor: CodePredictorConfig
    vocab_size: Size
    text_vocab_size: Size
    text_hidden_size: Size
    num_code_groups: Count
    max_position_embeddings: Size
    control: ControlIds
    # Selectable and dialect languages, lower-case name -> codec id.
    languages: Mapping[str, int]
    # Lower-case name -> row of E0.
    speakers: Mapping[str, int]
    # Speaker -> the dialect it forces.
    dialects: Mapping[str, str]

    @property
    def num_codes(self) -> int:
        """Size of codebook 0."""
        return self.vocab_size - NUM_CONTROL_IDS


@dataclass(frozen=True, slots=True)
class SourceFilterConfig:
    """Sizes of a decoder that ends in a vocoder; no released checkpoint has one."""

    pulse_cepstra: Count
    noise_cepstra: Count
    control_blocks: Count


@dataclass(frozen=True, slots=True)
class CodecDecoderConfig:
    transformer: TransformerConfig
    codebook_size: Size
    codebook_dim: Size
    num_quantizers: Count
    latent_dim: Size
    decoder_dim: Size
    sliding_window: Size
    upsample_rates: Sizes
    upsampling_ratios: Sizes
    sample_rate: Size
    source_filter: SourceFilterConfig | None = None

    @property
    def frame_samples(self) -> int:
        return math.prod(self.upsample_rates) * math.prod(self.upsampling_ratios)


INSTRUCTED_SIZES = ("1b7",)
TASKS = ("base", "custom_voice", "voice_design")
# Where the file has another name for it.
GENERATION_KEYS = {
    "predictor_do_sample": "subtalker_dosample",
    "predictor_temperature": "subtalker_temperature",
    "predictor_top_k": "subtalker_top_k",
    "predictor_top_p": "subtalker_top_p",
}
# Keys of a transformer that may be there, and the values that are built.
FIXED_VALUES: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "use_sliding_window": (False,),
    "tie_word_embeddings": (False,),
}
WHOLE_NUMBERS = ("top_k", "predictor_top_k", "max_new_tokens")
# transformers skips a logits step whose value is null; these values do the same.
NULL_VALUES: dict[str, bool | float] = {
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "predictor_do_sample": False,
    "predictor_temperature": 1.0,
    "predictor_top_k": 0,
    "predictor_top_p": 1.0,
}
# Checkpoint defaults that transformers accepts and a request may not ask for.
CHECKPOINT_RANGES = {"top_p": (0.0, 1.0), "predictor_top_p": (0.0, 1.0), "repetition_penalty": (0.01, 2.0)}
DEFAULT_SLIDING_WINDOW = 72  # of the official decoder configuration class


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """``generation_config.json`` (spec 1.5)."""

    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    predictor_do_sample: bool = True
    predictor_temperature: float = 0.9
    predictor_top_k: int = 50
    predictor_top_p: float = 1.0
    max_new_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class Qwen3TTSConfig:
    # ``base``, ``custom_voice`` or ``voice_design``.
    task: str
    size: str
    talker: QwenTalkerConfig
    codec: CodecDecoderConfig
    text: SpecialIds
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    # Of a base checkpoint.
    encoders: EncoderConfigs | None = None

    @property
    def takes_instruct(self) -> bool:
        """The small CustomVoice was not trained on instructions: the official code drops them (spec 7.2)."""
        return self.task == "voice_design" or (self.task == "custom_voice" and self.size in INSTRUCTED_SIZES)


def _speaker_ids(section: ConfigSection) -> dict[str, int]:
    """Lenient as files in the wild: ids may be wrapped in a list (spec 1.3)."""
    found = {}
    for name, value in section.get("spk_id", Mapping).items():
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if type(value) is not int:
            raise CheckpointError(f"{section.where}: spk_id of {name!r} is {value!r}; it must be an integer")
        found[name.lower()] = value
    return found


def _dialects(section: ConfigSection) -> dict[str, str]:
    """Speakers without one have false, or are left out."""
    if section.values.get("spk_is_dialect") is None:
        return {}
    found = section.section("spk_is_dialect").values
    for name, value in found.items():
        if value not in (False, None) and not isinstance(value, str):
            raise CheckpointError(
                f"{section.where}: spk_is_dialect of {name!r} is {value!r}; it must be a name or false"
            )
    return {name.lower(): dialect.lower() for name, dialect in found.items() if dialect}


def _read_predictor(section: ConfigSection, talker_size: int) -> CodePredictorConfig:
    transformer = read_transformer(section)
    is_projected = transformer.hidden_size != talker_size
    return section.read(CodePredictorConfig, transformer=transformer, projected=is_projected)


def _check_codec_ids(config: QwenTalkerConfig, where: str) -> None:
    ids = {f"codec id {name!r}": getattr(config.control, name) for name in ControlIds.__slots__}
    ids |= {f"language {name!r}": value for name, value in config.languages.items()}
    ids |= {f"speaker {name!r}": value for name, value in config.speakers.items()}
    for name, value in ids.items():
        if not 0 <= value < config.vocab_size:
            raise CheckpointError(f"{where}: {name} is {value}; it must lie in 0..{config.vocab_size - 1}")
    for speaker, dialect in config.dialects.items():
        if dialect not in config.languages:
            raise CheckpointError(f"{where}: the dialect {dialect!r} of speaker {speaker!r} has no codec_language_id")
    if config.num_codes <= 0:
        raise CheckpointError(f"{where}: vocab_size is {config.vocab_size}; it must exceed {NUM_CONTROL_IDS}")


def read_talker(section: ConfigSection) -> QwenTalkerConfig:
    transformer = read_transformer(section)
    ids = {name: f"codec_{name}_id" for name in ControlIds.__slots__} | {"eos": "codec_eos_token_id"}
    config = section.read(
        QwenTalkerConfig,
        transformer=transformer,
        code_predictor=_read_predictor(section.section("code_predictor_config"), transformer.hidden_size),
        control=section.read(ControlIds, ids),
        languages=section.names("codec_language_id", int),
        speakers=_speaker_ids(section),
        dialects=_dialects(section),
    )
    _check_codec_ids(config, section.where)
    return config


def _decoder_section(file: ConfigSection) -> ConfigSection:
    """The codec decoder's section, with the two values that the official class derives where the file has none."""
    given = file.section("decoder_config")
    derived = {"sliding_window": DEFAULT_SLIDING_WINDOW}
    if "head_dim" not in given.values:
        derived["head_dim"] = given.positive("hidden_size") // given.count("num_attention_heads")
    return ConfigSection({**derived, **given.values}, given.where)


def read_codec(file: ConfigSection) -> CodecDecoderConfig:
    section = _decoder_section(file)
    has_vocoder = "source_filter" in section.values
    config = section.read(
        CodecDecoderConfig,
        transformer=read_transformer(section, qk_norm=False, layer_scale=True),
        sample_rate=file.positive("output_sample_rate"),
        source_filter=section.section("source_filter").read(SourceFilterConfig) if has_vocoder else None,
    )
    declared = file.positive("decode_upsample_rate")
    if config.frame_samples != declared:
        raise CheckpointError(f"{file.where}: rates multiply to {config.frame_samples}, not {declared}")
    return config


def read_generation(folder: Path) -> GenerationDefaults:
    """The file's values where it has them; it may be absent."""
    if not (folder / "generation_config.json").exists():
        return GenerationDefaults()
    file = read_json(folder / "generation_config.json")
    values: dict[str, Any] = {}
    for name in GenerationDefaults.__slots__:
        key = GENERATION_KEYS.get(name, name)
        if file.values.get(key) is not None:
            values[name] = _read_sampling_default(file, name, key)
        elif key in file.values and name in NULL_VALUES:
            values[name] = NULL_VALUES[name]
    return GenerationDefaults(**values)


def _read_sampling_default(file: ConfigSection, name: str, key: str) -> bool | float:
    if name.endswith("do_sample"):
        return bool(file.get(key, bool))
    low, high = CHECKPOINT_RANGES.get(name) or SAMPLING_RANGES.get(name, (1, math.inf))
    value = file.number(key)
    if not low <= value <= high:
        raise CheckpointError(f"{file.where}: {key!r} is {value:g}; it must lie in {low:g}..{high:g}")
    # A top_p of 0 keeps the likeliest id alone, and so does the least that requests may ask for.
    value = max(value, SAMPLING_RANGES[name][0]) if name.endswith("top_p") else value
    return int(value) if name in WHOLE_NUMBERS else value


def _check_family(file: ConfigSection, expected: str) -> None:
    found = file.get("model_type", str)
    if found != expected:
        raise CheckpointError(f"{file.where}: model_type is {found!r}; this loader reads {expected!r}")


def read_config(folder: Path) -> Qwen3TTSConfig:
    """Read and check every configuration file of a released-layout folder. Raises ``CheckpointError``."""
    file = read_json(folder / "config.json")
    _check_family(file, MODEL_TYPE)
    codec_file = read_json(folder / "speech_tokenizer" / "config.json")
    codec_file.where = "speech_tokenizer/config.json"
    _check_family(codec_file, CODEC_MODEL_TYPE)
    file.get("tts_model_type", str)
    file.require_one_of("tts_model_type", *TASKS)
    file.require_one_of("tokenizer_type", CODEC_MODEL_TYPE)
    talker = read_talker(file.section("talker_config"))
    config = Qwen3TTSConfig(
        task=file.get("tts_model_type", str),
        size=_read_size(file, talker),
        talker=talker,
        codec=read_codec(codec_file),
        text=SpecialIds(**{name: file.integer(f"{name}_token_id") for name in SpecialIds.__slots__}),
        generation=read_generation(folder),
        encoders=_read_encoders(file, codec_file),
    )
    _check_stages_agree(config)
    return config


def _read_size(file: ConfigSection, talker: QwenTalkerConfig) -> str:
    """``tts_model_size``; where a fine-tuned checkpoint lacks it, the size that has the same code predictor input."""
    if file.values.get("tts_model_size") is None:
        return "1b7" if talker.code_predictor.projected else "0b6"
    return str(file.get("tts_model_size", str))


def _read_encoders(file: ConfigSection, codec_file: ConfigSection) -> EncoderConfigs | None:
    if file.values["tts_model_type"] != "base":
        return None
    return EncoderConfigs(read_speaker_encoder(file), read_codec_encoder(codec_file))


def _check_encoders_agree(config: Qwen3TTSConfig, encoders: EncoderConfigs) -> None:
    pairs = (
        ("the speaker vector", encoders.speaker.size, config.talker.transformer.hidden_size),
        ("sample rate", encoders.speaker.sample_rate, encoders.codec.sample_rate, config.codec.sample_rate),
        ("frame_samples", encoders.codec.frame_samples, config.codec.frame_samples),
        ("number of codebooks", encoders.codec.num_used_books, config.codec.num_quantizers),
        ("codebook size", encoders.codec.codebook_size, config.codec.codebook_size),
    )
    for name, *values in pairs:
        if len(set(values)) != 1:
            raise CheckpointError(f"{name} differs between the encoders and what they serve: {values}")


def _check_stages_agree(config: Qwen3TTSConfig) -> None:
    talker, codec = config.talker, config.codec
    pairs = (
        ("num_code_groups", talker.num_code_groups, talker.code_predictor.num_code_groups, codec.num_quantizers),
        ("codebook size", talker.num_codes, talker.code_predictor.vocab_size, codec.codebook_size),
    )
    for name, *values in pairs:
        if len(set(values)) != 1:
            raise CheckpointError(f"{name} differs between talker, code predictor and codec: {values}")
    for name in SpecialIds.__slots__:
        if not 0 <= getattr(config.text, name) < talker.text_vocab_size:
            value = getattr(config.text, name)
            raise CheckpointError(f"config.json: text id {name!r} is {value}, past {talker.text_vocab_size} rows")
    if config.encoders is not None:
        _check_encoders_agree(config, config.encoders)
