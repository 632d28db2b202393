"""The fast way to pack properties gives the bytes of the slow one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from realtime.errors import LocalProtocolError
from realtime.protocol.mqtt.packet import packed

TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x24F, exclude_characters="\x7f"), max_size=90)


@given(
    st.none() | TEXT,
    st.none() | st.just("voice/v1/c/x/rsp"),
    st.none() | st.binary(max_size=200),
    st.none() | st.integers(0, 2**32 - 1),
    st.lists(st.tuples(TEXT, TEXT), max_size=4),
)
def test_as_paho_packs_them(
    content_type: str | None, topic: str | None, tag: bytes | None, expiry_s: int | None, user: list[tuple[str, str]]
) -> None:
    theirs = Properties(PacketTypes.PUBLISH)
    named = {"ContentType": content_type, "ResponseTopic": topic, "CorrelationData": tag, "UserProperty": user or None}
    for name, value in {**named, "MessageExpiryInterval": expiry_s}.items():
        if value is not None:
            setattr(theirs, name, value)
    found = Properties(PacketTypes.PUBLISH)
    ours = packed(content_type, topic, tag, expiry_s, user)
    assert found.unpack(ours)[1] == len(ours)
    assert len(ours) == len(theirs.pack())
    assert found.json() == theirs.json()


def test_what_is_too_long_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="at most 65535 bytes, this one 70000"):
        packed(correlation=bytes(70_000))
