"""Load a speech server over one of four wires, with the same texts: latency, gaps and throughput.

    python -m benchmarks.peers --wire native|openai|nari|vllm-omni --url http://127.0.0.1:8765 [--closed 1,8,64]
    [--open 5,20,40] [--replies 100] [--tokens-per-second 50] [--model NAME] [--voice NAME] [--key KEY]
    [--extra '{"stream": true}'] [--texts FILE]

Time to first audio counts on an open connection, from the text; with ``--tokens-per-second`` from the piece that
completes the first word. A reply has a gap if its audio, played at its pace from 60 ms after the first bytes on, runs
out before the end. docs/guides/benchmarks.md says how to run each server. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peers.load import Load
from benchmarks.peers.wires import WIRES, Target
from realtime.bench.plan import CORPUS, ResponseResult, read_corpus
from realtime.bench.report import summarise

FIGURES = ("ttfa_ms", "continuity", "audio_s_per_s", "responses", "errors", "error_codes", "underruns")


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


def summarize_level(loop: str, level: float, results: list[ResponseResult]) -> dict[str, Any]:
    summary = msgspec.to_builtins(summarise(results, len({one.session for one in results}), False, None))
    return {"loop": loop, "level": level} | {name: summary[name] for name in FIGURES}


def level_line(found: dict[str, Any]) -> str:
    times, continuity = found["ttfa_ms"], found["continuity"]
    ttfa = "-" if times is None else f"{times['p50']:.1f} / {times['p95']:.1f} ms"
    gap_free = "-" if continuity is None else f"{100 * continuity:.1f} %"
    label = f"c = {found['level']:g}" if found["loop"] == "closed" else f"{found['level']:g}/s"
    counts = f"{found['errors']:>7} {found['responses']:>8}"
    return f"{label:<8} {ttfa:>20} {gap_free:>9} {found['audio_s_per_s']:>9.1f} {counts}"


async def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    target = Target(url=args.url.rstrip("/"), key=args.key, model=args.model, voice=args.voice, extra=args.extra)
    texts = read_corpus(args.texts)
    levels = [("closed", level) for level in args.closed] + [("open", level) for level in args.open]
    found = []
    print(f"{'load':<8} {'TTFA p50 / p95':>20} {'gap-free':>9} {'audio s/s':>9} {'errors':>7} {'replies':>8}")
    for loop, level in levels:
        load = Load(WIRES[args.wire], target, texts, args.tokens_per_second, args.seed)
        if args.warm_up:
            await load.run_closed(int(level) if loop == "closed" else 1, args.warm_up)
        is_closed = loop == "closed"
        results = await (load.run_closed(int(level), args.replies) if is_closed else load.run_open(level, args.replies))
        found.append(summarize_level(loop, level, results))
        print(level_line(found[-1]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wire", choices=sorted(WIRES), required=True)
    parser.add_argument("--url", required=True, help="http://HOST:PORT")
    parser.add_argument("--closed", type=numbers, default=[], metavar="N,N", help="replies at the same time")
    parser.add_argument("--open", type=numbers, default=[], metavar="RATE,RATE", help="replies begun in a second")
    parser.add_argument("--replies", type=int, default=100, help="replies of each level")
    parser.add_argument("--warm-up", type=int, default=8, help="replies before each level that do not count")
    parser.add_argument("--tokens-per-second", type=float, default=0.0, help="pace of the text; 0 sends it whole")
    parser.add_argument("--model")
    parser.add_argument("--voice")
    parser.add_argument("--key")
    parser.add_argument("--extra", type=json.loads, default={}, help="JSON added to the description of a request")
    parser.add_argument("--texts", type=Path, default=CORPUS, help="one text per line")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not (args.closed or args.open):
        parser.error("--closed or --open is needed")
    if args.wire == "openai" and args.tokens_per_second:
        parser.error("--tokens-per-second: the openai wire takes whole texts")
    levels = asyncio.run(run(args))
    print(json.dumps({"benchmark": "peers", "wire": args.wire, "levels": levels}))


if __name__ == "__main__":
    main()
