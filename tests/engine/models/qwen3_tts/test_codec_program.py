"""The codec over static buffers: how long a stream has spoken does not change how it goes on."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.models.qwen3_tts.codec_program import CodecProgram
from engine.models.qwen3_tts.load import load_family

CPU = torch.device("cpu")
SLOT = 1


def program_of(folder: Path) -> CodecProgram:
    config = EngineConfig(graphs=True, max_running_requests=1, max_batch_size=1, max_frames=9_000, num_blocks=4)
    codec = load_family(folder, config, CPU, torch.float32).codec
    assert codec is not None
    with torch.inference_mode():
        program = codec.make_program(config, codec.new_ring(config, CPU))
    assert isinstance(program, CodecProgram)
    return program


@torch.inference_mode()
def speak(program: CodecProgram, first: int, num_frames: int) -> Tensor:
    """Frames ``first``.. of a stream, whose frames before those were all zero: [frames, samples]."""
    program.state[SLOT] = program.past[:, SLOT] = 0
    codes = torch.randint(64, (num_frames, program.ring.shape[2]), generator=torch.Generator().manual_seed(1))
    heard = []
    for number, frame in enumerate(codes):
        program.ring[SLOT, 0] = frame
        program.slots[0] = program.sources[0] = SLOT
        program.starts[0], program.first[0] = 0, first + number
        program.run(1, 1)
        heard.append(program.pcm[: program.frame_samples].clone())
    return torch.stack(heard)


def test_a_stream_of_any_length_goes_on_alike(tiny_folder: Path) -> None:
    program = program_of(tiny_folder)
    early, late = speak(program, 1_000, 30), speak(program, 8_180, 30)
    assert (early - late).abs().max() < 1e-5
