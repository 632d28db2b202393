"""Who holds which page, and at which place cells are worked on. No torch.

A page freed is lent again once the step in flight has passed; free + held = total, always.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence

from engine.errors import InvalidRequest
from engine.memory.block_pool import BlockPool
from engine.models.cosyvoice3.flow_blocks import (
    BlockSequence,
    BlockShape,
    FlowBlockTask,
    PromptSequence,
    StreamSequence,
)
from engine.models.cosyvoice3.prompt_cache import PromptCache
from engine.models.cosyvoice3.settings import FlowSettings

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
                "cosyvoice3.flow.memory_mb or .memory_utilization, or ask for less in .reserved_blocks "
                "or .context_blocks",
                "memory_mb",
            )
        self.pool = BlockPool(num_pages)
        self.workspaces = list(range(num_workspaces, 0, -1))
        self.prompts = PromptCache(max_cached_prompts, self.release_prompt)
        # Rows that memory was too short for, ever.
        self.num_bounded = 0

    def allocate(self, count: int) -> list[int] | None:
        """What is let go of for it serves at once: whatever still reads those pages comes before in the queue.

        Nothing is let go of where that would not do.
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
