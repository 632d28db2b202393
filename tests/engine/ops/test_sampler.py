"""Draws against the steps of the official code, written out for one row in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.ops.noise import PhiloxNoise, SampleKey
from engine.ops.sampler import (
    RowSamplingParams,
    SamplingBatch,
    apply_repetition_penalty,
    sample,
    sample_reference,
    sample_top_k,
)
from tests.fakes.official_sampling import GeneratorNoise, sample_official

VOCAB = 24
CPU = torch.device("cpu")

logit = st.floats(-8, 8, width=32)
logit_rows = st.lists(logit, min_size=VOCAB, max_size=VOCAB, unique=True)
params = st.builds(
    RowSamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.9, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 5, VOCAB - 1, VOCAB, 500]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.95, 1.0]),
)


def kept_by_hand(logits: list[float], params: RowSamplingParams) -> list[int]:
    """Ids that may be drawn, by descending logit."""
    order = sorted((i for i in range(len(logits)) if logits[i] > -math.inf), key=lambda i: -logits[i])
    order = order[: params.top_k or len(order)]
    heights = [math.exp((logits[i] - logits[order[0]]) / params.temperature) for i in order]
    mass, kept = 0.0, []
    for i, height in zip(order, heights, strict=True):
        if mass >= params.top_p:
            break
        kept.append(i)
        mass += height / sum(heights)
    return kept


def draw_by_hand(logits: list[float], params: RowSamplingParams, variates: list[float]) -> int:
    if params.temperature == 0:
        return max(range(len(logits)), key=lambda i: logits[i])
    kept = kept_by_hand(logits, params)
    return max(kept, key=lambda i: logits[i] / params.temperature - math.log(variates[i]))


def margin(logits: list[float], params: RowSamplingParams, variates: list[float]) -> float:
    """How far the best candidate stands above the second, and top-p above its border."""
    if params.temperature == 0:
        return 1.0
    kept = kept_by_hand(logits, params)
    scores = sorted((logits[i] / params.temperature - math.log(variates[i]) for i in kept), reverse=True)
    return scores[0] - scores[1] if len(scores) > 1 else 1.0


def near_top_p_border(logits: list[float], params: RowSamplingParams) -> bool:
    if params.temperature == 0:
        return False
    order = sorted(logits, reverse=True)[: params.top_k or len(logits)]
    heights = [math.exp((value - order[0]) / params.temperature) for value in order]
    masses = [sum(heights[: n + 1]) / sum(heights) for n in range(len(heights))]
    return params.top_p < 1 and any(abs(mass - params.top_p) < 1e-5 for mass in masses)


def variates_of(key: SampleKey, codebook: int) -> list[float]:
    return PhiloxNoise().exponential([key], codebook, torch.arange(VOCAB)[None])[0].tolist()


@given(st.lists(st.tuples(logit_rows, params, st.integers(0, 2**64 - 1)), min_size=1, max_size=5), st.integers(0, 15))
@settings(max_examples=80)
def test_a_batch_of_mixed_rows_draws_what_each_draws_by_hand(
    rows: list[tuple[list[float], RowSamplingParams, int]], codebook: int
) -> None:
    keys = [SampleKey(seed, 3, 7) for _, _, seed in rows]
    variates = [variates_of(key, codebook) for key in keys]
    for (logits, params, _), noise in zip(rows, variates, strict=True):
        assume(margin(logits, params, noise) > 1e-4)
        assume(not near_top_p_border(logits, params))
    batch = SamplingBatch([params for _, params, _ in rows], CPU)
    drawn = sample(torch.tensor([logits for logits, _, _ in rows]), batch, keys, codebook, PhiloxNoise()).tolist()
    assert drawn == [
        draw_by_hand(logits, params, noise) for (logits, params, _), noise in zip(rows, variates, strict=True)
    ]


@given(st.lists(st.tuples(logit_rows, params), min_size=1, max_size=5), st.integers(0, 2**32))
def test_the_draw_over_candidates_is_the_draw_at_full_width(
    rows: list[tuple[list[float], RowSamplingParams]], seed: int
) -> None:
    """Without ties, and fed the same noise."""
    logits = torch.tensor([values for values, _ in rows])
    row_params = [RowSamplingParams(p.temperature or 1.0, p.top_k, p.top_p) for _, p in rows]
    keys = [SampleKey(seed + n, 0, 0) for n in range(len(rows))]
    for values, found, key in zip(logits.tolist(), row_params, keys, strict=True):
        assume(margin(values, found, variates_of(key, 0)) > 1e-4)
        assume(not near_top_p_border(values, found))
    batch = SamplingBatch(row_params, CPU)
    ids = torch.arange(VOCAB).expand_as(logits)
    noise = PhiloxNoise().exponential(keys, 0, ids)
    wanted = sample_reference(logits, batch.temperature, batch.top_k, batch.top_p, noise)
    assert torch.equal(sample_top_k(logits, batch, keys, 0, PhiloxNoise()), wanted)


def test_ties_at_the_kth_value_all_stay_at_full_width() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    batch = SamplingBatch([RowSamplingParams(1.0, 2)], CPU)
    generator = GeneratorNoise(torch.Generator().manual_seed(1))
    drawn = {int(sample_official(logits, batch, [SampleKey(0, 0, 0)], 0, generator)) for _ in range(300)}
    assert drawn == {0, 1, 2, 3}


def test_the_generator_source_picks_what_multinomial_picks() -> None:
    """The official order for one row: temperature, top-k, top-p, softmax, multinomial."""
    logits = torch.randn(40, 3072, generator=torch.Generator().manual_seed(2)) * 3
    ours, theirs = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
    batch = SamplingBatch([RowSamplingParams(0.9, 50)], CPU)
    for row in logits.split(1):
        scaled = row / 0.9
        kept = scaled.masked_fill(scaled < scaled.topk(50).values[:, -1:], -math.inf)
        expected = torch.multinomial(kept.softmax(-1), 1, generator=theirs).item()
        assert sample_official(row, batch, [SampleKey(0, 0, 0)], 0, GeneratorNoise(ours)).item() == expected


@pytest.mark.parametrize("top_k", [1, 0, 3])
def test_banned_ids_are_never_drawn_and_a_lone_id_always_is(top_k: int) -> None:
    logits = torch.full((64, VOCAB), -math.inf)
    logits[:, 5] = -3.0
    batch = SamplingBatch([RowSamplingParams(0.9, top_k)] * 64, CPU)
    drawn = sample(logits, batch, [SampleKey(n, 0, 0) for n in range(64)], 0, PhiloxNoise())
    assert drawn.tolist() == [5] * 64


def test_a_tiny_top_p_is_greedy() -> None:
    logits = torch.randn(50, VOCAB, generator=torch.Generator().manual_seed(1))
    batch = SamplingBatch([RowSamplingParams(1.0, 0, 1e-6)] * 50, CPU)
    drawn = sample(logits, batch, [SampleKey(n, 0, 0) for n in range(50)], 0, PhiloxNoise())
    assert torch.equal(drawn, logits.argmax(-1))


def test_greedy_reads_no_noise() -> None:
    class NoNoise(PhiloxNoise):
        def exponential(self, keys: list[SampleKey], codebook: int, ids: Tensor) -> Tensor:
            raise AssertionError("greedy rows draw nothing")

    logits = torch.randn(3, VOCAB)
    batch = SamplingBatch([RowSamplingParams(0.0, 50)] * 3, CPU)
    drawn = sample(logits, batch, [SampleKey(0, 0, 0)] * 3, 0, NoNoise())
    assert torch.equal(drawn, logits.argmax(-1))


@pytest.mark.parametrize(
    "params",
    [RowSamplingParams(1.0, 0), RowSamplingParams(0.5, 0), RowSamplingParams(1.0, 4), RowSamplingParams(1.0, 0, 0.7)],
)
def test_frequencies_are_those_of_the_softmax(params: RowSamplingParams) -> None:
    """Chi-square over 20,000 draws; 40 is beyond one in ten thousand for 11 degrees of freedom."""
    logits = torch.linspace(-1, 1, 12).tolist()
    keys = [SampleKey(1234, 0, frame) for frame in range(20_000)]
    drawn = sample(
        torch.tensor([logits]).expand(20_000, -1), SamplingBatch([params] * 20_000, CPU), keys, 0, PhiloxNoise()
    )
    kept = kept_by_hand(logits, params)
    heights = [math.exp(logits[i] / params.temperature) for i in kept]
    counts = torch.bincount(drawn, minlength=12)
    expected = [20_000 * height / sum(heights) for height in heights]
    chi_square = sum((counts[i].item() - e) ** 2 / e for i, e in zip(kept, expected, strict=True))
    assert counts.sum() == counts[kept].sum(), "an id was drawn that had to be cut"
    assert chi_square < 40


@given(
    st.lists(logit, min_size=VOCAB, max_size=VOCAB),
    st.sets(st.integers(0, VOCAB - 1)),
    st.floats(1, 2),
)
def test_the_penalty_shrinks_what_was_seen_and_nothing_else(
    values: list[float], seen: set[int], penalty: float
) -> None:
    """Positive logits divided, negative multiplied, once however often an id came."""
    mask = torch.tensor([[i in seen for i in range(VOCAB)]])
    found = apply_repetition_penalty(torch.tensor([values]), mask, torch.tensor([[penalty]]))[0]
    for i, value in enumerate(values):
        shrunk = value / penalty if value > 0 else value * penalty
        assert found[i].item() == pytest.approx(shrunk if i in seen else value, rel=1e-5, abs=1e-30)
