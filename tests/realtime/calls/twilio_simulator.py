"""Twilio's side of a line: it plays what comes in order and in real time, returns marks, and can be cleared."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

STREAM = "MZ1"
CALL = "CA1"
SAMPLE_RATE = 8_000
SILENT = base64.b64encode(b"\xff" * 160).decode()


def connected() -> str:
    return json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"})


def start(encoding: str = "audio/x-mulaw", rate: int = 8_000, **parameters: str) -> str:
    return json.dumps(
        {
            "event": "start",
            "sequenceNumber": "1",
            "streamSid": STREAM,
            "start": {
                "accountSid": "AC1",
                "streamSid": STREAM,
                "callSid": CALL,
                "tracks": ["inbound"],
                "customParameters": parameters,
                "mediaFormat": {"encoding": encoding, "sampleRate": rate, "channels": 1},
            },
        }
    )


def media(payload: str = SILENT, chunk: int = 1, track: str = "inbound") -> str:
    told = {"track": track, "chunk": str(chunk), "timestamp": str(chunk * 20), "payload": payload}
    return json.dumps({"event": "media", "sequenceNumber": "2", "streamSid": STREAM, "media": told})


def dtmf(digit: str) -> str:
    return json.dumps({"event": "dtmf", "streamSid": STREAM, "dtmf": {"track": "inbound_track", "digit": digit}})


def mark(name: str) -> str:
    return json.dumps({"event": "mark", "streamSid": STREAM, "mark": {"name": name}})


def stop() -> str:
    return json.dumps({"event": "stop", "streamSid": STREAM, "stop": {"accountSid": "AC1", "callSid": CALL}})


class TwilioSimulator:
    """``say`` sends a message to the server under test."""

    def __init__(self, say: Callable[[str], Any], returns_marks: bool = True) -> None:
        self._say = say
        self._returns_marks = returns_marks
        self._plays_until_s = 0.0
        self._waiting: list[tuple[asyncio.TimerHandle, str]] = []
        self.payload_sizes: list[int] = []
        self.arrivals_s: list[float] = []
        # Of audio, cleared audio not counted.
        self.played_s = 0.0
        self.longest_queue_s = 0.0
        self.events: list[str] = []
        self.num_clears = 0

    def receive(self, message: str | bytes) -> None:
        told = json.loads(message)
        assert told["streamSid"] == STREAM
        self.events.append(told["event"])
        match told["event"]:
            case "media":
                self._queue(base64.b64decode(told["media"]["payload"], validate=True))
            case "mark":
                self._mark(told["mark"]["name"])
            case "clear":
                self._clear()
            case unknown:
                raise AssertionError(unknown)

    def _queue(self, payload: bytes) -> None:
        now = asyncio.get_running_loop().time()
        self.payload_sizes.append(len(payload))
        self.arrivals_s.append(now)
        self._plays_until_s = max(self._plays_until_s, now) + len(payload) / SAMPLE_RATE
        self.played_s += len(payload) / SAMPLE_RATE
        self.longest_queue_s = max(self.longest_queue_s, self._plays_until_s - now)

    def _mark(self, name: str) -> None:
        if self._returns_marks:
            loop = asyncio.get_running_loop()
            self._waiting.append((loop.call_at(self._plays_until_s, self._return, name), name))

    def _return(self, name: str) -> None:
        self._waiting = [one for one in self._waiting if one[1] != name]
        self._say(mark(name))

    def _clear(self) -> None:
        now = asyncio.get_running_loop().time()
        self.num_clears += 1
        self.played_s -= max(self._plays_until_s - now, 0.0)
        self._plays_until_s = min(self._plays_until_s, now)
        for timer, name in list(self._waiting):
            timer.cancel()
            self._return(name)
