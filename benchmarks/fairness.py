"""Live listeners beside bulk work: silence and time to first audio of paced replies, throughput of burst replies.

Starts a server over a checkpoint (default: the embedded voice) and measures three phases, each for ``--seconds``: the
listeners alone, the burst replies alone, and both together. Clients are processes of their own with real sockets.

    python -m benchmarks.fairness [--paced 4] [--burst 32] [--keys none|same|different] [--unread] [--tree FOLDER]

A listener plays one reply after the other. A burst client keeps eight replies active on each of its sockets; with
``--unread`` it reads nothing from them. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from realtime.bench.client import CountedAudio, PacketCountingClient, open_packet_client
from realtime.bench.plan import CORPUS, endless, read_corpus
from realtime.protocol import events as ev

TREE = Path(__file__).parents[1]
PACKET_S = 0.02
# Seconds from the first packet to the start of playback.
PREBUFFER_S = 0.06
REPLIES_PER_SOCKET = 8
# Between the end of a reply and the next one of the same listener.
PAUSE_S = 0.25
RETRY_S = 0.5
# Between two phases.
SETTLE_S = 2.0
MAX_GAP_S = 0.05
KEYS = {"paced": "paced-key-0123456789", "burst": "burst-key-0123456789"}
NO_LIMITS = {
    "listen.port": 0,
    "log.level": "error",
    "limits.max_active_responses": 100_000,
    "limits.max_active_responses_per_key": 100_000,
}


@dataclass(slots=True)
class Player:
    """Playout of one reply at its listener."""

    asked_s: float
    first_s: float | None = None
    dry_s: float = math.inf
    gaps_s: list[float] = field(default_factory=list)

    def push(self, audio_s: float, now_s: float) -> None:
        if self.first_s is None:
            self.first_s, self.dry_s = now_s, now_s + PREBUFFER_S
        elif now_s > self.dry_s:
            self.gaps_s.append(now_s - self.dry_s)
            self.dry_s = now_s
        self.dry_s += audio_s

    def stop(self, now_s: float) -> None:
        """Count the silence so far of a reply that has not ended."""
        if self.first_s is None:
            return
        if now_s > self.dry_s:
            self.gaps_s.append(now_s - self.dry_s)


@dataclass(slots=True)
class Findings:
    """Figures of one client process."""

    ttfa_ms: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    audio_s: float = 0.0
    num_completed: int = 0
    num_unanswered: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, player: Player) -> None:
        if player.first_s is None:
            self.num_unanswered += 1
        else:
            self.ttfa_ms.append(1000 * (player.first_s - player.asked_s))
        self.gaps_s += player.gaps_s


@dataclass(frozen=True, slots=True)
class Work:
    url: str
    key: str | None
    seconds: float
    frames: int | None

    def settings(self, pace: ev.Pace) -> ev.NativeSpeechSettings:
        if self.frames is None:
            return ev.NativeSpeechSettings(pace=pace)
        return ev.NativeSpeechSettings(
            pace=pace, max_frames=self.frames, sampling=ev.NativeSamplingOptions(min_new_tokens=self.frames)
        )


def texts_of(seed: int) -> Iterator[str]:
    return endless(read_corpus(CORPUS), seed)


def response(work: Work, response_id: str, text: str, pace: ev.Pace) -> ev.ResponseCreate:
    return ev.ResponseCreate(response_id=response_id, settings=work.settings(pace), text=text, end=True)


async def listen(work: Work, number: int, found: Findings) -> None:
    """Run one listener, which plays one reply after the other to its end."""
    texts, end_s, serial = texts_of(number), time.monotonic() + work.seconds, 0
    await asyncio.sleep(0.37 * number)
    while time.monotonic() < end_s:
        try:
            async with await open_packet_client(work.url, work.key) as client:
                while time.monotonic() < end_s:
                    serial += 1
                    await client.send(response(work, f"r{serial}", next(texts), "lead"))
                    await play(client, end_s, found)
        except OSError as error:
            found.errors[str(error)] += 1
            await asyncio.sleep(RETRY_S)


async def play(client: PacketCountingClient, end_s: float, found: Findings) -> None:
    player, error = Player(time.monotonic()), None
    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + end_s - time.monotonic()):
            async for message in client:
                match message:
                    case CountedAudio():
                        player.push(message.num_packets * PACKET_S, message.at_s)
                        found.audio_s += message.num_packets * PACKET_S
                    case ev.ResponseDone():
                        error = message.error.code if message.error else None
                        break
                    case ev.ErrorEvent():
                        error = message.code
                        break
            else:
                raise ConnectionError(f"closed_{client.close_code}")
    except TimeoutError:
        player.stop(end_s)
        found.add(player)
        return
    if error is not None:
        found.errors[error] += 1
        await asyncio.sleep(RETRY_S)
        return
    found.num_completed += 1
    found.add(player)
    await asyncio.sleep(max(0.0, min(player.dry_s + PAUSE_S, end_s) - time.monotonic()))


async def burst(work: Work, number: int, num_replies: int, found: Findings) -> None:
    """Run one socket with ``num_replies`` active replies."""
    texts, end_s = texts_of(1_000 + number), time.monotonic() + work.seconds
    while time.monotonic() < end_s:
        try:
            async with await open_packet_client(work.url, work.key) as client:
                await keep_active(client, work, texts, num_replies, end_s, found)
        except OSError as error:
            found.errors[str(error)] += 1
        await asyncio.sleep(RETRY_S)


async def keep_active(
    client: PacketCountingClient, work: Work, texts: Iterator[str], num_replies: int, end_s: float, found: Findings
) -> None:
    async def begin(serial: int) -> None:
        text = " ".join(next(texts) for _ in range(6))
        await client.send(response(work, f"b{serial}", text, "burst"))

    for serial in range(num_replies):
        await begin(serial)
    serial = num_replies
    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + end_s - time.monotonic()):
            async for message in client:
                match message:
                    case CountedAudio():
                        found.audio_s += message.num_packets * PACKET_S
                    case ev.ResponseDone() | ev.ErrorEvent():
                        if isinstance(message, ev.ErrorEvent) or message.error:
                            code = message.code if isinstance(message, ev.ErrorEvent) else message.error.code
                            found.errors[code] += 1
                            await asyncio.sleep(RETRY_S)
                        else:
                            found.num_completed += 1
                        serial += 1
                        await begin(serial)
    except TimeoutError:
        return


async def hold(work: Work, number: int, num_replies: int, found: Findings) -> None:
    """Open a socket and read nothing from it; reopen it when the server closes it."""
    texts, end_s = texts_of(2_000 + number), time.monotonic() + work.seconds
    while time.monotonic() < end_s:
        try:
            async with await open_packet_client(work.url, work.key) as client:
                for serial in range(num_replies):
                    text = " ".join(next(texts) for _ in range(40))
                    await client.send(response(work, f"u{serial}", text, "burst"))
                client._transport.pause_reading()  # type: ignore[attr-defined]
                await asyncio.sleep(end_s - time.monotonic())
        except OSError as error:
            found.errors[str(error)] += 1
            await asyncio.sleep(RETRY_S)


async def clients(role: str, num: int, work: Work) -> Findings:
    found = Findings()
    if role == "paced":
        await asyncio.gather(*(listen(work, number, found) for number in range(num)))
        return found
    sizes = [min(REPLIES_PER_SOCKET, num - at) for at in range(0, num, REPLIES_PER_SOCKET)]
    talk = burst if role == "burst" else hold
    await asyncio.gather(*(talk(work, number, size, found) for number, size in enumerate(sizes)))
    return found


def summary(found: Findings, seconds: float) -> dict[str, Any]:
    long_gaps = [gap for gap in found.gaps_s if gap > MAX_GAP_S]
    return {
        "ttfa_ms_p50": percentile(found.ttfa_ms, 0.5),
        "ttfa_ms_p95": percentile(found.ttfa_ms, 0.95),
        "max_gap_ms": round(1000 * max(found.gaps_s, default=0.0), 1),
        "num_gaps": len(long_gaps),
        "silence_s": round(sum(long_gaps), 2),
        "audio_s_per_s": round(found.audio_s / seconds, 2),
        "completed": found.num_completed,
        "unanswered": found.num_unanswered,
        "errors": dict(found.errors),
    }


def percentile(values: Sequence[float], share: float) -> float | None:
    if len(values) < 2:
        return round(values[0], 1) if values else None
    return round(statistics.quantiles(values, n=100, method="inclusive")[round(100 * share) - 1], 1)


class Client:
    """A process of clients."""

    def __init__(self, role: str, num: int, work: Work) -> None:
        plan = {"role": role, "num": num, "work": {name: getattr(work, name) for name in Work.__slots__}}
        command = [sys.executable, "-m", "benchmarks.fairness", "--client", json.dumps(plan)]
        self._process = subprocess.Popen(command, cwd=TREE, stdout=subprocess.PIPE)

    def result(self) -> dict[str, Any]:
        out, _ = self._process.communicate()
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found


@contextmanager
def server(args: argparse.Namespace) -> Iterator[str]:
    settings = dict(NO_LIMITS)
    if args.keys != "none":
        settings["auth.api_keys"] = ",".join(f"{name}:{key}" for name, key in KEYS.items())
    if args.model:
        settings["engine.model"] = args.model
    flags = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    flags += [part for setting in args.set for part in ("--set", setting)]
    command = [sys.executable, "-m", "realtime.cli", "serve", *flags]
    with subprocess.Popen(command, cwd=args.tree, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                *_, last = line.decode().split()
                if last.startswith("ws"):
                    yield last.removesuffix("/v1/speech")
                    return
            raise SystemExit("the server did not come up")
        finally:
            process.terminate()


def measure(url: str, args: argparse.Namespace) -> dict[str, Any]:
    def work(role: str) -> Work:
        key_name = "paced" if role == "paced" or args.keys == "same" else "burst"
        return Work(url, None if args.keys == "none" else KEYS[key_name], args.seconds, args.frames)

    def run(*roles: str) -> dict[str, dict[str, Any]]:
        sizes = {role: args.paced if role == "paced" else args.burst for role in roles}
        started = {role: Client(role, sizes[role], work(role)) for role in roles}
        found = {role: client.result() for role, client in started.items()}
        for role, figures in found.items():
            print(f"{' + '.join(roles)}: {role}: {figures}", flush=True)
        time.sleep(SETTLE_S)
        return found

    bulk = "unread" if args.unread else "burst"
    phases = {"paced_alone": run("paced")["paced"]}
    if not args.unread:
        phases["burst_alone"] = run("burst")["burst"]
    both = run("paced", bulk)
    return phases | {"paced_beside": both["paced"], f"{bulk}_beside": both[bulk]}


def ratios(found: dict[str, Any]) -> dict[str, float | None]:
    """TTFA with burst replies over TTFA without, and the share of the remaining capacity that they use."""
    before, after = found["paced_alone"]["ttfa_ms_p95"], found["paced_beside"]["ttfa_ms_p95"]
    shares: dict[str, float | None] = {"ttfa_p95_ratio": round(after / before, 2) if before and after else None}
    if "burst_alone" in found:
        rest = found["burst_alone"]["audio_s_per_s"] - found["paced_beside"]["audio_s_per_s"]
        shares["burst_share"] = round(found["burst_beside"]["audio_s_per_s"] / rest, 3) if rest > 0 else None
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paced", type=int, default=4, help="listeners (default: 4)")
    parser.add_argument("--burst", type=int, default=32, help="concurrent burst replies (default: 32)")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of each phase (default: 30)")
    parser.add_argument("--keys", choices=("none", "same", "different"), default="none", help="API keys of the clients")
    parser.add_argument("--unread", action="store_true", help="burst clients read nothing")
    parser.add_argument("--model", help="checkpoint folder (default: the embedded voice)")
    parser.add_argument("--frames", type=int, help="codec frames per segment, for weights without an end")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the server")
    parser.add_argument("--tree", type=Path, default=TREE, help="source tree of the server")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        plan = json.loads(args.client)
        work = Work(**plan["work"])
        print(json.dumps(summary(asyncio.run(clients(plan["role"], plan["num"], work)), work.seconds)))
        return
    with server(args) as url:
        found = measure(url, args)
    options = {"paced": args.paced, "burst": args.burst, "keys": args.keys, "unread": args.unread}
    print(json.dumps({"benchmark": "fairness", **options, **found, **ratios(found)}))


if __name__ == "__main__":
    main()
