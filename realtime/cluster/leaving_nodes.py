"""Nodes that are about to end. No input or output."""

from __future__ import annotations

from collections.abc import Container, Iterator

from msgspec import Struct

# Time for the successors of a node's replicas to start; then the replicas drain anyway.
MAX_LEAVE_S = 60.0


class LeaveAnswer(Struct, frozen=True, kw_only=True):
    """The controller's answer to a node that is about to end."""

    # Replicas that run there, or can still be placed there. ``None`` until all replicas are known.
    num_running: int | None = None
    # Why the node cannot leave; empty if it can.
    error: str = ""


class LeavingNodes:
    """Remembers nodes by Ray's id while ``cluster leave`` names them, and for ``retain_s`` after that.

    One thread may add nodes while another one evicts them.
    """

    def __init__(self, retain_s: float) -> None:
        self._retain_s = retain_s
        # When each node was named first, and last.
        self._named_s: dict[str, tuple[float, float]] = {}

    def __contains__(self, node: str) -> bool:
        return node in self._named_s

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._named_s))

    def add(self, node: str, now_s: float) -> None:
        first_s, _ = self._named_s.get(node, (now_s, now_s))
        self._named_s[node] = first_s, now_s

    def is_overdue(self, node: str, now_s: float) -> bool:
        """Return whether the replicas of a leaving node wait for their successors no longer."""
        return now_s - self._named_s[node][0] > MAX_LEAVE_S

    def evict(self, alive: Container[str], now_s: float) -> None:
        """Drop nodes that have ended, and those that did not end after all."""
        for node in self:
            if node not in alive or now_s - self._named_s[node][1] > self._retain_s:
                del self._named_s[node]
