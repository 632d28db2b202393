"""What every session of a registry works with."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api import SpeechEngine
from sessions.config import SessionLimits
from sessions.encoders import EncoderThreads
from sessions.heard import SpeakingPace
from sessions.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Services:
    engine: SpeechEngine
    limits: SessionLimits
    encoders: EncoderThreads
    metrics: Metrics
    pace: SpeakingPace
