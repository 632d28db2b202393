"""The same vectors in bf16 on a CUDA device. The codes of a random model part ways at the first near tie, so hidden
states are compared with the golden codes given, and waveforms are those of the golden codes.

``VOICEWIRE_PARITY_DEVICE=cpu pytest -m gpu tests/parity`` runs bf16 where there is no such device.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.load import make_stage
from engine.models.base import VoiceReference
from tests.parity.cases import SIZES, Case
from tests.parity.conftest import ALL
from tests.parity.golden import CONFIG, Golden, Speaker

pytestmark = pytest.mark.gpu
DEVICE = os.environ.get("VOICEWIRE_PARITY_DEVICE", "cuda")
# Root mean square of the difference, over that of the golden value: bf16 has eight bits.
PROMPT_ERROR, HIDDEN_ERROR, WAVE_ERROR = 0.01, 0.05, 0.05
EMBEDDING_TOLERANCE = 1e-3
# The encoders run in fp32; convolutions on CUDA take TF32, which can tip a near tie between two entries of a book.
MIN_EQUAL_CODES = 0.98

_speakers: dict[tuple[str, str], Speaker] = {}


@pytest.fixture
def speaker(size: str, case: Case, tmp_path_factory: pytest.TempPathFactory) -> Speaker:
    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if (size, case.task) not in _speakers:
        folder: Path = tmp_path_factory.mktemp(f"{size}-{case.task}")
        _speakers[size, case.task] = Speaker(Golden.read(size), case.task, folder, DEVICE, torch.bfloat16)
    return _speakers[size, case.task]


def error(found: Tensor, golden: Tensor) -> float:
    found = found.float().cpu()
    assert torch.isfinite(found).all()
    return float((found - golden).norm() / golden.norm())


@pytest.mark.parametrize(("size", "case"), ALL)
@torch.inference_mode()
def test_prompts_and_hidden_states_in_bf16(size: str, case: Case, speaker: Speaker) -> None:
    row, prompt, _ = speaker.inputs(case)
    assert error(speaker.model._embed([row], [prompt])[0], speaker.golden.of(case, "prompt")) < PROMPT_ERROR
    assert error(speaker.teacher_forced(case), speaker.golden.of(case, "hidden")) < HIDDEN_ERROR


@pytest.mark.parametrize(("size", "case"), [p for p in ALL if p.values[1].keeps_wave])
@torch.inference_mode()
def test_waveforms_of_the_golden_codes_in_bf16(size: str, case: Case, speaker: Speaker) -> None:
    stage, row = make_stage(speaker.family, CONFIG), speaker.inputs(case)[0]
    slot = stage.reserve()
    assert slot is not None
    if row.voice is not None and row.voice.codes:
        stage.prime(slot, VoiceReference(row.voice.key, row.voice.codes))
    for codes in speaker.golden.of(case, "codes").tolist():
        stage.feed(slot, codes)
    stage.finalize(slot)
    pieces = []
    while stage.busy:
        pieces += [out.pcm for out in stage.step({}, {})]
    pcm = torch.from_numpy(np.concatenate(pieces))
    assert error(pcm, speaker.golden.of(case, "wave")[-len(pcm) :]) < WAVE_ERROR


@pytest.mark.parametrize("name", ["brief", "uneven"])
@pytest.mark.parametrize(("size", "case"), [(size, Case("", "base")) for size in SIZES])
def test_recordings_are_heard_alike_beside_a_bf16_talker(size: str, case: Case, name: str, speaker: Speaker) -> None:
    assert speaker.family.encode_voice is not None
    voice = speaker.family.encode_voice(speaker.golden.sample(name, "some words"))
    found = torch.from_numpy(np.frombuffer(voice.embedding, np.float32).copy())
    golden = speaker.golden.tensors[f"audio/{name}/embedding"]
    torch.testing.assert_close(found, golden, atol=EMBEDDING_TOLERANCE, rtol=0)
    codes = np.frombuffer(voice.codes, np.int16).reshape(-1, 4)
    assert np.mean(codes == speaker.golden.tensors[f"audio/{name}/codes"].numpy()) >= MIN_EQUAL_CODES
