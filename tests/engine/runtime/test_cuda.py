"""CUDA in bf16 against CPU in fp32: the same speech engine, within what the number format allows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.api import FinishReason, SamplingParams, SpeechChunk, SpeechRequest
from engine.config import EngineConfig
from engine.layers.transformer import CausalContext
from engine.load import load_engine
from engine.models.qwen3_tts.config import read_config
from engine.models.qwen3_tts.load import load_codec, load_talker
from engine.ops.noise import PhiloxNoise, SampleKey
from engine.runtime.engine import Engine
from tests.fakes.checkpoints import TINY, TINY_PROJECTED, write_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
NUM_FRAMES = 24
# bf16 keeps 8 bits: 0.4 % a rounding, added up over the layers.
BF16_RELATIVE_ERROR = 0.03


@pytest.fixture(params=[TINY, TINY_PROJECTED], ids=["plain", "projected"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, request.param)


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    found, wanted = found.double().cpu(), wanted.double().cpu()
    return float((found - wanted).norm() / wanted.norm())


def speak(make_engine: Callable[[], Engine], num_rows: int) -> list[np.ndarray]:
    engine = make_engine()
    for epoch in range(num_rows):
        spec = SpeechRequest(
            request_id=str(epoch),
            text="Hello, world! How are you today?",
            text_closed=True,
            max_frames=NUM_FRAMES,
            sampling=SamplingParams(seed=epoch, min_new_tokens=NUM_FRAMES),
        )
        engine.requests.submit(spec, epoch)
    while engine.has_work:
        engine.step()
    chunks: dict[int, list[np.ndarray]] = {}
    ends = []
    for epoch, event in engine.requests.events:
        if isinstance(event, SpeechChunk):
            chunks.setdefault(epoch, []).append(event.pcm)
        elif hasattr(event, "reason"):
            ends.append(event.reason)
    assert ends == [FinishReason.LENGTH] * num_rows
    return [np.concatenate(chunks[epoch]) for epoch in range(num_rows)]


def test_talker_and_codec_agree_with_the_cpu(folder: Path) -> None:
    config = read_config(folder)
    ids = torch.arange(3, 30)
    codes = torch.randint(0, config.codec.codebook_size, (2, config.codec.num_quantizers, 20))
    outputs = []
    for device, dtype in ((CPU, torch.float32), (CUDA, torch.bfloat16)):
        talker, codec = load_talker(folder, config, dtype, device), load_codec(folder, config, dtype, device)
        talker.fuse()
        with torch.inference_mode():
            x = talker.embed_text(ids.to(device))[None]
            hidden = talker(x, torch.arange(ids.numel(), device=device)[None], CausalContext())
            outputs.append((talker.codec_head(hidden), codec(codes.to(device))))
    for cpu, cuda in zip(*outputs, strict=True):
        assert relative_error(cuda, cpu) < BF16_RELATIVE_ERROR


def test_the_engine_speaks_on_cuda_and_rows_join_in_one_batch(folder: Path) -> None:
    loaded = load_engine(folder, EngineConfig(max_batch_size=8), "cuda", "auto", is_embedded=False)
    spoken = speak(loaded.make_engine, 8)
    assert {len(pcm) for pcm in spoken} == {NUM_FRAMES * 1920}
    assert all(np.isfinite(pcm).all() and np.abs(pcm).max() > 1e-3 for pcm in spoken)


def test_fp32_on_cuda_speaks_the_codes_of_the_cpu(folder: Path) -> None:
    (cpu,), (cuda,) = (
        speak(load_engine(folder, EngineConfig(), name, "float32", is_embedded=False).make_engine, 1)
        for name in ("cpu", "cuda")
    )
    assert np.abs(cpu - cuda).max() < 5e-3  # convolutions run in TF32


def test_noise_is_the_same_on_every_device() -> None:
    keys = [SampleKey(seed, 2, 5) for seed in (1, 2**40 + 3)]
    ids = torch.randint(0, 2048, (2, 50))
    cpu = PhiloxNoise().exponential(keys, 3, ids)
    assert torch.equal(PhiloxNoise().exponential(keys, 3, ids.cuda()).cpu(), cpu)
