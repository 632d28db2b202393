"""``voicewire bench``: load a server with clients that behave like agents, and report what they measured.

The exit status is 1 when a response failed or, with paced speech, when one was heard with a gap.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

import msgspec

from realtime.bench.plan import CORPUS, LoadPlan
from realtime.bench.report import plot, summarise, table
from realtime.bench.run import measure, server_rss_mb, split
from realtime.client import speech_url

SESSIONS_PER_PROCESS = 50
LIGHT_SESSIONS_PER_PROCESS = 250


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", required=True, help="ws://HOST:PORT of the server")
    parser.add_argument("--sessions", type=int, default=1, metavar="N", help="clients at once (default: 1)")
    parser.add_argument("--responses", type=int, default=4, metavar="M", help="of each client (default: 4)")
    parser.add_argument(
        "--tokens-per-second",
        type=float,
        metavar="R",
        help="pace of the text, in word pieces of at most 4 characters; 0 sends it at once "
        "(default: 50, with --burst 0)",
    )
    parser.add_argument("--burst", action="store_true", help="take audio as fast as it is made")
    parser.add_argument("--no-cancel", action="store_true", help="leave out the cancelled response of each client")
    parser.add_argument(
        "--count-packets",
        action="store_true",
        help="count packets and decode none, for hundreds of clients on few cores",
    )
    parser.add_argument(
        "--ramp-up", type=float, default=1.0, metavar="S", help="clients arrive within S s (default: 1)"
    )
    parser.add_argument(
        "--max-frames", type=int, metavar="F", help="codec frames of a segment, for weights without an end"
    )
    parser.add_argument(
        "--client-processes", type=int, metavar="P", help=f"(default: one for {SESSIONS_PER_PROCESS} clients)"
    )
    parser.add_argument("--voice", help="(default: the server's)")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="a text a line (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the texts (default: 0)")
    parser.add_argument("--api-key", default=os.environ.get("VOICEWIRE_API_KEY"), help="(default: $VOICEWIRE_API_KEY)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the times to first audio as an SVG")
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")


def run(args: argparse.Namespace) -> int:
    speech_url(args.url)
    pace = args.tokens_per_second
    plan = LoadPlan(
        url=args.url,
        api_key=args.api_key,
        num_sessions=args.sessions,
        total_sessions=args.sessions,
        num_responses=args.responses,
        tokens_per_second=(0.0 if args.burst else 50.0) if pace is None else pace,
        burst=args.burst,
        cancel=not args.no_cancel,
        count_packets=args.count_packets,
        frames=args.max_frames,
        spread_s=args.ramp_up,
        voice=args.voice,
        corpus=str(args.corpus),
        seed=args.seed,
    )
    per_process = LIGHT_SESSIONS_PER_PROCESS if args.count_packets else SESSIONS_PER_PROCESS
    num_processes = args.client_processes or -(-args.sessions // per_process)
    outcomes = asyncio.run(measure(split(plan, num_processes)))
    summary = summarise(outcomes, args.sessions, args.burst, server_rss_mb(args.url, args.api_key))
    if args.plot is not None:
        args.plot.write_text(plot(outcomes))
    if not args.json:
        print(table(summary))
    print(msgspec.json.encode(summary).decode())
    return 0 if summary.is_success else 1
