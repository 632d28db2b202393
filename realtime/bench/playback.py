"""Compute underruns at the listener. Pure: times are passed in, in seconds of any one clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

# Playback starts so long after the first packet, and resumes so long after what ended an underrun.
START_AFTER_S = 0.06
# Speech lags the text it is made from by about so much; within it an underrun is put down to the text.
TEXT_SLACK_S = 0.5

Cause = Literal["text", "engine"]


@dataclass(frozen=True, slots=True)
class ObservedUnderrun:
    # When the sound stopped.
    at_s: float
    # Audio received by then.
    received_s: float
    # Text sent by then.
    sent_chars: int
    # True if that was the whole text.
    text_ended: bool


class Playback:
    """Simulates playback of a response. Call ``received`` for each audio message in order, then ``ended``."""

    def __init__(self) -> None:
        self.underruns: list[ObservedUnderrun] = []
        self.received_s = 0.0
        self.first_at_s: float | None = None
        self.last_at_s: float | None = None
        self._runs_dry_at_s = math.inf
        self._sent_chars = 0
        self._text_ended = False
        # Text sent before the audio ran out, and whether it was all.
        self._sent_in_time = (0, False)

    def sent(self, num_chars: int, now_s: float, ended: bool = False) -> None:
        self._sent_chars += num_chars
        self._text_ended = self._text_ended or ended
        if now_s <= self._runs_dry_at_s:
            self._sent_in_time = (self._sent_chars, self._text_ended)

    def received(self, audio_s: float, now_s: float) -> None:
        if self.first_at_s is None:
            self.first_at_s = now_s
            self._runs_dry_at_s = now_s + START_AFTER_S
        elif now_s > self._runs_dry_at_s:
            self.underruns.append(ObservedUnderrun(self._runs_dry_at_s, self.received_s, *self._sent_in_time))
            self._runs_dry_at_s = now_s + START_AFTER_S
        self._runs_dry_at_s += audio_s
        self.received_s += audio_s
        self.last_at_s = now_s
        self._sent_in_time = (self._sent_chars, self._text_ended)

    @property
    def plays_until_s(self) -> float:
        """Return the time at which all received audio has been played."""
        return self._runs_dry_at_s

    def played_s(self, now_s: float) -> float:
        """Audio played by now."""
        return 0.0 if self.first_at_s is None else max(0.0, self.received_s - max(0.0, self._runs_dry_at_s - now_s))

    def causes(self) -> list[Cause]:
        """Return the cause of each underrun, by the pace that the whole response turned out to be spoken at."""
        s_per_char = self.received_s / self._sent_chars if self._sent_chars else 0.0
        return ["text" if _is_text_starved(underrun, s_per_char) else "engine" for underrun in self.underruns]


def _is_text_starved(underrun: ObservedUnderrun, s_per_char: float) -> bool:
    spoken_by_then_s = underrun.received_s + TEXT_SLACK_S
    return not underrun.text_ended and spoken_by_then_s >= underrun.sent_chars * s_per_char
