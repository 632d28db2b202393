"""The same vectors on a CUDA device: talker and flow in bf16, the vocoder in fp32.

``VOICEWIRE_PARITY_DEVICE=cpu pytest -m gpu tests/parity/cosyvoice3`` runs bf16 where there is no such device.
"""

from __future__ import annotations

import math
import os

import pytest
import torch
from torch import Tensor

from engine.layers.transformer import CausalContext
from engine.models.base import VoiceReference
from engine.models.cosyvoice3.decode_stage import CosyDecodeStage
from engine.models.cosyvoice3.settings import CosyVoice3Settings
from engine.models.cosyvoice3.vocoder_stage import HiftBatch
from engine.models.cosyvoice3.voice import VoicePrompt
from tests.fakes.cosyvoice3_reference import pitch_of_mel
from tests.parity.cosyvoice3.cases import FLOWS, HIFT_CUTS, HIFT_FRAMES, TALKS, Talk
from tests.parity.cosyvoice3.golden import Golden
from tests.parity.cosyvoice3.test_talker import fetch, new_row

pytestmark = pytest.mark.gpu
DEVICE = os.environ.get("VOICEWIRE_PARITY_DEVICE", "cuda")
# Signal to error. Convolutions on CUDA take TF32, with ten bits.
MIN_MEL_DB, MIN_WAVE_DB = 25.0, 35.0
# Of what bf16 would draw from, in nats.
MAX_DIVERGENCE = 0.01
MIN_SAME_LIKELIEST = 0.8


@pytest.fixture(scope="module")
def small(golden: Golden) -> Golden:
    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return Golden(golden.folder, golden.config, torch.device(DEVICE), torch.bfloat16)


def decibels(found: Tensor, golden: Tensor) -> float:
    found = found.float().cpu()
    assert torch.isfinite(found).all()
    return -20 * math.log10(float((found - golden).norm() / golden.norm()))


@pytest.mark.parametrize("case", TALKS, ids=lambda case: case.name)
@torch.inference_mode()
def test_scores_in_bf16(small: Golden, case: Talk) -> None:
    vectors, model = small.part("talker"), small.model
    row = new_row(model, vectors["prompt_tokens"], case.with_speech, text_closed=True)
    assert fetch(model, row)
    whole = [*row.inputs, *(model.prompts.speech(token) for token in vectors["said"].tolist())]
    places = torch.arange(len(whole), device=small.device)[None]
    hidden = model.forward([row], [whole], places, CausalContext())[0, len(row.inputs) - 1 :]
    scores = model.talker.logits(hidden).log_softmax(-1).cpu()
    expected = vectors[f"{case.name}/scores"]
    same = (scores.argmax(-1) == vectors[f"{case.name}/highest"]).float().mean()
    kept = scores[[0, 1, 10, 20]]
    divergence = (expected.exp() * (expected - kept)).sum(-1).max()
    assert float(divergence) < MAX_DIVERGENCE
    assert float(same) > MIN_SAME_LIKELIEST


@torch.inference_mode()
def test_mel_of_the_decode_stage_in_bf16(small: Golden) -> None:
    """And its PCM: of as many samples, all finite."""
    case, vectors, heard = FLOWS[0], small.part("flow"), list[Tensor]()
    stage = CosyDecodeStage(small.flow, small.hift, 2, CosyVoice3Settings(), small.device, 1)
    push = stage.vocoder.push_each
    stage.vocoder.push_each = lambda slots, mels, final: (heard.extend(mels), push(slots, mels, final))[1]  # type: ignore[method-assign]
    prompt, tokens, mel, embedding = (
        vectors[f"{case.name}/{k}"] for k in ("prompt", "tokens", "prompt_mel", "embedding")
    )
    slot = stage.reserve()
    assert slot is not None
    stage.prime(slot, VoiceReference(b"v", (), VoicePrompt(b"v", prompt, mel, embedding)))
    for token in tokens.tolist():
        stage.feed(slot, (token,))
    stage.finalize(slot)
    outs = []
    while stage.busy:
        outs += stage.step({})
    assert [out.error for out in outs if out.error] == []
    assert sum(len(out.pcm) for out in outs) == 960 * case.num_tokens
    assert decibels(torch.cat(heard), vectors[f"{case.name}/chunk final"]) > MIN_MEL_DB


@torch.inference_mode()
def test_pcm_in_pieces(small: Golden) -> None:
    vectors, rows, begin, pieces = small.part("hift"), HiftBatch(small.hift, 1), 0, list[Tensor]()
    rows.open(0)
    for end in (*HIFT_CUTS, HIFT_FRAMES):
        pieces += rows.push([0], [vectors["mel"][begin:end].to(small.device)], [end == HIFT_FRAMES])
        begin = end
    assert decibels(torch.cat(pieces), vectors["pcm"]) > MIN_WAVE_DB


@torch.inference_mode()
def test_pitch_is_that_of_the_cpu(small: Golden) -> None:
    """Float64 on every device: an error here would turn the phase."""
    vectors = small.part("hift")
    found = pitch_of_mel(small.hift.f0_predictor, vectors["mel"].t()[None].to(small.device))[0].cpu()
    torch.testing.assert_close(found, vectors["f0"], atol=1e-4, rtol=0)
