"""The caller's voice: noticed soon, told from noise and from the echo of our own, however audio is cut."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections import Counter
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
from sessions.vad.echo_suppression import MAX_FRAMES, NUM_UNCONFIRMED_WINDOWS, NUM_WINDOWS, EchoThreshold, PlayoutLevel
from sessions.vad.energy import NUM_WINDOWS as FLOOR_WINDOWS
from sessions.vad.energy import SILENCE_DB, NoiseFloor, OnsetDetector, encoded_level_db, level_db
from sessions.vad.scheduler import MAX_BATCH_WINDOWS, VadScheduler
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


def test_every_encoding_and_rate_gives_similar_times(speech: Pcm) -> None:
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
def test_voice_is_noticed_as_soon_after_skipped_noise(speech: Pcm, noise: float) -> None:
    rng = np.random.default_rng(2)
    line = np.concatenate([np.zeros(3 * RATE, np.float32), speech])
    data = pcm_to_mulaw((line + noise * rng.standard_normal(line.size)).astype(np.float32))
    shown_all = noticed(BargeInDetector("mulaw", RATE, BargeInSettings(noise_margin_db=0.0)), data, PACKET)
    found = noticed(BargeInDetector("mulaw", RATE, BargeInSettings()), data, PACKET)
    assert abs(found[0] - shown_all[0]) <= PACKET


def test_voice_is_noticed_soon_after_a_louder_noise(speech: Pcm) -> None:
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
def test_missed_windows_are_replayed_a_few_at_a_time(asked: list[bytes], num: int) -> None:
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


def test_detector_starts_anew_after_a_pause(speech: Pcm) -> None:
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


FRAME = 160
LOUD = pcm_to_mulaw(np.full(FRAME, 0.1, np.float32))
QUIET = pcm_to_mulaw(np.full(FRAME, 0.001, np.float32))


def test_levels_are_of_full_scale() -> None:
    assert level_db(np.full(100, 0.1, np.float32)) == pytest.approx(-20.0, abs=0.01)
    assert level_db(np.zeros(0, np.float32)) == level_db(np.zeros(9, np.float32)) == SILENCE_DB
    assert encoded_level_db("mulaw", LOUD) == pytest.approx(-20.0, abs=0.3)


def test_the_loudest_that_may_come_back_counts() -> None:
    voice = PlayoutLevel("mulaw", 8_000)
    assert voice.level_db(0) == SILENCE_DB
    for number in range(100):
        voice.on_sent((number + 1) * FRAME, LOUD if number == 50 else QUIET)
    loud_end = 51 * FRAME
    assert voice.level_db(loud_end - 1_601) < -50, "not played for another 200 ms"
    assert voice.level_db(loud_end - 1_600) == pytest.approx(-20.0, abs=0.3)
    assert voice.level_db(loud_end + 4_800) == pytest.approx(-20.0, abs=0.3)
    assert voice.level_db(loud_end + 4_801) < -50, "played 600 ms ago"


def test_what_is_cleared_is_not_played() -> None:
    voice = PlayoutLevel("mulaw", 8_000)
    voice.on_sent(FRAME, QUIET)
    voice.on_sent(2 * FRAME, LOUD)
    voice.truncate(FRAME)
    assert voice.level_db(FRAME) < -50


def test_unread_transport_buffers_a_bounded_amount() -> None:
    voice = PlayoutLevel("mulaw", 8_000)
    for number in range(5_000):
        voice.on_sent((number + 1) * FRAME, LOUD)
    assert len(voice._frames) == MAX_FRAMES
    assert voice.level_db(5_000 * FRAME) == pytest.approx(-20.0, abs=0.3)


def learnt(echo: EchoThreshold, level_db: float, num: int = 1) -> None:
    """And as many windows more as it takes to be sure."""
    for level in [level_db] * num + [-90.0] * NUM_UNCONFIRMED_WINDOWS:
        echo.update(level, -10.0)


def test_a_line_has_to_show_that_it_brings_back_less() -> None:
    echo = EchoThreshold(20.0)
    assert echo.threshold_db(-10.0) == -28.5
    learnt(echo, -50.0, NUM_WINDOWS - 1)
    assert echo.threshold_db(-10.0) == -28.5
    learnt(echo, -50.0)
    assert echo.threshold_db(-10.0) == -46.0
    learnt(echo, -40.0)
    assert echo.threshold_db(-10.0) == -36.0, "it has brought back more"
    assert (echo.threshold_db(-8.0), echo.threshold_db(-25.0)) == (-34.0, -43.5), (
        "it brings back more of more, and less of less"
    )
    learnt(echo, -20.0)
    assert echo.threshold_db(-10.0) == -28.5, "no more than it was told"


def test_the_soft_beginning_of_a_voice_is_no_echo() -> None:
    echo = EchoThreshold(20.0)
    learnt(echo, -50.0, NUM_WINDOWS)
    for _ in range(NUM_UNCONFIRMED_WINDOWS):
        echo.update(-30.0, -10.0)
    assert echo.threshold_db(-10.0) == -46.0
    echo.on_speech_detected()
    assert echo.threshold_db(-10.0) == -28.5, "if it was an echo after all, the next one is none again"
    learnt(echo, -50.0, NUM_WINDOWS)
    assert echo.threshold_db(-10.0) == -46.0


def test_nothing_is_learnt_while_we_are_silent() -> None:
    echo = EchoThreshold(20.0)
    for _ in range(2 * NUM_WINDOWS):
        echo.update(-90.0, -50.0)
    assert echo.threshold_db(-10.0) == -28.5


def heard(noise: NoiseFloor, levels: list[float], likely: float = 0.0) -> list[bool]:
    """Which are noise and nothing else, each learnt as soon as it was told."""
    found = []
    for level in levels:
        found.append(noise.masks(level))
        noise.update(level, None if found[-1] else likely)
    return found


def test_steady_noise_is_known_after_some_windows() -> None:
    levels = (np.random.default_rng(1).standard_normal(1_000) * 0.4 - 45).tolist()
    found = heard(NoiseFloor(3.0), levels)
    assert not any(found[:FLOOR_WINDOWS])
    assert np.mean(found[FLOOR_WINDOWS:]) > 0.97


def test_what_is_louder_by_the_margin_is_not_noise() -> None:
    noise = NoiseFloor(3.0)
    heard(noise, [-45.0] * 20)
    assert noise.masks(-42.1)
    assert not noise.masks(-42.0)


def test_what_was_not_looked_at_teaches_no_louder_noise() -> None:
    """Beside our own voice a caller may be too quiet to be heard, and is none the less no noise."""
    noise = NoiseFloor(3.0)
    heard(noise, [-60.0] * 20)
    for _ in range(100):
        noise.update(-40.0, None)
    assert not noise.masks(-40.0)
    assert noise.masks(-60.0)


def test_speech_teaches_nothing() -> None:
    noise = NoiseFloor(3.0)
    heard(noise, [-45.0] * 20)
    assert not any(heard(noise, [-20.0] * 100, likely=0.6))
    assert noise.masks(-45.0)


def test_noise_that_grows_is_learnt_and_noise_that_falls_at_once() -> None:
    noise = NoiseFloor(3.0)
    heard(noise, [-45.0] * 20)
    assert heard(noise, [-30.0] * 20) == [False] * FLOOR_WINDOWS + [True] * (20 - FLOOR_WINDOWS)
    heard(noise, [-60.0])
    assert not noise.masks(-35.0), "a quiet voice on a line that has just fallen silent"


def test_between_bursts_the_line_is_as_quiet_as_it_is() -> None:
    noise = NoiseFloor(3.0)
    heard(noise, [-25.0, -25.0, -50.0, -25.0] * 20)
    assert not noise.masks(-40.0)


def test_noise_that_fades_is_followed_down() -> None:
    noise = NoiseFloor(3.0)
    heard(noise, [-25.0] * 20)
    assert all(heard(noise, np.arange(-25.0, -45.0, -0.5).tolist()))
    assert not noise.masks(-40.0)


def test_where_the_line_falls_at_once_it_is_learnt_anew() -> None:
    """What is quieter than a noise that has just ended may be a voice: it is no noise before it was looked at."""
    noise = NoiseFloor(3.0)
    heard(noise, [-25.0] * 20)
    assert heard(noise, [-29.0, -30.0, -29.5], likely=0.3) == [True, False, False]
    assert heard(noise, [-30.0] * 20)[FLOOR_WINDOWS:] == [True] * (20 - FLOOR_WINDOWS)


@pytest.mark.parametrize(
    ("likely", "began_at"),
    [
        ([0.9, 0.9], [1]),
        ([0.9, 0.4, 0.9, 0.9], [3]),
        ([0.5, 0.5, 0.9, 0.9, 0.9], [1]),
        ([0.49] * 20, []),
        ([0.9, 0.9, 0.1, 0.9, 0.9, 0.9], [1]),
        ([0.9, 0.9, 0.1, 0.1, 0.1, 0.9, 0.9], [1, 6]),
        ([0.9, 0.9, 0.36, 0.36, 0.36, 0.36, 0.9, 0.9], [1]),
        ([0.9, 0.9, 0.1, 0.1, 0.4, 0.1, 0.1, 0.1, 0.9, 0.9], [1, 9]),
    ],
)
def test_it_begins_once_it_lasts_and_again_after_silence(likely: list[float], began_at: list[int]) -> None:
    onset = OnsetDetector(threshold=0.5, min_speech_ms=64, min_silence_ms=96, window_ms=32, hop_ms=32)
    assert [number for number, one in enumerate(likely) if onset.push(one)] == began_at


def test_a_part_of_a_window_counts_as_a_whole_one() -> None:
    onset = OnsetDetector(threshold=0.5, min_speech_ms=65, min_silence_ms=32, window_ms=32, hop_ms=32)
    assert [onset.push(0.9) for _ in range(4)] == [False, False, True, False]


@pytest.mark.parametrize(("least_ms", "num_windows"), [(1, 1), (32, 1), (33, 2), (48, 2), (64, 3), (65, 4)])
def test_windows_that_overlap_count_for_what_is_new_in_them(least_ms: int, num_windows: int) -> None:
    onset = OnsetDetector(threshold=0.5, min_speech_ms=least_ms, min_silence_ms=32, window_ms=32, hop_ms=16)
    assert [onset.push(0.9) for _ in range(num_windows)] == [False] * (num_windows - 1) + [True]


# Of 20 ms.
PACKETS = [bytes([number]) * 160 for number in range(100)]
SETTINGS = BargeInSettings(min_level_db=-120.0, noise_margin_db=0.0)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many windows were looked at in each run, and their rate. Silence is taken for speech."""
    found: list[tuple[int, int]] = []

    def likelihoods(tracks: list[VadState], windows: npt.NDArray[np.float32], rate: int) -> npt.NDArray[np.float32]:
        assert len({id(track) for track in tracks}) == len(tracks)
        found.append((len(tracks), rate))
        return (np.abs(windows).max(1) < 0.01).astype(np.float32)

    monkeypatch.setattr("sessions.vad.barge_in.speech_probabilities", likelihoods)
    return found


@pytest.mark.virtual_time
async def test_each_gets_the_events_it_gets_alone(runs: list[tuple[int, int]]) -> None:
    data = [PACKETS[(7 * number) % 100] for number in range(60)] + [b"\xff" * 160] * 30 + PACKETS[:10]
    alone = BargeInDetector("mulaw", 8_000, SETTINGS)
    expected = sum(alone.detect(packet) for packet in data)
    assert expected
    ears, began = VadScheduler(), Counter[int]()
    lines = [BargeInDetector("mulaw", 8_000, SETTINGS) for _ in range(10)]
    runs.clear()
    for packet in data:
        for number, ear in enumerate(lines):
            ears.push(ear, packet, lambda number=number: began.update([number]))  # type: ignore[misc]
        await asyncio.sleep(0.02)
    assert began == dict.fromkeys(range(10), expected)
    assert {num for num, _ in runs} <= {10, 20}, "one run for all of them"


@pytest.mark.virtual_time
async def test_a_flood_is_looked_at_in_turns_and_all_of_it(runs: list[tuple[int, int]]) -> None:
    ears = VadScheduler()
    lines = [BargeInDetector("mulaw", rate, SETTINGS) for rate in (8_000,) * 50 + (16_000,) * 5]
    for ear in lines:
        for packet in PACKETS:
            ears.push(ear, packet, lambda: None)
    await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    assert not any(ear.pending for ear in lines)
    assert max(num for num, _ in runs) <= MAX_BATCH_WINDOWS
    assert {rate for _, rate in runs} == {8_000, 16_000}
    assert sum(num for num, rate in runs if rate == 8_000) == 50 * 124


@pytest.mark.virtual_time
async def test_dropped_detector_gets_no_events(runs: list[tuple[int, int]]) -> None:
    ears, ear = VadScheduler(), BargeInDetector("mulaw", 8_000, SETTINGS)
    ears.push(ear, b"\xff" * 1_600, lambda: pytest.fail("it was told"))
    ears.remove(ear)
    await asyncio.sleep(0.1)
    assert runs == []
    ears.push(ear, b"\x00" * 1_600, lambda: pytest.fail("there was no speech"))
    await asyncio.sleep(0.1)
    assert runs


@pytest.mark.virtual_time
async def test_what_cannot_be_looked_at_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, faults = Counter[str](), Counter[str]()

    def likelihoods(*_: object) -> None:
        tried.update(["run"])
        raise RuntimeError("no network")

    monkeypatch.setattr("sessions.vad.barge_in.speech_probabilities", likelihoods)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.update([str(context["exception"])]))
    ears, ear = VadScheduler(), BargeInDetector("mulaw", 8_000, SETTINGS)
    ears.push(ear, PACKETS[0] * 10, lambda: pytest.fail("nothing was heard"))
    await asyncio.sleep(0.1)
    assert tried["run"] == faults["no network"] == 1
