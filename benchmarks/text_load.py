"""Measure processor time that one event loop iteration spends on the costliest texts.

    python -m benchmarks.text_load [--chars 50000] [--seconds 4] [--limit-ms 20] [--word-times]

A server process with a scripted engine, whose segments are one frame long. For each kind of text, normalized and as
written, a client has ``--chars`` of it synthesized in burst. Then one client creates and cancels responses of the
costliest kinds as fast as it can, beside a paced listener. Reported are the longest iteration of the server's event
loop in processor time, and the lateness of the listener's packets. Exits with 1 above the limit. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import selectors
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

from msgspec.structs import replace

from realtime.app import create_app, serve
from realtime.client import NativeClient, open_session
from realtime.protocol import events as ev
from realtime.transports.listening_sockets import Ports
from tests.fakes.engine import FAKE_INFO, SAMPLE_RATE, FakeScript, FakeSpeechEngine
from tests.realtime.live_server import load_test_config
from tests.sessions.text.texts import KINDS, text_of

SHORT = FakeScript(end_at_frame=1, first_chunk_s=0.0, real_time_factor=0.0)
STEADY = FakeScript(first_chunk_s=0.02, real_time_factor=0.2)
LISTENER_TEXT = "This is what the other client listens to, all the time. " * 100
LISTENER_LEAD_MS = 200
SETTLED_S = 1.0
COSTLIEST = ("brackets", "raised digits", "long numbers")
MAX_KIND_S = 30.0


class MeasuringSelector(selectors.DefaultSelector):
    """Measure processor time of the event loop's thread between two polls.

    Garbage collections are excluded, because they also scan the objects of the scripted engine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = 0.0
        self.total_s = 0.0
        self.num_iterations = 0
        self._started_s: float | None = None
        self._collecting_s = 0.0
        self._collection_started_s = 0.0

    def on_collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collection_started_s = time.thread_time()
        else:
            self._collecting_s += time.thread_time() - self._collection_started_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._started_s is not None:
            spent_s = time.thread_time() - self._started_s - self._collecting_s
            self.longest_s = max(self.longest_s, spent_s)
            self.total_s += spent_s
            self.num_iterations += 1
        ready = super().select(timeout)
        self._started_s = time.thread_time()
        self._collecting_s = 0.0
        return ready


def run_server(pipe: Connection, normalize: bool, aligner: str) -> None:
    """Send the port; then for each message from the parent send and reset the figures."""
    selector = MeasuringSelector()
    gc.callbacks.append(selector.on_collection)

    def report() -> None:
        while pipe.poll(None):
            try:
                pipe.recv()
            except EOFError:
                return
            pipe.send((selector.longest_s, selector.total_s, selector.num_iterations))
            selector.longest_s = selector.total_s = 0.0
            selector.num_iterations = 0

    def on_ready(ports: Ports) -> None:
        pipe.send(ports.main)
        threading.Thread(target=report, daemon=True).start()

    engine = FakeSpeechEngine(SHORT, info=replace(FAKE_INFO, normalize_text=normalize), num_slots=64)
    config = load_test_config({"listen.port": 0, "listen.drain_timeout_s": 0, "speech.aligner": aligner})
    app = create_app(config, _FirstVoiceSteady(engine))  # type: ignore[arg-type]
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(serve(config, app, on_ready))


class _FirstVoiceSteady:
    """An engine whose first voice generates long segments, for the listener, and whose others end immediately."""

    def __init__(self, engine: FakeSpeechEngine) -> None:
        self._engine = engine

    def submit(self, request: object, wake: object = None) -> object:
        self._engine.script = STEADY if getattr(request, "voice", None) == "ben" else SHORT
        return self._engine.submit(request, wake)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)


@dataclass
class Server:
    pipe: Connection
    port: int

    def figures(self) -> tuple[float, float, int]:
        self.pipe.send(None)
        longest_s, total_s, num_iterations = self.pipe.recv()
        return longest_s, total_s, num_iterations

    @asynccontextmanager
    async def session(self) -> AsyncIterator[NativeClient]:
        async with await open_session(f"ws://127.0.0.1:{self.port}") as client:
            yield client


@contextmanager
def running_server(normalize: bool, aligner: str) -> Iterator[Server]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_server, args=(theirs, normalize, aligner))
    process.start()
    theirs.close()
    try:
        yield Server(ours, ours.recv())
    finally:
        process.kill()
        process.join()


@dataclass(frozen=True)
class Row:
    kind: str
    normalize: bool
    longest_ms: float
    us_per_char: float
    num_iterations: int


async def read_to_end(client: NativeClient, response_id: str) -> None:
    async for message in client:
        if isinstance(message, ev.ResponseDone) and message.response_id == response_id:
            return


async def measure_kind(server: Server, kind: str, normalize: bool, num_chars: int, word_times: bool) -> Row:
    async with server.session() as client:
        server.figures()
        settings = ev.NativeSpeechSettings(pace="burst", word_times=word_times)
        text = text_of(KINDS[kind], num_chars)
        await client.send(ev.ResponseCreate(response_id="r", settings=settings, text=text, end=True))
        try:
            async with asyncio.timeout(MAX_KIND_S):
                await read_to_end(client, "r")
        except TimeoutError:
            await client.send(ev.ResponseCancel(response_id="r"))
            await read_to_end(client, "r")
    longest_s, total_s, num_iterations = server.figures()
    return Row(kind, normalize, 1000 * longest_s, 1e6 * total_s / num_chars, num_iterations)


@dataclass(frozen=True)
class Storm:
    longest_ms: float
    num_cancelled: int
    late_p99_ms: float
    late_max_ms: float


async def measure_storm(server: Server, num_chars: int, seconds: float) -> Storm:
    """Create and cancel as fast as possible, beside a paced listener."""
    async with server.session() as listener, server.session() as greedy:
        lateness = asyncio.create_task(listen(listener))
        await asyncio.sleep(2.0)
        server.figures()
        num_cancelled = await create_and_cancel(greedy, num_chars, seconds)
        longest_s, _, _ = server.figures()
        await listener.send(ev.ResponseCancel(response_id="listener"))
        late_ms = sorted(await lateness)
    return Storm(1000 * longest_s, num_cancelled, late_ms[int(0.99 * len(late_ms))], late_ms[-1])


async def create_and_cancel(client: NativeClient, num_chars: int, seconds: float) -> int:
    reader = asyncio.create_task(read_forever(client))
    end_s, number = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        response_id = f"r{number}"
        text = text_of(KINDS[COSTLIEST[number % len(COSTLIEST)]], num_chars)
        settings = ev.NativeSpeechSettings(pace="burst")
        await client.send(ev.ResponseCreate(response_id=response_id, settings=settings, text=text, end=True))
        await asyncio.sleep(0.01)
        await client.send(ev.ResponseCancel(response_id=response_id))
        number += 1
    reader.cancel()
    return number


async def read_forever(client: NativeClient) -> None:
    async for _ in client:
        pass


async def listen(client: NativeClient) -> list[float]:
    """Lateness of each message relative to the earliest, by its position in the audio."""
    wire_format = ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=SAMPLE_RATE)
    settings = ev.NativeSpeechSettings(voice="ben", lead_ms=LISTENER_LEAD_MS, format=wire_format)
    create = ev.ResponseCreate(response_id="listener", settings=settings, text=LISTENER_TEXT, end=True)
    await client.send(create)
    late_ms: list[float] = []
    first_s: float | None = None
    async for message in client:
        if isinstance(message, ev.ResponseDone):
            break
        if not isinstance(message, ev.AudioMessage):
            continue
        now_s = time.monotonic()
        first_s = now_s if first_s is None else first_s
        num_samples = sum(map(len, message.packets)) // 2
        end_s = (message.sample_time + num_samples) / SAMPLE_RATE
        # What exceeds the lead is due when that much of it was played.
        due_s = first_s + max(end_s - LISTENER_LEAD_MS / 1000, 0.0)
        if end_s > SETTLED_S:  # before, audio comes as fast as the engine makes it
            late_ms.append(1000 * (now_s - due_s))
    return [each_ms - min(late_ms) for each_ms in late_ms]


async def measure(arguments: argparse.Namespace) -> tuple[list[Row], Storm]:
    rows = []
    aligner = "letters" if arguments.word_times else "even"
    for normalize in (True, False):
        with running_server(normalize, aligner) as server:
            await measure_kind(server, "words", normalize, 1_000, arguments.word_times)  # warm up
            for kind in KINDS:
                rows.append(await measure_kind(server, kind, normalize, arguments.chars, arguments.word_times))
                print(
                    f"{kind:24} {'normalized' if normalize else 'as written':10} "
                    f"longest {rows[-1].longest_ms:6.1f} ms, {rows[-1].us_per_char:5.1f} us a character",
                    flush=True,
                )
    with running_server(True, aligner) as server:
        storm = await measure_storm(server, arguments.chars, arguments.seconds)
    return rows, storm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chars", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of creating and cancelling responses")
    parser.add_argument("--limit-ms", type=float, default=20.0)
    parser.add_argument("--word-times", action="store_true")
    arguments = parser.parse_args()
    rows, storm = asyncio.run(measure(arguments))
    worst = max(rows, key=lambda row: row.longest_ms)
    print(
        f"worst: {worst.kind}, {worst.longest_ms:.1f} ms; create and cancel: {storm.longest_ms:.1f} ms, "
        f"{storm.num_cancelled} times, packets of the listener late by {storm.late_p99_ms:.1f} ms (p99), "
        f"{storm.late_max_ms:.1f} ms (most)"
    )
    figures = {
        "worst": asdict(worst),
        "kinds": [asdict(row) for row in rows],
        "create_cancel": asdict(storm),
    }
    print(json.dumps(figures))
    sys.exit(max(worst.longest_ms, storm.longest_ms) > arguments.limit_ms)


if __name__ == "__main__":
    main()
