"""Speak a text into an output, whatever synthesizes it: an engine, a server, or a server behind a broker."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from realtime.commands.streams import Output, arriving_text, open_output
from realtime.protocol.events import ResponseDone, ResponseWarning
from sessions.audio.wav import BYTES_PER_SAMPLE
from sessions.events import MarkupWarned, ResponseFinished, ResponseStatus
from sessions.text.ssml.tokens import WarningCode

PLAYER_LEAD_MS = 2_000
# Rate of remote speech.
SAMPLE_RATE = 24_000
EXIT_STATUS = {ResponseStatus.COMPLETED: 0, ResponseStatus.FAILED: 1, ResponseStatus.CANCELLED: 130}
# Characters of a text whose progress is worth asking for.
MIN_LONG_CHARS = 400
Done = ResponseFinished | ResponseDone


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of the text has been spoken."""

    num_chars: int


class ServerError(OSError):
    """The server refused, or left; the message says why."""


def lead_ms(args: argparse.Namespace) -> int | None:
    """Return the lead for a player; ``None`` for a file alone, which is written as fast as possible."""
    return PLAYER_LEAD_MS if args.output is None or args.play else None


def shows_progress(args: argparse.Namespace) -> bool:
    """Return whether the share of the text is shown, for which the source must send word times."""
    return sys.stderr.isatty() and len(args.text) >= MIN_LONG_CHARS


class SpeechSource(ABC):
    """A response. Iterating gives its PCM and, where it is shown, its progress, then its end."""

    # Raised by the methods once the connection is lost.
    disconnected: type[Exception] = ConnectionError

    @abstractmethod
    async def begin(self, text: str, closed: bool) -> None:
        """Begin the response with a text; if ``closed``, it is the whole one."""

    @abstractmethod
    async def push_text(self, text: str) -> None: ...

    @abstractmethod
    async def end(self) -> None:
        """End the text."""

    @abstractmethod
    async def cancel(self) -> None: ...

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[bytes | Progress | Done]: ...


async def speak(source: SpeechSource, args: argparse.Namespace, sample_rate: int = SAMPLE_RATE) -> int:
    """Write the speech until the response ends, by itself or by Ctrl-C. Returns the exit status."""
    output = await open_output(args.output, sample_rate, args.play)
    progress = SpeechProgress(sample_rate, args.seed, len(args.text))
    try:
        async with feed_text(source, args.text), cancel_on_sigint(source):
            done = await write_audio(source, output, progress)
        progress.print_summary(done)
        if done.status == ResponseStatus.COMPLETED:
            await output.finish()
    finally:
        await output.abort()
    return 1 if done.nothing_spoken else EXIT_STATUS[ResponseStatus(done.status)]


@asynccontextmanager
async def feed_text(source: SpeechSource, text: str) -> AsyncIterator[None]:
    """Begin the response; while the context is open, text that arrives on standard input is appended."""
    is_arriving = text == "-"
    await source.begin("" if is_arriving else text, closed=not is_arriving)
    typing = asyncio.create_task(pump_text(source, sys.stdin.fileno()) if is_arriving else asyncio.sleep(0))
    try:
        yield
    finally:
        typing.cancel()
        with suppress(asyncio.CancelledError, source.disconnected):
            await typing


async def pump_text(source: SpeechSource, descriptor: int) -> None:
    async for piece in arriving_text(descriptor):
        await source.push_text(piece)
    await source.end()


async def write_audio(source: SpeechSource, output: Output, progress: SpeechProgress) -> Done:
    async for event in source:
        match event:
            case bytes():
                await output.write(event)
                progress.add(len(event) // BYTES_PER_SAMPLE)
            case Progress():
                progress.num_chars = event.num_chars
            case _:
                return event
    raise AssertionError("a response without an end")


def print_markup_warning(warning: MarkupWarned | ResponseWarning) -> None:
    is_tag = warning.code != WarningCode.UNKNOWN_SPEAKER
    element = f"<{warning.element}>" if is_tag and warning.element else warning.element
    print(f"{warning.code.replace('_', ' ')}: {element} at character {warning.raw_start}", file=sys.stderr)


@asynccontextmanager
async def cancel_on_sigint(source: SpeechSource) -> AsyncIterator[None]:
    """Cancel only the response on Ctrl-C, so that its end is printed and the output stays whole."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
    cancels: list[asyncio.Task[None]] = []
    loop.add_signal_handler(signal.SIGINT, lambda: cancels.append(loop.create_task(source.cancel())))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
        await asyncio.gather(*cancels, return_exceptions=True)


class SpeechProgress:
    """Progress of the speech: one line on standard error, rewritten as it grows where that is a terminal."""

    def __init__(self, sample_rate: int, seed: int, max_chars: int) -> None:
        self._sample_rate = sample_rate
        self._seed = seed
        # Spoken so far, as far as known, and of the whole text.
        self.num_chars, self._max_chars = 0, max_chars
        self._start_s = time.monotonic()
        self._spoken_s = 0.0
        self._live = sys.stderr.isatty()

    def add(self, num_samples: int) -> None:
        self._spoken_s += num_samples / self._sample_rate
        if self._live:
            share = f", {100 * self.num_chars // self._max_chars} % of the text" if self.num_chars else ""
            print(f"\r{self._spoken_s:.1f} s spoken{share} ", end="", file=sys.stderr, flush=True)

    def print_summary(self, done: Done) -> None:
        elapsed_s = time.monotonic() - self._start_s
        parts = [f"{done.status}: {self._spoken_s:.2f} s spoken in {elapsed_s:.2f} s"]
        if done.error is not None:
            parts.append(done.error.message)
        if done.nothing_spoken:
            parts.append("the text holds nothing that can be spoken")
        if done.first_audio_ms is not None and self._spoken_s:
            parts.append(f"first audio after {done.first_audio_ms:.0f} ms")
            parts.append(f"real-time factor {elapsed_s / self._spoken_s:.2f}")
        print("\r" * self._live + ", ".join([*parts, f"seed {self._seed}"]), file=sys.stderr)
