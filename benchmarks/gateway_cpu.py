"""Measure the CPU cost of a stream in front of the engine: sockets, protocol, Opus and scheduling.

Starts a server with gateways in front of a scripted engine (``benchmarks/scripted_engine.py``), or of a checkpoint with
``--model``. Runs sessions of ``voicewire bench --count-packets``, for each number of sessions in turn. Reports TTFA,
continuity by the clients' clock, and CPU time of each kind of process per second of speech received.

    python -m benchmarks.gateway_cpu --sessions 64,256 --gateways 4 [--model FOLDER] [--set NAME=VALUE]

The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from engine.address import EngineAddress
from engine.child import EngineProcess
from engine.client import EngineClient
from engine.endpoint import EngineSocket
from engine.process import RunDirectory
from realtime.bench.plan import CORPUS, LoadPlan
from realtime.bench.report import summarise
from realtime.bench.run import measure, split
from realtime.config import load_config
from realtime.gateway_supervisor import serve_with_gateways
from realtime.logs import configure_logs

TREE = Path(__file__).parents[1]
# By the module that a process of the server runs.
KINDS = {"realtime.gateway": "gateways", "engine.host": "engine", "benchmarks.scripted_engine": "engine"}
NO_LIMITS = {
    "listen.port": 0,
    "log.level": "error",
    "limits.max_active_responses": 100_000,
    "limits.max_active_responses_per_key": 100_000,
}


class ScriptedProcess(EngineProcess):
    """Runs the scripted engine in place of the engine's process."""

    def __init__(self) -> None:
        self._folder = RunDirectory()
        self.socket = self._folder.path / "engine.sock"
        EngineSocket.__init__(self, EngineAddress(str(self.socket)))
        self._process = None

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.scripted_engine", str(self.socket)]


@dataclass(frozen=True, slots=True)
class Server:
    process: psutil.Process
    url: str

    def cpu_s(self) -> Counter[str]:
        """CPU seconds of each kind of process."""
        spent: Counter[str] = Counter()
        for process in (self.process, *self.process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times, line = process.cpu_times(), process.cmdline()
                kind = next((kind for module, kind in KINDS.items() if module in line), "parent")
                spent[kind] += times.user + times.system
        return spent


def cores(text: str) -> set[int]:
    """Parse a set of cores: ``0-15`` or ``2,3``."""
    ranges = (part.partition("-") for part in text.split(","))
    return {core for first, _, last in ranges for core in range(int(first), int(last or first) + 1)}


@contextlib.contextmanager
def server(settings: dict[str, Any], on_cores: set[int], tree: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "benchmarks.gateway_cpu", "--serve", json.dumps(settings)]
    with subprocess.Popen(
        command, cwd=tree, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, on_cores)
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            yield Server(psutil.Process(process.pid), f"ws://127.0.0.1:{port}")
        finally:
            process.terminate()


def serve(settings: dict[str, Any]) -> None:
    config = load_config(environment={"VOICEWIRE_DEBUG": "1"}, flags=settings)
    configure_logs(config.log)
    shared = None
    if config.engine.model is None:
        child = ScriptedProcess()
        shared = EngineClient(child), str(child.address)
    asyncio.run(serve_with_gateways(config, lambda ports: print(ports.main, flush=True), shared))


def clients_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def load(running: Server, num_sessions: int, args: argparse.Namespace) -> dict[str, Any]:
    plan = LoadPlan(
        url=running.url,
        num_sessions=num_sessions,
        total_sessions=num_sessions,
        num_responses=args.responses,
        tokens_per_second=args.tokens_per_second,
        cancel=args.cancel,
        count_packets=True,
        frames=args.frames,
        corpus=str(args.corpus),
        spread_s=num_sessions / args.arrivals,
    )
    before, clients_before = running.cpu_s(), clients_cpu_s()
    outcomes = asyncio.run(measure(split(plan, args.processes)))
    after, clients_after = running.cpu_s(), clients_cpu_s()
    summary = summarise(outcomes, num_sessions, False, None)
    audio_s = max(sum(outcome.audio_s for outcome in outcomes), 1e-9)
    cpu_s = {kind: after[kind] - before[kind] for kind in after} | {"clients": clients_after - clients_before}
    return {
        "sessions": num_sessions,
        "responses": summary.responses,
        "errors": summary.error_codes,
        "ttfa_ms": summary.ttfa_ms and {"p50": summary.ttfa_ms.p50, "p95": summary.ttfa_ms.p95},
        "continuity": summary.continuity,
        "underruns": summary.underruns,
        "audio_s": round(audio_s),
        "audio_s_per_s": summary.audio_s_per_s,
        "cpu_ms_per_audio_s": {kind: round(1000 * spent / audio_s, 2) for kind, spent in cpu_s.items()},
        "cancel_done_ms": summary.cancel_done_ms and summary.cancel_done_ms.p95,
    }


def table(levels: Sequence[dict[str, Any]]) -> str:
    return "\n".join("  ".join(f"{name} {value}" for name, value in level.items()) for level in levels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", default="64", help="numbers of sessions, one after the other (default: 64)")
    parser.add_argument("--responses", type=int, default=2, help="responses of each session (default: 2)")
    parser.add_argument("--arrivals", type=float, default=60.0, help="sessions that start per second (default: 60)")
    parser.add_argument("--tokens-per-second", type=float, default=50.0, help="tokens of text per second (default: 50)")
    parser.add_argument("--cancel", action="store_true", help="each session also cancels one more response")
    parser.add_argument("--frames", type=int, help="codec frames per segment, for weights without an end")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--processes", type=int, default=1, help="client processes (default: 1)")
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--model", help="checkpoint folder (default: a scripted engine)")
    parser.add_argument("--server-cores", type=cores, default=os.sched_getaffinity(0))
    parser.add_argument("--client-cores", type=cores, default=os.sched_getaffinity(0))
    parser.add_argument("--options", type=json.loads, default={}, help="engine options as JSON, with --model")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the server")
    parser.add_argument("--tree", type=Path, default=TREE, help="source tree of the server")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(json.loads(args.serve))
        return
    settings = NO_LIMITS | {"listen.gateways": args.gateways} | dict(item.split("=", 1) for item in args.set)
    settings |= {"engine.model": args.model, "engine.options": args.options} if args.model else {}
    os.sched_setaffinity(0, args.client_cores)
    levels = []
    with server(settings, args.server_cores, args.tree) as running:
        for num_sessions in map(int, args.sessions.split(",")):
            levels.append(load(running, num_sessions, args))
            print(table(levels[-1:]), flush=True)
    print(json.dumps({"gateways": args.gateways, "model": args.model, "set": args.set, "levels": levels}))


if __name__ == "__main__":
    main()
