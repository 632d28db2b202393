"""The load, the cluster and its failures, as parameters; and the daily load curve."""

from __future__ import annotations

import math
from dataclasses import dataclass

HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S


@dataclass(frozen=True)
class Load:
    """``listeners`` are open sessions at the peak of the day; a share of them hears a reply at any moment."""

    listeners: int = 1_000_000
    talk_share: float = 0.5
    # Lengths are exponential: what a live reply has left does not depend on its age.
    reply_s: float = 8.0
    session_s: float = 300.0
    # Listeners at the quietest moment, as a share of the peak; and the hours of both.
    night_share: float = 0.3
    peak_hour: float = 20.0
    cloned_share: float = 0.1
    # Share of replies with a cloned voice whose engine does not hold it.
    voice_miss_share: float = 0.2

    def sessions(self, at_s: float) -> float:
        """Open sessions at this moment of the day: a cosine between night and peak."""
        phase = math.cos(2 * math.pi * (at_s / HOUR_S - self.peak_hour) / 24)
        return self.listeners * (self.night_share + (1 - self.night_share) * (1 + phase) / 2)

    def replies_per_s(self, at_s: float) -> float:
        return self.sessions(at_s) * self.talk_share / self.reply_s

    def opens_per_s(self, at_s: float) -> float:
        """Connections opened in a second: sessions that replace others, and those that come with the day."""
        growth = self.sessions(at_s + 1) - self.sessions(at_s)
        return max(0.0, self.sessions(at_s) / self.session_s + growth)


@dataclass(frozen=True)
class Plant:
    """What the cluster may grow to, how fast, and what the parts beside the engines can carry."""

    max_engines: int = 1_000
    zones: int = 3
    target: float = 0.7
    scale_interval_s: float = 15.0
    # From the decision to a ready engine: a machine (assumed), and a first start (measured: 24 to 27 s).
    machine_start_s: float = 120.0
    engine_start_s: float = 27.0
    # Fewer engines only after the smaller number was enough for so long.
    scale_down_delay_s: float = 600.0
    drain_s: float = 60.0
    # Share of the engines that an upgrade takes out at the same time.
    upgrade_share: float = 0.05
    lead_s: float = 2.0
    grace_s: float = 30.0
    slots: int = 1_536
    gateways_per_engine: int = 14
    # Measured on 16 cores of a Xeon: 5.8 to 6.3 ms; the opening of a connection: median 1.9 ms.
    gateway_ms_per_speech_s: float = 6.0
    gateway_ms_per_connection: float = 2.0
    # Assumed: TLS connections that one door accepts in a second.
    doors: int = 8
    door_rate: float = 2_000.0
    # Assumed: calls that one Ray actor answers in a second; each gateway renews its leases once in a second.
    actor_rate: float = 4_000.0
    lease_holders_per_engine: int = 14
    # Assumed: requests that the store of voices answers in a second.
    voice_rate: float = 5_000.0
    # PCM as float32 at 24 kHz between engine and gateway.
    pcm_bytes_per_s: float = 96_000.0
    network_bits_per_s: float = 25e9


@dataclass(frozen=True)
class Failures:
    """Mean times between failures of one part, and what is planned for the day. None: does not happen."""

    engine_mtbf_h: float = 720.0
    gateway_mtbf_h: float = 720.0
    zone_hour: float | None = 20.0
    zone_down_s: float = 1_800.0
    storm_hour: float | None = 16.0
    # Share of the sessions whose connection a storm cuts.
    storm_share: float = 0.1
    upgrade_hour: float | None = 10.0
    # Until a killed process is noticed (its connection breaks), and a machine that does not answer.
    process_detection_s: float = 0.1
    machine_detection_s: float = 2.0


NO_FAILURES = Failures(engine_mtbf_h=math.inf, gateway_mtbf_h=math.inf, zone_hour=None, storm_hour=None,
                       upgrade_hour=None)  # fmt: skip
