from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.bench.packet_client import BINARY, FINAL, TEXT, build_frame, parse_frame


@given(st.lists(st.sampled_from([0, 1, 125, 126, 65_535, 65_536]).map(bytes), min_size=1, max_size=3), st.data())
def test_frames_are_found_when_they_are_all_there(payloads: list[bytes], data: st.DataObject) -> None:
    sent = bytearray()
    for payload in payloads:
        size = len(payload)
        wide = bytes((126,)) + size.to_bytes(2, "big") if size < 1 << 16 else bytes((127,)) + size.to_bytes(8, "big")
        sent += bytes((FINAL | BINARY,)) + (bytes((size,)) if size < 126 else wide) + payload
    received = sent[: data.draw(st.integers(0, len(sent)))]
    found, at = [], 0
    while (frame := parse_frame(received, at)) is not None:
        opcode, start, at = frame
        assert opcode == BINARY
        found.append(bytes(received[start:at]))
    assert found == payloads[: len(found)]
    assert len(found) == len(payloads) or len(received) < len(sent)


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_servers_parser_reads_what_is_sent(size: int) -> None:
    from websockets.frames import Frame
    from websockets.streams import StreamReader

    reader = StreamReader()
    reader.feed_data(build_frame(TEXT, b"x" * size))
    parser = Frame.parse(reader.read_exact, mask=True)
    with pytest.raises(StopIteration) as parsed:
        next(parser)
    assert parsed.value.value.data == b"x" * size
    assert parsed.value.value.fin
