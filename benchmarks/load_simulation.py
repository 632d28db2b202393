"""Simulate many listeners on the whole engine, with a device that only takes its time.

The engine's own code runs. Frames and decode calls take the times measured on one H200 (1.7B, context 256), prefills
those of an H100, with decode calls first. Python takes the time it takes on this machine. A scheduling or admission
policy can therefore be tested without a device.

    python -m benchmarks.load_simulation [--batch 1000,1400] [--max-batch 768] [--seconds 10] [--ramp 8] [--set
    NAME=JSON]

``--replies``: a closed loop of so many whole texts of the client's corpus, without pacing. Each of ``--batch`` clients
begins one, and the next one ``--pause-ms`` after its end. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch

from benchmarks import host_overhead, random_model
from benchmarks.gpu import NO_END, SimulatedListener, report, setting, text_of
from benchmarks.gpu_stages import numbers
from engine.api import RequestFinished, SamplingParams, SpeechChunk, SpeechRequest, TextLayout
from engine.program import decode_executor
from engine.runtime import runner
from engine.runtime.engine import Engine
from engine.runtime.step_model import StepTimeTable
from realtime.bench.plan import CORPUS, endless, read_corpus

SAMPLE_RATE = 24_000
POINTS = (0, 1, 8, 64, 256, 512, 1024, 1536)
FRAME_MS = (0, 3.87, 4.58, 5.16, 7.89, 12.3, 21.4, 30.8)
# By number of rows (docs/experiments/gpu-capacity.md).
DECODE_MS = (0, 0.56, 0.71, 1.72, 5.09, 9.7, 18.4, 27.4)
# By number of rows, what a frame takes less behind a prefill: a pass of one row takes 1.3 ms. With more, steps with one
# to four newcomers save what they save on an H100, after what the longer prefill takes.
TALKER_ROWS = (0, 1, 8, 64, 128)
TALKER_MS = (0, 1.3, 1.5, 1.7, 2.3)
# By number of positions.
POSITIONS = (0, 16, 96, 256, 512, 1024)
PREFILL_MS = (0, 1.6, 2.1, 2.8, 4.3, 7.3)


def seconds_of(times_ms: tuple[float, ...], count: int, points: tuple[int, ...] = POINTS) -> float:
    beyond = max(1.0, count / points[-1])
    return beyond * float(np.interp(min(count, points[-1]), points, times_ms)) / 1000


@dataclass
class SimulatedWork:
    left_s: float
    after: SimulatedWork | None = None

    @property
    def passed(self) -> bool:
        return self.left_s <= 0.0


class SimulatedDevice:
    """A device with two queues: the first decode call precedes any frame, once its own frames exist."""

    def __init__(self, host_scale: float, slower: float) -> None:
        self.now_s, self.host_scale, self.slower = 0.0, host_scale, slower
        self._frames: deque[SimulatedWork] = deque([SimulatedWork(0.0)])
        self._calls: deque[SimulatedWork] = deque([SimulatedWork(0.0)])
        self.last_frame, self.last_call, self.after = self._frames[0], self._calls[0], self._frames[0]
        self._host_s = time.thread_time()

    def clock(self) -> float:
        """Current time, with the time that the host has worked."""
        now_s = time.thread_time()
        self._pass(self.host_scale * (now_s - self._host_s))
        self._host_s = now_s
        return self.now_s

    def queue_frame(self, rows: int, follows_prefill: int = 0) -> None:
        self._queue_on_frames(seconds_of(FRAME_MS, rows) - follows_prefill * seconds_of(TALKER_MS, rows, TALKER_ROWS))

    def queue_prefill(self, positions: int) -> None:
        self._queue_on_frames(seconds_of(PREFILL_MS, positions, POSITIONS))

    def _queue_on_frames(self, seconds: float) -> None:
        self.clock()
        self.last_frame = SimulatedWork(self.slower * seconds)
        self._frames.append(self.last_frame)

    def queue_call(self, rows: int, frames: int) -> None:
        self.clock()
        self.last_call = SimulatedWork(self.slower * seconds_of(DECODE_MS, rows * frames), self.after)
        self._calls.append(self.last_call)

    def wait(self, job: SimulatedWork) -> None:
        self.clock()
        while not job.passed:
            head = self._head()
            assert head is not None
            self._pass(head.left_s)

    def sleep_until(self, then_s: float) -> None:
        self._pass(max(0.0, then_s - self.clock()))

    def _head(self) -> SimulatedWork | None:
        while self._calls and self._calls[0].passed:
            self._calls.popleft()
        while self._frames and self._frames[0].passed:
            self._frames.popleft()
        call = self._calls[0] if self._calls else None
        if call is not None and (call.after is None or call.after.passed):
            return call
        return self._frames[0] if self._frames else None

    def _pass(self, seconds: float) -> None:
        while seconds > 0.0:
            head = self._head()
            part = seconds if head is None else min(seconds, head.left_s)
            self.now_s += part
            seconds -= part
            if head is not None:
                head.left_s -= part

    def install(self, engine: Engine) -> None:
        draw = engine.runner.frames._run

        def frame(rows: int, follows_prefill: int = 0) -> None:
            draw(rows)
            self.queue_frame(rows, follows_prefill)

        engine.runner.frames._run = frame
        engine.runner.prefills._run = self.queue_prefill
        engine.stage.codec.graphs._run = self.queue_call
        engine.requests.clock = self.clock
        device = self

        class Done:
            def __init__(self, _: torch.device) -> None:
                self.frame, self.call = device.last_frame, device.last_call

            def make_stream_wait(self) -> None:
                device.after = self.frame

        class FrameDone(Done):
            def wait(self) -> None:
                device.wait(self.frame)

            @property
            def is_done(self) -> bool:
                device.clock()
                return self.frame.passed

        class CallDone(Done):
            def wait(self) -> None:
                device.wait(self.call)

            @property
            def is_done(self) -> bool:
                return self.call.passed

        runner.DeviceEvent, decode_executor.DeviceEvent = FrameDone, CallDone  # type: ignore[misc, assignment]


def make_engine(folder: Path, size: int, args: argparse.Namespace) -> tuple[Engine, SimulatedDevice]:
    engine = host_overhead.make_engine(
        folder, size, max_batch_size=args.max_batch or size, admission_utilization=args.share, **dict(args.set)
    )
    device = SimulatedDevice(args.host_scale, args.slower)
    device.install(engine)
    steps = {rows: seconds_of(FRAME_MS, rows) + seconds_of(DECODE_MS, rows) for rows in engine.runner.frame_buckets}
    engine.scheduler.step_model.calibrate(StepTimeTable(steps))
    return engine, device


class LoadSimulation:
    def __init__(self, engine: Engine, device: SimulatedDevice, size: int, args: argparse.Namespace) -> None:
        self.engine, self.device, self.args = engine, device, args
        self.start_s = device.clock()
        self.listeners = [SimulatedListener(self.start_s + args.ramp * number / size) for number in range(size)]
        self.num_come = 0
        self.texts = endless(read_corpus(CORPUS), 0)

    def run(self) -> dict[str, Any]:
        engine = self.engine
        engine.hand_over, engine.read_command = self.hand_over, self.submit_next
        engine.sleep = lambda seconds: self.device.sleep_until(self.device.clock() + seconds)
        with engine.computing():
            while engine.has_work or self.is_due or self.sleep():
                if engine.has_work or self.is_due:
                    engine.run_step()
                    self.hand_over()
        return report(self.listeners, self.device.clock() - self.start_s)

    def sleep(self) -> bool:
        """Advance to the next arrival or runnable row; False if there is none."""
        comes = [one.asked_s for one in self.listeners[self.num_come : self.num_come + 1]]
        wakes = [wake_s for wake_s in [self.engine.next_wake_s()] if wake_s is not None]
        if not comes + wakes:
            return False
        self.device.sleep_until(min(comes + wakes) + 1e-6)
        return True

    @property
    def is_due(self) -> bool:
        """Return whether the next listener has come by now."""
        comes = self.listeners[self.num_come : self.num_come + 1]
        return any(one.asked_s <= self.device.clock() for one in comes)

    def submit_next(self) -> bool:
        if not self.is_due:
            return False
        self.submit()
        return True

    def submit(self) -> None:
        number = self.num_come
        self.num_come += 1
        is_whole = self.args.replies > 0
        spec = SpeechRequest(
            request_id=str(number), text=next(self.texts) if is_whole else text_of(400), text_closed=True,
            layout=TextLayout.FULL if is_whole else TextLayout.STREAMING,
            sampling=SamplingParams(seed=number, min_new_tokens=NO_END),
            max_frames=int(self.args.seconds / 0.08), lead_ms=None if is_whole else self.args.lead_ms,
        )  # fmt: skip
        self.engine.requests.submit(spec, number)

    def hand_over(self) -> None:
        now_s = self.device.clock()
        for _ in deliver(self.engine, self.listeners, now_s):
            if len(self.listeners) < self.args.replies:
                self.listeners.append(SimulatedListener(now_s + self.args.pause_ms / 1000))


def deliver(
    engine: Engine, listeners: Sequence[SimulatedListener] | Mapping[int, SimulatedListener], now_s: float
) -> Iterator[int]:
    """Give listeners what the engine has made for them, by epoch; yields the epochs of those whose reply has ended."""
    events, engine.requests.events = engine.requests.events, []
    for epoch, event in events:
        if isinstance(event, SpeechChunk):
            listeners[epoch].hear(event, SAMPLE_RATE, now_s)
        elif isinstance(event, RequestFinished):
            listeners[epoch].failed = event.error is not None
            yield epoch


def write_model(folder: Path) -> Path:
    """Write small random weights with the tokenizer of a released shape."""
    random_model.SHAPES["small"] = host_overhead.SMALL | {"text_vocab": random_model.RELEASED["text_vocab"]}
    return random_model.write(folder, "small", torch.device("cpu"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=numbers, default=[1000, 1400, 1600])
    parser.add_argument("--max-batch", type=int, help="maximum rows of one step (default: number of listeners)")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--ramp", type=float, default=8.0)
    parser.add_argument("--lead-ms", type=int, default=2000)
    parser.add_argument("--replies", type=int, default=0, help="replies of a closed loop")
    parser.add_argument("--pause-ms", type=float, default=3.0)
    parser.add_argument("--share", type=float, default=0.95, help="admission_utilization")
    parser.add_argument("--host-scale", type=float, default=0.6, help="relative time of Python")
    parser.add_argument("--slower", type=float, default=1.0, help="factor by which the device is slower than measured")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=JSON", help="engine settings")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as room:
        folder = write_model(Path(room))
        for size in args.batch:
            found.append(LoadSimulation(*make_engine(folder, size, args), size, args).run())
            print(json.dumps(found[-1]), flush=True)
    print(json.dumps({"benchmark": "crowd_sim", "max_batch_size": args.max_batch, "crowd": found}))


if __name__ == "__main__":
    main()
