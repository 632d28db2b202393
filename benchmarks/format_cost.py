"""Measure the cost and the codec delay of each format.

    python -m benchmarks.format_cost [--seconds 10] [--rounds 5]

Input is chunks of 80 ms, as the engine emits them. For each format: us of one core per 20 ms of audio, the longest time
of a chunk (minimum of the rounds), bytes per second, and the codec delay. The delay is the most audio that was pushed
and cannot be decoded from all bytes so far. It is measured by decoding every prefix, and printed beside the bound that
docs/design/audio.md states. The last line is JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from dataclasses import dataclass

import av
import numpy as np

from benchmarks.audio_path_cost import voiced
from sessions.audio.formats.registry import codec_delay_samples, stream_encoder
from sessions.audio.pcm import Pcm
from sessions.config import AudioFormat, Encoding

CHUNK_MS, PACKET_MS = 80, 20
DEMUXERS = {Encoding.MP3: "mp3", Encoding.AAC: "aac", Encoding.FLAC: "flac", Encoding.OGG_OPUS: "ogg"}
# Silence that a decoder puts out before the first sample that was pushed.
DECODER_DELAY_SAMPLES = {Encoding.MP3: 1_105, Encoding.AAC: 1_024}
FORMATS = [
    AudioFormat(encoding=Encoding.PCM_S16LE),
    AudioFormat(encoding=Encoding.PCM_F32LE),
    AudioFormat(encoding=Encoding.WAV),
    AudioFormat(encoding=Encoding.MULAW, sample_rate=8_000),
    AudioFormat(encoding=Encoding.ALAW, sample_rate=8_000),
    AudioFormat(encoding=Encoding.MP3, sample_rate=8_000, bitrate=32_000),
    AudioFormat(encoding=Encoding.MP3, sample_rate=22_050, bitrate=32_000),
    AudioFormat(encoding=Encoding.MP3, sample_rate=24_000, bitrate=64_000),
    AudioFormat(encoding=Encoding.MP3, sample_rate=44_100, bitrate=128_000),
    AudioFormat(encoding=Encoding.MP3, sample_rate=48_000, bitrate=320_000),
    AudioFormat(encoding=Encoding.AAC, sample_rate=24_000, bitrate=48_000),
    AudioFormat(encoding=Encoding.AAC, sample_rate=44_100, bitrate=64_000),
    AudioFormat(encoding=Encoding.FLAC, sample_rate=24_000),
    AudioFormat(encoding=Encoding.FLAC, sample_rate=48_000),
    AudioFormat(encoding=Encoding.OGG_OPUS, sample_rate=24_000),
    AudioFormat(encoding=Encoding.OGG_OPUS, sample_rate=48_000, bitrate=64_000),
]


@dataclass(frozen=True)
class Cost:
    us_per_packet: float
    worst_chunk_ms: float
    bytes_per_s: float
    delay_ms: float
    stated_delay_ms: float


def measure(audio: AudioFormat, length_s: float, num_rounds: int) -> Cost:
    pcm = voiced(int(length_s * audio.sample_rate), audio.sample_rate)
    size = audio.sample_rate * CHUNK_MS // 1000
    chunks = [pcm[at : at + size] for at in range(0, pcm.size, size)]
    stream_encoder(audio).push(chunks[0])  # what is loaded once
    rounds = [timed(audio, chunks) for _ in range(num_rounds)]
    num_packets = pcm.size / (audio.sample_rate * PACKET_MS / 1000)
    return Cost(
        us_per_packet=1e6 * min(sum(times) for times, _ in rounds) / num_packets,
        worst_chunk_ms=1e3 * min(max(times) for times, _ in rounds),
        bytes_per_s=rounds[0][1] / length_s,
        delay_ms=delay_ms(audio, pcm[: audio.sample_rate]),
        stated_delay_ms=1000 * codec_delay_samples(audio) / audio.sample_rate,
    )


def timed(audio: AudioFormat, chunks: list[Pcm]) -> tuple[list[float], int]:
    encoder, times, num_bytes = stream_encoder(audio), [], 0
    for chunk in chunks:
        begun = time.perf_counter()
        num_bytes += len(encoder.push(chunk))
        times.append(time.perf_counter() - begun)
    return times, num_bytes + len(encoder.finish())


def delay_ms(audio: AudioFormat, pcm: Pcm) -> float:
    if audio.encoding not in DEMUXERS:
        return 0.0
    encoder, data, worst = stream_encoder(audio), b"", 0.0
    step = audio.sample_rate // 200
    for at in range(0, pcm.size, step):
        data += encoder.push(pcm[at : at + step])
        worst = max(worst, at + step - num_heard(data, audio))
    return 1000 * worst / audio.sample_rate


def num_heard(data: bytes, audio: AudioFormat) -> float:
    try:
        with av.open(io.BytesIO(data), format=DEMUXERS[audio.encoding]) as container:
            frames = list(container.decode(audio=0))
    except (av.FFmpegError, IndexError):
        return 0.0
    decoded = sum(frame.samples * audio.sample_rate / frame.sample_rate for frame in frames)
    return max(decoded - DECODER_DELAY_SAMPLES.get(audio.encoding, 0), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    np.seterr(all="raise")
    told = []
    print(f"{'format':34} {'us/20 ms':>9} {'worst ms':>9} {'kB/s':>7} {'delay ms':>9} {'at most':>8}")
    for audio in FORMATS:
        cost = measure(audio, args.seconds, args.rounds)
        has_bitrate = audio.encoding in {Encoding.MP3, Encoding.AAC, Encoding.OGG_OPUS}
        name = f"{audio.encoding} {audio.sample_rate}" + (f" {audio.bitrate // 1000}k" if has_bitrate else "")
        print(
            f"{name:34} {cost.us_per_packet:9.1f} {cost.worst_chunk_ms:9.2f} {cost.bytes_per_s / 1000:7.1f} "
            f"{cost.delay_ms:9.1f} {cost.stated_delay_ms:8.1f}"
        )
        told.append({"format": name} | vars(cost))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
