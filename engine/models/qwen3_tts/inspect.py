"""A folder held against its own configuration, file by file and tensor by tensor, without reading a weight."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from engine.api import CheckpointReport
from engine.models.qwen3_tts.codec_decoder import CodecDecoder
from engine.models.qwen3_tts.codec_encoder import CodecEncoder
from engine.models.qwen3_tts.config import Qwen3TTSConfig, read_config
from engine.models.qwen3_tts.load_weights import UNUSED_IN_ENCODER
from engine.models.qwen3_tts.speaker_encoder import SpeakerEncoder
from engine.models.qwen3_tts.talker import Talker
from engine.text.tokenizer import TextTokenizer
from engine.weights.loader import check_weights, config_errors_of


class CheckpointPart(NamedTuple):
    name: str
    module: nn.Module
    subfolder: str
    prefix: str
    ignored: str | None = None


def inspect(folder: Path) -> CheckpointReport:
    """Raises ``CheckpointError`` naming file, key or tensor."""
    config = read_config(folder)
    TextTokenizer.from_folder(folder)
    with config_errors_of(folder):
        found = parts(config)
    megabytes = {}
    for part in found:
        num_bytes = check_weights(part.module, folder / part.subfolder, part.prefix, part.ignored)
        megabytes[part.name] = round(num_bytes / 1e6, 1)
    talker = config.talker
    languages = tuple(name for name in talker.languages if "dialect" not in name)
    model = f"qwen3-tts {config.size} {config.task}"
    return CheckpointReport(model, config.task, tuple(talker.speakers), languages, config.takes_instruct, megabytes)


def parts(config: Qwen3TTSConfig) -> list[CheckpointPart]:
    """Shapes alone: no memory stands behind these modules."""
    with torch.device("meta"):
        found = [
            CheckpointPart("talker", Talker(config.talker), "", "talker."),
            CheckpointPart("codec decoder", CodecDecoder(config.codec), "speech_tokenizer", "decoder."),
        ]
        if config.encoders is not None:
            speaker, codec = SpeakerEncoder(config.encoders.speaker), CodecEncoder(config.encoders.codec)
            found += [
                CheckpointPart("speaker encoder", speaker, "", "speaker_encoder."),
                CheckpointPart("codec encoder", codec, "speech_tokenizer", "encoder.", UNUSED_IN_ENCODER),
            ]
    return found
