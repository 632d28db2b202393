from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.models.qwen3_tts.codec_decoder import CodecDecoder
from engine.models.qwen3_tts.config import read_config
from engine.models.qwen3_tts.load import load_codec


@pytest.fixture(scope="session")
def codec(tiny_folder: Path) -> CodecDecoder:
    return load_codec(tiny_folder, read_config(tiny_folder), torch.float32, torch.device("cpu"))
