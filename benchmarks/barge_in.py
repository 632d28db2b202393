"""Measure how soon a caller's voice is detected, and how often noise or echo is detected as a voice.

    python -m benchmarks.barge_in [MINUTES]

Speech is the held-out sentences by flite's two voices, in mu-law at 8 kHz and packets of 20 ms. A delay runs from the
first sound of a sentence to the arrival of the packet in which it is detected. The cancel adds a fraction of a
millisecond, which is measured, too.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from benchmarks.speech_sources import TEACHERS
from sessions.audio.g711 import pcm_to_mulaw
from sessions.audio.pcm import Pcm
from sessions.audio.resampler import Resampler
from sessions.vad.barge_in import BargeInDetector, BargeInSettings
from sessions.vad.echo_suppression import PlayoutLevel
from sessions.vad.energy import level_db
from training.flite import SAMPLE_RATE_HZ, synthesize
from training.held_out import read_sentences

RATE = 8_000
PACKET = 160
DEFAULT_MINUTES = 5.0
NUM_SENTENCES = 40
# Of full scale: usual on telephone lines.
SPEECH_DB = -20.0
SETTINGS = [(0.5, 32), (0.55, 32), (0.6, 32), (0.7, 32), (0.55, 48), (0.55, 64)]
ECHO_LOSS_DB = (15.0, 20.0, 25.0, 35.0, 45.0)
# The loudest 20 ms of playout while the caller begins to speak.
OWN_DB = (-40.0, -20.0, -10.0)
NOISE_DB = (-60.0, -40.0, -30.0, -25.0, -20.0)
ENDING_NOISE_DB = (-18.0, -16.0, -14.0, -12.0)
ECHO_DELAYS_MS = (40, 160, 400)


def at_level(pcm: Pcm, db: float) -> Pcm:
    """Scale to a mean power in dB of full scale."""
    return (pcm * 10 ** ((db - level_db(pcm)) / 20)).astype(np.float32)


def noises(minutes: float, rng: np.random.Generator) -> dict[str, Pcm]:
    size = int(minutes * 60 * RATE)
    seconds = np.arange(size) / RATE
    white = rng.standard_normal(size)
    spectrum = np.fft.rfft(rng.standard_normal(size))
    pink = np.fft.irfft(spectrum / np.sqrt(np.maximum(np.fft.rfftfreq(size, 1 / RATE), 20.0)), size)
    hum = sum(np.sin(2 * np.pi * 50 * n * seconds) / n for n in range(1, 12))
    clicks = np.where(rng.random(size) < 3 / RATE, rng.choice([-1.0, 1.0], size), 0.0)
    crackle = np.convolve(clicks, np.exp(-np.arange(80) / 12.0))[:size]
    bursts = white * (np.sin(2 * np.pi * 0.7 * seconds) > 0.8)
    keys = np.sin(2 * np.pi * 770 * seconds) + np.sin(2 * np.pi * 1336 * seconds)
    return {
        "white, -45 dB": at_level(white, -45),
        "white, -30 dB": at_level(white, -30),
        "pink, -30 dB": at_level(pink, -30),
        "hum of 50 Hz, -30 dB": at_level(hum, -30),
        "crackle, -35 dB": at_level(crackle, -35),
        "bursts of hiss, -25 dB": at_level(bursts, -25),
        "tones of keys, -20 dB": at_level(keys * (seconds % 1.0 < 0.15), -20),
    }


def packets(pcm: Pcm) -> Iterator[bytes]:
    coded = pcm_to_mulaw(np.clip(pcm, -1, 1).astype(np.float32))
    return (coded[at : at + PACKET] for at in range(0, len(coded) - PACKET + 1, PACKET))


def onsets(pcm: Pcm, settings: BargeInSettings, own_db: list[float] | None = None) -> list[int]:
    """Indices of the packets in which speech is detected."""
    ear = BargeInDetector("mulaw", RATE, settings)
    loud = own_db or []
    return [number for number, packet in enumerate(packets(pcm)) if ear.detect(packet, *loud[number : number + 1])]


def sentences(num: int) -> Iterator[Pcm]:
    """Sentences trimmed to their speech, at a fixed level."""
    for sentence in read_sentences()[:num]:
        for voice in TEACHERS.values():
            spoken = np.asarray(synthesize(sentence, voice).pcm, np.float32) / 32768
            resampler = Resampler(SAMPLE_RATE_HZ, RATE)
            pcm = at_level(np.concatenate([resampler.push(spoken), resampler.flush()]), SPEECH_DB)
            loud = np.flatnonzero(np.abs(pcm) > 10 ** (-40 / 20))
            yield pcm[loud[0] : loud[-1] + 1]


def delays_ms(
    spoken: list[Pcm],
    settings: BargeInSettings,
    noise_db: float,
    rng: np.random.Generator,
    own_db: float = -120.0,
    then_db: float | None = None,
) -> list[float]:
    """Delays of voices detected within a second. ``then_db`` is the noise level once the voice begins."""
    found = []
    for pcm in spoken:
        start = 2 * RATE + int(rng.integers(PACKET))
        line = rng.standard_normal(start + pcm.size + RATE) * 10 ** (noise_db / 20)
        if then_db is not None:
            line[start:] *= 10 ** ((then_db - noise_db) / 20)
        line[start : start + pcm.size] += pcm
        levels = [own_db] * (line.size // PACKET)
        numbers = onsets(line.astype(np.float32), settings, levels)
        noticed = [1000 * ((number + 1) * PACKET - start) / RATE for number in numbers]
        found += [delay for delay in noticed if 0 < delay < 1_000][:1]
    return found


def echo_onsets(spoken: list[Pcm], settings: BargeInSettings, loss_db: float, delay_ms: int, guarded: bool) -> float:
    """Count onsets in a minute of playout that returns as an echo."""
    own = np.concatenate(spoken)
    delay = delay_ms * RATE // 1000
    echo = np.concatenate([np.zeros(delay, np.float32), own * np.float32(10 ** (-loss_db / 20))])[: own.size]
    voice, levels = PlayoutLevel("mulaw", RATE), []
    for number, packet in enumerate(packets(own)):
        voice.on_sent((number + 1) * PACKET, packet)
        levels.append(voice.level_db((number + 1) * PACKET))
    return 60 * RATE * len(onsets(echo, settings, levels if guarded else None)) / own.size


def percentile(values: list[float], share: float) -> float:
    return float(np.percentile(values, 100 * share)) if values else float("nan")


def shown(delays: list[float], spoken: list[Pcm]) -> str:
    median, p95 = statistics.median(delays), percentile(delays, 0.95)
    return f"{len(delays)} of {len(spoken)} | {median:.0f} | {p95:.0f} | {max(delays):.0f}"


def with_and_without_margin(spoken: list[Pcm], noise_db: float, then_db: float | None) -> Iterator[str]:
    for margin_db in (0.0, BargeInSettings().noise_margin_db):
        settings = BargeInSettings(noise_margin_db=margin_db)
        delays = delays_ms(spoken, settings, noise_db, np.random.default_rng(1), then_db=then_db)
        yield shown(delays, spoken).replace(" |", ",")


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_MINUTES
    spoken = list(sentences(NUM_SENTENCES))
    print("| threshold, least speech | noise | noticed | delay ms, median | p95 | worst |")
    for threshold, least_ms in SETTINGS:
        settings = BargeInSettings(threshold=threshold, min_speech_ms=least_ms)
        for noise_db in (-60.0, -40.0):
            delays = delays_ms(spoken, settings, noise_db, np.random.default_rng(1))
            print(f"| {threshold}, {least_ms} ms | {noise_db:.0f} dB | {shown(delays, spoken)} |")
    for title, levels_db, then_db in (
        ("noise, the voice at -20 dB", NOISE_DB, None),
        ("noise that ends as the voice begins", ENDING_NOISE_DB, -60.0),
    ):
        print(f"| {title} | all is looked at | what is no noise |")
        for noise_db in levels_db:
            print(f"| {noise_db:.0f} dB | " + " | ".join(with_and_without_margin(spoken, noise_db, then_db)) + " |")
    print("| our own voice, at its loudest | noticed | delay ms, median | p95 | worst |")
    for own_db in OWN_DB:
        delays = delays_ms(spoken, BargeInSettings(), -45.0, np.random.default_rng(1), own_db)
        print(f"| {own_db:.0f} dB | {shown(delays, spoken)} |")
    print("| false onsets a minute | " + " | ".join(f"{one}, {least} ms" for one, least in SETTINGS) + " |")
    for name, noise in noises(minutes, np.random.default_rng(2)).items():
        counts = [len(onsets(noise, BargeInSettings(threshold=one, min_speech_ms=least))) for one, least in SETTINGS]
        print(f"| {name} | " + " | ".join(f"{count / minutes:.2g}" for count in counts) + " |")
    print("| echo of our own voice, onsets a minute | bare | guarded |")
    for loss_db in ECHO_LOSS_DB:
        for delay_ms in ECHO_DELAYS_MS:
            bare, guarded = (echo_onsets(spoken[:20], BargeInSettings(), loss_db, delay_ms, on) for on in (False, True))
            print(f"| {loss_db:.0f} dB, {delay_ms} ms | {bare:.2g} | {guarded:.2g} |")
    print(f"one packet with the detector: {cost_us(spoken[0]):.0f} us")


def cost_us(pcm: Pcm) -> float:
    """Median time per packet of a second of speech, with the work of a window spread over its packets."""
    ear, times = BargeInDetector("mulaw", RATE, replace(BargeInSettings(), min_level_db=-120.0)), [time.perf_counter()]
    for packet in packets(pcm[: 8 * RATE]):
        ear.detect(packet)
        times.append(time.perf_counter())
    return 1e6 * statistics.fmean(later - earlier for earlier, later in pairwise(times))


if __name__ == "__main__":
    main()
