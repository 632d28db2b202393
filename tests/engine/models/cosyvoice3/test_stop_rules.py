"""What may be drawn next: an end that is as likely as its 200 ids together, none too soon, and in live text a wish."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from engine.models.base import TokenQueue
from engine.models.cosyvoice3.config import SpeechIds
from engine.models.cosyvoice3.prompt import CosySequence, SamplingPhase
from engine.models.cosyvoice3.settings import TalkerSettings
from engine.models.cosyvoice3.talker import StopRules

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
