"""Blocks of mel and the pages that they leave behind for later blocks: what opens when, and which row holds what.

A row's positions count from the first token of its voice's prompt. Its first blocks hold the prompt alone; they are
the same for every row of that voice and are computed once, as a row of their own (``PromptSequence``).

A *page* is one block: the keys and values of its frames in every layer, and the last inputs of the two position
convolutions, each for every ODE step and both branches of the guidance. So cached equals uncached (spec 4.8), and a
row's whole state is the table of its pages. A freed page is lent again once the step in flight has passed; free + held
= total, always.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.errors import InvalidRequest
from engine.memory.block_pool import BlockPool
from engine.memory.budget import free_bytes
from engine.memory.kv_cache import lazy_zeros
from engine.models.cosyvoice3.config import FlowConfig
from engine.models.cosyvoice3.settings import FlowSettings

if TYPE_CHECKING:
    from engine.models.cosyvoice3.flow import Flow


NO_TOKEN = -1


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

    def window(self, start: int, stop: int) -> list[int]:
        """Tokens at these places; ``NO_TOKEN`` before the first and past the last."""
        first, end = max(start, 0), max(start, min(stop, self.num_tokens))
        known = self.tokens[first - self.first_token : end - self.first_token]
        return [*[NO_TOKEN] * (first - start), *known, *[NO_TOKEN] * (stop - end)]

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


CPU_BYTES = 2 * 2**30
# Of a CUDA device, for the graphs of all stages and the talker's cache: 1.6 GB at 8 rows.
RESERVED_BYTES = 2 * 2**30
MAX_PAGES = 4_096
# Conditioned and free.
BRANCHES = 2
# Stands before the first block, and pads short tables; nothing is ever written to it.
ZERO_PAGE = 0
# The zero page and the scratch page.
NUM_PADDING = 2


class FlowPageStore:
    """``keys``, ``values`` [layer, line, frame, channel] and ``tails`` [convolution, line, frame, channel].

    A page has a line for each (step, branch); the last page is scratch, for rows that pad a call. A page is lent as
    it is: its holder writes all of a line before anybody reads it.
    """

    def __init__(self, config: FlowConfig, num_pages: int, dtype: torch.dtype, device: torch.device) -> None:
        dit = config.dit
        if dit.conv_pos_kernel - 1 > dit.block_frames:
            raise ValueError(
                f"a convolution of {dit.conv_pos_kernel} reads beyond a block of {dit.block_frames} frames"
            )
        self.num_pages, self.num_steps = num_pages, config.ode_steps
        self.scratch = num_pages + 1
        lines = (num_pages + NUM_PADDING) * config.ode_steps * BRANCHES
        inner = dit.heads * dit.head_dim
        self.keys = zeros((dit.depth, lines, dit.block_frames, inner), dtype, device)
        self.values = zeros((dit.depth, lines, dit.block_frames, inner), dtype, device)
        self.tails = zeros((2, lines, dit.conv_pos_kernel - 1, dit.dim), dtype, device)

    @staticmethod
    def page_bytes(config: FlowConfig, dtype: torch.dtype) -> int:
        dit = config.dit
        key_values = 2 * dit.depth * dit.block_frames * dit.heads * dit.head_dim
        tails = 2 * (dit.conv_pos_kernel - 1) * dit.dim
        return config.ode_steps * BRANCHES * (key_values + tails) * dtype.itemsize

    def flat_indices(self, pages: Tensor, steps: Tensor) -> Tensor:
        """pages [n, ...] at steps [n, ...] -> [n, branch, ...]."""
        first = (pages * self.num_steps + steps) * BRANCHES
        return torch.stack((first, first + 1), 1)


def num_pages(flow: Flow, settings: FlowSettings) -> int:
    """That the memory allows."""
    if settings.memory_mb is not None:
        num_bytes = settings.memory_mb * 2**20
    elif flow.device.type == "cuda":
        free = free_bytes(flow.device)
        num_bytes = max(0, min(int(free * settings.memory_utilization), free - RESERVED_BYTES))
    else:
        num_bytes = CPU_BYTES
    fitting = num_bytes // FlowPageStore.page_bytes(flow.config, flow.compute_dtype)
    return min(MAX_PAGES, max(0, fitting - NUM_PADDING))


def zeros(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return lazy_zeros(sizes, dtype) if device.type == "cpu" else torch.zeros(sizes, dtype=dtype, device=device)


class PromptCache:
    """Those in use, and the ``max_kept`` most recently used others; ``let_go`` gives back what one holds."""

    def __init__(self, max_cached: int, on_evict: Callable[[PromptSequence], None]) -> None:
        self.max_cached, self.on_evict = max_cached, on_evict
        # By when they were last used.
        self._rows: dict[Hashable, PromptSequence] = {}

    def __iter__(self) -> Iterator[PromptSequence]:
        return iter(list(self._rows.values()))

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, key: Hashable) -> PromptSequence | None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._rows[key] = row
        return row

    def put(self, key: Hashable, row: PromptSequence) -> None:
        self._rows[key] = row

    def release(self, row: PromptSequence) -> None:
        """Release one use. An evicted or unfinished prompt is freed with its last user."""
        row.num_users -= 1
        is_found = any(known is row for known in self._rows.values())
        if row.num_users == 0 and not (is_found and row.is_done):
            self._drop(row)
        while self._num_idle > self.max_cached:
            self.evict()

    def evict(self) -> bool:
        """Let go of the least recently used one without users; False when there is none."""
        for row in self._rows.values():
            if row.num_users == 0:
                self._drop(row)
                return True
        return False

    def remove(self, row: PromptSequence) -> None:
        """Evict it; its users still hold it."""
        for key in [key for key, known in self._rows.items() if known is row]:
            del self._rows[key]

    def _drop(self, row: PromptSequence) -> None:
        self.remove(row)
        self.on_evict(row)

    @property
    def num_idle_pages(self) -> int:
        return sum(len(row.pages) + len(row.reserved_pages) for row in self._rows.values() if row.num_users == 0)

    @property
    def _num_idle(self) -> int:
        return sum(row.num_users == 0 for row in self._rows.values())


log = logging.getLogger(__name__)


class FlowPagePool:
    """A request is lent some pages when it is admitted, and more one by one as it speaks. When there are none, nor a
    voice without users to let go of, it goes on with the oldest of its own.
    """

    def __init__(
        self, settings: FlowSettings, shape: BlockShape, num_pages: int, num_workspaces: int, max_cached_prompts: int
    ) -> None:
        self.shape, self.context_blocks = shape, settings.context_blocks
        self.num_admission = settings.reserved_blocks
        if self.context_blocks is not None:
            self.num_admission = self.context_blocks + max(settings.chunk_blocks)
        if num_pages < self.num_admission:
            raise InvalidRequest(
                f"the flow has memory for {num_pages} pages; one request needs {self.num_admission}: give it more in "
                "memory_gb, or ask for less in cosyvoice3.flow.context_blocks",
                "memory_gb",
            )
        self.pool = BlockPool(num_pages)
        self.workspaces = list(range(num_workspaces, 0, -1))
        self.prompts = PromptCache(max_cached_prompts, self.release_prompt)
        # Rows that memory was too short for, ever.
        self.num_bounded = 0

    def allocate(self, count: int) -> list[int] | None:
        """Reserve pages, or none if releasing others would not suffice.

        Released pages serve at once: work that still reads them is earlier in the queue.
        """
        if count > self.pool.num_free:
            self.pool.release_quarantined()
        if count > self.pool.num_free + self.prompts.num_idle_pages:
            return None
        while (pages := self.pool.allocate(count)) is None:
            if not self.prompts.evict():
                return None
            self.pool.release_quarantined()
        return pages

    def admit(self) -> list[int] | None:
        """Pages for one request; None when they are not to be had now."""
        return self.allocate(self.num_admission)

    def prompt(self, key: Hashable, tokens: Sequence[int]) -> PromptSequence:
        """A new row for a voice's prompt; without free pages it is not shared."""
        row = PromptSequence(tokens=list(tokens))
        num_blocks = self.shape.num_whole(len(tokens))
        pages = self.allocate(num_blocks) if num_blocks <= self.pool.num_blocks - self.num_admission else None
        if pages is not None:
            row.reserved_pages, row.num_blocks = pages[::-1], num_blocks
            self.prompts.put(key, row)
        return row

    def open(self, row: BlockSequence) -> FlowBlockTask | None:
        """A cell for the next block; None when there is no place, or no page before its own cells are through."""
        if not self.workspaces or (page := self.page(row)) is None:
            return None
        shared = row.prompt.pages if isinstance(row, StreamSequence) else []
        seen = (
            row.pages
            if self.context_blocks is None or isinstance(row, PromptSequence)
            else row.pages[-self.context_blocks :]
        )
        left = row.num_tokens - row.num_opened * self.shape.tokens
        num_frames = self.shape.ratio * min(self.shape.tokens, left)
        cell = FlowBlockTask(row, self.workspaces.pop(), row.num_opened, num_frames, [*shared, *seen, page])
        row.pages.append(page)
        row.cells.append(cell)
        row.num_opened += 1
        return cell

    def page(self, row: BlockSequence) -> int | None:
        if row.reserved_pages:
            return row.reserved_pages.pop()
        assert isinstance(row, StreamSequence)
        if self.context_blocks is None and (pages := self.allocate(1)):
            return pages[0]
        if any(row.pages[0] in cell.table for cell in row.cells):
            return None
        if self.context_blocks is None and not row.is_bounded:
            self.mark_context_limited(row)
        return row.pages.pop(0)

    def mark_context_limited(self, row: StreamSequence) -> None:
        row.is_bounded = True
        if self.num_bounded == 0:
            log.warning("the flow's %d pages are in use: requests go on with their last blocks", self.pool.num_blocks)
        self.num_bounded += 1

    def close(self, row: BlockSequence) -> FlowBlockTask:
        """The oldest cell is through; its page stays."""
        cell = row.cells.popleft()
        self.workspaces.append(cell.workspace)
        return cell

    def release_prompt(self, row: BlockSequence) -> None:
        while row.cells:
            self.close(row)
        self.pool.free([*row.pages, *row.reserved_pages])
        row.pages, row.reserved_pages = [], []
        if isinstance(row, StreamSequence):
            self.prompts.release(row.prompt)
