"""A server that records when its detector finds speech.

As a program: ``python -m benchmarks.interruption.detections FILE serve ...`` is ``voicewire serve ...``, and appends a
line of JSON to the file for each onset: ``call``, the provider's id of the call, and ``detected_s`` of the wall clock.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakKeyDictionary

from benchmarks.agent_latency import FIRST_TOKEN_S, TOKENS_PER_S, running_server
from realtime.agent.agent_conversation import AgentConversation
from realtime.calls.connection import CallConnection
from realtime.cli import main
from sessions.vad.barge_in import BargeInDetector
from tests.realtime.agent.stub_backend import ScriptedAnswer, stub_backend

# Half a minute of speech.
ANSWER = "Our shop is open from nine in the morning until six in the evening, and on Sundays it is closed. " * 5


@asynccontextmanager
async def recording_server(options: list[str]) -> AsyncIterator[tuple[str, Path]]:
    """The address of a server, and the file of its detections."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "detections.jsonl"
        file.touch()
        async with stub_backend() as stub:
            stub.answer_to = lambda _: ScriptedAnswer(ANSWER)
            # The first event has no text.
            stub.gaps_s = (0.0, FIRST_TOKEN_S, *[1 / TOKENS_PER_S] * len(ANSWER.split()))
            program = ("-m", "benchmarks.interruption.detections", str(file))
            async with running_server(stub.url, options, program) as url:
                yield url, file


def read_detections(file: Path, call: str = "") -> list[float]:
    """Return the detections of a call, in seconds of the wall clock."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line["detected_s"] for line in lines if line["call"] == call]


def record_detections(file: Path) -> None:
    """Have the classes of this process write to the file."""
    out = file.open("a", buffering=1)
    classify, start_call, on_speech = BargeInDetector.classify, CallConnection._start_call, AgentConversation._on_speech
    detected_s: WeakKeyDictionary[BargeInDetector, float] = WeakKeyDictionary()
    calls: WeakKeyDictionary[AgentConversation, str] = WeakKeyDictionary()

    def classify_and_time(detector: BargeInDetector, probability: float | None, level_db: float) -> bool:
        if has_begun := classify(detector, probability, level_db):
            detected_s[detector] = time.time()
        return has_begun

    def start_named_call(connection: CallConnection, started: Any) -> None:
        start_call(connection, started)
        if connection._agent is not None:
            calls[connection._agent._conversation] = started.call_id

    def record_onset(conversation: AgentConversation, has_begun: bool, position_ms: int) -> None:
        detector = conversation._input._detector
        if has_begun and detector is not None:
            found = {"call": calls.get(conversation, ""), "detected_s": detected_s[detector]}
            print(json.dumps(found), file=out)
        on_speech(conversation, has_begun, position_ms)

    for owner, name, recording in (
        (BargeInDetector, "classify", classify_and_time),
        (CallConnection, "_start_call", start_named_call),
        (AgentConversation, "_on_speech", record_onset),
    ):
        setattr(owner, name, recording)


if __name__ == "__main__":
    record_detections(Path(sys.argv.pop(1)))
    main()
