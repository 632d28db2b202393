"""Compare the TTFA of text with markup, lexicons and speakers with that of plain text, alternating.

Each round speaks the same words once in every form, one after the other on one connection of the native protocol, in
random order. The server is a new process with the scripted engine, whose first chunk comes 5 ms after the first text.
The lexicon has 10,000 entries, half of them phrases; the first words begin none of them. TTFA runs from the moment at
which the text is sent: as a whole, or with --deltas word by word, without pauses. The difference to plain text is the
median over the rounds of the difference within a round. On busy cores that says little; so the processor time from the
text to the first request of the engine stands beside it, measured in this process.

    python -m benchmarks.markup_latency [--rounds 200] [--deltas] [--limit-ms 1]

Exits with 1 if the processor time of a form exceeds that of plain text by more than the limit. The last line is JSON,
in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import httpx2 as httpx
import msgspec

from engine.api import SpeechRequest
from realtime.client import NativeClient, open_session
from realtime.protocol import events as ev
from sessions.config import Markup, SpeechSettings
from sessions.lexicon_store import LexiconManifest, LexiconRecord, LexiconStore
from sessions.registry import SessionRegistry
from sessions.text.lexicons.files import ParsedLexicon
from sessions.text.lexicons.lexicon import LexiconEntry
from tests.fakes.engine import FakeSpeechEngine
from tests.fakes.engine_stream import FakeSpeechStream
from tests.realtime.server_process import server

SCRIPT = {"ms_per_char": 60.0, "first_chunk_s": 0.005, "real_time_factor": 0.02}
WORDS = "Hello there, how are you today? I have been well, and it is good to see you."
LEXICON = "latency"
ENTRIES = {f"word{number}" if number % 2 else f"phrase{number} of three": "spoken" for number in range(10_000)}
SETTINGS = ev.NativeSpeechSettings(format=ev.NativeAudioFormat(encoding="pcm_s16le"), lead_ms=10_000)
PLAIN = "plain"


@dataclass(frozen=True)
class Form:
    text: str = WORDS
    fields: tuple[tuple[str, Any], ...] = ()

    @property
    def settings(self) -> ev.NativeSpeechSettings:
        return msgspec.structs.replace(SETTINGS, **dict(self.fields))

    @property
    def speech(self) -> SpeechSettings:
        """The same settings of a session."""
        given = self.settings
        return SpeechSettings(
            lead_ms=None,
            markup=Markup(given.markup or "none"),
            speakers=given.speakers or {},
            lexicon_names=given.lexicons or (),
        )


SSML = Form(fields=(("markup", "ssml"),))
FORMS = {
    PLAIN: Form(),
    "lexicon": Form(fields=(("lexicons", (LEXICON,)),)),
    "ssml": SSML,
    "ssml with tags": replace(SSML, text=f'<speak><mark name="a"/><p>{WORDS}</p></speak>'),
    "ssml and lexicon": Form(fields=(*SSML.fields, ("lexicons", (LEXICON,)))),
    "speakers": Form(f"Ann: {WORDS}", (("speakers", {"Ann": "ada", "Ben": "ben"}),)),
}


class Turns:
    """Speaks one form after the other over one connection."""

    def __init__(self, client: NativeClient, in_deltas: bool) -> None:
        self._client = client
        self._in_deltas = in_deltas
        self._num = 0

    async def first_audio_ms(self, form: Form) -> float:
        self._num += 1
        response_id = f"r{self._num}"
        create = ev.ResponseCreate(response_id=response_id, settings=form.settings)
        start_s, first_s = time.perf_counter(), None
        if self._in_deltas:
            await self._client.send(create)
            start_s = time.perf_counter()
            for word in form.text.split(" "):
                await self._client.send(ev.TextAppend(response_id=response_id, text=f"{word} "))
            await self._client.send(ev.TextEnd(response_id=response_id))
        else:
            await self._client.send(msgspec.structs.replace(create, text=form.text, end=True))
        async for message in self._client:
            if isinstance(message, ev.AudioMessage) and first_s is None:
                first_s = time.perf_counter()
            if isinstance(message, ev.ErrorEvent):
                raise AssertionError(message)
            if isinstance(message, ev.ResponseDone) and message.response_id == response_id:
                break
        assert first_s is not None, "no audio"
        return 1000 * (first_s - start_s)


def store_lexicon(url: str) -> None:
    address = f"{url.replace('ws', 'http', 1)}/v1/lexicons/{LEXICON}"
    answer = httpx.put(address, json={"language": "en", "entries": ENTRIES}, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text


async def measure(url: str, num_rounds: int, in_deltas: bool) -> dict[str, list[float]]:
    """Measure each form, after two unmeasured rounds."""
    times: dict[str, list[float]] = {name: [] for name in FORMS}
    names, order = list(FORMS), Random(1)
    async with await open_session(url) as client:
        turns = Turns(client, in_deltas)
        for _ in range(num_rounds + 2):
            order.shuffle(names)
            for name in names:
                times[name].append(await turns.first_audio_ms(FORMS[name]))
    return {name: each[2:] for name, each in times.items()}


class SubmitClock(FakeSpeechEngine):
    """Records the processor time of the first request since ``first_s`` was cleared."""

    first_s: float | None = None

    def submit(self, request: SpeechRequest, wake: Callable[[], None] | None = None) -> FakeSpeechStream:
        if self.first_s is None:
            self.first_s = time.thread_time()
        return super().submit(request, wake)


async def measure_processor_time(num_rounds: int, folder: Path) -> dict[str, list[float]]:
    """Milliseconds from the settings and the whole text of a response to its first request, after two rounds."""
    engine, store = SubmitClock(), LexiconStore(folder)
    lexicon = ParsedLexicon("en", [LexiconEntry(text=text, alias=alias) for text, alias in ENTRIES.items()])
    store.put(LexiconRecord.build(LexiconManifest(name=LEXICON), lexicon))
    await engine.start()
    registry = SessionRegistry(engine, lexicons=store)
    times: dict[str, list[float]] = {name: [] for name in FORMS}
    session = registry.create()
    for _ in range(num_rounds + 2):
        for name, form in FORMS.items():
            speech = form.speech
            engine.first_s, start_s = None, time.thread_time()
            response = session.create_response(settings=speech, text=form.text, text_closed=True)
            while engine.first_s is None:  # noqa: ASYNC110 - a further wait would count
                await asyncio.sleep(0)
            times[name].append(1000 * (engine.first_s - start_s))
            response.cancel()
            await response.released()
    await registry.aclose()
    await engine.aclose()
    return {name: each[2:] for name, each in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--deltas", action="store_true")
    parser.add_argument("--limit-ms", type=float, default=1.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, server(SCRIPT, voices__folder=folder) as started:
        store_lexicon(started.url)
        times = asyncio.run(measure(started.url, args.rounds, args.deltas))
        processor_times = asyncio.run(measure_processor_time(args.rounds, Path(folder, "own")))
    report: dict[str, dict[str, float]] = {}
    print(f"{'form':18} {'median':>8} {'p95':>8} {'after plain':>12} {'CPU after plain':>16}  ms")
    for name, each in times.items():
        after = statistics.median(one - plain for one, plain in zip(each, times[PLAIN], strict=True))
        p95 = statistics.quantiles(each, n=20)[-1]
        added = statistics.median(processor_times[name]) - statistics.median(processor_times[PLAIN])
        figures = {"median": statistics.median(each), "p95": p95, "after_plain": after, "cpu_after_plain": added}
        print(f"{name:18} {figures['median']:8.2f} {p95:8.2f} {after:12.2f} {added:16.3f}")
        report[name] = {key: round(value, 3) for key, value in figures.items()}
    print(json.dumps(report))
    return int(any(figures["cpu_after_plain"] > args.limit_ms for figures in report.values()))


if __name__ == "__main__":
    sys.exit(main())
