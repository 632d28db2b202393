import numpy as np
import pytest

pytest.importorskip("pesq", reason="the dependency group training is not installed")
pytest.importorskip("pystoi", reason="the dependency group training is not installed")

from training import flite
from training.acoustics import (
    RATE_HZ,
    Band,
    Signal,
    VoicePrint,
    band,
    levels,
    likeness,
    share_told_apart,
    voice_print,
    without_outer_silence,
)

needs_flite = pytest.mark.skipif(not flite.available(), reason="flite (libflite1) is not installed")


def tone(seconds: float, amplitude: float = 0.5, frequency: float = 200.0) -> Signal:
    return (amplitude * np.sin(2 * np.pi * frequency * np.arange(round(seconds * RATE_HZ)) / RATE_HZ)).astype(
        np.float32
    )


def silence(seconds: float) -> Signal:
    return np.zeros(round(seconds * RATE_HZ), np.float32)


def buzz(pitch_hz: float) -> Signal:
    """A second of a voice-like pulse train."""
    return sum((tone(1.0, 0.3 / n, n * pitch_hz) for n in range(1, 12)), silence(1.0))


def speech(voice: str = "slt") -> Signal:
    return flite.synthesize("The old ferry sank in the harbor.", voice).pcm.astype(np.float32) / 32768


def test_outer_silence_is_cut_and_inner_silence_stays() -> None:
    speech = np.concatenate([tone(0.5), silence(0.2), tone(0.5)])
    np.testing.assert_array_equal(without_outer_silence(np.concatenate([silence(0.12), speech, silence(0.3)])), speech)
    np.testing.assert_array_equal(without_outer_silence(silence(0.3)), silence(0.3))


def test_levels_find_the_edges_and_the_loudness() -> None:
    found = levels(np.concatenate([silence(0.12), tone(1.0), silence(0.3)]))
    assert (found.lead_s, found.tail_s, found.clipped) == (pytest.approx(0.12), pytest.approx(0.3), 0)
    assert found.loudness_dbfs == pytest.approx(20 * np.log10(0.5 / np.sqrt(2)), abs=0.05)


def test_clipping_and_silence_are_seen() -> None:
    assert levels(np.clip(tone(1.0, 3.0), -1, 1)).clipped > 0.5
    assert levels(silence(1.0)).loudness_dbfs < -100
    assert levels(np.zeros(0, np.float32)).lead_s == 0


@pytest.mark.parametrize("pitch", [85.0, 120.0, 170.0, 240.0])
def test_pitch_of_a_pulse_train(pitch: float) -> None:
    assert voice_print(buzz(pitch)).pitch_hz == pytest.approx(pitch, rel=0.02)


def test_noise_and_silence_have_no_pitch() -> None:
    noise = np.random.default_rng(0).normal(size=RATE_HZ).astype(np.float32) * 0.1
    assert voice_print(noise).pitch_hz == 0
    assert voice_print(silence(1.0)).pitch_hz == 0
    assert voice_print(np.zeros(100, np.float32)).pitch_hz == 0


def test_voices_are_told_apart_or_not() -> None:
    low = [VoicePrint(100.0 + step, 1100.0) for step in range(5)]
    high = [VoicePrint(170.0 + step, 1150.0) for step in range(5)]
    assert share_told_apart(high, own=high, other=low) == 1
    assert share_told_apart(low, own=high, other=low) == 0
    assert share_told_apart([high[0], low[0]], own=high, other=low) == 0.5


@needs_flite
def test_the_teachers_are_told_apart() -> None:
    prints = {voice: [voice_print(speech(voice))] for voice in ("slt", "rms")}
    assert share_told_apart(prints["slt"], own=prints["slt"], other=prints["rms"]) == 1


@needs_flite
def test_a_true_copy_is_as_good_as_the_original() -> None:
    original = speech()
    found = likeness(original, 0.5 * original[:-40])
    assert found.stoi > 0.99
    assert found.pesq > 4.5


def test_speech_too_short_to_compare_is_left_out() -> None:
    assert np.isnan(likeness(tone(0.3), tone(0.3)).stoi)


@needs_flite
def test_a_damaged_copy_is_heard_as_one() -> None:
    original = speech()
    noise = np.random.default_rng(0).normal(size=len(original)).astype(np.float32) * 0.1
    found = likeness(original, original + noise)
    assert found.stoi < 0.9
    assert found.pesq < 2


def test_band_finds_the_roll_off_and_a_tick_at_the_start() -> None:
    signal = (0.5 * np.sin(2 * np.pi * 10_000 * np.arange(24_000) / 24_000)).astype(np.float32)
    signal[:600] = 0
    assert band(signal, 24_000) == Band(pytest.approx(10_000, abs=100), 0)
    signal[30] = 0.1
    assert band(signal[:100], 24_000).start_peak == pytest.approx(0.1)
