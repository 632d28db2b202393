"""Measure how soon the built-in agent answers spoken turns, and which part of the time went where.

    python -m benchmarks.agent_latency [--conversations 4] [--turns 10] [--audio FILE] [-- OPTIONS OF SERVE]

``voicewire serve`` runs in a process of its own, by default with the embedded voice. The language model is a stub whose
first token comes after 100 ms, and 30 more in a second; the recognizer is a stub that answers at once. Clients of
``/v1/realtime`` send a question in real time, by flite or from a WAV file, and again when the answer has been played.

The parts are those of ``response.done``: endpointing (its wait for silence included), STT, LLM, and the rest, which is
synthesis and the server's own work. ``client`` is the time from the last sample of speech that was sent to the first
audio that was received. Turns that failed, were refused or were not answered within 60 s are counted by code; they have
no times. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import sys
import time
import wave
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from sessions.audio.pcm import Pcm, pcm_to_s16le
from sessions.audio.resampler import Resampler
from tests.realtime.agent.stub_backend import ScriptedAnswer, stub_backend

RATE = 24_000
CHUNK_MS = 40
# Longer than any endpointing wait, so that the turn ends while the client still sends.
SILENCE_S = 2.0
QUESTION = "Wait a moment, please."
ANSWER = "Our shop is open from nine in the morning until six in the evening."
FIRST_TOKEN_S, TOKENS_PER_S = 0.1, 30
TURN_TIMEOUT_S = 60.0
MAX_START_DELAY_S = 3.0
# Of the largest sample: what is quieter at the end of a recording is no speech.
SPEECH_THRESHOLD = 0.05
PARTS = ("endpointing", "stt", "llm_first_token", "rest", "first_audio", "client")


@dataclass(frozen=True)
class Question:
    """Encoded audio, and where its speech ends in seconds."""

    data: bytes
    speech_s: float


@dataclass
class Measured:
    """Milliseconds of the answered turns by part, and the codes of the others."""

    times_ms: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})
    failures: Counter[str] = field(default_factory=Counter)

    def add(self, latency: dict[str, float], client_ms: float) -> None:
        parts = {part: latency[f"{part}_ms"] for part in PARTS if f"{part}_ms" in latency}
        waits_ms = parts["endpointing"] + parts["stt"] + parts["llm_first_token"]
        for part, value_ms in (parts | {"rest": parts["first_audio"] - waits_ms, "client": client_ms}).items():
            self.times_ms[part].append(value_ms)


def load_speech(path: Path | None, rate: int) -> Pcm:
    """Load a recording of speech, or let flite speak."""
    if path is None:
        from training.flite import SAMPLE_RATE_HZ, available, synthesize

        if not available():
            sys.exit("flite is not installed: name a recording of a question with --audio FILE")
        samples, from_rate = synthesize(QUESTION, "slt").pcm, SAMPLE_RATE_HZ
    else:
        with wave.open(str(path)) as file:
            if (file.getsampwidth(), file.getnchannels()) != (2, 1):
                sys.exit(f"--audio {path}: it must have 16 bits and one channel")
            samples, from_rate = np.frombuffer(file.readframes(file.getnframes()), np.int16), file.getframerate()
    resampler = Resampler(from_rate, rate)
    speech = np.asarray(samples, np.float32) / 32768
    return np.concatenate([resampler.push(speech), resampler.flush()])


def load_question(path: Path | None) -> Question:
    pcm = load_speech(path, RATE)
    loud = np.flatnonzero(np.abs(pcm) > SPEECH_THRESHOLD * np.abs(pcm).max())
    return Question(pcm_to_s16le(pcm) + bytes(2 * round(SILENCE_S * RATE)), float(loud[-1] + 1) / RATE)


@asynccontextmanager
async def running_server(
    backend_url: str, options: Sequence[str], program: Sequence[str] = ("-m", "realtime.cli")
) -> AsyncIterator[str]:
    command = [*program, "serve", "--port", "0", "--llm", backend_url, "--stt", backend_url]
    process = await create_subprocess_exec(sys.executable, *command, "--log-level", "error", *options, stdout=PIPE)
    assert process.stdout is not None
    try:
        address = ""
        while not address.startswith("ws"):
            line = (await process.stdout.readline()).decode()
            if not line:
                sys.exit("the server ended before it was ready")
            address = line.split()[1]
        yield address.removesuffix("/v1/speech")
    finally:
        process.terminate()
        await process.wait()


async def speak(socket: ClientConnection, question: Question) -> None:
    """Send the question in real time."""
    size, begun_s = RATE * 2 * CHUNK_MS // 1000, time.monotonic()
    for number, start in enumerate(range(0, len(question.data), size), 1):
        await asyncio.sleep(begun_s + number * CHUNK_MS / 1000 - time.monotonic())
        audio = base64.b64encode(question.data[start : start + size]).decode()
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))


async def answered(socket: ClientConnection, begun_s: float) -> tuple[dict[str, Any], float, float]:
    """Return the response, its seconds to the first audio, and those to the end of playback."""
    first_s, num_bytes = 0.0, 0
    async for message in socket:
        event = json.loads(message)
        if event["type"] == "response.output_audio.delta":
            first_s = first_s or time.monotonic() - begun_s
            num_bytes += len(base64.b64decode(event["delta"]))
        elif event["type"] == "response.done":
            return event["response"], first_s, first_s + num_bytes / (2 * RATE)
    raise AssertionError("the iteration ends by an exception")


async def run_turn(socket: ClientConnection, question: Question, measured: Measured) -> None:
    begun_s = time.monotonic()
    speaking = asyncio.create_task(speak(socket, question))
    try:
        async with asyncio.timeout(TURN_TIMEOUT_S):
            response, first_s, played_s = await answered(socket, begun_s)
            await speaking
        await asyncio.sleep(begun_s + played_s - time.monotonic())
    finally:
        speaking.cancel()
    if response["status"] == "completed":
        measured.add(response["latency"], 1000 * (first_s - question.speech_s))
    else:
        error = (response["status_details"] or {}).get("error") or {}
        measured.failures[error.get("code", response["status"])] += 1


async def converse(url: str, question: Question, num_turns: int, delay_s: float, measured: Measured) -> None:
    await asyncio.sleep(delay_s)
    num_left = num_turns
    try:
        async with connect(f"{url}/v1/realtime", max_size=None, proxy=None, compression=None) as socket:
            while num_left:
                await run_turn(socket, question, measured)
                num_left -= 1
    except TimeoutError:
        measured.failures["timeout"] += num_left
    except (WebSocketException, OSError) as error:
        measured.failures[type(error).__name__] += num_left


def report(measured: Measured) -> dict[str, Any]:
    """Print a table and return the figures."""
    figures: dict[str, Any] = {}
    for part, values_ms in measured.times_ms.items():
        p50, p95 = np.percentile(values_ms, [50, 95]).round(1).tolist() if values_ms else (None, None)
        figures[f"{part}_ms"] = {"p50": p50, "p95": p95}
        if values_ms:
            print(f"{part:16} p50 {p50:7.1f} ms   p95 {p95:7.1f} ms")
    num_answered = len(measured.times_ms["first_audio"])
    print(f"turns answered {num_answered}, failed or refused {measured.failures.total()} {dict(measured.failures)}")
    return {"num_answered": num_answered, "failures": dict(measured.failures)} | figures


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    question, measured, rng = load_question(args.audio), Measured(), random.Random(1)
    async with stub_backend() as stub:
        stub.answer_to = lambda _: ScriptedAnswer(ANSWER)
        # The first event has no text.
        stub.gaps_s = (0.0, FIRST_TOKEN_S, *[1 / TOKENS_PER_S] * len(ANSWER.split()))
        async with running_server(stub.url, args.options) as url:
            await converse(url, question, 1, 0.0, Measured())  # the detector's network is loaded
            await asyncio.gather(
                *(
                    converse(url, question, args.turns, rng.uniform(0, MAX_START_DELAY_S), measured)
                    for _ in range(args.conversations)
                )
            )
    return {"conversations": args.conversations, "turns": args.turns} | report(measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=4)
    parser.add_argument("--turns", type=int, default=10, help="turns of each conversation")
    parser.add_argument("--audio", type=Path, help="WAV file with a question; by default flite speaks one")
    parser.add_argument("options", nargs="*", help="options of voicewire serve, behind --")
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
