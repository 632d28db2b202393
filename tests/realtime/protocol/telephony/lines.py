"""Exchanges of phone lines as data: a line's name, then calls of its dialect with what they gave.

    python -m tests.realtime.protocol.telephony.lines FILE...

writes into each step of the files what the dialect gives today, for review in the diff.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from realtime.errors import ProtocolError
from realtime.protocol.telephony.audiosocket import AudioSocketDialect
from realtime.protocol.telephony.base import TelephonyDialect
from realtime.protocol.telephony.xiaozhi import XiaozhiDialect
from realtime.transports.telephony_routes import TELEPHONY_ROUTES
from tests.vectors import VECTORS, read_lines

LINES: dict[str, Callable[[], TelephonyDialect]] = {
    **{route.path.rpartition("/")[2]: lambda route=route: route.dialect("line") for route in TELEPHONY_ROUTES},
    "audiosocket": AudioSocketDialect,
    "xiaozhi": lambda: XiaozhiDialect("device", {}),
}
Step = dict[str, Any]


def exchanges(name: str) -> list[list[Step]]:
    found: list[list[Step]] = []
    for step in read_lines(f"lines/{name}.jsonl"):
        if "line" in step:
            found.append([])
        found[-1].append(step)
    return found


def replay(exchange: list[Step]) -> Iterator[tuple[Step, Step]]:
    """Each recorded step beside what the dialect of today makes of it."""
    head, *steps = exchange
    line = LINES[head["line"]]()
    yield head, head
    for step in steps:
        yield step, carry_out(line, step)


def carry_out(line: TelephonyDialect, step: Step) -> Step:
    method, *arguments = step["call"]
    try:
        return {"call": step["call"], "gives": encode(getattr(line, method)(*map(decode, arguments)))}
    except ProtocolError as error:
        return {"call": step["call"], "raises": [error.code, error.param, str(error)]}


def decode(argument: Any) -> Any:
    return base64.b64decode(argument["base64"]) if isinstance(argument, dict) else argument


def encode(given: Any) -> Any:
    """JSON of a message or of events. Bytes become ``{"base64": ...}``, JSON texts what they hold."""
    if isinstance(given, bytes):
        return {"base64": base64.b64encode(given).decode()}
    if given is None or isinstance(given, str):
        return given and json.loads(given)
    return [[type(event).__name__, msgspec.to_builtins(event)] for event in given]


def messages(name: str) -> list[str | bytes]:
    """What a provider sends in these exchanges."""
    calls = [step["call"] for exchange in exchanges(name) for step in exchange if "call" in step]
    return [decode(arguments[0]) for method, *arguments in calls if method == "receive_message"]


def message_of(name: str, event: str) -> Any:
    """The first message of a provider that gives such an event."""
    steps = (step for exchange in exchanges(name) for step in exchange[1:])
    return decode(next(step["call"][1] for step in steps if [event] == [given[0] for given in step.get("gives") or ()]))


if __name__ == "__main__":
    for file in sys.argv[1:]:
        given = [new for exchange in exchanges(Path(file).stem) for _, new in replay(exchange)]
        (VECTORS / "lines" / Path(file).name).write_text("".join(json.dumps(step) + "\n" for step in given), "utf-8")
