"""Simulate sessions that arrive with live text, as over sockets, in front of the engine on the simulated device.

Each session sends a text of the client's corpus token by token, and its second one as soon as the first is spoken. The
loads of ``--batch`` follow each other on one engine. Times of the device and of Python are those of
``benchmarks.load_simulation``; ``--host-scale`` is how much slower the engine's machine runs Python than this one.

    python -m benchmarks.arrivals_simulation [--batch 64,1200] [--arrivals 250] [--max-batch 384] [--host-scale 2.3]
    [--set NAME=JSON]

The last line is JSON.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import NO_END, SimulatedListener, report, setting
from benchmarks.gpu_stages import numbers
from benchmarks.load_simulation import SimulatedDevice, deliver, make_engine, write_model
from engine.api import SamplingParams, SpeechRequest, TextLayout
from engine.runtime.engine import Engine
from realtime.bench.plan import CORPUS, endless, first_word_is_final_at, pieces, read_corpus

# Places of the default engine, whatever the load.
MAX_SESSIONS = 1_536


class ArrivalsSimulation:
    """One load. ``epochs`` and ``texts`` go on from load to load."""

    def __init__(
        self, engine: Engine, device: SimulatedDevice, epochs: Iterator[int], texts: Iterator[str],
        args: argparse.Namespace,
    ) -> None:  # fmt: skip
        self.engine, self.device, self.epochs, self.texts, self.args = engine, device, epochs, texts, args
        self.start_s = device.clock()
        self.listeners: dict[int, SimulatedListener] = {}
        self.num_left: dict[int, int] = {}
        # Commands by the time at which they come.
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def run(self, size: int) -> dict[str, Any]:
        for number in range(size):
            self.begin_reply(self.start_s + number / self.args.arrivals, self.args.responses)
        self.engine.hand_over, self.engine.read_command = self.hand_over, self.carry_out_next
        self.engine.sleep = self.sleep_beside_device
        with self.engine.computing():
            while self.engine.has_work or self.is_due or self.sleep():
                if self.engine.has_work or self.is_due:
                    self.engine.run_step()
                    self.hand_over()
        return {"sessions": size} | report(list(self.listeners.values()), self.device.clock() - self.start_s)

    def begin_reply(self, begins_s: float, num_left: int) -> None:
        epoch, deltas, rate = next(self.epochs), pieces(next(self.texts)), self.args.tokens_per_second
        self.listeners[epoch] = SimulatedListener(begins_s + first_word_is_final_at(deltas) / rate)
        self.num_left[epoch] = num_left - 1
        spec = SpeechRequest(
            request_id=str(epoch), text=deltas[0], layout=TextLayout.STREAMING,
            sampling=SamplingParams(seed=epoch, min_new_tokens=NO_END), max_frames=self.args.frames, lead_ms=2_000,
        )  # fmt: skip
        requests = self.engine.requests
        commands: list[Callable[[], None]] = [partial(requests.submit, spec, epoch)]
        commands += [partial(requests.push_text, epoch, delta) for delta in deltas[1:]]
        for number, command in enumerate([*commands, partial(requests.end_input, epoch)]):
            heapq.heappush(self._due, (begins_s + number / rate, next(self._numbers), command))

    @property
    def is_due(self) -> bool:
        return bool(self._due) and self._due[0][0] <= self.device.clock()

    def carry_out_next(self) -> bool:
        if not self.is_due:
            return False
        heapq.heappop(self._due)[-1]()
        return True

    def sleep_beside_device(self, seconds: float) -> None:
        self.device.sleep_until(self.device.clock() + seconds)

    def sleep(self) -> bool:
        """Advance to the next command or runnable row; False if there is none."""
        wakes_s = [wake_s for wake_s in [self.engine.next_wake_s()] if wake_s is not None]
        wakes_s += [due[0] for due in self._due[:1]]
        if wakes_s:
            self.device.sleep_until(min(wakes_s) + 1e-6)
        return bool(wakes_s)

    def hand_over(self) -> None:
        now_s = self.device.clock()
        for epoch in deliver(self.engine, self.listeners, now_s):
            if not self.listeners[epoch].failed and self.num_left[epoch]:
                self.begin_reply(now_s, self.num_left[epoch])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=numbers, default=[64, 1200], help="sessions of each load (default: 64,1200)")
    parser.add_argument("--arrivals", type=float, default=250.0, help="sessions that start per second (default: 250)")
    parser.add_argument("--responses", type=int, default=2, help="replies of each session (default: 2)")
    parser.add_argument("--frames", type=int, default=125, help="frames of a reply (default: 125)")
    parser.add_argument("--tokens-per-second", type=float, default=50.0)
    parser.add_argument("--max-batch", type=int, default=384, help="maximum rows of one step (default: 384)")
    parser.add_argument("--share", type=float, default=0.95, help="admission_utilization")
    parser.add_argument("--host-scale", type=float, default=2.3, help="relative time of Python (default: 2.3)")
    parser.add_argument("--slower", type=float, default=1.0, help="factor by which the device is slower than measured")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=JSON", help="engine settings")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found, epochs, texts = [], itertools.count(1), endless(read_corpus(CORPUS), 0)
    with tempfile.TemporaryDirectory() as room:
        engine, device = make_engine(write_model(Path(room)), MAX_SESSIONS, args)
        for size in args.batch:
            found.append(ArrivalsSimulation(engine, device, epochs, texts, args).run(size))
            print(json.dumps(found[-1]), flush=True)
    print(json.dumps({"benchmark": "arrivals_sim", "max_batch_size": args.max_batch, "loads": found}))


if __name__ == "__main__":
    main()
