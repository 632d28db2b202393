"""Measure the cost of each step from engine chunk to packet, in us of one core per 20 ms of audio.

    python -m benchmarks.audio_path_cost [--seconds 10] [--rounds 5]

Input is chunks of 80 ms at 24 kHz, as the engine emits them. The minimum of the rounds is reported, because other
programs can only add time. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from sessions.audio.formats.ogg_opus import OggOpusMuxer
from sessions.audio.framer import Framer
from sessions.audio.g711 import pcm_to_mulaw
from sessions.audio.opus import OpusApplication, OpusDecoder, OpusEncoder, OpusSettings
from sessions.audio.opus_library import describe
from sessions.audio.pacer import Pacer
from sessions.audio.pcm import Pcm, pcm_to_s16le
from sessions.audio.resampler import Resampler
from sessions.audio.segment_joiner import SegmentJoiner

SPOKEN_RATE = 24_000
CHUNK_MS = 80
OVERLAP_SAMPLES = 480
COMPLEXITIES = (0, 5, 10)
Work = Callable[[], None]


def voiced(num_samples: int, sample_rate: int = SPOKEN_RATE) -> Pcm:
    """Synthesize a signal that costs Opus as much as speech: varying pitch, three formants, syllables, some noise."""
    time_s = np.arange(num_samples) / sample_rate
    phase = 2 * np.pi * np.cumsum(140 + 30 * np.sin(2 * np.pi * 0.7 * time_s)) / sample_rate
    buzz = np.zeros(num_samples)
    for harmonic in range(1, 28):
        weight = sum(1 / (1 + ((140 * harmonic - formant) / 120) ** 2) for formant in (600, 1_500, 2_700))
        buzz += weight * np.sin(harmonic * phase)
    syllables = np.clip(np.sin(2 * np.pi * 3.5 * time_s) + 0.6, 0, 1)
    breath = np.random.default_rng(0).standard_normal(num_samples)
    return (0.08 * syllables * buzz + 0.003 * breath).astype(np.float32)


def chunks_of(pcm: Pcm, sample_rate: int = SPOKEN_RATE) -> list[Pcm]:
    size = sample_rate * CHUNK_MS // 1000
    return [pcm[at : at + size] for at in range(0, pcm.size - size + 1, size)]


def push_all(make: Callable[[], Callable[[Pcm], object]], chunks: list[Pcm]) -> Work:
    def work() -> None:
        push = make()
        for chunk in chunks:
            push(chunk)

    return work


def resampler_push(to_rate: int) -> Callable[[Pcm], object]:
    return Resampler(SPOKEN_RATE, to_rate).push


def encoder_push(settings: OpusSettings) -> Callable[[Pcm], object]:
    return OpusEncoder(settings).push


def opus_steps(seconds: int) -> Iterator[tuple[str, Work]]:
    for sample_rate in (24_000, 48_000):
        chunks = chunks_of(voiced(seconds * sample_rate, sample_rate), sample_rate)
        for application, complexity in itertools.product((OpusApplication.VOIP, OpusApplication.AUDIO), COMPLEXITIES):
            settings = OpusSettings(sample_rate=sample_rate, application=application, complexity=complexity)
            name = f"opus encode {sample_rate // 1000} kHz {application} complexity {complexity}"
            yield name, push_all(partial(encoder_push, settings), chunks)


def packet_steps(chunks: list[Pcm]) -> Iterator[tuple[str, Work]]:
    settings = OpusSettings()
    encoder = OpusEncoder(settings)
    groups = [encoder.push(chunk) for chunk in chunks]

    def mux() -> None:
        muxer = OggOpusMuxer(settings)
        for packets in groups:
            muxer.push(packets)

    def decode() -> None:
        decoder = OpusDecoder(settings.sample_rate)
        for packet in itertools.chain.from_iterable(groups):
            decoder.decode(packet.data)

    def pace() -> None:
        pacer, now_s = Pacer(SPOKEN_RATE), 0.0
        for packets in groups:
            num_samples = sum(packet.num_samples for packet in packets)
            now_s = pacer.due_s(num_samples, now_s)
            pacer.on_sent(num_samples, now_s)

    yield "opus decode 24 kHz", decode
    yield "ogg mux", mux
    yield "pacer", pace


def all_steps(seconds: int) -> Iterator[tuple[str, Work]]:
    chunks = chunks_of(voiced(seconds * SPOKEN_RATE))
    yield "segment joiner, 20 ms", push_all(lambda: SegmentJoiner(OVERLAP_SAMPLES).push, chunks)
    for rate in (8_000, 12_000, 16_000, 48_000):
        yield f"resample to {rate // 1000} kHz", push_all(partial(resampler_push, rate), chunks)
    yield "frame to 20 ms", push_all(lambda: Framer(480).push, chunks)
    yield "pcm_s16le", push_all(lambda: pcm_to_s16le, chunks)
    yield "mu-law of 8 kHz", push_all(lambda: pcm_to_mulaw, [chunk[::3].copy() for chunk in chunks])
    yield from packet_steps(chunks)
    yield from opus_steps(seconds)


def least_us(work: Work, rounds: int, num_frames: int) -> float:
    work()
    taken_s = []
    for _ in range(rounds):
        start_s = time.perf_counter()
        work()
        taken_s.append(time.perf_counter() - start_s)
    return min(taken_s) / num_frames * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=10, help="seconds of audio (default: 10)")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds; the minimum is reported (default: 5)")
    arguments = parser.parse_args()
    if arguments.seconds < 1 or arguments.rounds < 1:
        parser.error("--seconds and --rounds must be at least 1")
    num_frames = arguments.seconds * 50
    figures = {}
    print(f"us per 20 ms of audio, in chunks of {CHUNK_MS} ms; {describe().version}")
    for name, work in all_steps(arguments.seconds):
        figures[name] = round(least_us(work, arguments.rounds, num_frames), 2)
        print(f"{figures[name]:9.2f}  {name}", flush=True)
    print(json.dumps({"us_per_20_ms": figures}))


if __name__ == "__main__":
    main()
