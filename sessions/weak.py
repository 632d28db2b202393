"""Callbacks without reference cycles: memory is free when the last user of an object has gone, not at a collection."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def weak_method(method: Callable[P, R]) -> Callable[P, R]:
    """Call a bound method without keeping its object alive. Raises ``ReferenceError`` once the object has gone."""
    reference = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = reference()
        if bound is None:
            raise ReferenceError("the owner of a callback has gone")
        return bound(*args, **kwargs)

    return call
