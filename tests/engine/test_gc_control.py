from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from engine.gc_control import collect_young, freeze_gc, is_gc_frozen
from engine.loop import EngineLoop
from engine.runtime.engine import Engine


class Thing:
    other: Thing


class Unmade(Exception):
    pass


@pytest.fixture
def calm() -> Iterator[None]:
    before = gc.get_threshold()
    freeze_gc()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def a_cycle() -> weakref.ref[Thing]:
    thing = Thing()
    thing.other = thing
    return weakref.ref(thing)


def collections_of_the_old() -> int:
    return int(gc.get_stats()[2]["collections"])


@pytest.mark.usefixtures("calm")
def test_the_old_are_looked_through_in_pauses_alone() -> None:
    before, kept = collections_of_the_old(), list[object]()
    for _ in range(100_000):
        kept.append([kept])
    assert collections_of_the_old() == before
    gone = a_cycle()
    collect_young()
    assert gone() is None


def test_whoever_did_not_ask_for_it_has_pythons_own_ways() -> None:
    assert not is_gc_frozen()
    before = collections_of_the_old()
    collect_young()
    assert collections_of_the_old() == before


@pytest.mark.parametrize("is_calm", [True, False])
def test_an_engine_that_died_is_gone_before_another_is_made(is_calm: bool, request: pytest.FixtureRequest) -> None:
    if is_calm:
        request.getfixturevalue("calm")
    died = a_cycle()
    gc.freeze()
    assert died() is not None

    def make_engine() -> Engine:
        assert died() is None
        raise Unmade

    with pytest.raises(Unmade):
        EngineLoop(make_engine, lambda emitted: None, lambda error: None).start()
