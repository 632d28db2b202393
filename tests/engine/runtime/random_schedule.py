"""A random order of what can happen to the requests of an engine."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from tests.engine.engine_harness import EngineHarness

Order = list[tuple[str, int]]
KINDS = ["submit", "submit", "push", "end", "cancel", "step", "step"]
PUSHED = " dog"
MAX_STEPS = 5


def orders(max_size: int) -> st.SearchStrategy[Order]:
    return st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 99)), min_size=4, max_size=max_size)


def play(order: Order, bench: EngineHarness, submit: Callable[[int], int]) -> dict[int, str]:
    """Do all of it, then end every text and run until nothing is left -> each request's whole text by its epoch.

    ``submit`` begins the request of a number, and gives its epoch.
    """
    texts: dict[int, str] = {}
    for kind, number in order:
        running = list(bench.engine.requests.active)
        chosen = running[number % len(running)] if running else None
        if kind == "submit":
            epoch = submit(number)
            texts[epoch] = bench.heard[epoch].spec.text
        elif kind == "push" and chosen and not bench.request(chosen).row.text.closed:
            texts[chosen] += PUSHED
            bench.push_text(chosen, PUSHED)
        elif kind == "end" and chosen:
            bench.end_input(chosen)
        elif kind == "cancel" and chosen:
            bench.cancel(chosen)
        else:
            for _ in range(number % (MAX_STEPS + 1)):
                bench.step()
    for epoch in list(bench.engine.requests.active):
        bench.end_input(epoch)
    bench.run()
    bench.check_idle()
    return texts
