"""Repetition-aware sampling, and the rules that end speech."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.models.base import TokenQueue
from engine.models.cosyvoice3.config import SpeechIds
from engine.models.cosyvoice3.prompt import CosySequence, RasParams, SamplingPhase
from engine.models.cosyvoice3.settings import TalkerSettings
from engine.models.cosyvoice3.talker import StopRules, sample
from engine.ops.noise import PhiloxNoise, SampleKey
from tests.fakes.official_sampling import GeneratorNoise, sample_ras

SIZE = 60
PARAMS = st.builds(
    RasParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_p=st.sampled_from([0.05, 0.5, 0.8, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 25]),
    window=st.sampled_from([1, 4, 10]),
    tau=st.sampled_from([0.1, 0.3]),
)


def random_logits(rows: int, seed: int, spread: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(rows, SIZE, generator=generator)
    return logits.masked_fill(torch.rand(rows, SIZE, generator=generator) < 0.2, -torch.inf)


def by_multinomial(logits: Tensor, params: RasParams, history: Sequence[int], generator: torch.Generator) -> int:
    """The rule of the paper, with the library's own multinomial."""
    probabilities, ids = logits.softmax(-1).sort(descending=True, stable=True)
    before = torch.cat((torch.zeros(1), probabilities.cumsum(0)[:-1]))
    head = int(((before < params.top_p) & (torch.arange(len(ids)) < params.top_k)).sum())
    token = int(ids[probabilities[:head].multinomial(1, replacement=True, generator=generator)])
    if list(history[-params.window :]).count(token) < params.window * params.tau:
        return token
    others = logits.clone()
    others[token] = -torch.inf
    return int(others.softmax(-1).multinomial(1, replacement=True, generator=generator))


@given(params=st.lists(PARAMS, min_size=1, max_size=6), seed=st.integers(0, 999), data=st.data())
def test_a_batch_draws_what_each_row_draws_alone(params: list[RasParams], seed: int, data: st.DataObject) -> None:
    logits = random_logits(len(params), seed)
    ids = st.lists(st.integers(0, SIZE - 1), max_size=14)
    histories = [data.draw(ids) for _ in params]
    keys = [SampleKey(seed, 0, place) for place in range(len(params))]
    noise = PhiloxNoise()
    rows = zip(logits, params, histories, keys, strict=True)
    assert sample(logits, params, histories, keys, noise).tolist() == [sample_ras(*row, noise) for row in rows]


def test_200_draws_are_those_of_the_official_rule() -> None:
    params, ours, theirs = RasParams(), torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
    noise, history = GeneratorNoise(ours), list[int]()
    for place, logits in enumerate(random_logits(200, 5, spread=3.0)):
        found = sample_ras(logits, params, history, SampleKey(0, 0, place), noise)
        assert found == by_multinomial(logits, params, history, theirs)
        assert torch.equal(ours.get_state(), theirs.get_state()), "more or less noise was taken"
        history.append(found)
    assert len(set(history)) < 200, "nothing was ever drawn twice: the second draw was not tested"


def certain(token: int) -> Tensor:
    logits = torch.zeros(1, SIZE)
    logits[0, token] = 50.0
    return logits


@pytest.mark.parametrize(("distance", "again"), [(1, True), (10, True), (11, False)])
def test_repeated_token_is_sampled_again_from_all(distance: int, again: bool) -> None:
    history = [7, *range(20, 20 + distance - 1)]
    found = sample(certain(7), [RasParams()], [history], [SampleKey(1, 0, 0)], PhiloxNoise()).item()
    assert (found != 7) is again


def test_where_nothing_else_is_allowed_it_stays() -> None:
    logits = torch.full((1, SIZE), -torch.inf)
    logits[0, 7] = 1.0
    assert sample(logits, [RasParams()], [[7]], [SampleKey(1, 0, 0)], PhiloxNoise()).item() == 7


def test_greedy_repeats_itself_freely() -> None:
    params = RasParams(temperature=0.0)
    assert sample(certain(7), [params], [[7] * 10], [SampleKey(1, 0, 0)], PhiloxNoise()).item() == 7


def test_the_token_that_crosses_top_p_is_kept_and_none_behind_it() -> None:
    """Masses 0.5, 0.4, 0.1: with top_p 0.8 two are kept, with 0.45 one."""
    logits = torch.tensor([[0.5, 0.4, 0.1]]).log()
    keys = [SampleKey(seed, 0, 0) for seed in range(300)]
    for top_p, kept in ((0.8, {0, 1}), (0.45, {0}), (0.95, {0, 1, 2})):
        params = [RasParams(top_p=top_p)] * len(keys)
        assert set(sample(logits.expand(len(keys), -1), params, [[]] * len(keys), keys, PhiloxNoise()).tolist()) == kept


IDS = SpeechIds()
LOGITS = torch.randn(1, IDS.table_size, generator=torch.Generator().manual_seed(1))


def row(
    num_text: int = 10, num_generated: int = 0, settings: TalkerSettings | None = None, **fields: Any
) -> CosySequence:
    text = TokenQueue()
    text.ids = list(range(num_text))
    return CosySequence(text=text, num_generated=num_generated, settings=settings or TalkerSettings(), **fields)


def applied(mode: Literal["merge", "set"], which: CosySequence) -> torch.Tensor:
    return StopRules(IDS, mode).apply(LOGITS, [which])[0]


def test_merged_the_end_is_as_likely_as_all_its_ids_together() -> None:
    found = applied("merge", row(num_generated=100))
    assert found[IDS.num_codes :].isfinite().nonzero().flatten().tolist() == [IDS.eos - IDS.num_codes]
    torch.testing.assert_close(found.softmax(-1)[: IDS.num_codes], LOGITS[0].softmax(-1)[: IDS.num_codes])
    torch.testing.assert_close(found.softmax(-1)[IDS.eos], LOGITS[0].softmax(-1)[IDS.num_codes :].sum())


def test_as_a_set_nothing_is_changed() -> None:
    assert torch.equal(applied("set", row(num_generated=100)), LOGITS[0])


@pytest.mark.parametrize("mode", ["merge", "set"])
@pytest.mark.parametrize(("num_generated", "may_end"), [(0, False), (19, False), (20, True)])
def test_nothing_ends_before_twice_the_text(mode: Literal["merge", "set"], num_generated: int, may_end: bool) -> None:
    found = applied(mode, row(num_text=10, num_generated=num_generated))
    assert found[IDS.num_codes :].isfinite().any().item() is may_end
    assert torch.equal(found[: IDS.num_codes], LOGITS[0, : IDS.num_codes])


@pytest.mark.parametrize("mode", ["merge", "set"])
def test_in_a_block_it_can_only_ask_for_text(mode: Literal["merge", "set"]) -> None:
    found = applied(mode, row(phase=SamplingPhase.BLOCK))
    assert found[IDS.num_codes :].isfinite().nonzero().flatten().tolist() == [IDS.fill - IDS.num_codes]
    assert found[IDS.fill] == LOGITS[0, IDS.fill], "merged with what ends the speech"


@pytest.mark.parametrize("mode", ["merge", "set"])
def test_behind_live_text_it_cannot_ask_any_more(mode: Literal["merge", "set"]) -> None:
    found = applied(mode, row(phase=SamplingPhase.REST))
    assert found[IDS.fill].isneginf()
    assert found[IDS.eos].isfinite()


@pytest.mark.parametrize(("num_text", "least", "most"), [(1, 2, 20), (7, 14, 140), (200, 400, 2048), (0, 1, 1)])
def test_lengths_follow_from_the_text(num_text: int, least: int, most: int) -> None:
    found = row(num_text=num_text)
    assert (found.min_tokens, found.max_tokens, found.frame_cap()) == (least, most, most)


def test_what_a_request_asks_for_overrides_most_and_caps_least() -> None:
    found = row(num_text=10, max_tokens_limit=10)
    assert (found.min_tokens, found.max_tokens) == (10, 10)
    assert row(num_text=10, min_tokens_limit=0).min_tokens == 0
    found = row(num_text=1, max_tokens_limit=100)
    assert (found.min_tokens, found.max_tokens) == (2, 100), "more than its text alone would allow"
    assert row(num_text=1, max_tokens_limit=10_000).max_tokens == TalkerSettings().max_tokens
    fewer = TalkerSettings(min_tokens_per_text_token=0.5, max_tokens_per_text_token=3.5)
    found = row(num_text=3, settings=fewer)
    assert (found.min_tokens, found.max_tokens) == (1, 10)


def test_of_silent_ids_in_a_row_five_are_spoken() -> None:
    found = row()
    assert [found.record_silence(token) for token in [1, 2, 28, 29, 55, 248, 7, 1, 494]] == [False] * 5 + [True] + [
        False
    ] * 3
    assert found.num_generated == 9
    speaks_all = row(settings=TalkerSettings(max_consecutive_silent_tokens=None))
    assert not any(speaks_all.record_silence(1) for _ in range(50))
