"""Serve recorded speech behind the engine's socket, in the steps of a busy device, without a model.

Every step gives each request one more frame, as long as its text and its listener's lead allow. A listener with enough
lead gets eight frames at a time. The cost of a server in front of it equals that in front of any engine.

    python -m benchmarks.scripted_engine SOCKET [--step-ms 40]
"""

from __future__ import annotations

import argparse
import asyncio
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.api import EngineInfo, EngineStats, FinishReason, RequestFinished, SpeechChunk, VoiceInfo
from engine.client import read_message
from engine.ipc import (
    PROGRESS,
    READY,
    CancelRequest,
    Command,
    EndRequestInput,
    HelloMessage,
    PushRequestText,
    ReportRequestPlayback,
    StatsMessage,
    SubmitRequest,
    decode_command,
    encode,
    pack_events,
)
from engine.runtime.request import Emitted, RequestReleased
from sessions.audio.resampler import Resampler

SAMPLE_RATE = 24_000
FRAME_SAMPLES = 1_920
FRAME_S = FRAME_SAMPLES / SAMPLE_RATE
S_PER_CHAR = 0.08
EASY_LEAD_S = 0.4
LARGE_CHUNK = 8
MAX_ROWS = 2_048
SPEECH = Path(__file__).parents[1] / "tests" / "vectors" / "alignment" / "sentence.npz"
INFO = EngineInfo(
    model="scripted",
    sample_rate=SAMPLE_RATE,
    frame_samples=FRAME_SAMPLES,
    voices=(VoiceInfo("ada", ("en",)),),
    languages=("auto", "en"),
    max_text_tokens=2_000,
    normalize_text=False,
)


def recorded_speech() -> npt.NDArray[np.float32]:
    """A recorded sentence, cut to whole frames."""
    vectors = np.load(SPEECH)
    resampler = Resampler(16_000, SAMPLE_RATE)
    pcm = np.concatenate([resampler.push(vectors["pcm"].astype(np.float32) / 32_768), resampler.flush()])
    return pcm[: pcm.size // FRAME_SAMPLES * FRAME_SAMPLES]


@dataclass(slots=True, eq=False)
class Row:
    """One request."""

    request_id: str
    num_chars: int
    closed: bool
    lead_s: float
    max_frames: float
    num_frames: int = 0
    num_told: int = 0
    heard_samples: int = 0
    heard_at_s: float = math.inf

    def left_s(self, now_s: float) -> float:
        """Seconds of audio that are not played yet."""
        played_s = self.heard_samples / SAMPLE_RATE + max(now_s - self.heard_at_s, 0.0)
        return max(self.num_told * FRAME_S - max(played_s, 0.0), 0.0)

    @property
    def last_frame(self) -> float:
        return min(math.ceil(self.num_chars * S_PER_CHAR / FRAME_S), self.max_frames)

    @property
    def ended(self) -> bool:
        return self.closed and self.num_frames >= self.last_frame

    def step(self, now_s: float) -> int:
        """Generate one more frame if allowed; return the number of frames to send now."""
        left_s = self.left_s(now_s)
        waiting = self.num_frames - self.num_told
        if self.num_frames < self.last_frame and left_s + waiting * FRAME_S < self.lead_s + FRAME_S:
            self.num_frames, waiting = self.num_frames + 1, waiting + 1
        return waiting if waiting and (left_s < EASY_LEAD_S or waiting >= LARGE_CHUNK or self.ended) else 0


@dataclass(slots=True, eq=False)
class Connection:
    """One gateway."""

    writer: asyncio.StreamWriter
    speech: npt.NDArray[np.float32]
    rows: dict[int, Row] = field(default_factory=dict)
    released: list[Emitted] = field(default_factory=list)

    def obey(self, command: Command) -> None:
        match command:
            case SubmitRequest(epoch, request):
                lead_s = math.inf if request.lead_ms is None else request.lead_ms / 1000
                max_frames = request.max_frames or math.inf
                self.rows[epoch] = Row(request.request_id, len(request.text), request.text_closed, lead_s, max_frames)
            case PushRequestText(epoch, text) if row := self.rows.get(epoch):
                row.num_chars += len(text)
            case EndRequestInput(epoch) if row := self.rows.get(epoch):
                row.closed = True
            case ReportRequestPlayback(epoch, played_samples) if row := self.rows.get(epoch):
                row.heard_samples, row.heard_at_s = played_samples, asyncio.get_running_loop().time()
            case CancelRequest(epoch) if row := self.rows.pop(epoch, None):
                self.released.append((epoch, RequestReleased(row.request_id)))

    def step(self, now_s: float) -> None:
        events, self.released = self.released, []
        for epoch, row in list(self.rows.items()):
            if num_frames := row.step(now_s):
                events.append((epoch, self._chunk(row, num_frames)))
            if row.ended and row.num_told == row.num_frames:
                del self.rows[epoch]
                num_samples = row.num_frames * FRAME_SAMPLES
                end = RequestFinished(
                    row.request_id, FinishReason.STOP, num_frames=row.num_frames, num_samples=num_samples
                )
                events += [(epoch, end), (epoch, RequestReleased(row.request_id))]
        if events:
            self.writer.writelines([bytes(piece) for piece in pack_events(events)])

    def _chunk(self, row: Row, num_frames: int) -> SpeechChunk:
        start = row.num_told * FRAME_SAMPLES
        row.num_told += num_frames
        places = np.arange(start, start + num_frames * FRAME_SAMPLES) % self.speech.size
        return SpeechChunk(row.request_id, start, self.speech[places], last=row.ended)


async def serve(socket: Path, step_s: float) -> None:
    speech, connections = recorded_speech(), set[Connection]()

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(writer, speech)
        connections.add(connection)
        writer.write(encode(HelloMessage(INFO)))
        try:
            while True:
                connection.obey(decode_command(await read_message(reader)))
        except (OSError, asyncio.IncompleteReadError):
            connections.discard(connection)

    await asyncio.start_unix_server(attend, str(socket))
    print(READY, flush=True)
    loop = asyncio.get_running_loop()
    next_s = loop.time()
    for number in range(1 << 62):
        next_s = max(next_s + step_s, loop.time())
        await asyncio.sleep(next_s - loop.time())
        for connection in list(connections):
            connection.step(loop.time())
            if number % 8 == 0:
                connection.writer.write(encode(StatsMessage(stats(number, sum(len(one.rows) for one in connections)))))


def stats(num_steps: int, num_rows: int) -> EngineStats:
    return EngineStats(
        num_waiting=0,
        num_running=num_rows,
        num_parked=0,
        num_steps=num_steps,
        blocks_free=1,
        blocks_total=1,
        slots_free=MAX_ROWS - num_rows,
        slots_total=MAX_ROWS,
        step_ms=40.0,
        num_preemptions=0,
        num_finished=0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("socket", type=Path)
    parser.add_argument("--step-ms", type=float, default=40.0)
    args = parser.parse_args()
    print(f"{PROGRESS}reading recorded speech", flush=True)
    asyncio.run(serve(args.socket, args.step_ms / 1000))


if __name__ == "__main__":
    main()
