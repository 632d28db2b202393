"""Load a speech server over one of four wires, with the same texts: latency, gaps and throughput.

    python -m benchmarks.peers --wire native|openai|nari|vllm-omni --url http://127.0.0.1:8765 [--closed 1,8,64]
    [--open 5,20,40] [--replies 100] [--processes 1] [--tokens-per-second 50] [--model NAME] [--voice NAME] [--key KEY]
    [--extra '{"stream": true}'] [--texts FILE]

Time to first audio counts on an open connection, from the write of the text until the first bytes of audio arrive. With
``--tokens-per-second`` it counts from the piece that completes the first word. A reply has a gap if its audio runs out
before the end, played at its pace from 60 ms after the first bytes on. docs/guides/benchmarks.md says how to run each
server. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peers.load import LevelPlan, Loop
from benchmarks.peers.processes import start_clients
from benchmarks.peers.wires import WIRES, Target
from realtime.bench.plan import CORPUS, ResponseResult, read_corpus
from realtime.bench.report import summarise

FIGURES = ("ttfa_ms", "continuity", "audio_s_per_s", "responses", "errors", "error_codes", "underruns")


def count(text: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, is {text}")
    return int(text)


def counts(text: str) -> list[float]:
    return [count(part) for part in text.split(",")]


def rates(text: str) -> list[float]:
    found = [float(part) for part in text.split(",")]
    if not min(found) > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, is {min(found):g}")
    return found


def address(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"must be http://HOST:PORT, is {text}")
    return text.rstrip("/")


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
    target = Target(url=args.url, key=args.key, model=args.model, voice=args.voice, extra=args.extra)
    levels: list[tuple[Loop, float]] = [("closed", level) for level in args.closed]
    levels += [("open", level) for level in args.open]
    found = []
    async with start_clients(args.processes) as clients:
        print(f"{'load':<8} {'TTFA p50 / p95':>20} {'gap-free':>9} {'audio s/s':>9} {'errors':>7} {'replies':>8}")
        for loop, level in levels:
            plan = LevelPlan(
                wire=args.wire, target=target, texts=read_corpus(args.texts), seed=args.seed,
                tokens_per_second=args.tokens_per_second, loop=loop, level=level, num_replies=args.replies,
                first_text=args.warm_up,
            )  # fmt: skip
            if args.warm_up:
                await clients.run(warm_up(plan, args.warm_up, args.processes))
            found.append(summarize_level(loop, level, await clients.run(plan)))
            print(level_line(found[-1]), flush=True)
    return found


def warm_up(plan: LevelPlan, num_replies: int, num_processes: int) -> LevelPlan:
    """Replies before a level, in a closed loop."""
    level = plan.level if plan.loop == "closed" else num_processes
    return msgspec.structs.replace(plan, loop="closed", level=level, num_replies=num_replies, first_text=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wire", choices=sorted(WIRES), required=True)
    parser.add_argument("--url", type=address, required=True, help="http://HOST:PORT")
    parser.add_argument("--closed", type=counts, default=[], metavar="N,N", help="replies at the same time")
    parser.add_argument("--open", type=rates, default=[], metavar="RATE,RATE", help="replies begun in a second")
    parser.add_argument("--replies", type=count, default=100, help="replies of each level")
    parser.add_argument("--processes", type=count, default=1, help="client processes that share the load")
    parser.add_argument(
        "--warm-up", type=partial(count, least=0), default=8, help="replies before each level that do not count"
    )
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
    print(json.dumps({"benchmark": "peers", "wire": args.wire, "processes": args.processes, "levels": levels}))


if __name__ == "__main__":
    main()
