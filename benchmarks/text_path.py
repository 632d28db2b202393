"""Measure the processor time of text without markup on its way to the engine.

    python -m benchmarks.text_path [--rounds 60]
    python -m benchmarks.ab --parent ../parent --pairs 15 --limit us=3 -- text_path

A text of 67 words comes word by word, as it is (``plain``) or through the normalizer (``normalized``):

* ``delta``: per text delta, from its arrival to the segments that are made of it.
* ``response``: per response over the scripted engine: from its creation until all deltas are pushed and the engine has
  the first segment. The engine stays silent, so later segments are never submitted.

Figures are lower quartiles in microseconds of this thread's processor time: other work on the cores makes single rounds
slower and none faster. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

from sessions.registry import SessionRegistry
from sessions.session import Session
from sessions.text_track import TextSegment, TextTrack
from sessions.timeline import ResponseTimeline
from tests.fakes.engine import SAMPLE_RATE, FakeScript
from tests.sessions.conftest import BURST, LIMITS, RecordingEngine

TEXT = (
    "The next train leaves at 5:30 pm from platform 12, and it takes about 2 hours. Please have your ticket ready "
    "when you get on, because the doors close a minute before. If you are late, the one after it goes at 7:15 and "
    "costs $23 more. You can change your seat until the evening, for 3% of the price. Have a good trip, and thank you."
)
FIRST_SEGMENT_END = "the doors close a minute before."
DELTAS = [f"{word} " for word in TEXT.split(" ")]
SILENT = FakeScript(first_chunk_s=3_600.0)
MAX_READ_CHARS = 500
WARM_UP_ROUNDS = 5


def time_deltas(normalize: bool) -> float:
    """Seconds from the first delta to the last segment."""
    track = TextTrack(ResponseTimeline(SAMPLE_RATE), normalize)
    start_s = time.thread_time()
    for delta in DELTAS:
        track.push(delta, 0.0)
        read_on(track)
    track.end()
    read_on(track)
    elapsed_s = time.thread_time() - start_s
    assert track.exhausted
    return elapsed_s


def read_on(track: TextTrack) -> None:
    while track.wants_text:
        track.read(MAX_READ_CHARS)
        while track.waiting and (not isinstance(track.waiting[0], TextSegment) or track.waiting[0].speakable):
            track.pop()


async def time_response(session: Session, engine: RecordingEngine) -> float:
    engine.ever.clear()
    start_s = time.thread_time()
    response = session.create_response()
    for delta in DELTAS:
        response.push_text(delta)
        await asyncio.sleep(0)
    response.end_input()
    await asyncio.sleep(0)
    elapsed_s = time.thread_time() - start_s
    [text] = engine.texts
    assert text.endswith(FIRST_SEGMENT_END), text
    response.cancel()
    await response.released()
    return elapsed_s


async def time_responses(normalize: bool, num_rounds: int) -> float:
    """Lower quartile of the rounds, in seconds."""
    engine = RecordingEngine(SILENT)
    await engine.start()
    registry = SessionRegistry(engine, LIMITS)
    session = registry.create(settings=replace(BURST, normalize_text=normalize))
    times_s = [await time_response(session, engine) for _ in uncollected(num_rounds)]
    await registry.aclose()
    await engine.aclose()
    return lower_quartile(times_s)


def lower_quartile(times_s: list[float]) -> float:
    return statistics.quantiles(times_s[WARM_UP_ROUNDS:], n=4)[0]


def uncollected(num_rounds: int) -> Iterator[int]:
    """Count rounds; objects are collected between them."""
    gc.disable()
    for number in range(num_rounds + WARM_UP_ROUNDS):
        gc.collect()
        yield number
    gc.enable()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    num_rounds = parser.parse_args().rounds
    figures: dict[str, float] = {}
    for name, normalize in (("plain", False), ("normalized", True)):
        deltas_s = [time_deltas(normalize) for _ in uncollected(num_rounds)]
        figures[f"{name}_delta_us"] = 1e6 * lower_quartile(deltas_s) / len(DELTAS)
        figures[f"{name}_response_us"] = 1e6 * asyncio.run(time_responses(normalize, num_rounds))
    for name, value in figures.items():
        print(f"{name:24} {value:9.1f}")
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
