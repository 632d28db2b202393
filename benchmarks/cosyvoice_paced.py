"""Measure how many paced listeners CosyVoice3 serves without a gap on one device.

    python -m benchmarks.cosyvoice_paced [--listeners 16,64] [--duration-s 30] [--ramp-s 8] [--lead-ms 2000]

The engine has random weights, as in ``benchmarks.cosyvoice``, and is stepped by one thread in real time. A listener
requests a reply of 6 to 10 s, plays it from its first chunk on without a buffer, and requests the next half a second
after the end. Listeners start within ``--ramp-s``; 0 starts all of them at the same moment. A reply has a gap if a
chunk arrives after the audio before it was played. Requests that the engine refuses are counted beside the replies. All
other options are those of ``benchmarks.cosyvoice``. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from benchmarks.cosyvoice import EPOCHS, TOKEN_S, Bench, make_parser, numbers, percentile
from engine.api import RequestFinished, SpeechChunk

REPLY_S = 6.0, 10.0
PAUSE_S = 0.5
IDLE_S = 0.0005


@dataclass(slots=True)
class Reply:
    """One reply as its listener plays it; ``dry_at_s``: when all audio so far is played."""

    submitted_s: float
    ttfa_s: float = 0.0
    dry_at_s: float = 0.0
    longest_gap_s: float = 0.0

    def receive(self, now_s: float, audio_s: float) -> None:
        if not self.dry_at_s:
            self.ttfa_s, self.dry_at_s = now_s - self.submitted_s, now_s
        self.longest_gap_s = max(self.longest_gap_s, now_s - self.dry_at_s)
        self.dry_at_s = max(self.dry_at_s, now_s) + audio_s


class PacedListeners:
    def __init__(self, bench: Bench, starts_s: Sequence[float], lead_ms: int) -> None:
        self.bench, self.lead_ms, self.random = bench, lead_ms, random.Random(1)
        self.due_s = list(starts_s)
        # By epoch: the listener and its reply.
        self.active: dict[int, tuple[int, Reply]] = {}
        self.finished: list[Reply] = []
        self.num_refused = 0

    def run(self, duration_s: float) -> None:
        """Submit until ``duration_s``, then let the active replies end."""
        start, engine = time.perf_counter(), self.bench.engine
        while (now_s := time.perf_counter() - start) < duration_s or self.active:
            if now_s < duration_s:
                self.submit(now_s)
            if engine.has_work:
                engine.step()
                self.receive(time.perf_counter() - start)
            else:
                time.sleep(IDLE_S)

    def submit(self, now_s: float) -> None:
        for listener, due_s in enumerate(self.due_s):
            if now_s >= due_s:
                epoch, self.due_s[listener] = next(EPOCHS), float("inf")
                request = self.bench.request(epoch, int(self.random.uniform(*REPLY_S) / TOKEN_S))
                self.active[epoch] = listener, Reply(now_s)
                self.bench.engine.requests.submit(structs.replace(request, lead_ms=self.lead_ms), epoch)

    def receive(self, now_s: float) -> None:
        events, self.bench.engine.requests.events = self.bench.engine.requests.events, []
        for epoch, event in events:
            if isinstance(event, SpeechChunk) and len(event.pcm):
                self.active[epoch][1].receive(now_s, len(event.pcm) / self.bench.stage.sample_rate)
            elif isinstance(event, RequestFinished):
                listener, reply = self.active.pop(epoch)
                self.due_s[listener] = max(now_s, reply.dry_at_s) + PAUSE_S
                if event.error is None:
                    self.finished.append(reply)
                else:
                    assert event.error.code == "overloaded", event.error
                    self.num_refused += 1


def measure(bench: Bench, count: int, args: argparse.Namespace) -> dict[str, Any]:
    starts = random.Random(0)
    num_bounded = bench.stage.num_bounded
    listeners = PacedListeners(bench, [starts.uniform(0, args.ramp_s) for _ in range(count)], args.lead_ms)
    listeners.run(args.duration_s)
    replies = listeners.finished
    first_s, gaps_s = [reply.ttfa_s for reply in replies], [reply.longest_gap_s for reply in replies]
    return {
        "replies": len(replies), "refused": listeners.num_refused,
        "without_gap": sum(gap_s == 0 for gap_s in gaps_s) / len(replies), "longest_gap_ms": 1000 * max(gaps_s),
        "ttfa_p50_ms": 1000 * percentile(first_s, 0.5),
        "ttfa_p95_ms": 1000 * percentile(first_s, 0.95), "context_limited": bench.stage.num_bounded - num_bounded,
    }  # fmt: skip


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--listeners", type=numbers, default=[16, 64])
    parser.add_argument("--duration-s", type=float, default=30.0)
    parser.add_argument("--ramp-s", type=float, default=8.0)
    parser.add_argument("--lead-ms", type=int, default=2_000)
    args = parser.parse_args()
    args.streams, args.burst = args.listeners, []
    bench, result = Bench(args), {}
    bench.speak(1, 2.0)
    for count in args.listeners:
        result[f"listeners_{count}"] = found = measure(bench, count, args)
        print(f"{count:4} listeners: " + ", ".join(f"{k} {v:.4g}" for k, v in found.items()), flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
