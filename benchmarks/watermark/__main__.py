"""Measure the watermark: how often it is found and read after attacks, false alarms, quality and cost.

    python -m benchmarks.watermark --clips /tmp/clips --num-clips 2000 --num-rated 200

Clips that are missing are spoken by the embedded voice into the folder, 6.5 to 13 s each. The results of each clip are
appended to a file in the folder, so that a run that was stopped goes on; a change of the watermark begins a new file.
``--num-rated`` clips are rated by PESQ and DNSMOS, for which the dependency group ``training`` is needed. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from engine.api import RequestFinished, SamplingParams, SpeechChunk, SpeechEngine, SpeechRequest
from engine.launch import create_engine
from sessions.audio.formats.registry import stream_encoder
from sessions.audio.g711 import mulaw_to_pcm, pcm_to_mulaw
from sessions.audio.pcm import Pcm, float_to_s16, s16_to_float
from sessions.audio.recordings.decode import decode_recording
from sessions.audio.resampler import Resampler
from sessions.audio.watermark import embedder
from sessions.audio.watermark.detector import (
    DETECT_RATE,
    MIN_SCORE,
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
PAYLOAD = 0xC0FFEE42
# Of sounds that are few.
NUM_OTHER_KEYS = 280
COST_RUNS = 7

Attack = Callable[[Pcm], Pcm]


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
    part = folder / f"{number:04}.part"  # a run that is stopped leaves no half clip
    part.write_bytes(wav_file(np.concatenate(pieces), RATE))
    part.rename(part.with_suffix(".wav"))


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


def through_opus(pcm: Pcm) -> Pcm:
    return through_file(pcm, Encoding.OGG_OPUS, 16_000)


def cut(start_s: float, end_s: float) -> Attack:
    return lambda pcm: pcm[round(start_s * RATE) : round(end_s * RATE)]


ATTACKS: dict[str, Attack] = {
    "clean": lambda pcm: pcm,
    "opus_16k": through_opus,
    "mp3_64k": lambda pcm: through_file(pcm, Encoding.MP3, 64_000),
    "mulaw_8khz": through_mulaw,
    "resampled_16khz": lambda pcm: resample(resample(pcm, RATE, 16_000), 16_000, RATE),
    "resampled_44khz": lambda pcm: resample(resample(pcm, RATE, 44_100), 44_100, RATE),
    "noise_20db": lambda pcm: add_noise(pcm, 20),
    "gain_plus_6db": lambda pcm: np.clip(pcm * np.float32(2), -1, 1),
    "gain_minus_6db": lambda pcm: s16_to_float(float_to_s16(pcm / 2)),
    "cut_start_of_1.3_s": lambda pcm: pcm[31_007:],
    "cut_middle_of_1_s": lambda pcm: np.concatenate([pcm[:60_011], pcm[84_011:]]),
    "first_6.5_s": cut(0, MIN_CLIP_S),
    "opus_16k_6.5_s": lambda pcm: through_opus(cut(0, MIN_CLIP_S)(pcm)),
    "noise_20db_6.5_s": lambda pcm: add_noise(cut(0, MIN_CLIP_S)(pcm), 20),
    "mulaw_8khz_6.5_s": lambda pcm: through_mulaw(cut(0, MIN_CLIP_S)(pcm)),
    **{f"first_{length_s}_s": cut(0, length_s) for length_s in SHORT_S},
    "from_1_s_2_s": cut(1, 3),
    "opus_16k_2_s": lambda pcm: cut(1, 3)(through_opus(pcm)),
    "noise_20db_3_s": lambda pcm: cut(1, 4)(add_noise(pcm, 20)),
}


class QualityChange(msgspec.Struct):
    """PESQ-WB of a marked clip against the unmarked one, and the changes of DNSMOS."""

    pesq: float
    overall: float
    signal: float
    background: float


class ClipResult(msgspec.Struct):
    clip: int
    seconds: float
    # Score by attack, and whether the payload was right.
    attacks: dict[str, tuple[float, bool]]
    # Highest score of all wrong keys, by kind of sound.
    wrong_scores: dict[str, float]
    quality: QualityChange | None = None


def mark(pcm: Pcm, payload: int) -> Pcm:
    """Mark a clip in pieces of 80 ms, as an engine emits them."""
    stream = Watermark(KEY, payload).create_embedder(RATE)
    starts = range(0, pcm.size, PUSH_SAMPLES)
    return np.concatenate([stream.push(pcm[start : start + PUSH_SAMPLES]) for start in starts])


def measure_clip(number: int, pcm: Pcm, num_keys: int, is_rated: bool) -> ClipResult:
    """Mark a clip, attack it in each way, and score it with wrong keys, each of which is used for this clip alone."""
    marked, right = mark(pcm, PAYLOAD), CellPattern.from_key(KEY)
    attacks = {}
    for name, attack in ATTACKS.items():
        found = score_window(resample(attack(marked), RATE, DETECT_RATE), right)
        attacks[name] = (float(found.score), found.payload == PAYLOAD)
    patterns = [CellPattern.from_key(f"wrong key {number} {index}".encode()) for index in range(num_keys)]
    sounds = {"unmarked speech": pcm, "marked speech, wrong key": marked}
    wrong = {kind: max(score_all(sound, patterns), default=0.0) for kind, sound in sounds.items()}
    return ClipResult(number, pcm.size / RATE, attacks, wrong, rate(pcm, marked) if is_rated else None)


def score_all(pcm: Pcm, patterns: Sequence[CellPattern]) -> list[float]:
    """Score a sound with each pattern."""
    cells = cell_scores(cell_energies(resample(pcm, RATE, DETECT_RATE)))
    return [score_cells(cells, pattern).score for pattern in patterns]


def rate(pcm: Pcm, marked: Pcm) -> QualityChange:
    from pesq import pesq
    from speechmos import dnsmos

    pair = [np.clip(resample(one, RATE, DETECT_RATE), -1, 1) for one in (pcm, marked)]
    before, after = (dnsmos.run(one, DETECT_RATE) for one in pair)
    changes = [float(after[name]) - float(before[name]) for name in ("ovrl_mos", "sig_mos", "bak_mos")]
    return QualityChange(float(pesq(DETECT_RATE, *pair, "wb")), *changes)


def measure_clips(folder: Path, num_clips: int, num_rated: int, num_keys: int) -> list[ClipResult]:
    """Measure the clips of a folder whose results are not there yet. Clips that are too short are left out."""
    file = folder / f"results-{num_keys}-{hash_of_code()}.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    results = {result.clip: result for result in (msgspec.json.decode(line, type=ClipResult) for line in lines)}
    with file.open("ab") as log:
        for number in range(num_clips):
            is_rated = number < num_rated
            if number in results and (results[number].quality is not None or not is_rated):
                continue
            pcm = decode_recording((folder / f"{number:04}.wav").read_bytes(), RATE, MAX_CLIP_S)
            if pcm.size >= MIN_CLIP_S * RATE:
                results[number] = measure_clip(number, pcm, num_keys, is_rated)
                log.write(msgspec.json.encode(results[number]) + b"\n")
                log.flush()
    return [results[number] for number in sorted(results) if number < num_clips]


def hash_of_code() -> str:
    """Name the code that marks and detects, and this program."""
    files = sorted(Path(embedder.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in (*files, Path(__file__)))).hexdigest()[:12]


def summarize_attack(found: Sequence[tuple[float, bool]]) -> dict[str, float]:
    scores = [score for score, _ in found]
    return {
        "found_percent": round(100 * fmean(score >= MIN_SCORE for score in scores), 2),
        "payload_percent": round(100 * fmean(is_right for _, is_right in found), 2),
        "score_mean": round(fmean(scores), 2),
        "score_min": round(min(scores), 2),
    }


def summarize_quality(changes: Sequence[QualityChange]) -> dict[str, float]:
    scores = [change.pesq for change in changes]
    means = {
        f"dnsmos_{name}_change": round(fmean(getattr(change, name) for change in changes), 3)
        for name in ("overall", "signal", "background")
    }
    return {
        "num_rated": len(changes),
        "pesq_mean": round(fmean(scores), 3),
        "pesq_min": round(min(scores), 3),
        **means,
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


def summarize_false_alarms(seconds: float, scores: Sequence[float]) -> dict[str, float]:
    """``seconds`` are those of all sounds with all keys."""
    num_alarms = sum(score >= MIN_SCORE for score in scores)
    return {"seconds": round(seconds), "false_alarms": num_alarms, "score_max": round(max(scores, default=0.0), 2)}


def measure_false_alarms(results: Sequence[ClipResult], others: Sequence[Pcm], num_keys: int) -> dict[str, object]:
    """Alarms of clips with ``num_keys`` wrong keys each, and of music and other recordings with ``NUM_OTHER_KEYS``."""
    seconds = num_keys * sum(result.seconds for result in results)
    report: dict[str, object] = {}
    for kind in results[0].wrong_scores:
        report[kind] = summarize_false_alarms(seconds, [result.wrong_scores[kind] for result in results])
    patterns = [CellPattern.from_key(f"wrong key {number}".encode()) for number in range(NUM_OTHER_KEYS)]
    for kind, sounds in {"music": [make_music(number) for number in range(20)], "other recordings": others}.items():
        seconds = NUM_OTHER_KEYS * sum(pcm.size for pcm in sounds) / RATE
        report[kind] = summarize_false_alarms(seconds, [one for pcm in sounds for one in score_all(pcm, patterns)])
    return report


def measure_cost(clips: list[Pcm]) -> dict[str, float]:
    """CPU time per second of speech in ms, the least of several runs: others use the caches of a shared machine."""
    pattern = CellPattern.from_key(KEY)
    sixteen = [resample(pcm, RATE, DETECT_RATE) for pcm in clips]
    return {
        "embed_ms": _cost_ms(lambda: [mark(pcm, 1) for pcm in clips], clips),
        "detect_ms": _cost_ms(lambda: [score_window(pcm, pattern) for pcm in sixteen], clips),
        # What the watermark adds to the time to first audio: it has no lookahead.
        "first_chunk_ms": round(min(map(_first_chunk_ms, clips * COST_RUNS)), 3),
    }


def _first_chunk_ms(pcm: Pcm) -> float:
    start_s = time.process_time()
    Watermark(KEY, 1).create_embedder(RATE).push(pcm[:PUSH_SAMPLES])
    return 1000 * (time.process_time() - start_s)


def _cost_ms(work: Callable[[], object], clips: Sequence[Pcm]) -> float:
    def run() -> float:
        start_s = time.process_time()
        work()
        return time.process_time() - start_s

    return round(1000 * min(run() for _ in range(COST_RUNS)) * RATE / sum(pcm.size for pcm in clips), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=Path, required=True, help="folder of clips and results")
    parser.add_argument("--num-clips", type=int, default=200)
    parser.add_argument("--num-rated", type=int, default=0, help="clips for PESQ and DNSMOS")
    parser.add_argument("--num-keys", type=int, default=20, help="wrong keys for false alarms, of each clip")
    parser.add_argument("--others", type=Path, help="folder of other unmarked recordings, for false alarms")
    args = parser.parse_args()
    args.clips.mkdir(parents=True, exist_ok=True)
    asyncio.run(make_clips(args.clips, args.num_clips))
    results = measure_clips(args.clips, args.num_clips, args.num_rated, args.num_keys)
    attacks = {name: summarize_attack([result.attacks[name] for result in results]) for name in ATTACKS}
    for name, values in attacks.items():
        print(f"{name:20}", *(f"{key} {value:<8}" for key, value in values.items()), file=sys.stderr)
    others = sorted(args.others.rglob("*.wav")) if args.others else []
    sounds = [decode_recording(file.read_bytes(), RATE, MAX_CLIP_S) for file in others]
    rated = [result.quality for result in results if result.quality is not None]
    first = [decode_recording((args.clips / f"{number:04}.wav").read_bytes(), RATE, MAX_CLIP_S) for number in range(10)]
    report = {
        "num_clips": len(results),
        "seconds": round(sum(result.seconds for result in results)),
        "attacks": attacks,
        "false_alarms": measure_false_alarms(results, sounds, args.num_keys),
        "quality": summarize_quality(rated) if rated else None,
        "cost": measure_cost(first),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
