"""Laws of the resampler under cuts, its pass and stop bands, and soxr as the reference."""

from __future__ import annotations

import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from sessions.audio.pcm import Pcm
from sessions.audio.resampler import Resampler, filter_bank
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
