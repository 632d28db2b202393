"""Python's collector of cyclic garbage stops the engine to look through everything that is there: with a thousand rows
that is a tenth of a second, and it comes whenever there is a quarter more than before. Nothing in a step makes cycles,
so the old are left alone while anybody listens.
"""

from __future__ import annotations

import gc

NEVER = 1 << 30


def freeze_gc() -> None:
    """What is there now stays for good; what comes later is looked through while it is young, and in pauses."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)


def is_gc_frozen() -> bool:
    return gc.get_threshold()[2] == NEVER


def collect_young() -> None:
    """In a pause: all that came since."""
    if is_gc_frozen():
        gc.collect()


def unfreeze_gc() -> None:
    """Before an engine is made where one has died: what was there in its days is let go, too."""
    if is_gc_frozen() or gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
