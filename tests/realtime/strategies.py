"""Hypothesis strategies for everything that may be said on the native wire, derived from the types of its fields."""

from __future__ import annotations

import string
from typing import Any

from hypothesis import strategies as st
from msgspec import inspect

from realtime.protocol import events as ev

U32 = st.integers(0, 2**32 - 1)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=40)
IDS = st.text(string.ascii_letters + string.digits + "_.:-", min_size=1, max_size=ev.MAX_ID_CHARS)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type, within the ranges of its annotations."""
    match kind:
        case inspect.Metadata():
            return values_of(kind.type)
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            low = -(2**63) if kind.ge is None else kind.ge
            return st.integers(low, 2**63 - 1 if kind.le is None else kind.le)
        case inspect.FloatType():
            return NUMBER
        case inspect.StrType():
            return TEXT if kind.pattern is None else IDS
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.UnionType():
            return st.one_of(*map(values_of, kind.types))
        case inspect.VarTupleType():
            return st.lists(values_of(kind.item_type), max_size=3).map(tuple)
        case inspect.DictType():
            return st.dictionaries(values_of(kind.key_type), values_of(kind.value_type), max_size=3)
        case inspect.StructType():
            return st.builds(kind.cls, **{field.name: values_of(field.type) for field in kind.fields})
    raise NotImplementedError(f"no values of {kind}")


CLIENT_EVENTS = values_of(inspect.type_info(ev.ClientEvent))
SERVER_EVENTS = values_of(inspect.type_info(ev.ServerEvent))
AUDIO_MESSAGES = st.builds(
    ev.AudioMessage,
    kind=st.sampled_from(ev.AudioKind),
    response=U32,
    sequence=U32,
    sample_time=U32,
    packets=st.lists(st.binary(max_size=50), min_size=1, max_size=8).map(tuple),
)
