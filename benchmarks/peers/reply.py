"""One reply as its listener measures it, whatever the wire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from realtime.bench.plan import ResponseResult, first_word_is_final_at, pieces
from realtime.bench.playback import Playback

# All wires carry 16-bit mono at this rate.
SAMPLE_RATE = 24_000
BYTES_PER_S = 2 * SAMPLE_RATE
now_s = time.monotonic


class Reply:
    """``tokens_per_second`` is the pace of the text; 0 sends it whole. Times count on an open connection."""

    def __init__(self, text: str, tokens_per_second: float = 0.0) -> None:
        self.text, self.tokens_per_second = text, tokens_per_second
        self.begun_s = self.final_s = now_s()
        self.playback = Playback()

    def start(self) -> None:
        """Note that the whole text is sent now."""
        self.begun_s = self.final_s = now_s()
        self.playback.sent(len(self.text), self.begun_s, ended=True)

    async def write(self, send: Callable[[str], Awaitable[None]]) -> None:
        """Send the text, in pieces if it is paced. First audio counts from the piece that completed the first word."""
        if not self.tokens_per_second:
            self.start()
            return await send(self.text)
        deltas = pieces(self.text)
        final_at = first_word_is_final_at(deltas)
        self.begun_s = self.final_s = now_s()
        for index, delta in enumerate(deltas):
            await asyncio.sleep(max(0.0, self.begun_s + index / self.tokens_per_second - now_s()))
            if index <= final_at:
                self.final_s = now_s()
            self.playback.sent(len(delta), now_s(), ended=index == len(deltas) - 1)
            await send(delta)
        return None

    def receive(self, num_bytes: int, at_s: float) -> None:
        if num_bytes:
            self.playback.received(num_bytes / BYTES_PER_S, at_s)

    def result(self, session: int, error: str | None = None) -> ResponseResult:
        playback, first_s = self.playback, self.playback.first_at_s
        if error is None and first_s is None:
            error = "no_audio"
        causes = playback.causes()
        return ResponseResult(
            session=session, status="failed" if error else "completed", error=error,
            begun_s=self.begun_s, ended_s=now_s(),
            ttfa_ms=None if first_s is None else 1000 * (first_s - self.final_s),
            audio_s=playback.received_s, work_s=(playback.last_at_s or now_s()) - self.final_s,
            underruns_text=causes.count("text"), underruns_engine=causes.count("engine"),
        )  # fmt: skip
