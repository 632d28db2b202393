"""What one talker step computes. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.runtime.request import Request


@dataclass(slots=True)
class ScheduledWork:
    """``count`` of a request's due inputs; ``sample`` when its last input is among them and is to be sampled."""

    request: Request
    count: int
    sample: bool


@dataclass(slots=True)
class StepBatch:
    """``steps`` have one input each and run as one forward; ``prefills`` have several and run one by one."""

    steps: list[ScheduledWork] = field(default_factory=list)
    prefills: list[ScheduledWork] = field(default_factory=list)

    def add(self, work: ScheduledWork) -> None:
        (self.steps if work.count == 1 else self.prefills).append(work)

    def drop(self, request: Request) -> None:
        self.steps = [work for work in self.steps if work.request is not request]
        self.prefills = [work for work in self.prefills if work.request is not request]

    @property
    def items(self) -> list[ScheduledWork]:
        return [*self.prefills, *self.steps]

    @property
    def num_prefill_positions(self) -> int:
        return sum(work.count for work in self.prefills)

    def __len__(self) -> int:
        return len(self.steps) + len(self.prefills)
