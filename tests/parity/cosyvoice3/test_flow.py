"""The flow makes the official mel, in one pass and block by block (``make_vectors`` made the vectors)."""

from __future__ import annotations

from typing import Any, Literal
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from engine.models.base import VoiceReference
from engine.models.cosyvoice3.decode_stage import CosyDecodeStage
from engine.models.cosyvoice3.flow import Modulation, positional_noise
from engine.models.cosyvoice3.settings import CosyVoice3Settings
from engine.models.cosyvoice3.voice import VoicePrompt
from tests.fakes.cosyvoice3_reference import chunk_mask, conditions, mel_of_tokens, token_vectors, velocity
from tests.parity.cosyvoice3.cases import DRIVER_PROMPT, DRIVER_TOKENS, FLOWS, Flow
from tests.parity.cosyvoice3.golden import CPU, Golden, close

MASKS: tuple[Literal["chunk", "full"], ...] = ("chunk", "full")
FIRST = FLOWS[0]


@pytest.fixture(scope="module")
def vectors(golden: Golden) -> dict[str, Tensor]:
    return golden.part("flow")


def given(vectors: dict[str, Tensor], case: Flow) -> dict[str, Tensor]:
    names = {"tokens": "tokens", "prompt_tokens": "prompt", "prompt_mel": "prompt_mel", "embedding": "embedding"}
    return {ours: vectors[f"{case.name}/{name}"] for ours, name in names.items()}


@pytest.mark.parametrize("case", FLOWS, ids=lambda case: case.name)
@pytest.mark.parametrize("mask", MASKS)
def test_mel_in_one_pass(
    golden: Golden, vectors: dict[str, Tensor], case: Flow, mask: Literal["chunk", "full"]
) -> None:
    mel = mel_of_tokens(golden.flow, **given(vectors, case), final=True, mask=mask)
    close(mel, vectors[f"{case.name}/{mask} final"])


@pytest.mark.parametrize("case", [case for case in FLOWS if case.num_tokens > 3], ids=lambda case: case.name)
def test_mel_that_is_not_the_last(golden: Golden, vectors: dict[str, Tensor], case: Flow) -> None:
    mel = mel_of_tokens(golden.flow, **given(vectors, case), final=False, mask="chunk")
    close(mel, vectors[f"{case.name}/chunk open"])


def test_masks_are_distinguished(vectors: dict[str, Tensor]) -> None:
    """Without a difference in the vectors the tests above would pass with either."""
    chunk, full = (vectors[f"{FIRST.name}/{mask} final"] for mask in MASKS)
    assert (chunk - full).abs().max() > 50 * 1e-4 * chunk.abs().max()


@pytest.mark.parametrize("final", [True, False])
def test_what_tokens_become(golden: Golden, vectors: dict[str, Tensor], final: bool) -> None:
    parts = given(vectors, FIRST)
    mu = token_vectors(golden.flow, torch.cat((parts["prompt_tokens"], parts["tokens"])), final)
    close(mu, vectors[f"{FIRST.name}/chunk {'final' if final else 'open'}/mu"], 1e-5)


@pytest.mark.parametrize("mask", MASKS)
def test_the_estimator_at_the_first_moment(golden: Golden, vectors: dict[str, Tensor], mask: str) -> None:
    flow, parts = golden.flow, given(vectors, FIRST)
    mu = token_vectors(flow, torch.cat((parts["prompt_tokens"], parts["tokens"])), True)
    inputs = conditions(flow, mu, parts["prompt_mel"], flow.speaker(parts["embedding"]))
    x = positional_noise(80)[: len(inputs)].expand(2, -1, -1)
    blocks, outputs = flow.modulations()
    sees = chunk_mask(len(inputs), 50) if mask == "chunk" else torch.ones(len(inputs), len(inputs), dtype=torch.bool)
    both = torch.stack((inputs, torch.zeros_like(inputs)))
    found = velocity(flow.dit, x, both, Modulation(blocks[0], outputs[0]), sees)
    close(found.transpose(1, 2), vectors[f"{FIRST.name}/{mask} final/v"])


@pytest.mark.parametrize("case", [case for case in FLOWS if case.num_prompt_tokens], ids=lambda case: case.name)
def test_mel_of_the_decode_stage_fed_token_by_token(golden: Golden, vectors: dict[str, Tensor], case: Flow) -> None:
    """Blocks with kept keys and values, steps in slices, against one pass of the official flow."""
    parts, heard = given(vectors, case), list[Tensor]()
    stage = CosyDecodeStage(golden.flow, golden.hift, 2, CosyVoice3Settings(), CPU, 1)
    push = stage.vocoder.push_each

    def listen(slots: Any, mels: list[Tensor], final: Any) -> list[Tensor]:
        heard.extend(mels)
        return push(slots, mels, final)

    prompt = VoicePrompt(b"v", parts["prompt_tokens"], parts["prompt_mel"], parts["embedding"])
    slot = stage.reserve()
    assert slot is not None
    stage.prime(slot, VoiceReference(b"v", (), prompt))
    num_samples = 0
    with patch.object(stage.vocoder, "push_each", listen):
        for token in parts["tokens"].tolist():
            stage.feed(slot, (token,))
            num_samples += drained(stage)
        stage.finalize(slot)
        num_samples += drained(stage)
    close(torch.cat(heard), vectors[f"{case.name}/chunk final"])
    assert num_samples == 960 * case.num_tokens


def drained(stage: CosyDecodeStage) -> int:
    """Samples of what can be decoded now."""
    count = 0
    while stage.busy:
        for out in stage.step({}):
            assert out.error is None
            count += len(out.pcm)
    return count


def test_the_official_driver_hands_out_as_many_samples(golden: Golden) -> None:
    """In its own hops: a short first one up to a whole block, then twice as many tokens; we cut at blocks."""
    chunks = golden.about["driver_chunks"]
    first = 25 + -DRIVER_PROMPT % 25
    assert chunks == [960 * first - 3840, 960 * 50, 960 * (DRIVER_TOKENS - first - 50) + 3840]
