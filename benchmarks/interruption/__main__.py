"""Measure how soon an answer of the built-in agent is silent once its user interrupts it.

    python -m benchmarks.interruption calls [--calls 4] [--turns 10] [--audio FILE] [-- OPTIONS OF SERVE]
    python -m benchmarks.interruption page [--turns 10] [--audio FILE] [-- OPTIONS OF SERVE]
    python -m benchmarks.interruption presses [--turns 10] [-- OPTIONS OF SERVE]

``voicewire serve`` runs in a process of its own, by default with the embedded voice. Language model and recognizer are
stubs; answers last longer than the user listens. The server records when its detector finds speech. All times are of
the machine's clock.

``calls``: callers on Twilio's wire send and receive audio in real time, and each turn interrupts the answer to the one
before. ``last_packet`` ends with the arrival of the last audible packet, ``clear`` with that of the message that drops
what the provider has not played.

``page``: the page in headless Chromium, hands-free. Its microphone plays a turn and a pause, again and again.
``silence`` ends when the page's audio thread renders the last audible block in front of the loudspeaker.

These times begin with the detection. ``detection`` is its own delay, from the first audible sound of the turn; the page
has none, because the time at which Chromium plays its microphone file is unknown.

``presses``: the same page with typed turns. ``button`` and ``escape`` begin with the press of the button or the Escape
key, by the time of the browser's event, and end as ``silence``. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.interruption import call_lines, page


def report(times_ms: dict[str, list[float]]) -> dict[str, Any]:
    """Print a table and return the figures."""
    figures: dict[str, Any] = {}
    for name, values_ms in times_ms.items():
        p50, p95, worst = np.percentile(values_ms, [50, 95, 100]).round(1).tolist() if values_ms else [None] * 3
        figures[f"{name}_ms"] = {"num": len(values_ms), "p50": p50, "p95": p95, "max": worst}
        print(f"{name:12} {len(values_ms):4} interruptions   p50 {p50} ms   p95 {p95} ms   max {worst} ms")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", choices=["calls", "page", "presses"])
    parser.add_argument("--calls", type=int, default=4, help="concurrent calls")
    parser.add_argument("--turns", type=int, default=10, help="interruptions of a call, of the page, or of a kind")
    parser.add_argument("--audio", type=Path, help="WAV file with a turn; by default flite speaks one")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, options = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    load_before = os.getloadavg()[0]
    if args.where == "calls":
        times_ms, num_missed = asyncio.run(call_lines.measure(args.audio, args.calls, args.turns, options))
    elif args.where == "presses":
        times_ms, num_missed = asyncio.run(page.measure_presses(args.turns, options))
    else:
        times_ms, num_missed = asyncio.run(page.measure(args.audio, args.turns, options))
    load = [round(load_before, 1), round(os.getloadavg()[0], 1)]
    figures = {"where": args.where, "num_missed": num_missed, "load_before_and_after": load}
    print(json.dumps(figures | report(times_ms)))


if __name__ == "__main__":
    main()
