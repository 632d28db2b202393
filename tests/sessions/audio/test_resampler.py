"""Transforms of a signal, under any cut: frames, other rates, other speeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.audio.framer import Framer, PcmFrame
from sessions.audio.pcm import Pcm
from sessions.audio.resampler import Resampler, filter_bank
from sessions.audio.time_stretch import MAX_SPEED, MIN_SPEED, TimeStretcher
from sessions.audio_track import STRETCH_MS
from tests.sessions.audio.signals import noise, pieces, speech_like

SPOKEN_RATE = 24_000
RATES = [8_000, 12_000, 16_000, 48_000]
ANY_RATES = st.sampled_from(
    [*((SPOKEN_RATE, rate) for rate in RATES), (8_000, 24_000), (24_000, 22_050), (3, 7), (7, 2)]
)


def resample(chunks: list[Pcm], from_rate: int, to_rate: int) -> Pcm:
    resampler = Resampler(from_rate, to_rate)
    return np.concatenate([*(resampler.push(chunk) for chunk in chunks), resampler.flush()])


def slow_resample(signal: Pcm, from_rate: int, to_rate: int) -> np.ndarray:
    """Each output as a sum over the inputs around its place, at double precision."""
    divisor = np.gcd(from_rate, to_rate)
    up, down = to_rate // divisor, from_rate // divisor
    bank = filter_bank(up, down)
    reach = bank.shape[1] // 2
    padded = np.pad(signal.astype(float), reach + 1)
    outputs = []
    for index in range((2 * signal.size * up + down) // (2 * down)):
        center, phase = divmod(index * down, up)
        outputs.append(padded[center + 1 : center + 2 + 2 * reach] @ bank[phase])
    return np.array(outputs)


def tone(frequency: float, sample_rate: int, num_samples: int) -> Pcm:
    return np.sin(2 * np.pi * frequency * np.arange(num_samples) / sample_rate).astype(np.float32)


def level_db(signal: Pcm) -> float:
    """Of the middle half, against a full-scale tone."""
    middle = signal[signal.size // 4 : 3 * signal.size // 4].astype(float)
    return 10 * np.log10(2 * np.mean(middle**2) + 1e-20)


@given(st.integers(0, 400).map(noise), ANY_RATES, st.data())
def test_any_cut_gives_the_same_bits(signal: Pcm, rates: tuple[int, int], data: st.DataObject) -> None:
    assert np.array_equal(resample(data.draw(pieces(signal)), *rates), resample([signal], *rates))


@given(st.integers(0, 400).map(noise), ANY_RATES)
def test_views_and_gathered_inputs_give_the_same_bits(signal: Pcm, rates: tuple[int, int]) -> None:
    by_phase = resample([signal], *rates)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sessions.audio.resampler.MAX_VIEWED_PHASES", 0)
        gathered = resample([signal], *rates)
    assert np.array_equal(by_phase, gathered)


@given(st.integers(0, 400).map(noise), ANY_RATES, st.data())
def test_samples_that_are_skipped_change_no_later_ones(
    signal: Pcm, rates: tuple[int, int], data: st.DataObject
) -> None:
    cut, whole = data.draw(pieces(signal)), resample([signal], *rates)
    resampler, num_skipped, is_skipping = Resampler(*rates), 0, True
    out = []
    for piece in cut:
        is_skipping = is_skipping and data.draw(st.booleans())
        num_ready = resampler.num_ready(piece.size)
        if is_skipping:
            num_skipped += resampler.skip(piece)
        else:
            out.append(resampler.push(piece))
        assert num_skipped + sum(part.size for part in out) <= whole.size
        assert is_skipping or out[-1].size == num_ready
    rest = np.concatenate([*out, resampler.flush()])
    assert np.array_equal(rest, whole[num_skipped:])


@given(st.integers(0, 300).map(noise), ANY_RATES)
def test_equals_the_slow_sum(signal: Pcm, rates: tuple[int, int]) -> None:
    assert resample([signal], *rates) == pytest.approx(slow_resample(signal, *rates), abs=1e-5)


@given(st.integers(0, 2_000), ANY_RATES)
def test_length_is_the_ratio_rounded(num_samples: int, rates: tuple[int, int]) -> None:
    from_rate, to_rate = rates
    length = resample([noise(num_samples)], from_rate, to_rate).size
    assert abs(length - num_samples * to_rate / from_rate) <= 0.5


@given(st.integers(0, 500).map(noise))
def test_equal_rates_are_the_identity(signal: Pcm) -> None:
    resampler = Resampler(24_000, 24_000)
    assert resampler.push(signal) is signal
    assert resampler.flush().size == resampler.delay_samples == 0


@pytest.mark.parametrize("to_rate", RATES)
def test_silence_stays_silence_and_a_constant_stays_constant(to_rate: int) -> None:
    assert not resample([np.zeros(480, np.float32)], SPOKEN_RATE, to_rate).any()
    constant = resample([np.full(4_800, 0.5, np.float32)], SPOKEN_RATE, to_rate)
    edge = constant.size // 20
    assert constant[edge:-edge] == pytest.approx(np.full(constant.size - 2 * edge, 0.5), abs=1e-6)


@pytest.mark.parametrize("to_rate", RATES)
def test_flush_begins_anew(to_rate: int) -> None:
    resampler = Resampler(SPOKEN_RATE, to_rate)
    first = np.concatenate([resampler.push(noise(1_000)), resampler.flush()])
    second = np.concatenate([resampler.push(noise(1_000)), resampler.flush()])
    assert np.array_equal(first, second)


@pytest.mark.parametrize("to_rate", RATES)
def test_delay_is_fixed_and_at_most_two_ms(to_rate: int) -> None:
    resampler = Resampler(SPOKEN_RATE, to_rate)
    assert resampler.delay_samples <= 0.002 * SPOKEN_RATE
    given_ms = np.cumsum([resampler.push(noise(480)).size for _ in range(10)]) / to_rate * 1000
    behind_ms = 20 * np.arange(1, 11) - given_ms
    assert np.all(behind_ms <= 2.1)
    assert np.ptp(behind_ms) < 1000 / to_rate


@pytest.mark.parametrize("to_rate", RATES)
@pytest.mark.parametrize("share_of_band", [0.02, 0.3, 0.7, 0.85])
def test_pass_band_is_flat_to_85_percent(to_rate: int, share_of_band: float) -> None:
    frequency = share_of_band * min(SPOKEN_RATE, to_rate) / 2
    out = resample([tone(frequency, SPOKEN_RATE, 12_000)], SPOKEN_RATE, to_rate)
    assert level_db(out) == pytest.approx(0, abs=0.05)
    assert level_db(out - tone(frequency, to_rate, out.size)) < -50  # in place as well: no delay, no phase


@pytest.mark.parametrize("to_rate", [8_000, 12_000, 16_000])
@pytest.mark.parametrize("share_of_band", [1.2, 1.3, 1.45])
def test_aliases_are_below_minus_80_db(to_rate: int, share_of_band: float) -> None:
    frequency = share_of_band * to_rate / 2
    assert level_db(resample([tone(frequency, SPOKEN_RATE, 12_000)], SPOKEN_RATE, to_rate)) < -80


def test_images_are_below_minus_80_db() -> None:
    frequency = 9_000
    out = resample([tone(frequency, SPOKEN_RATE, 12_000)], SPOKEN_RATE, 48_000)
    assert level_db(out - tone(frequency, 48_000, out.size)) < -80


@pytest.mark.parametrize("to_rate", RATES)
def test_agrees_with_soxr_in_the_pass_band(to_rate: int) -> None:
    speech = speech_like(48_000, SPOKEN_RATE, 5)
    ours = resample([speech], SPOKEN_RATE, to_rate)
    reference = soxr.resample(speech, SPOKEN_RATE, to_rate, quality="VHQ")
    assert reference.size == ours.size
    passed = int(0.85 * min(SPOKEN_RATE, to_rate) / to_rate * (ours.size // 2))
    spectra = [np.fft.rfft(signal * np.hanning(signal.size))[:passed] for signal in (reference, ours)]
    assert np.linalg.norm(spectra[1] - spectra[0]) < 1e-3 * np.linalg.norm(spectra[0])


@pytest.mark.parametrize(
    ("rates", "message"),
    [((24_000, 0), "positive, got 24000 and 0"), ((24_000, 23_999), "23999/24000; at most 640")],
)
def test_rates_that_cannot_be_served_are_refused(rates: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Resampler(*rates)


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
    assert [len(framer.push(noise(size))) for size in (47, 12, 1)] == [2, 0, 1]


def test_a_frame_has_at_least_one_sample() -> None:
    with pytest.raises(ValueError, match="frame_samples must be at least 1, got 0"):
        Framer(0)


RATE = 24_000
TASKS = Path("/proc/self/task")


def stretched(speed: float, *sounds: Pcm) -> Pcm:
    stretcher = TimeStretcher(RATE, speed)
    return np.concatenate([*(stretcher.push(sound) for sound in sounds), stretcher.flush()])


@pytest.mark.parametrize("speed", [0.4, 0.8, 1.0, 1.25, 3.0])
def test_any_cut_gives_the_same_signal(speed: float) -> None:
    signal = speech_like(9_000, RATE, seed=1)
    whole = stretched(speed, signal)

    @settings(max_examples=10)
    @given(pieces(signal))
    def check(cut: list[Pcm]) -> None:
        np.testing.assert_array_equal(stretched(speed, *cut), whole)

    check()


@given(st.integers(0, 6_000), st.floats(MIN_SPEED, MAX_SPEED))
def test_it_is_as_long_as_the_speed_asks(num_samples: int, speed: float) -> None:
    signal = np.zeros(num_samples, np.float32)
    assert stretched(speed, signal).size == round(num_samples / speed)


def test_speed_one_is_the_identity() -> None:
    signal = speech_like(5_000, RATE, seed=2)
    stretcher = TimeStretcher(RATE, 1.0)
    assert stretcher.push(signal) is signal
    assert stretcher.flush().size == 0


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.75, 1.5, 2.0, 4.0])
def test_the_pitch_stays(speed: float) -> None:
    time_s = np.arange(2 * RATE) / RATE
    tone = (0.3 * np.sin(2 * np.pi * 220 * time_s)).astype(np.float32)
    out = stretched(speed, tone)
    spectrum = np.abs(np.fft.rfft(out * np.hanning(out.size)))
    assert np.fft.rfftfreq(out.size, 1 / RATE)[spectrum.argmax()] == pytest.approx(220, abs=6)


@pytest.mark.parametrize("speed", [0.25, 0.49, 0.5, 0.9, 1.1, 2.0, 4.0])
def test_no_more_is_held_back_than_a_pause_brings_out(speed: float) -> None:
    signal = speech_like(30_000, RATE, seed=3)
    for num_samples in (7_000, 19_999, 30_000):
        stretcher = TimeStretcher(RATE, speed)
        silence = np.zeros(RATE * STRETCH_MS // 1000, np.float32)
        out = stretcher.push(signal[:num_samples]).size + stretcher.push(silence).size
        assert out >= num_samples / speed


def test_a_new_signal_begins_after_a_flush() -> None:
    signal = speech_like(5_000, RATE, seed=4)
    stretcher = TimeStretcher(RATE, 1.5)
    first = np.concatenate([stretcher.push(signal), stretcher.flush()])
    second = np.concatenate([stretcher.push(signal), stretcher.flush()])
    np.testing.assert_array_equal(first, second)


def test_stretchers_start_no_threads() -> None:
    stretchers = [TimeStretcher(24_000, 1.3) for _ in range(10)]
    num_threads = len(list(TASKS.iterdir()))
    for stretcher in stretchers:
        stretcher.push(np.zeros(24_000, np.float32))
    assert len(list(TASKS.iterdir())) == num_threads
