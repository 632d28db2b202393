"""Laws of the framer, under cuts that Hypothesis makes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.audio.framer import Framer, PcmFrame
from sessions.audio.pcm import Pcm
from tests.sessions.audio.signals import noise, pieces

SIGNALS = st.integers(0, 200).map(noise)
FRAME_SAMPLES = st.integers(1, 40)


def frames_of(chunks: list[Pcm], frame_samples: int) -> list[PcmFrame]:
    framer = Framer(frame_samples)
    return [frame for chunk in chunks for frame in framer.push(chunk)] + framer.flush()


def unpadded(frames: list[PcmFrame]) -> Pcm:
    return np.concatenate([noise(0), *(frame.pcm[: frame.pcm.size - frame.padding_samples] for frame in frames)])


@given(SIGNALS, FRAME_SAMPLES, st.data())
def test_any_cut_gives_the_same_frames(signal: Pcm, frame_samples: int, data: st.DataObject) -> None:
    whole = frames_of([signal], frame_samples)
    cut = frames_of(data.draw(pieces(signal)), frame_samples)
    assert [(frame.start_sample, frame.pcm.tolist(), frame.padding_samples) for frame in cut] == [
        (frame.start_sample, frame.pcm.tolist(), frame.padding_samples) for frame in whole
    ]


@given(SIGNALS, FRAME_SAMPLES)
def test_frames_hold_the_signal_sample_for_sample(signal: Pcm, frame_samples: int) -> None:
    frames = frames_of([signal], frame_samples)
    assert np.array_equal(unpadded(frames), signal)
    assert len(frames) == -(-signal.size // frame_samples)


@given(SIGNALS, FRAME_SAMPLES)
def test_frames_are_of_one_length_abut_and_end_in_silence(signal: Pcm, frame_samples: int) -> None:
    frames = frames_of([signal], frame_samples)
    assert [frame.start_sample for frame in frames] == [index * frame_samples for index in range(len(frames))]
    assert all(frame.pcm.size == frame_samples and frame.pcm.dtype == np.float32 for frame in frames)
    assert all(frame.padding_samples == 0 for frame in frames[:-1])
    assert not any(frame.pcm[frame_samples - frame.padding_samples :].any() for frame in frames)


@given(SIGNALS, SIGNALS, FRAME_SAMPLES)
def test_after_a_flush_frames_go_on(first: Pcm, second: Pcm, frame_samples: int) -> None:
    framer = Framer(frame_samples)
    frames = [*framer.push(first), *framer.flush(), *framer.push(second), *framer.flush()]
    assert np.array_equal(unpadded(frames), np.concatenate([first, second]))
    assert [frame.start_sample for frame in frames] == [index * frame_samples for index in range(len(frames))]


def test_pending_samples_wait_for_their_frame() -> None:
    framer = Framer(20)
    assert len(framer.push(noise(47))) == 2
    assert framer.pending_samples == 7


def test_a_frame_has_at_least_one_sample() -> None:
    with pytest.raises(ValueError, match="frame_samples must be at least 1, got 0"):
        Framer(0)
