"""Measure the watermark: how often it is found and read after attacks, false alarms, quality and cost.

    python -m benchmarks.watermark --clips /tmp/clips --num-clips 240 --num-rated 40

Clips that are missing are spoken by the embedded voice into the folder, 6.5 to 13 s each. ``--num-rated`` clips are
rated by PESQ and DNSMOS, for which the dependency group ``training`` is needed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from engine.api import RequestFinished, SamplingParams, SpeechChunk, SpeechEngine, SpeechRequest
from engine.launch import create_engine
from sessions.audio.formats.registry import stream_encoder
from sessions.audio.g711 import mulaw_to_pcm, pcm_to_mulaw
from sessions.audio.pcm import Pcm, float_to_s16, s16_to_float
from sessions.audio.recordings.decode import decode_recording
from sessions.audio.resampler import Resampler
from sessions.audio.watermark.detector import (
    DETECT_RATE,
    MIN_SCORE,
    WindowScore,
    cell_energies,
    cell_scores,
    score_cells,
    score_window,
)
from sessions.audio.watermark.embedder import Watermark
from sessions.audio.watermark.pattern import CellPattern
from sessions.audio.wav import wav_file
from sessions.config import AudioFormat, Encoding

RATE = 24_000
KEY = b"benchmarks/watermark".ljust(32, b".")
SENTENCES = Path(__file__).with_name("voice_sentences.txt")
MIN_CLIP_S = 6.5
MIN_CHARS, MAX_CHARS = 130, 200
PUSH_SAMPLES = RATE * 80 // 1000
SHORT_S = (2, 3, 5)
MAX_CLIP_S = 60
COST_RUNS = 7


def make_texts(count: int) -> list[str]:
    lines = [line for line in SENTENCES.read_text().splitlines() if line and line[0] not in "#["]
    draw, texts = random.Random(5), []
    while len(texts) < count:
        words: list[str] = []
        while len(" ".join(words)) < MIN_CHARS:
            words.append(draw.choice(lines))
        if len(" ".join(words)) < MAX_CHARS:
            texts.append(" ".join(words))
    return texts


async def make_clips(folder: Path, count: int) -> None:
    """Speak the clips that are not in the folder yet."""
    missing = [(n, text) for n, text in enumerate(make_texts(count)) if not (folder / f"{n:04}.wav").exists()]
    if not missing:
        return
    engine, slots = create_engine(None, process=False), asyncio.Semaphore(8)
    await engine.start()
    try:
        await asyncio.gather(*(_make_clip(engine, slots, folder, number, text) for number, text in missing))
    finally:
        await engine.aclose()


async def _make_clip(engine: SpeechEngine, slots: asyncio.Semaphore, folder: Path, number: int, text: str) -> None:
    request = SpeechRequest(
        request_id=f"clip-{number}",
        text=text,
        text_closed=True,
        voice=engine.info.voices[number % len(engine.info.voices)].name,
        language="auto",
        sampling=SamplingParams(seed=number),
    )
    pieces = []
    async with slots:
        async for event in engine.submit(request):
            match event:
                case SpeechChunk():
                    pieces.append(event.pcm)
                case RequestFinished(error=error) if error is not None:
                    raise RuntimeError(error.message)
    (folder / f"{number:04}.wav").write_bytes(wav_file(np.concatenate(pieces), RATE))


def resample(pcm: Pcm, from_rate: int, to_rate: int) -> Pcm:
    resampler = Resampler(from_rate, to_rate)
    return np.concatenate([resampler.push(pcm), resampler.flush()])


def through_file(pcm: Pcm, encoding: Encoding, bitrate: int) -> Pcm:
    """Encode and decode."""
    encoder = stream_encoder(AudioFormat(encoding=encoding, sample_rate=RATE, bitrate=bitrate))
    return decode_recording(encoder.push(pcm) + encoder.finish(), RATE, MAX_CLIP_S)


def through_mulaw(pcm: Pcm) -> Pcm:
    return resample(mulaw_to_pcm(pcm_to_mulaw(resample(pcm, RATE, 8_000))), 8_000, RATE)


def add_noise(pcm: Pcm, below_db: float) -> Pcm:
    """White noise, relative to the level of the whole clip."""
    level = np.sqrt(np.mean(pcm**2)) * 10 ** (-below_db / 20)
    noise = np.random.default_rng(pcm.size).standard_normal(pcm.size)
    return np.asarray(pcm + level * noise, np.float32)


ATTACKS: dict[str, Callable[[Pcm], Pcm]] = {
    "clean": lambda pcm: pcm,
    "opus_16k": lambda pcm: through_file(pcm, Encoding.OGG_OPUS, 16_000),
    "mp3_64k": lambda pcm: through_file(pcm, Encoding.MP3, 64_000),
    "mulaw_8khz": through_mulaw,
    "resampled_16khz": lambda pcm: resample(resample(pcm, RATE, 16_000), 16_000, RATE),
    "resampled_44khz": lambda pcm: resample(resample(pcm, RATE, 44_100), 44_100, RATE),
    "noise_20db": lambda pcm: add_noise(pcm, 20),
    "gain_plus_6db": lambda pcm: np.clip(pcm * np.float32(2), -1, 1),
    "gain_minus_6db": lambda pcm: s16_to_float(float_to_s16(pcm / 2)),
    "cut_start_of_1.3_s": lambda pcm: pcm[31_007:],
    "cut_middle_of_1_s": lambda pcm: np.concatenate([pcm[:60_011], pcm[84_011:]]),
    **{f"first_{length_s}_s": lambda pcm, length_s=length_s: pcm[: length_s * RATE] for length_s in SHORT_S},
    "from_1_s_2_s": lambda pcm: pcm[RATE : 3 * RATE],
    "opus_16k_2_s": lambda pcm: through_file(pcm, Encoding.OGG_OPUS, 16_000)[RATE : 3 * RATE],
    "noise_20db_3_s": lambda pcm: add_noise(pcm, 20)[RATE : 4 * RATE],
}


def mark(pcm: Pcm, payload: int) -> Pcm:
    """Mark a clip in pieces of 80 ms, as an engine emits them."""
    embedder = Watermark(KEY, payload).create_embedder(RATE)
    starts = range(0, pcm.size, PUSH_SAMPLES)
    return np.concatenate([embedder.push(pcm[start : start + PUSH_SAMPLES]) for start in starts])


def score(pcm: Pcm, pattern: CellPattern) -> WindowScore:
    return score_window(resample(pcm, RATE, DETECT_RATE), pattern)


def measure_attack(name: str, marked: Sequence[Pcm], payload: int) -> dict[str, float]:
    pattern = CellPattern.from_key(KEY)
    found = [score(ATTACKS[name](pcm), pattern) for pcm in marked]
    return {
        "found_percent": round(100 * fmean(one.score >= MIN_SCORE for one in found), 2),
        "payload_percent": round(100 * fmean(one.payload == payload for one in found), 2),
        "score_mean": round(fmean(one.score for one in found), 2),
        "score_min": round(min(one.score for one in found), 2),
    }


def make_music(number: int) -> Pcm:
    """Ten seconds of chords with decaying harmonics and a beat of noise."""
    draw = np.random.default_rng(number)
    time_s = np.arange(10 * RATE) / RATE
    beat_s = draw.uniform(0.25, 0.6)
    phase_s = time_s % beat_s
    roots = 110 * 2 ** (draw.integers(0, 24, 64) / 12)
    root = roots[(time_s / beat_s).astype(int)]
    tones = sum(
        np.sin(2 * np.pi * np.cumsum(root * interval * harmonic) / RATE) / harmonic
        for interval in (1, 1.26, 1.5)
        for harmonic in (1, 2, 3, 5)
    )
    drum = draw.standard_normal(time_s.size) * np.exp(-phase_s * 40)
    return np.asarray(0.05 * tones * np.exp(-phase_s * 4) + 0.1 * drum, np.float32)


def measure_false_alarms(sounds: dict[str, Sequence[Pcm]], num_keys: int) -> dict[str, dict[str, float]]:
    """Score unmarked sounds with keys that marked none of them; ``seconds`` are those of all sounds with all keys."""
    patterns = [CellPattern.from_key(f"wrong key {number}".encode()) for number in range(num_keys)]
    report = {}
    for kind, clips in sounds.items():
        cells = [cell_scores(cell_energies(resample(pcm, RATE, DETECT_RATE))) for pcm in clips]
        scores = [score_cells(one, pattern).score for one in cells for pattern in patterns]
        report[kind] = {
            "seconds": round(sum(pcm.size for pcm in clips) / RATE * num_keys),
            "false_alarms": sum(one >= MIN_SCORE for one in scores),
            "score_max": round(max(scores, default=0.0), 2),
        }
        print(kind, report[kind], file=sys.stderr)
    return report


def measure_quality(clips: Sequence[Pcm], marked: Sequence[Pcm]) -> dict[str, float]:
    """PESQ-WB of marked against unmarked clips, and changes of DNSMOS."""
    from pesq import pesq
    from speechmos import dnsmos

    scores, changes = [], []
    for before, after in zip(clips, marked, strict=True):
        pair = [np.clip(resample(pcm, RATE, 16_000), -1, 1) for pcm in (before, after)]
        scores.append(float(pesq(16_000, *pair, "wb")))
        first, second = (dnsmos.run(pcm, 16_000) for pcm in pair)
        changes.append([float(second[name]) - float(first[name]) for name in ("ovrl_mos", "sig_mos", "bak_mos")])
    overall, signal, background = (round(fmean(column), 3) for column in zip(*changes, strict=True))
    return {
        "pesq_mean": round(fmean(scores), 3),
        "pesq_min": round(min(scores), 3),
        "dnsmos_overall_change": overall,
        "dnsmos_signal_change": signal,
        "dnsmos_background_change": background,
    }


def measure_cost(clips: Sequence[Pcm]) -> dict[str, float]:
    """CPU time per second of speech in ms, the least of several runs: others use the caches of a shared machine."""
    pattern = CellPattern.from_key(KEY)
    sixteen = [resample(pcm, RATE, DETECT_RATE) for pcm in clips]
    return {
        "embed_ms": _cost_ms(lambda: [mark(pcm, 1) for pcm in clips], clips),
        "detect_ms": _cost_ms(lambda: [score_window(pcm, pattern) for pcm in sixteen], clips),
    }


def _cost_ms(work: Callable[[], object], clips: Sequence[Pcm]) -> float:
    def run() -> float:
        start_s = time.process_time()
        work()
        return time.process_time() - start_s

    return round(1000 * min(run() for _ in range(COST_RUNS)) * RATE / sum(pcm.size for pcm in clips), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=Path, required=True, help="folder of clips")
    parser.add_argument("--num-clips", type=int, default=200)
    parser.add_argument("--num-rated", type=int, default=0, help="clips for PESQ and DNSMOS")
    parser.add_argument("--num-keys", type=int, default=150, help="wrong keys for false alarms")
    parser.add_argument("--others", type=Path, help="folder of other unmarked recordings, for false alarms")
    args = parser.parse_args()
    args.clips.mkdir(parents=True, exist_ok=True)
    asyncio.run(make_clips(args.clips, args.num_clips))
    files = sorted(args.clips.glob("*.wav"))[: args.num_clips]
    clips = [decode_recording(file.read_bytes(), RATE, MAX_CLIP_S) for file in files]
    clips = [pcm for pcm in clips if pcm.size >= MIN_CLIP_S * RATE]
    payload = 0xC0FFEE42
    marked = [mark(pcm, payload) for pcm in clips]
    attacks = {}
    for name in ATTACKS:
        attacks[name] = measure_attack(name, marked, payload)
        print(f"{name:20}", *(f"{key} {value:<8}" for key, value in attacks[name].items()), file=sys.stderr)
    others = sorted(args.others.rglob("*.wav")) if args.others else []
    sounds = {
        "unmarked speech": clips,
        "marked speech, wrong key": marked,
        "music": [make_music(number) for number in range(20)],
        "other recordings": [decode_recording(file.read_bytes(), RATE, MAX_CLIP_S) for file in others],
    }
    report = {
        "num_clips": len(clips),
        "attacks": attacks,
        "false_alarms": measure_false_alarms(sounds, args.num_keys),
        "quality": measure_quality(clips[: args.num_rated], marked[: args.num_rated]) if args.num_rated else None,
        "cost": measure_cost(clips[:10]),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
