"""The decode stage: whoever shares its calls, and however tokens come, a slot says what one pass would say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from torch import Tensor

from engine.errors import InvalidRequest
from engine.models.base import DecodedAudio
from engine.models.cosyvoice3 import flow_memory
from engine.models.cosyvoice3.config import FlowConfig
from engine.models.cosyvoice3.decode_stage import CosyDecodeStage
from engine.models.cosyvoice3.flow_memory import FlowPageStore, PromptSequence, StreamSequence, num_pages
from engine.models.cosyvoice3.settings import FlowSettings
from engine.models.cosyvoice3.vocoder_stage import PcmTransfers
from tests.engine.models.cosyvoice3.flow_fixtures import (
    AHEAD,
    BLOCK_TOKENS,
    MEL_SAMPLES,
    NOBODY,
    SAME,
    SMALL,
    ClearVocoder,
    Voice,
    fill,
    mel_of,
    small_flow,
    stage_of,
    voice,
    whole,
)
from tests.engine.splits import cuts_of
from tests.engine.stage_laws import DecodeStageLaws
from tests.fakes.cosyvoice3_reference import chunk_mask

TOKEN_SAMPLES = 2 * MEL_SAMPLES
VOICES = {"none": NOBODY, "short": voice(4), "one block": voice(9), "two": voice(13), "aligned": voice(15)}


def tokens_of(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    drawn: list[int] = torch.randint(0, SMALL.vocab_size, (count,), generator=generator).tolist()
    return drawn


def start(stage: CosyDecodeStage, speaker: str | Voice = "none") -> int:
    slot = stage.reserve()
    assert slot is not None
    if isinstance(speaker, Voice):
        stage.prime(slot, speaker.reference(f"voice {id(speaker)}"))
    elif speaker != "none":
        stage.prime(slot, VOICES[speaker].reference(speaker))
    return slot


def run_dry(stage: CosyDecodeStage, slack_s: Mapping[int, float] | None = None) -> list[DecodedAudio]:
    chunks = []
    for _ in range(2000):
        if not stage.busy:
            return chunks
        chunks += stage.step(slack_s or {})
    raise AssertionError("busy, and gets nowhere")


def said(chunks: Sequence[DecodedAudio], slot: int) -> Tensor:
    assert all(chunk.error is None for chunk in chunks if chunk.slot == slot)
    return mel_of(np.concatenate([np.zeros(0, np.float32), *(chunk.pcm for chunk in chunks if chunk.slot == slot)]))


def speak(
    stage: CosyDecodeStage, slot: int, tokens: Sequence[int], pieces: Sequence[int]
) -> Iterator[list[DecodedAudio]]:
    """The chunks after each piece, and after the end."""
    rest = list(tokens)
    for size in pieces:
        for token in rest[:size]:
            stage.feed(slot, [token])
        del rest[:size]
        yield run_dry(stage)
    stage.finalize(slot)
    yield run_dry(stage)


def check_balance(stage: CosyDecodeStage) -> None:
    """Free + held = total, of pages, places and slots."""
    memory = stage.memory
    memory.pool.check_invariants()
    prompts = {*memory.prompts, *(row.prompt for row in stage.streams.values())}
    rows = [*stage.streams.values(), *prompts]
    held = [page for row in rows for page in (*row.pages, *row.reserved_pages)]
    assert len(held) == len(set(held))
    assert len(held) + memory.pool.num_free + memory.pool.num_quarantined == memory.pool.num_blocks
    places = [*memory.workspaces, *(cell.workspace for row in rows for cell in row.cells)]
    assert sorted(places) == list(range(1, len(places) + 1))
    assert len(places) == len(stage.runner.program.x) - 1


def end(stage: CosyDecodeStage, *slots: int) -> None:
    for slot in slots:
        stage.release(slot)
    stage.release_quarantined()
    assert stage.slots.num_free == stage.slots.num_slots
    check_balance(stage)


# -- exact -------------------------------------------------------------------------------------------------------


@given(data=st.data(), name=st.sampled_from(list(VOICES)), steps=st.integers(1, 10), most=st.sampled_from([1, 64]))
@settings(max_examples=9, deadline=None)
def test_however_tokens_come_the_mel_is_that_of_one_pass(data: st.DataObject, name: str, steps: int, most: int) -> None:
    length = data.draw(st.integers(0, 26))
    tokens, pieces = tokens_of(length), data.draw(cuts_of(length, max_piece=14))
    stage = stage_of(ode_steps_per_engine_step=steps, max_blocks_per_step=most)
    slot = start(stage, name)
    chunks = [chunk for found in speak(stage, slot, tokens, pieces) for chunk in found]
    assert stage.num_pending(slot) == 0
    torch.testing.assert_close(said(chunks, slot), whole(tokens, VOICES[name]), atol=SAME, rtol=0)
    end(stage, slot)


def test_the_comparison_sees_a_block_that_lost_its_past(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = stage_of()
    slot = start(stage, "two")
    chunks = [chunk for found in speak(stage, slot, tokens_of(12), [12]) for chunk in found]
    open_cell: Callable[..., Any] = stage.memory.open

    def forgetful(row: Any) -> Any:
        cell = open_cell(row)
        if cell is not None and len(cell.table) > 3:
            del cell.table[0]
        return cell

    monkeypatch.setattr(stage.memory, "open", forgetful)
    other = start(stage, "two")
    wrong = [chunk for found in speak(stage, other, tokens_of(12), [12]) for chunk in found]
    assert (said(wrong, other) - said(chunks, slot)).abs().max() > 10 * SAME


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("name", VOICES)
def test_first_chunk_is_under_way_from_its_block_to_its_sound(name: str, is_shared: bool) -> None:
    """A block of the prompt alone makes no sound, nor one whose sound the vocoder withholds."""
    stage = stage_of(num_pages=40 if is_shared else 8, reserved_blocks=4, ode_steps_per_engine_step=1)
    other, slot = start(stage), start(stage, name)
    assert not (stage.streams[slot].prompt.num_blocks and not is_shared), "no page is left for a prompt"
    tokens, heard = iter(tokens_of(40)), list[DecodedAudio]()
    while not heard:
        stage.feed(slot, [next(tokens)])
        assert not stage.makes_first_chunk(slot)
        stage.step({})
        is_under_way = stage.makes_first_chunk(slot)
        while stage.busy:
            heard += stage.step({})
            assert stage.makes_first_chunk(slot) == (is_under_way and not heard)
            assert not stage.makes_first_chunk(other)
        assert bool(heard) == is_under_way
    for _ in range(BLOCK_TOKENS):
        stage.feed(slot, [next(tokens)])
    stage.step({})
    assert stage.streams[slot].cells
    assert not stage.makes_first_chunk(slot), "it was heard"


def test_rows_of_a_transfer_are_finite_or_not_each_by_itself() -> None:
    transfers, rows = PcmTransfers(torch.device("cpu")), [StreamSequence([], slot=slot) for slot in range(3)]
    mels = [torch.zeros(2, 4), torch.full((1, 4), math.nan), torch.zeros(3, 4)]
    transfers.send(rows, mels, [torch.zeros(5), torch.zeros(0), torch.full((2,), math.inf)])
    found = [(done.row, len(done.pcm), done.is_finite) for done in transfers.collect()]
    assert found == [(rows[0], 5, True), (rows[1], 0, False), (rows[2], 2, False)]


@pytest.mark.parametrize(
    ("name", "num_needed"), [("none", 8), ("short", 4), ("one block", 4), ("two", 5), ("aligned", 8)]
)
def test_first_block_leaves_when_its_input_is_complete(name: str, num_needed: int) -> None:
    """What its prompt leaves of a block, and three to hear ahead (spec 4.8)."""
    stage, num_prompt = stage_of(), len(VOICES[name].tokens)
    slot = start(stage, name)
    for count, token in enumerate(tokens_of(num_needed), 1):
        run_dry(stage)
        assert not stage.busy
        stage.feed(slot, [token])
        stage.step({})
        assert (stage.streams[slot].num_opened * BLOCK_TOKENS > num_prompt) == (count == num_needed)


@pytest.mark.parametrize("count", [0, 1, 4, 7, 8, 9, 13, 27, 28, 29, 53])
def test_every_length_ends_with_all_its_samples(count: int) -> None:
    stage = stage_of(num_pages=40)
    slot = start(stage, "short")
    chunks = [chunk for found in speak(stage, slot, tokens_of(count), [count]) for chunk in found]
    assert sum(len(chunk.pcm) for chunk in chunks) == TOKEN_SAMPLES * count
    assert stage.num_pending(slot) == 0
    assert run_dry(stage) == []
    end(stage, slot)


def test_tokens_that_stay_the_same_are_all_spoken() -> None:
    """Chunks are told apart by their place, never by what is in them."""
    stage, tokens = stage_of(), [3] * 28
    slot = start(stage)
    chunks = [chunk for found in speak(stage, slot, tokens, [28]) for chunk in found]
    torch.testing.assert_close(said(chunks, slot), whole(tokens, NOBODY), atol=SAME, rtol=0)


def test_tokens_out_of_the_codebook_are_refused_and_not_taken() -> None:
    stage = stage_of()
    slot = start(stage)
    for bad in (-1, SMALL.vocab_size):
        with pytest.raises(ValueError, match=f"token {bad} is outside the codebook of {SMALL.vocab_size}"):
            stage.feed(slot, [bad])
    assert stage.num_pending(slot) == 0


# -- many at once ------------------------------------------------------------------------------------------------


class DecodeLaws(DecodeStageLaws):
    """With voices that come and go."""

    is_short = False

    @initialize(
        hops=st.sampled_from([(1,), (1, 2, 4), (3,)]),
        max_blocks_per_step=st.integers(1, 8),
        steps=st.integers(1, 10),
        gather_slack_s=st.sampled_from([0.0, 0.4]),
    )
    def begin(self, hops: tuple[int, ...], max_blocks_per_step: int, steps: int, gather_slack_s: float) -> None:
        stage = stage_of(
            num_pages=60,
            chunk_blocks=hops,
            max_blocks_per_step=max_blocks_per_step,
            ode_steps_per_engine_step=steps,
            reserved_blocks=3,
            batching_slack_s=gather_slack_s,
        )
        self.begin_with(stage)
        self.voices: dict[int, str] = {}

    @rule(name=st.sampled_from(list(VOICES)))
    def reserve(self, name: str) -> None:
        num_taken = len(self.fed) + self.num_quarantined
        slot = self.join()
        if not self.is_short:
            assert (slot is None) == (num_taken == self.stage.slots.num_slots)
        if slot is not None:
            self.voices[slot] = name
            if name != "none":
                self.stage.prime(slot, VOICES[name].reference(name))

    @precondition(lambda self: set(self.fed) - self.final)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, SMALL.vocab_size - 1), min_size=3, max_size=20))
    def feed(self, data: st.DataObject, tokens: list[int]) -> None:
        self.feed_open_slot(data, [[token] for token in tokens])

    @rule(slack_s=st.dictionaries(st.integers(1, 3), st.sampled_from([0.0, 1.0, math.inf])), count=st.integers(1, 40))
    def step(self, slack_s: dict[int, float], count: int) -> None:
        for _ in range(count):
            self.take(self.stage.step(slack_s))

    def compare(self, slot: int) -> None:
        heard = said(self.heard[slot], slot)
        if len(heard):
            wanted = whole([token for (token,) in self.fed[slot]], VOICES[self.voices[slot]])
            torch.testing.assert_close(heard, wanted[: len(heard)], atol=SAME, rtol=0)

    @invariant()
    def memory_balances(self) -> None:
        if not hasattr(self, "stage"):
            return
        check_balance(self.stage)
        idle = [row for row in self.stage.memory.prompts if not row.num_users]
        assert len(idle) <= 2
        assert all(row.is_done for row in idle)
        assert self.stage.memory.num_bounded == 0 or self.is_short


def test_streams_that_come_and_go_sound_as_decoded_in_one_piece() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(DecodeLaws, settings=settings(max_examples=25, stateful_step_count=30, deadline=None))


class ShortMemoryLaws(DecodeLaws):
    """The same while pages give out: every end comes, with as many samples as it should have, and nothing is lost."""

    is_short = True

    @initialize(
        num_pages=st.integers(6, 12),
        reserved=st.integers(2, 4),
        context=st.sampled_from([None, 1, 2]),
        max_blocks_per_step=st.integers(1, 4),
    )
    def begin(self, num_pages: int, reserved: int, context: int | None, max_blocks_per_step: int) -> None:  # type: ignore[override]
        stage = stage_of(
            num_pages=num_pages,
            reserved_blocks=reserved,
            context_blocks=context,
            max_blocks_per_step=max_blocks_per_step,
            ode_steps_per_engine_step=5,
        )
        self.begin_with(stage)
        self.voices = {}

    def compare(self, slot: int) -> None:
        assert torch.isfinite(said(self.heard[slot], slot)).all()


def test_every_request_ends_when_memory_is_short() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        ShortMemoryLaws, settings=settings(max_examples=25, stateful_step_count=30, deadline=None)
    )


def count_cells(stage: CosyDecodeStage, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Blocks opened, of prompts and of streams."""
    found: Counter[str] = Counter()
    opened = stage.runner.open

    def counting(cells: Any) -> None:
        found.update("prompt" if isinstance(cell.row, PromptSequence) else "stream" for cell in cells)
        opened(cells)

    monkeypatch.setattr(stage.runner, "open", counting)
    return found


def test_a_voice_is_worked_off_once_for_all_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = stage_of()
    found = count_cells(stage, monkeypatch)
    first, second = start(stage, "two"), start(stage, "two")
    tokens = tokens_of(11)
    for slot in (first, second):
        for token in tokens:
            stage.feed(slot, [token])
        stage.finalize(slot)
    chunks = run_dry(stage)
    for slot in (first, second):
        torch.testing.assert_close(said(chunks, slot), whole(tokens, VOICES["two"]), atol=SAME, rtol=0)
    assert found == {"prompt": 2, "stream": 6}
    stage.release(first)
    stage.release(second)
    stage.release_quarantined()
    third = start(stage, "two")
    assert not stage.busy
    end(stage, third)
    assert found["prompt"] == 2


def test_cached_voices_are_bounded() -> None:
    stage = stage_of(max_cached_voices=2)
    for name in ("short", "one block", "two", "aligned", "two"):
        slot = start(stage, name)
        run_dry(stage)
        end(stage, slot)
    assert [len(row.tokens) for row in stage.memory.prompts] == [15, 13]


def test_abandoned_voice_is_not_computed() -> None:
    stage = stage_of(ode_steps_per_engine_step=1)
    slot = start(stage, "two")
    stage.step({})
    end(stage, slot)
    assert not stage.busy
    assert len(stage.memory.prompts) == 0


def test_earliest_underrun_goes_first() -> None:
    stage = stage_of(max_blocks_per_step=1, ode_steps_per_engine_step=1)
    relaxed, urgent = start(stage), start(stage)
    for slot in (relaxed, urgent):
        for token in tokens_of(13):
            stage.feed(slot, [token])
    heard = [chunk.slot for chunk in run_dry(stage, {relaxed: 0.3, urgent: 0.0})]
    assert heard == [urgent, urgent, relaxed, relaxed]


def test_row_without_audio_precedes_row_at_its_lead() -> None:
    stage = stage_of(max_blocks_per_step=1)
    ahead, fresh = start(stage), start(stage)
    for token in tokens_of(13):
        stage.feed(ahead, [token])
    run_dry(stage)
    for slot, tokens in ((ahead, tokens_of(5)), (fresh, tokens_of(13))):
        for token in tokens:
            stage.feed(slot, [token])
    assert [chunk.slot for chunk in run_dry(stage)] == [fresh, ahead, fresh]


def test_voice_is_evicted_for_a_request_that_needs_pages() -> None:
    stage = stage_of(num_pages=10, reserved_blocks=3, max_cached_voices=3)
    for name in ("one block", "two", "aligned"):
        slot = start(stage, name)
        run_dry(stage)
        end(stage, slot)
    assert len(stage.memory.prompts) == 3
    slots = [stage.reserve(), stage.reserve()]
    assert None not in slots
    assert len(stage.memory.prompts) == 2, "the oldest goes, and no other"
    check_balance(stage)


def test_a_request_that_cannot_be_admitted_drives_no_voice_out() -> None:
    stage = stage_of(num_pages=10, reserved_blocks=4, max_cached_voices=3, num_slots=5)
    first = start(stage, "two")
    run_dry(stage)
    end(stage, first)
    slots = [stage.reserve(), stage.reserve()]
    assert None not in slots
    assert len(stage.memory.prompts) == 1
    assert stage.reserve() is None, "two pages are the voice's, and four are wanted"
    assert len(stage.memory.prompts) == 1
    check_balance(stage)


def test_free_pages_are_used_before_a_voice_is_evicted() -> None:
    stage = stage_of(num_pages=6, reserved_blocks=4, num_slots=5)
    first = start(stage, "two")
    run_dry(stage)
    stage.release(first)
    assert stage.reserve() is not None
    assert len(stage.memory.prompts) == 1


def test_new_client_is_admitted_beside_a_fast_one() -> None:
    stage = stage_of(num_pages=200, max_blocks_per_step=1, ode_steps_per_engine_step=1, num_slots=2)
    ahead = start(stage)
    for token in tokens_of(400):
        stage.feed(ahead, [token])
    for _ in range(55):
        stage.step({ahead: 0.0})
    fresh = start(stage)
    for token in tokens_of(8):
        stage.feed(fresh, [token])
    stage.step({ahead: 0.5, fresh: 0.0})
    assert stage.streams[fresh].cells
    end(stage, ahead, fresh)


def test_hop_is_whole_with_slack_and_partial_without() -> None:
    for slack_s, sizes in ((0.0, [1, 1, 1]), (5.0, [1, 2])):
        stage = stage_of(chunk_blocks=(1, 2))
        slot, opened = start(stage), []
        for token in tokens_of(18):
            stage.feed(slot, [token])
            before = stage.streams[slot].num_opened
            stage.step({slot: slack_s})
            if stage.streams[slot].num_opened > before:
                opened.append(stage.streams[slot].num_opened - before)
            while stage.streams[slot].cells:
                stage.step({slot: slack_s})
        assert opened == sizes


# -- short memory ------------------------------------------------------------------------------------------------


def test_admission_asks_for_memory_and_idle_voices_give_way() -> None:
    stage = stage_of(num_pages=9, reserved_blocks=4, num_slots=5)
    first = start(stage, "two")
    run_dry(stage)
    end(stage, first)
    assert len(stage.memory.prompts) == 1
    first, second = start(stage), stage.reserve()
    if second is None:
        stage.release_quarantined()
        second = stage.reserve()
    assert second is not None
    assert stage.reserve() is None, "slots there are, but no memory"
    stage.release(second)
    stage.release_quarantined()
    assert stage.reserve() is not None


def test_stage_without_capacity_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"memory for 3 pages; one request needs 6: .* memory_gb"):
        stage_of(num_pages=3)


@pytest.mark.parametrize(("free_gb", "pages_gb"), [(50, 30), (4, 2), (1, 0)])
def test_pages_leave_memory_for_graphs(free_gb: int, pages_gb: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_memory, "free_bytes", lambda device: free_gb * 2**30)
    flow: Any = SimpleNamespace(device=torch.device("cuda"), config=FlowConfig(), compute_dtype=torch.bfloat16)
    page_bytes = FlowPageStore.page_bytes(flow.config, flow.compute_dtype)
    found = num_pages(flow, FlowSettings())
    assert found == max(0, pages_gb * 2**30 // page_bytes - 2)
    assert found == 0 or (found + 2) * page_bytes + flow_memory.RESERVED_BYTES <= free_gb * 2**30


def test_row_without_pages_continues_and_others_stay_exact() -> None:
    stage = stage_of(num_pages=10, reserved_blocks=4)
    long, short = start(stage), start(stage)
    tokens, few = tokens_of(60), tokens_of(14, seed=2)
    for token in tokens:
        stage.feed(long, [token])
    for token in few:
        stage.feed(short, [token])
    stage.finalize(long)
    stage.finalize(short)
    chunks = run_dry(stage)
    assert stage.num_bounded == 1
    assert stage.streams[long].is_bounded
    torch.testing.assert_close(said(chunks, short), whole(few, NOBODY), atol=SAME, rtol=0)
    heard, exact = said(chunks, long), whole(tokens, NOBODY)
    assert heard.shape == exact.shape
    torch.testing.assert_close(heard[:40], exact[:40], atol=SAME, rtol=0)
    assert torch.isfinite(heard).all()
    end(stage, long, short)


@given(data=st.data(), name=st.sampled_from(["none", "two"]), context=st.integers(1, 3))
@settings(max_examples=6, deadline=None)
def test_bounded_context_equals_one_pass_with_bounded_mask(data: st.DataObject, name: str, context: int) -> None:
    tokens, pieces = tokens_of(38), data.draw(cuts_of(38, max_piece=20))
    stage = stage_of(context_blocks=context, chunk_blocks=(1, 3))
    slot = start(stage, name)
    chunks = [chunk for found in speak(stage, slot, tokens, pieces) for chunk in found]
    speaker = VOICES[name]
    shared = stage.streams[slot].prompt.num_blocks
    mask = chunk_mask(2 * (38 + len(speaker.tokens)), 10, context, shared)
    torch.testing.assert_close(said(chunks, slot), whole(tokens, speaker, mask), atol=SAME, rtol=0)
    assert (said(chunks, slot) - whole(tokens, speaker)).abs().max() > 10 * SAME, "the bound is felt"
    end(stage, slot)


@pytest.mark.parametrize("context", [None, 2])
def test_what_a_long_stream_holds(context: int | None) -> None:
    """Bounded: always the same. Exact: a page a block, and nothing else that grows."""
    stage = stage_of(num_pages=80, context_blocks=context, chunk_blocks=(1, 2))
    slot = start(stage, "two")
    row, held = stage.streams[slot], []
    for token in tokens_of(120):
        stage.feed(slot, [token])
        run_dry(stage)
        assert len(row.tokens) <= BLOCK_TOKENS + AHEAD + 2 + len(VOICES["two"].tokens)
        held.append(len(row.pages) + len(row.reserved_pages))
        assert len(row.pages) == min(row.num_opened - 2, 4 if context else 1000)
    assert row.num_opened == (133 - AHEAD) // BLOCK_TOKENS
    assert held[-1] == (4 if context else row.num_opened - 2)
    if context:
        assert set(held) == {4}
    end(stage, slot)


# -- faults ------------------------------------------------------------------------------------------------------


def neighbours(stage: CosyDecodeStage, bad: int, tokens: Sequence[int]) -> list[DecodedAudio]:
    """What comes of a bad slot, next to a healthy one that must not notice."""
    healthy = start(stage, "two")
    for slot in (bad, healthy):
        for token in tokens:
            stage.feed(slot, [token])
        stage.finalize(slot)
    chunks = run_dry(stage)
    torch.testing.assert_close(said(chunks, healthy), whole(tokens, VOICES["two"]), atol=SAME, rtol=0)
    faults = [chunk for chunk in chunks if chunk.slot == bad]
    assert [chunk.error is not None for chunk in faults] == [True], "told once, and nothing else"
    end(stage, bad, healthy)
    return faults


def broken_voice(part: str) -> Voice:
    parts = {"tokens": voice(9).tokens, "mel": voice(9).mel.clone(), "embedding": voice(9).embedding.clone()}
    if part == "tokens":
        parts["tokens"] = torch.tensor([3] * 8 + [SMALL.vocab_size])
    elif part == "length":
        parts["mel"] = parts["mel"][:-1]
    else:
        parts[part].view(-1)[-1] = math.nan
    return Voice(**parts)


@pytest.mark.parametrize("part", ["tokens", "length", "mel", "embedding"])
def test_a_prompt_that_cannot_be_fails_its_slot_alone(part: str) -> None:
    stage = stage_of()
    [fault] = neighbours(stage, start(stage, broken_voice(part)), tokens_of(9))
    assert fault.error is not None
    named = {"tokens": "codebook", "length": "18", "mel": "finite", "embedding": "finite"}[part]
    assert named in fault.error or "17 mel frames" in fault.error


@pytest.mark.parametrize("where", ["flow", "vocoder"])
def test_non_finite_row_fails_alone_and_its_page_is_clean(where: str) -> None:
    stage = stage_of(num_pages=14, reserved_blocks=4)
    bad = start(stage)
    if where == "flow":
        opened = stage.runner.open

        def poison(cells: Any) -> None:
            opened(cells)
            for cell in cells:
                if cell.row is stage.streams.get(bad):
                    stage.runner.program.conditions[cell.workspace] = math.nan

        stage.runner.open = poison  # type: ignore[method-assign]
    else:
        vocoder = stage.vocoder
        assert isinstance(vocoder, ClearVocoder)
        say = vocoder.say
        vocoder.say = lambda slot, mel, last: say(slot, mel * (math.nan if slot == bad else 1), last)  # type: ignore[method-assign]
    [fault] = neighbours(stage, bad, tokens_of(14))
    assert fault.error is not None
    assert "not finite" in fault.error
    if where == "vocoder":
        return
    del stage.runner.open
    slots = [start(stage), start(stage)]
    for slot in slots:
        for token in tokens_of(9):
            stage.feed(slot, [token])
        stage.finalize(slot)
    chunks = run_dry(stage)
    for slot in slots:
        torch.testing.assert_close(said(chunks, slot), whole(tokens_of(9), NOBODY), atol=SAME, rtol=0)


@pytest.mark.parametrize("where", ["open", "advance"])
def test_a_row_for_which_the_flow_raises_fails_alone(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = stage_of()
    bad = start(stage)
    row, work = stage.streams[bad], getattr(stage.runner, where)

    def faulty(cells: Any, *more: Any) -> None:
        if any(cell.row is row for cell in cells):
            raise RuntimeError("a fault in the flow")
        work(cells, *more)

    monkeypatch.setattr(stage.runner, where, faulty)
    [fault] = neighbours(stage, bad, tokens_of(14))
    assert fault.error == "RuntimeError: a fault in the flow"


def test_a_row_for_which_the_vocoder_raises_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = stage_of()
    bad, push_each = start(stage), stage.vocoder.push_each

    def faulty(slots: Sequence[int], *more: Any) -> list[Tensor | Exception]:
        fault = RuntimeError("a fault in the vocoder")
        return [fault if slot == bad else out for slot, out in zip(slots, push_each(slots, *more), strict=True)]

    monkeypatch.setattr(stage.vocoder, "push_each", faulty)
    [fault] = neighbours(stage, bad, tokens_of(14))
    assert fault.error == "RuntimeError: a fault in the vocoder"


def test_prompt_on_which_the_flow_raises_is_not_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, advance = stage_of(), None
    advance = stage.runner.advance

    def faulty(cells: Any, steps: int) -> None:
        if any(isinstance(cell.row, PromptSequence) for cell in cells):
            raise RuntimeError("a fault in the prompt")
        advance(cells, steps)

    monkeypatch.setattr(stage.runner, "advance", faulty)
    slots = [start(stage, "two"), start(stage, "two")]
    chunks = run_dry(stage)
    assert {chunk.slot: chunk.error for chunk in chunks} == dict.fromkeys(slots, "RuntimeError: a fault in the prompt")
    end(stage, *slots)
    assert len(stage.memory.prompts) == 0
    monkeypatch.undo()
    slot = start(stage, "two")
    tokens = tokens_of(9)
    chunks = [chunk for found in speak(stage, slot, tokens, [9]) for chunk in found]
    torch.testing.assert_close(said(chunks, slot), whole(tokens, VOICES["two"]), atol=SAME, rtol=0)


def test_one_without_graphs_and_in_bfloat16_stays_near() -> None:
    flow = fill(type(small_flow())(SMALL))
    flow.fuse()
    flow.to_compute(torch.bfloat16)
    stage = stage_of(flow=flow, graphs=False, triton_kernels=False)
    slot, tokens = start(stage, "two"), tokens_of(20)
    chunks = [chunk for found in speak(stage, slot, tokens, [20]) for chunk in found]
    wanted = whole(tokens, VOICES["two"])
    error = said(chunks, slot) - wanted
    assert 10 * torch.log10(wanted.square().mean() / error.square().mean()) > 25
