"""Measure the watermark: how often it is found and read after attacks, false alarms, quality and cost.

    python -m benchmarks.watermark --clips /tmp/clips --num-clips 2000 --num-rated 200

Clips that are missing are spoken by the embedded voice into the folder. The results of each clip are appended to a
file in the folder, so that a run that was stopped goes on; a change of the watermark begins a new file.
``--num-rated`` clips are rated by PESQ and DNSMOS, for which the dependency group ``training`` is needed. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.watermark.attacks import ATTACKS, KEY, PUSH_SAMPLES, mark, resample
from benchmarks.watermark.clips import MAX_CLIP_S, RATE, make_clips, read_clip
from benchmarks.watermark.false_alarms import measure_others, summarize_scores
from benchmarks.watermark.results import measure_clips, summarize_attack, summarize_quality
from sessions.audio.pcm import Pcm
from sessions.audio.recordings.decode import decode_recording
from sessions.audio.watermark.detector import DETECT_RATE, score_window
from sessions.audio.watermark.embedder import Watermark
from sessions.audio.watermark.pattern import CellPattern

COST_RUNS = 7


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
    parser.add_argument("--processes", type=int, default=1, help="processes that measure clips")
    parser.add_argument("--others", type=Path, help="folder of other unmarked recordings, for false alarms")
    args = parser.parse_args()
    args.clips.mkdir(parents=True, exist_ok=True)
    asyncio.run(make_clips(args.clips, args.num_clips))
    results = measure_clips(args.clips, args.num_clips, args.num_rated, args.num_keys, args.processes)
    attacks = {name: summarize_attack([result.attacks[name] for result in results]) for name in ATTACKS}
    for name, values in attacks.items():
        print(f"{name:20}", *(f"{key} {value:<8}" for key, value in values.items()), file=sys.stderr)
    seconds = sum(result.seconds for result in results)
    wrong = {
        kind: summarize_scores(args.num_keys * seconds, [result.wrong_scores[kind] for result in results])
        for kind in results[0].wrong_scores
    }
    others = [decode_recording(file.read_bytes(), RATE, MAX_CLIP_S) for file in _find_others(args.others)]
    rated = [result.quality for result in results if result.quality is not None]
    report = {
        "num_clips": len(results),
        "seconds": round(seconds),
        "attacks": attacks,
        "false_alarms": wrong | measure_others(others),
        "quality": summarize_quality(rated) if rated else None,
        "cost": measure_cost([read_clip(args.clips, result.clip) for result in results[:10]]),
    }
    print(json.dumps(report))


def _find_others(folder: Path | None) -> list[Path]:
    return sorted(folder.rglob("*.wav")) if folder else []


if __name__ == "__main__":
    main()
