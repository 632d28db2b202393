from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.models.qwen3_tts.prompt import FrameLog

frames = st.lists(st.lists(st.integers(0, 3071), min_size=3, max_size=3), max_size=20)


@given(frames, st.slices(20))
def test_it_reads_like_a_list_of_frames(wanted: list[list[int]], part: slice) -> None:
    log = FrameLog(3)
    for number, frame in enumerate(wanted):
        if number % 2:
            log.append(frame)
        else:
            log.add_bytes(np.array(frame, np.int16).tobytes())
    assert [list(frame) for frame in log] == wanted
    assert [list(frame) for frame in log[part]] == wanted[part]
    assert len(log) == len(wanted)


@pytest.mark.parametrize("index", [2, -3])
def test_there_is_nothing_beyond_its_ends(index: int) -> None:
    log = FrameLog(2)
    log.append([1, 2])
    log.append([3, 4])
    assert list(log[-1]) == [3, 4]
    with pytest.raises(IndexError):
        log[index]
