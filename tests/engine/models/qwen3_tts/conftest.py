from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.models.qwen3_tts.codec_decoder import CodecDecoder
from engine.models.qwen3_tts.config import Qwen3TTSConfig, read_config
from engine.models.qwen3_tts.load import load_model as load_talker_stage
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.models.qwen3_tts.talker import Talker
from engine.weights.loader import load_weights

CPU = torch.device("cpu")


@pytest.fixture
def config(any_folder: Path) -> Qwen3TTSConfig:
    return read_config(any_folder)


@pytest.fixture
def plain_talker(any_folder: Path, config: Qwen3TTSConfig) -> Talker:
    """As in training: nothing merged, nothing packed."""
    talker = Talker(config.talker)
    load_weights(talker, any_folder, "talker.", torch.float32, CPU)
    return talker.eval().requires_grad_(False)


@pytest.fixture
def plain_codec(tiny_folder: Path) -> CodecDecoder:
    """Of one shape in every family."""
    codec = CodecDecoder(read_config(tiny_folder).codec)
    load_weights(codec, tiny_folder / "speech_tokenizer", "decoder.", torch.float32, CPU)
    return codec.eval().requires_grad_(False)


@pytest.fixture
def load_model(tiny_folder: Path) -> Callable[..., Qwen3TTS]:
    def load(folder: Path = tiny_folder, **settings: object) -> Qwen3TTS:
        return load_talker_stage(folder, torch.float32, CPU, **settings)

    return load
