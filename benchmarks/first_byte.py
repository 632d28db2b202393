"""Compares the time to the first byte of MP3 and other formats with that of PCM on ``POST /v1/audio/speech``.

    python -m benchmarks.first_byte [--rounds 40] [--formats mp3 opus] [--url http://127.0.0.1:8765]

Each round sends the same text once in every format, one after the other on one connection, in changing order. Without
``--url`` the server is a new process with the scripted engine, whose first chunk of 80 ms comes after 20 ms; then the
first MP3 of a new process is measured too, which shows whether the encoder was warmed. The last line is JSON, in
milliseconds; MP3 has to come at most 60 ms after PCM.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import ExitStack

import httpx2 as httpx

from tests.realtime.server_process import server

SCRIPT = {"ms_per_char": 60.0, "first_chunk_s": 0.02, "real_time_factor": 0.25}
TEXT = "Hello there, how are you today?"
REFERENCE = "pcm"
MAX_ADDED_MS = 60.0


def first_byte_ms(http: httpx.Client, name: str) -> float:
    body = {"input": TEXT, "response_format": name}
    start_s = time.perf_counter()
    with http.stream("POST", "/v1/audio/speech", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        pieces = answer.iter_raw()
        next(pieces)
        first_s = time.perf_counter()
        for _ in pieces:
            pass
    return 1000 * (first_s - start_s)


def measure(http: httpx.Client, names: list[str], num_rounds: int) -> dict[str, list[float]]:
    """Measure each format, after one unmeasured round."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(num_rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            times[name].append(first_byte_ms(http, name))
    return {name: each[1:] for name, each in times.items()}


def first_of_a_process_ms(name: str) -> float:
    with server(SCRIPT) as started, client(http_url(started.url)) as http:
        http.get("/healthz")
        return first_byte_ms(http, name)


def http_url(url: str) -> str:
    return url.replace("ws", "http", 1)


def client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, trust_env=False, timeout=30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--formats", nargs="+", default=["mp3", "opus", "aac", "wav"])
    parser.add_argument("--url", help="address of a running server; without it one is started")
    args = parser.parse_args()
    names = [REFERENCE, *(name for name in args.formats if name != REFERENCE)]
    report: dict[str, object] = {}
    with ExitStack() as stack:
        url = args.url
        if url is None:
            first = {name: [first_of_a_process_ms(name) for _ in range(3)] for name in (REFERENCE, "mp3")}
            report["first_of_a_process_ms"] = {name: round(min(times), 1) for name, times in first.items()}
            print("first request of a process:", report["first_of_a_process_ms"])
            url = http_url(stack.enter_context(server(SCRIPT)).url)
        times = measure(stack.enter_context(client(url)), names, args.rounds)
    reference_ms = statistics.median(times[REFERENCE])
    print(f"{'format':6} {'median':>8} {'p95':>8} {'after PCM':>10}  ms")
    for name, each in times.items():
        median_ms, p95_ms = statistics.median(each), statistics.quantiles(each, n=20)[-1]
        print(f"{name:6} {median_ms:8.1f} {p95_ms:8.1f} {median_ms - reference_ms:10.1f}")
        report[name] = {"median_ms": round(median_ms, 1), "after_pcm_ms": round(median_ms - reference_ms, 1)}
    if "mp3" in times:
        report["mp3_in_time"] = statistics.median(times["mp3"]) - reference_ms <= MAX_ADDED_MS
    print(json.dumps(report))


if __name__ == "__main__":
    main()
