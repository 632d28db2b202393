"""Predicted opinion scores of DNSMOS (``speechmos``, whose package holds its models). It judges; no loss uses it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from speechmos import dnsmos

from training.acoustics import RATE_HZ, Signal


@dataclass(frozen=True)
class Opinion:
    """Scores from 1 to 5."""

    overall: float
    signal: float
    background: float
    p808: float


def rate(signal: Signal) -> Opinion:
    """Score 16 kHz speech; what is shorter than nine seconds is repeated."""
    found = dnsmos.run(np.clip(signal, -1, 1), RATE_HZ)
    return Opinion(*(float(found[f"{name}_mos"]) for name in ("ovrl", "sig", "bak", "p808")))
