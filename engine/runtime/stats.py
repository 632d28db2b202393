"""Where the time of a step goes. No torch."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class StepTimings:
    """Seconds, added up over steps; ``host_s`` is what the others leave of the whole."""

    talker_s: float = 0.0
    # Code-0 draw, predictor passes and their draws.
    predictor_s: float = 0.0
    decode_s: float = 0.0
    # Preparing and queueing a step of the graphs.
    launch_s: float = 0.0
    # Waiting for the device to finish one.
    wait_s: float = 0.0
    total_s: float = 0.0
    num_steps: int = 0
    num_rows: int = 0
    last_s: float = 0.0

    @property
    def host_s(self) -> float:
        return self.total_s - self.talker_s - self.predictor_s - self.decode_s - self.launch_s - self.wait_s

    def reset(self) -> None:
        for item in fields(self):
            setattr(self, item.name, item.default)
