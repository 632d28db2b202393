"""The caller's side of a line: speech is noticed, silence and noise are not, however the sound is cut."""

from __future__ import annotations

import itertools
import subprocess
import sys
from importlib import metadata
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.audio.g711 import mulaw_to_pcm, pcm_to_alaw, pcm_to_mulaw
from sessions.audio.pcm import Pcm, float_to_s16
from sessions.audio.resampler import Resampler
from sessions.vad.barge_in import MAX_REPLAYED_WINDOWS, NUM_TRACKS, BargeInDetector, BargeInSettings, run_detector
from sessions.vad.echo_suppression import PlayoutLevel
from sessions.vad.energy import level_db
from sessions.vad.silero import MAX_SKIPPED_WINDOWS, VadState, WindowSlicer, speech_probabilities

RATE = 8_000
START = 4_000
PACKET = 160


@pytest.fixture(scope="module")
def speech() -> Pcm:
    """Half a second of noise of a line, then a voice."""
    from training.flite import SAMPLE_RATE_HZ, available, synthesize

    if not available():
        pytest.skip("flite is not installed")

    spoken = np.asarray(synthesize("Wait a moment, please. I have a question.", "slt").pcm, np.float32) / 32768
    pcm = Resampler(SAMPLE_RATE_HZ, RATE).push(spoken)
    noise = np.random.default_rng(1).standard_normal(START + pcm.size).astype(np.float32) * np.float32(0.001)
    noise[START:] += pcm
    return noise


def noticed(ear: BargeInDetector, data: bytes, step: int, own_db: float = -120.0) -> list[int]:
    """How many bytes were heard when speech was noticed."""
    ends = range(step, len(data) + 1, step)
    return [end for end in ends if ear.detect(data[end - step : end], own_db)]


def test_a_voice_is_noticed_soon_after_it_begins(speech: Pcm) -> None:
    found = noticed(BargeInDetector("mulaw", RATE, BargeInSettings()), pcm_to_mulaw(speech), PACKET)
    assert len(found) >= 1
    assert START < found[0] < START + 0.3 * RATE


def test_every_encoding_and_rate_tells_about_the_same(speech: Pcm) -> None:
    expected = noticed(BargeInDetector("mulaw", RATE, BargeInSettings()), pcm_to_mulaw(speech), PACKET)[0]
    assert noticed(BargeInDetector("alaw", RATE, BargeInSettings()), pcm_to_alaw(speech), PACKET)[0] == expected
    for rate in (16_000, 24_000):
        data = float_to_s16(Resampler(RATE, rate).push(speech)).tobytes()
        found = noticed(BargeInDetector("pcm_s16le", rate, BargeInSettings()), data, 2 * rate // 50)
        assert abs(found[0] * RATE / rate / 2 - expected) <= 0.2 * RATE


def test_a_voice_no_louder_than_our_echo_is_not_noticed(speech: Pcm) -> None:
    data = pcm_to_mulaw(speech)
    assert noticed(BargeInDetector("mulaw", RATE, BargeInSettings()), data, PACKET, own_db=0.0) != []
    assert noticed(BargeInDetector("mulaw", RATE, BargeInSettings(echo_loss_db=0.0)), data, PACKET, own_db=0.0) == []


@pytest.mark.parametrize("delay", [0, 57, 320, 3_200])
def test_our_own_voice_as_quiet_as_an_echo_is_not_noticed(speech: Pcm, delay: int) -> None:
    """Wherever the windows of the echo lie in what we sent, it is quieter by just ``echo_return_loss_db``."""
    own, ear = PlayoutLevel("mulaw", RATE), BargeInDetector("mulaw", RATE, BargeInSettings(min_level_db=-90.0))
    data, began = pcm_to_mulaw(speech), 0
    echo = pcm_to_mulaw(np.concatenate([np.zeros(delay, np.float32), speech * np.float32(0.1)]))
    for end in range(PACKET, len(data) + 1, PACKET):
        own.on_sent(end, data[end - PACKET : end])
        began += ear.detect(echo[end - PACKET : end], own.level_db(end))
    assert began == 0


def test_an_echo_that_grows_is_taken_for_a_voice_once_at_most(speech: Pcm) -> None:
    """From 40 dB below us to 25, as when a loudspeaker is turned on."""
    own, ear = PlayoutLevel("mulaw", RATE), BargeInDetector("mulaw", RATE, BargeInSettings(min_level_db=-90.0))
    line, began = np.tile(speech, 6), []
    loss = np.repeat(np.array([0.01, 0.056], np.float32), line.size // 2)
    data, echo = pcm_to_mulaw(line), pcm_to_mulaw((line * loss).astype(np.float32))
    for end in range(PACKET, len(data) + 1, PACKET):
        own.on_sent(end, data[end - PACKET : end])
        began.append(ear.detect(echo[end - PACKET : end], own.level_db(end)))
    assert sum(began[: len(began) // 2]) == 0
    assert sum(began) <= 1


def test_a_line_without_a_voice_is_silent() -> None:
    rng = np.random.default_rng(3)
    hum = 0.05 * np.sin(2 * np.pi * 50 * np.arange(5 * RATE) / RATE)
    for line in (np.zeros(5 * RATE), 0.003 * rng.standard_normal(5 * RATE), hum):
        data = pcm_to_mulaw(line.astype(np.float32))
        assert noticed(BargeInDetector("mulaw", RATE, BargeInSettings()), data, PACKET) == []


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 20_000), max_size=20))
def test_any_cut_gives_the_same_windows(cuts: list[int]) -> None:
    data = np.random.default_rng(1).bytes(20_000)
    windows = WindowSlicer(256, 128, bytes(32))
    places = [0, *sorted(cuts), len(data)]
    cut = [window for start, end in pairwise(places) for window in windows.push(data[start:end])]
    before = bytes(32) + data
    assert cut == [before[at : at + 288] for at in range(0, 20_000 - 255, 128)]


def test_sounds_looked_at_together_are_what_they_are_alone(speech: Pcm) -> None:
    sounds = [np.roll(speech, 1_000 * number)[:RATE] for number in range(5)]
    starts = range(0, RATE - 287, 256)
    windows = [[sound[at : at + 288] for at in starts] for sound in sounds]
    alone, together = [VadState() for _ in sounds], [VadState() for _ in sounds]
    for at in zip(*windows, strict=True):
        expected = [
            speech_probabilities([track], window[None], RATE)[0] for track, window in zip(alone, at, strict=True)
        ]
        np.testing.assert_allclose(speech_probabilities(together, np.stack(at), RATE), expected, atol=1e-5)
    assert any(likely > 0.9 for likely in expected)


@pytest.mark.parametrize("noise", [0.0, 0.001, 0.01])
def test_a_voice_is_noticed_as_soon_when_the_noise_before_it_is_not_looked_at(speech: Pcm, noise: float) -> None:
    rng = np.random.default_rng(2)
    line = np.concatenate([np.zeros(3 * RATE, np.float32), speech])
    data = pcm_to_mulaw((line + noise * rng.standard_normal(line.size)).astype(np.float32))
    shown_all = noticed(BargeInDetector("mulaw", RATE, BargeInSettings(noise_margin_db=0.0)), data, PACKET)
    found = noticed(BargeInDetector("mulaw", RATE, BargeInSettings()), data, PACKET)
    assert abs(found[0] - shown_all[0]) <= PACKET


def test_a_voice_that_begins_as_a_louder_noise_ends_is_noticed_soon(speech: Pcm) -> None:
    """Eight dB louder: the noise at -20, the voice at -28. Twelve lines of it."""
    voice = speech[START:][np.argmax(np.abs(speech[START:]) > 0.02) :]
    voice = voice * np.float32(10 ** ((-28 - level_db(voice)) / 20))
    delays = []
    for seed, offset in itertools.product(range(4), (0, 40, 80)):
        start = 3 * RATE + offset
        levels = np.repeat([0.1, 0.001], [start, voice.size])
        line = (np.random.default_rng(seed).standard_normal(levels.size) * levels).astype(np.float32)
        line[start:] += voice
        delays.append(noticed(BargeInDetector("mulaw", RATE, BargeInSettings()), pcm_to_mulaw(line), PACKET)[0] - start)
    assert min(delays) > 0
    assert np.median(delays) < 0.1 * RATE


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The windows that the network was shown, as mu-law; it takes nothing for speech."""
    found: list[bytes] = []

    def likelihoods(tracks: list[VadState], windows: npt.NDArray[np.float32], rate: int) -> npt.NDArray[np.float32]:
        found.extend(map(pcm_to_mulaw, windows))
        return np.zeros(len(tracks), np.float32)

    monkeypatch.setattr("sessions.vad.barge_in.speech_probabilities", likelihoods)
    return found


def hiss(seconds: float, level: float) -> bytes:
    size = round(seconds * RATE)
    coded = pcm_to_mulaw((level * np.random.default_rng(size).standard_normal(size)).astype(np.float32))
    return coded.replace(b"\x7f", b"\xff")  # there are two codes for nothing


def test_noise_that_goes_on_is_soon_not_looked_at(asked: list[bytes]) -> None:
    line = hiss(10.0, 0.01)
    noticed(BargeInDetector("mulaw", RATE, BargeInSettings()), line, PACKET)
    assert len(asked) < 50, "of 624 windows"
    asked.clear()
    noticed(BargeInDetector("mulaw", RATE, BargeInSettings(noise_margin_db=0.0)), line, PACKET)
    assert len(asked) == 624


def test_while_we_speak_nothing_is_missed(asked: list[bytes]) -> None:
    noticed(BargeInDetector("mulaw", RATE, BargeInSettings()), hiss(10.0, 0.01), PACKET, own_db=-30.0)
    assert len(asked) == 624


@pytest.mark.parametrize("num", [1, 8, 40])
def test_many_that_missed_much_are_caught_up_on_a_little_at_a_time(asked: list[bytes], num: int) -> None:
    ears = [BargeInDetector("mulaw", RATE, BargeInSettings()) for _ in range(num)]
    for ear in ears:
        noticed(ear, hiss(2.048, 0.0001), 256)
        ear.push(hiss(0.032, 0.1))
    tracks = [look.track for ear in ears for look in ear.pending]
    assert asked == []
    most = 0
    while waiting := [ear for ear in ears if ear.pending]:
        run_detector(waiting, waiting[0].format)
        most, _ = max(most, len(asked)), asked.clear()
    assert most <= MAX_REPLAYED_WINDOWS + NUM_TRACKS * num
    assert not any(track.skipped for track in tracks)


def test_what_was_missed_is_shown_before_what_is_louder(asked: list[bytes]) -> None:
    ear = BargeInDetector("mulaw", RATE, BargeInSettings())
    quiet, loud = hiss(5.12, 0.0001), hiss(0.032, 0.1)
    noticed(ear, quiet, 128)
    assert asked == [], "quieter than min_level_db"
    noticed(ear, loud, 128)
    line = b"\xff" * 32 + quiet + loud
    windows = [line[end - 288 : end] for end in range(288, len(line) + 1, 128)]
    one, other = windows[-2::-2], windows[-1::-2]  # the last of each track, and those before it
    assert set(asked) == {*one[: MAX_SKIPPED_WINDOWS + 1], *other[: MAX_SKIPPED_WINDOWS + 1]}
    assert [window for window in asked if window in one] == one[MAX_SKIPPED_WINDOWS::-1], "in their order"


def test_an_ear_that_rests_hears_anew(speech: Pcm) -> None:
    """After a voice was noticed, the next is: also when nobody listened to the silence between."""
    ear, data = BargeInDetector("mulaw", RATE, BargeInSettings()), pcm_to_mulaw(speech)
    first = noticed(ear, data[: 2 * RATE], PACKET)
    ear.reset()
    assert noticed(ear, data[: 2 * RATE], PACKET) == first != []


def test_what_comes_faster_than_it_is_looked_at_is_passed_over() -> None:
    ear = BargeInDetector("mulaw", RATE, BargeInSettings())
    for _ in range(20):
        ear.push(bytes(RATE))
    assert len(ear.pending) == 125
    tracks = [look.track for look in ear.pending]
    assert all(one is not other for one, other in pairwise(tracks))


def test_the_detector_brings_no_torch_along() -> None:
    check = (
        "import sys; from sessions.vad.barge_in import BargeInDetector, BargeInSettings;"
        "BargeInDetector('mulaw', 8000, BargeInSettings(min_level_db=-120)).detect(bytes(512));"
        "assert 'onnxruntime' in sys.modules; assert 'torch' not in sys.modules; assert 'silero_vad' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_the_package_of_the_detector_asks_for_no_torchaudio() -> None:
    asked = [one for one in metadata.requires("silero-vad") or [] if "extra ==" not in one]
    assert asked
    assert not any(one.startswith("torchaudio") for one in asked)


def test_mulaw_silence_is_silence() -> None:
    assert not mulaw_to_pcm(b"\xff").any()
