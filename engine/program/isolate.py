"""One faulty item of a batch fails alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Out = TypeVar("Out")


def isolate(
    compute: Callable[[Sequence[Item]], list[Out]],
    items: Sequence[Item],
    on_failed: Callable[[Item, Exception], None],
) -> list[Out]:
    """``compute(items)``; when that raises, once more for each item alone. ``on_failed`` gets each that raises again.

    ``compute`` must change nothing before it can raise.
    """
    try:
        return compute(items)
    except Exception as error:
        if len(items) > 1:
            return [out for item in items for out in isolate(compute, [item], on_failed)]
        if not items:
            raise
        on_failed(items[0], error)
        return []
