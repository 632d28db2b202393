"""Measure each clip: the mark after all attacks, the scores of wrong keys, and the change of quality."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from benchmarks.watermark.attacks import KEY, PAYLOAD, attack_all, mark, resample
from benchmarks.watermark.clips import MIN_CLIP_S, RATE, read_clip
from benchmarks.watermark.false_alarms import score_keys
from sessions.audio.pcm import Pcm
from sessions.audio.watermark import embedder
from sessions.audio.watermark.detector import DETECT_RATE, MIN_SCORE, score_window
from sessions.audio.watermark.pattern import CellPattern


class AttackResult(msgspec.Struct, array_like=True):
    score: float
    payload: int | None


class QualityChange(msgspec.Struct):
    """PESQ-WB of a marked clip against the unmarked one, and the changes of DNSMOS."""

    pesq: float
    overall: float
    signal: float
    background: float


class ClipResult(msgspec.Struct):
    clip: int
    seconds: float
    attacks: dict[str, AttackResult]
    # Highest score of all wrong keys, by kind of sound.
    wrong_scores: dict[str, float]
    quality: QualityChange | None = None


def measure_clips(folder: Path, num_clips: int, num_rated: int, num_keys: int, num_processes: int) -> list[ClipResult]:
    """Measure the clips of a folder whose results are not there yet. Clips that are too short are left out."""
    file = folder / f"results-{num_keys}-{hash_of_code()}.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    results = {result.clip: result for result in (msgspec.json.decode(line, type=ClipResult) for line in lines)}
    rated = {number for number, result in results.items() if result.quality is not None}
    missing = [n for n in range(num_clips) if n not in results or (n < num_rated and n not in rated)]
    measure = partial(measure_clip, folder, num_keys=num_keys, num_rated=num_rated)
    with file.open("ab") as log, ProcessPoolExecutor(num_processes) as processes:
        for result in processes.map(measure, missing):
            if result is not None:
                results[result.clip] = result
                log.write(msgspec.json.encode(result) + b"\n")
                log.flush()
    return [results[number] for number in sorted(results) if number < num_clips]


def hash_of_code() -> str:
    """Name the code that marks and detects, and this program."""
    folders = (Path(embedder.__file__).parent, Path(__file__).parent)
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def measure_clip(folder: Path, number: int, num_keys: int, num_rated: int) -> ClipResult | None:
    """Mark a clip, attack it in each way, and score it with wrong keys, each of which is used for this clip alone."""
    pcm = read_clip(folder, number)
    if pcm.size < MIN_CLIP_S * RATE:
        return None
    marked, pattern = mark(pcm, PAYLOAD), CellPattern.from_key(KEY)
    attacks = {}
    for name, attacked in attack_all(marked):
        found = score_window(attacked, pattern)
        attacks[name] = AttackResult(round(float(found.score), 3), found.payload)
    patterns = [CellPattern.from_key(f"wrong key {number} {index}".encode()) for index in range(num_keys)]
    sounds = {"unmarked speech": pcm, "marked speech, wrong key": marked}
    wrong = {kind: max(score_keys(sound, patterns), default=0.0) for kind, sound in sounds.items()}
    return ClipResult(number, pcm.size / RATE, attacks, wrong, rate_change(pcm, marked) if number < num_rated else None)


def rate_change(pcm: Pcm, marked: Pcm) -> QualityChange:
    from pesq import pesq
    from speechmos import dnsmos

    pair = [np.clip(resample(one, RATE, DETECT_RATE), -1, 1) for one in (pcm, marked)]
    before, after = (dnsmos.run(one, DETECT_RATE) for one in pair)
    changes = [float(after[name]) - float(before[name]) for name in ("ovrl_mos", "sig_mos", "bak_mos")]
    return QualityChange(float(pesq(DETECT_RATE, *pair, "wb")), *changes)


def summarize_attack(results: Sequence[AttackResult]) -> dict[str, float]:
    scores = [result.score for result in results]
    payloads = [result.payload for result in results]
    return {
        "found_percent": round(100 * fmean(score >= MIN_SCORE for score in scores), 2),
        "payload_percent": round(100 * fmean(payload == PAYLOAD for payload in payloads), 2),
        "wrong_payloads": sum(payload not in (PAYLOAD, None) for payload in payloads),
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
