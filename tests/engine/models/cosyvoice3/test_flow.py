"""The flow: in one pass, and which blocks may open and go on."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models.cosyvoice3.config import FlowConfig
from engine.models.cosyvoice3.flow import Flow, ode_timesteps, positional_noise
from engine.models.cosyvoice3.flow_memory import (
    BlockSequence,
    BlockShape,
    FlowBlockTask,
    PromptSequence,
    StreamSequence,
    select_blocks,
)
from engine.ops.flow import apply_rope_pairs
from tests.engine.models.cosyvoice3.flow_fixtures import (
    AHEAD,
    BLOCK_TOKENS,
    NOBODY,
    SAME,
    SMALL,
    fill,
    small_flow,
    voice,
    whole,
)
from tests.fakes.cosyvoice3_reference import attend, chunk_mask, integrate, mel_of_tokens
from tests.fakes.cosyvoice3_tensors import flow_shapes

TOKENS = [(7 * i + i * i) % SMALL.vocab_size for i in range(40)]


def test_tensors_have_the_released_names_and_shapes() -> None:
    with torch.device("meta"):
        state = Flow(FlowConfig()).state_dict()
    assert {name: tuple(values.shape) for name, values in state.items()} == flow_shapes(FlowConfig())
    assert len(state) == 330
    assert sum(values.nbytes for values in state.values()) == 1_329_028_480


def test_the_schedule_is_that_of_the_specification() -> None:
    said = [0, 0.012312, 0.048943, 0.108993, 0.190983, 0.292893, 0.412215, 0.546010, 0.690983, 0.843566, 1]
    torch.testing.assert_close(ode_timesteps(10), torch.tensor(said), atol=1e-6, rtol=0)


def test_noise_is_the_first_that_the_official_seed_draws() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        official = torch.randn(1, 80, 15_000)
    torch.testing.assert_close(positional_noise(80), official[0].t(), atol=0, rtol=0)


def test_noise_begins_again_after_300_seconds() -> None:
    flow = small_flow()
    inputs = torch.zeros(3, 3 * 4)
    x = positional_noise(4)
    assert x.shape == (15_000, 4)
    assert integrate(flow, inputs, torch.ones(3, 3, dtype=torch.bool)).shape == (3, 4)


def test_only_pairs_are_turned() -> None:
    turned = apply_rope_pairs(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([torch.pi / 2, 0.0]))
    torch.testing.assert_close(turned, torch.tensor([0.0, 1.0, 0.0, 1.0]))


def test_positions_reach_the_first_head_alone() -> None:
    """Without it, and without the convolutions, nothing could tell two places of a block apart."""
    flow, angles = small_flow(), torch.arange(6.0)[:, None] * small_flow().dit.rotary_embed.inv_freq
    block = flow.dit.transformer_blocks[0]
    x, mask = torch.randn(1, 6, SMALL.dit.dim), torch.ones(6, 6, dtype=torch.bool)
    moved = attend(block, x, angles + 1.0, mask)
    torch.testing.assert_close(attend(block, x, angles, mask), moved, atol=1e-5, rtol=0)
    assert (attend(block, x, angles, mask) - attend(block, x, 2 * angles, mask)).abs().max() > 1e-3


@pytest.mark.parametrize("num_prompt", [0, 4, 7, 10])
def test_later_tokens_change_no_earlier_block(num_prompt: int) -> None:
    """Calls that end at whole blocks are beginnings of the one pass under the chunk mask (spec 4.8)."""
    speaker, flow = voice(num_prompt) if num_prompt else NOBODY, small_flow()
    full = whole(TOKENS, speaker)
    for block in range(1, 8):
        count = block * BLOCK_TOKENS - num_prompt
        if count <= 0:
            continue
        given_tokens = torch.tensor(TOKENS[: count + AHEAD])
        part = mel_of_tokens(flow, given_tokens, speaker.tokens, speaker.mel, speaker.embedding, final=False)
        assert len(part) == 2 * count
        torch.testing.assert_close(part, full[: 2 * count], atol=SAME, rtol=0)


def test_masks_and_ends_that_are_not_aligned_matter() -> None:
    speaker = voice(7)
    full = whole(TOKENS, speaker)
    assert (whole(TOKENS, speaker, "full") - full).abs().max() > 0.01
    first = torch.tensor(TOKENS[:13])
    cut = mel_of_tokens(small_flow(), first, speaker.tokens, speaker.mel, speaker.embedding, final=False)
    assert (cut - full[: len(cut)]).abs().max() > 0.01


@given(num_frames=st.integers(1, 40), context=st.integers(1, 3), first=st.integers(0, 2))
@settings(max_examples=20)
def test_bounded_mask_covers_own_earlier_and_first_blocks(num_frames: int, context: int, first: int) -> None:
    mask = chunk_mask(num_frames, 10, context, first)
    for f in range(0, num_frames, 7):
        for g in range(num_frames):
            near = 0 <= f // 10 - g // 10 <= context
            assert bool(mask[f, g]) == (near or (g // 10 < first and g // 10 <= f // 10))


def test_fusing_changes_nothing_and_frees_weights() -> None:
    plain, fused = fill(Flow(SMALL)), small_flow()
    torch.testing.assert_close(whole(TOKENS, voice(7), flow=plain), whole(TOKENS, voice(7)), atol=1e-5, rtol=0)
    sizes = [sum(values.numel() for values in flow.state_dict().values()) for flow in (plain, fused)]
    assert sizes[1] < 0.8 * sizes[0]


def test_bfloat16_products_leave_the_mel_as_it_is_to_25_db() -> None:
    config = dataclasses.replace(SMALL, dit=dataclasses.replace(SMALL.dit, dim=64, heads=4, head_dim=16))
    exact, rounded = fill(Flow(config)), fill(Flow(config))
    for flow in (exact, rounded):
        flow.fuse()
    rounded.to_compute(torch.bfloat16)
    assert rounded.compute_dtype == torch.bfloat16
    wanted = whole(TOKENS, voice(7), flow=exact)
    error = whole(TOKENS, voice(7), flow=rounded) - wanted
    assert 10 * torch.log10(wanted.square().mean() / error.square().mean()) > 25
    assert error.abs().max() > 0


STEPS = 10
SHAPE = BlockShape(tokens=25, lookahead=3, ratio=2, steps=STEPS)


@st.composite
def some_rows(draw: st.DrawFn) -> list[BlockSequence]:
    """Two streams on one prompt, cells in order, in any order of urgency."""
    prompt = PromptSequence([])
    streams = [StreamSequence([], prompt=prompt), StreamSequence([], prompt=prompt)]
    for row in (prompt, *streams):
        top = min((cell.step for cell in prompt.cells), default=STEPS - 1)
        steps = sorted(draw(st.lists(st.integers(0, top), max_size=4)), reverse=True)
        row.cells.extend(FlowBlockTask(row, 0, block, 50, [0], step) for block, step in enumerate(steps))
    return draw(st.permutations([prompt, *streams]))


@given(rows=some_rows(), most=st.integers(1, 12))
@settings(max_examples=200)
def test_a_cell_goes_where_the_one_before_has_been_or_goes_too(rows: list[BlockSequence], most: int) -> None:
    cells, num_steps = select_blocks(rows, most, STEPS)
    assert len(cells) <= most
    going = {id(cell) for cell in cells}
    for row in rows:
        before = row.prompt.cells[-1] if isinstance(row, StreamSequence) and row.prompt.cells else None
        for cell in row.cells:
            if id(cell) in going:
                assert cell.step + num_steps <= STEPS
                if before is not None and id(before) not in going:
                    assert before.step >= cell.step + num_steps
            before = cell


@given(rows=some_rows())
def test_some_row_always_runs(rows: list[BlockSequence]) -> None:
    cells, num_steps = select_blocks(rows, 1, STEPS)
    assert num_steps >= 1
    assert bool(cells) == any(row.cells for row in rows)


@given(prompt=st.integers(0, 90))
def test_whole_blocks_of_a_prompt_see_three_tokens_more(prompt: int) -> None:
    count = SHAPE.num_whole(prompt)
    assert count == 0 or 25 * count + 3 <= prompt
    assert 25 * (count + 1) + 3 > prompt
