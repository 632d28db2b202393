"""Rime's WebSocket v1, literally: the bytes are those that the vendor's own schema gives."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from realtime.errors import RemoteProtocolError
from realtime.protocol.dialects.protobuf import ProtobufField, decode, encode

INNER = {"flag": ProtobufField(1, "bool"), "ratio": ProtobufField(15, "float"), "name": ProtobufField(16, "string")}
OUTER = {
    "number": ProtobufField(2, "int"),
    "data": ProtobufField(3, "bytes"),
    "inner": ProtobufField(500, INNER),
    "many": ProtobufField(5, INNER, repeated=True),
}
INNER_EXAMPLE = {"flag": True, "ratio": 0.5, "name": "x"}
INNERS = st.fixed_dictionaries(
    {"flag": st.booleans(), "ratio": st.floats(width=32, allow_nan=False), "name": st.text()}
)


@example({"number": 128, "data": b"", "inner": INNER_EXAMPLE, "many": [INNER_EXAMPLE]})
@given(
    st.fixed_dictionaries(
        {
            "number": st.integers(-(2**63), 2**63 - 1),
            "data": st.binary(max_size=300),
            "inner": INNERS,
            "many": st.lists(INNERS, min_size=1, max_size=3),
        }
    )
)
def test_protocol_buffers_come_back_as_they_went(message):
    data = encode(message, OUTER)
    assert decode(data, OUTER) == message
    assert decode(data, {}) == {}
    for end in range(len(data)):
        try:
            decode(data[:end], OUTER)
        except RemoteProtocolError:
            continue
