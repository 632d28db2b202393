"""Which cells may go side by side."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models.cosyvoice3.flow_memory import (
    BlockSequence,
    BlockShape,
    FlowBlockTask,
    PromptSequence,
    StreamSequence,
    select_blocks,
)

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
def test_somebody_always_goes(rows: list[BlockSequence]) -> None:
    cells, num_steps = select_blocks(rows, 1, STEPS)
    assert num_steps >= 1
    assert bool(cells) == any(row.cells for row in rows)


@given(prompt=st.integers(0, 90))
def test_whole_blocks_of_a_prompt_hear_three_tokens_more(prompt: int) -> None:
    count = SHAPE.num_whole(prompt)
    assert count == 0 or 25 * count + 3 <= prompt
    assert 25 * (count + 1) + 3 > prompt
