"""Callers on Twilio's wire that interrupt answers of the built-in agent."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import random
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.agent_latency import load_speech
from benchmarks.barge_in import packets
from benchmarks.interruption.detections import read_detections, recording_server
from sessions.audio.g711 import mulaw_to_pcm
from sessions.vad.energy import level_db
from tests.realtime.calls import twilio_simulator

RATE = 8_000
PACKET_S = 0.02
ANSWER_TIMEOUT_S = 20.0
# Audio in the last moments before a turn is playback that is interrupted; a sentence is followed by a pause.
PLAYBACK_S = 0.6
# Playback before the next turn.
LISTENING_S = (1.0, 3.0)
# After its end no answer can have begun for this long, because the turn must end first.
AFTER_SPEECH_S = 0.3
# Speech whose onset was not found after this long was missed.
MAX_DETECTION_S = 1.0
AUDIBLE_DB = -50.0
LOUD_DB = -40.0
OPTIONS = ["--set", "calls.agent=builtin"]


class Caller:
    """One caller: ``send`` and ``receive`` run as long as the call. Times are those of the wall clock."""

    def __init__(self, call: str, socket: ClientConnection, turn: list[bytes]) -> None:
        self.call, self._socket, self._turn = call, socket, turn
        self._marks: deque[str] = deque()
        self._far = twilio_simulator.TwilioSimulator(self._marks.append)
        self._pending: deque[bytes] = deque()
        # Begin of each turn, arrivals of audible packets, and of clears.
        self.turns_s: list[float] = []
        self.audible_s: list[float] = []
        self.clears_s: list[float] = []

    async def send(self) -> None:
        """Send audio in real time: silence, or the turn."""
        begun_s = time.monotonic()
        await self._socket.send(twilio_simulator.connected())
        start = json.loads(twilio_simulator.start())
        start["start"]["callSid"] = self.call
        await self._socket.send(json.dumps(start))
        for number in itertools.count(1):
            await asyncio.sleep(begun_s + number * PACKET_S - time.monotonic())
            while self._marks:
                await self._socket.send(self._marks.popleft())
            audio = twilio_simulator.SILENT
            if self._pending:
                if len(self._pending) == len(self._turn):
                    self.turns_s.append(time.time() - PACKET_S)
                audio = base64.b64encode(self._pending.popleft()).decode()
            await self._socket.send(twilio_simulator.media(audio, number))

    async def receive(self) -> None:
        async for message in self._socket:
            self._far.receive(message)
            event = json.loads(message)
            if event["event"] == "clear":
                self.clears_s.append(time.time())
            elif event["event"] == "media":
                pcm = mulaw_to_pcm(base64.b64decode(event["media"]["payload"]))
                if level_db(pcm) > AUDIBLE_DB:
                    self.audible_s.append(time.time())

    async def converse(self, num_turns: int, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0.5, 3.0))
        for _ in range(num_turns + 1):
            self._pending.extend(self._turn)
            while self._pending:  # noqa: ASYNC110  it is sent in real time
                await asyncio.sleep(PACKET_S)
            end_s = time.time() + AFTER_SPEECH_S
            with suppress(TimeoutError):  # the next turn interrupts nothing then
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    while not (self.audible_s and self.audible_s[-1] > end_s):  # noqa: ASYNC110  set by a reader
                        await asyncio.sleep(PACKET_S)
            await asyncio.sleep(rng.uniform(*LISTENING_S))

    def times_ms(self, detections_s: list[float]) -> Iterator[tuple[float, float, float] | None]:
        """Give detection, last packet and clear of each interruption; ``None`` for one that was missed."""
        for begun_s in self.turns_s:
            if not any(begun_s - PLAYBACK_S < one <= begun_s for one in self.audible_s):
                continue  # no answer was playing
            end_s = begun_s + len(self._turn) * PACKET_S + AFTER_SPEECH_S
            found_s = next((one for one in detections_s if begun_s < one < begun_s + MAX_DETECTION_S), None)
            clear_s = next((one for one in self.clears_s if found_s is not None and one > found_s), None)
            if found_s is None or clear_s is None:
                yield None
            else:
                last_s = max(one for one in self.audible_s if one < end_s)
                yield tuple(1000 * span for span in (found_s - begun_s, max(last_s - found_s, 0.0), clear_s - found_s))


async def measure(
    audio: Path | None, num_calls: int, num_turns: int, options: list[str]
) -> tuple[dict[str, list[float]], int]:
    """Return the times in milliseconds by name, and the number of interruptions that were missed."""
    pcm = load_speech(audio, RATE)
    turn = [*packets(pcm)]
    loud = [number for number, packet in enumerate(turn) if level_db(mulaw_to_pcm(packet)) > LOUD_DB]
    turn = turn[loud[0] : loud[-1] + 1]
    rng = random.Random(1)
    async with recording_server([*OPTIONS, *options]) as (url, file):
        callers = await asyncio.gather(
            *(run_call(url, f"call-{number}", turn, num_turns, rng) for number in range(num_calls))
        )
        found = [one for caller in callers for one in caller.times_ms(read_detections(file, caller.call))]
    times = np.array([one for one in found if one is not None]).reshape(-1, 3).T.tolist()
    return dict(zip(("detection", "last_packet", "clear"), times, strict=True)), found.count(None)


async def run_call(url: str, call: str, turn: list[bytes], num_turns: int, rng: random.Random) -> Caller:
    async with connect(f"{url}/v1/calls/twilio", proxy=None, compression=None) as socket:
        caller = Caller(call, socket, turn)
        async with asyncio.TaskGroup() as group:
            line = [group.create_task(caller.send()), group.create_task(caller.receive())]
            await caller.converse(num_turns, rng)
            for task in line:
                task.cancel()
    return caller
