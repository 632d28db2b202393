"""Rows of mel in blocks: which block may open, which cell may go on, and what each of them sees. No torch.

A row's positions count from the first token of its voice's prompt. Its first blocks hold the prompt alone; they are
the same for every row of that voice and are worked off once, as a row of their own (``PromptSequence``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockShape:
    """``tokens`` of one block, ``ahead`` more that it hears, ``ratio`` frames a token, ``steps`` of its ODE."""

    tokens: int
    lookahead: int
    ratio: int
    steps: int

    def num_whole(self, num_tokens: int) -> int:
        """Number of blocks with complete context when ``num_tokens`` tokens are there and more may come."""
        return max(0, num_tokens - self.lookahead) // self.tokens


@dataclass(slots=True, eq=False)
class FlowBlockTask:
    """One block on its way from noise to mel. ``table``: pages of the blocks it sees, its own last."""

    row: BlockSequence
    workspace: int
    block: int
    num_frames: int
    table: list[int]
    step: int = 0


@dataclass(slots=True, eq=False)
class BlockSequence:
    """Blocks that open in order, and cells that stay in order: none overtakes the one before it."""

    # From ``first_token`` on; those before no block will read again.
    tokens: list[int]
    # Of its own blocks, oldest first.
    pages: list[int] = field(default_factory=list)
    # Lent to it and not used yet.
    reserved_pages: list[int] = field(default_factory=list)
    cells: deque[FlowBlockTask] = field(default_factory=deque)
    num_opened: int = 0
    first_token: int = 0
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        return self.first_token + len(self.tokens)

    def window(self, start: int, stop: int) -> list[int | None]:
        """Tokens at these places; None before the first and past the last."""
        return [self.tokens[i - self.first_token] if 0 <= i < self.num_tokens else None for i in range(start, stop)]

    def discard_before(self, before: int) -> None:
        count = min(max(0, before - self.first_token), len(self.tokens))
        del self.tokens[:count]
        self.first_token += count


@dataclass(slots=True, eq=False)
class PromptSequence(BlockSequence):
    """A voice's prompt: what its rows are told, and the blocks they share; ``num_blocks`` of them."""

    mel: Tensor | None = None
    speaker: Tensor | None = None
    num_blocks: int = 0
    num_users: int = 0

    @property
    def is_opened(self) -> bool:
        return self.num_opened == self.num_blocks

    @property
    def is_done(self) -> bool:
        return self.is_opened and not self.cells


@dataclass(slots=True, eq=False)
class StreamSequence(BlockSequence):
    """One slot: its prompt, then what is fed."""

    slot: int = 0
    prompt: PromptSequence = field(default_factory=lambda: PromptSequence([]))
    is_final: bool = False
    num_fed: int = 0
    # Tokens whose PCM has been handed over.
    num_left: int = 0
    num_hops: int = 0
    # Memory was short: it sees the last blocks alone, and what it says is no longer exact.
    is_bounded: bool = False

    def begin(self, prompt: PromptSequence) -> None:
        self.prompt, self.tokens = prompt, list(prompt.tokens)
        self.num_opened = prompt.num_blocks
        prompt.num_users += 1

    def num_ready(self, shape: BlockShape) -> int:
        """Blocks that can open now."""
        if self.error or not self.prompt.is_opened:
            return 0
        if not self.is_final:
            return max(0, shape.num_whole(self.num_tokens) - self.num_opened)
        return -(-self.num_tokens // shape.tokens) - self.num_opened if self.num_fed else 0


def select_blocks(rows: Sequence[BlockSequence], most: int, num_steps: int) -> tuple[list[FlowBlockTask], int]:
    """The next call, rows in order of urgency, and how many steps its cells can go side by side.

    A cell can go where the block before it has been, or goes in the same call.
    """
    chosen: list[FlowBlockTask] = []
    taken: set[int] = set()
    steps = num_steps
    for row in rows:
        before = row.prompt.cells[-1] if isinstance(row, StreamSequence) and row.prompt.cells else None
        for cell in row.cells:
            if before is not None and id(before) not in taken:
                if before.step == cell.step:
                    break
                steps = min(steps, before.step - cell.step)
            if len(chosen) == most:
                return chosen, steps
            steps = min(steps, num_steps - cell.step)
            chosen.append(cell)
            taken.add(id(cell))
            before = cell
    return chosen, steps
