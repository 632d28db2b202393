"""A CosyVoice3 folder as a ``Family``."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.layers.cpu import pack_linears
from engine.models.base import Family
from engine.models.cosyvoice3.config import CosyVoice3Config
from engine.models.cosyvoice3.decode_stage import CosyDecodeStage
from engine.models.cosyvoice3.load_weights import load_flow, load_hift, load_talker, talker_file
from engine.models.cosyvoice3.model import CosyVoice3
from engine.models.cosyvoice3.pipelined import make_frames
from engine.models.cosyvoice3.read_config import BACKBONE_FOLDER, read_config
from engine.models.cosyvoice3.settings import CosyVoice3Settings
from engine.models.cosyvoice3.spk2info import read_saved_voices
from engine.models.cosyvoice3.tokenizer import CosyTokenizer
from engine.models.cosyvoice3.voice_encoder import MISSING_ENCODER_NOTE, CosyVoiceEncoder, missing_encoders

log = logging.getLogger(__name__)


def load_family(folder: Path, config: EngineConfig, device: torch.device, dtype: torch.dtype) -> Family:
    sizes, settings = read_config(folder), config.cosyvoice3
    model = load_model(folder, sizes, settings, device, dtype, config.max_cached_voices)
    if device.type == "cpu" and config.cpu_optimizations and not config.graphs:
        pack_linears(model.talker)
    flow = load_flow(folder, sizes.flow, dtype, device)
    hift = load_hift(folder, sizes.hift, device)

    def make_stage() -> CosyDecodeStage:
        stage = CosyDecodeStage(flow, hift, config.max_running_requests, settings, device, config.max_cached_voices)
        if not config.lazy_graph_capture:
            stage.record()
        return stage

    threads = settings.encoder.num_threads
    encoder = load_encoder(folder, sizes, threads) if config.voice_encoders else None
    return Family(model, sizes, partial(make_frames, model), make_stage=make_stage, encode_voice=encoder)


def load_model(
    folder: Path,
    sizes: CosyVoice3Config,
    settings: CosyVoice3Settings,
    device: torch.device,
    dtype: torch.dtype,
    max_voices: int = 32,
) -> CosyVoice3:
    """The talker stage. Raises ``CheckpointError`` naming file, key or tensor."""
    rows = sizes.talker.text_vocab_size
    tokenizer = CosyTokenizer.from_folder(folder / BACKBONE_FOLDER, rows, settings.talker.parse_control_tags)
    trims = settings.flow.trim_prompts
    named = read_saved_voices(folder, sizes.flow, tokenizer, trims)
    path = talker_file(folder, settings.talker.weights)
    log.info("the talker is %s", path.name)
    talker = load_talker(path, sizes.talker, dtype, device)
    return CosyVoice3(
        sizes, talker, tokenizer, settings.talker, named=named, max_voices=max_voices, trims_prompts=trims
    )


def load_encoder(folder: Path, sizes: CosyVoice3Config, num_threads: int = 2) -> CosyVoiceEncoder | None:
    """None, and a word in the log about what works then, where a file is missing."""
    missing = missing_encoders(folder)
    if missing:
        log.warning("%s has no %s: %s", folder, " and no ".join(missing), MISSING_ENCODER_NOTE)
        return None
    return CosyVoiceEncoder(folder, sizes, num_threads)
