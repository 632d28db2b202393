"""Metrics behind /metrics. One registry for each server, so that several can live in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from engine.api import EngineStats
from realtime.memory import resident_bytes

PREFIX = "voicewire_"
# Makes prometheus-client share its values between processes in files of this folder.
MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
FAST_S = (0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10)
STEP_S = (0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.08, 0.1, 0.2, 0.5, 1)
FACTOR = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 5)
LEAD_S = (0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)

HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_audio_seconds": ("From the delta that made the first word final to the first packet.", FAST_S),
    "real_time_factor": ("One step of the engine over the time that its codec frame plays, sampled.", FACTOR),
    "step_time_seconds": ("One step of the engine, sampled.", STEP_S),
    "queue_time_seconds": ("From the first text of a response to its first step in the engine.", FAST_S),
    "first_token_to_prompt_ready_seconds": (
        "From the first token of a segment to the last that its first frame needs.",
        FAST_S,
    ),
    "agent_endpointing_seconds": ("Agent: from the last speech of a turn to its end.", FAST_S),
    "agent_stt_seconds": ("Agent: from the end of a spoken turn to its transcript.", FAST_S),
    "agent_llm_first_token_seconds": ("Agent: from the request to the first token of an answer.", FAST_S),
    "agent_first_audio_seconds": ("Agent: from the last speech, or the typed turn, to the first packet.", FAST_S),
    "lead_seconds": ("Audio handed over and not yet played, whenever more is handed over.", LEAD_S),
}
COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "audio_underruns_total": ("Playback ran dry while a response was not at its end.", ("cause",)),
    "underrun_responses_total": ("Responses with an underrun, counted at the first one.", ("cause",)),
    "responses_total": ("Responses that ended.", ("status",)),
    # Names of keys come from the configuration, and from no client: their number is bounded.
    "key_responses_total": ("Responses of an API key that ended.", ("key", "status")),
    "key_characters_total": ("Characters of text of an API key, in responses that ended.", ("key",)),
    "key_audio_seconds_total": ("Audio that was sent to an API key, in responses that ended.", ("key",)),
    "segments_total": ("Segments that ended.", ("reason",)),
    "runaways_retried_total": ("Replies that ran away before anything was sent and were made once more.", ()),
    "skipped_silence_tokens_total": (
        "Speech tokens drawn and left out, in silences that would have been too long.",
        (),
    ),
    "agent_failures_total": ("Failures of the agent's language model and recognizer.", ("code",)),
    "refusals_total": ("Handshakes, requests and events that were refused.", ("code",)),
    "usage_log_failures_total": ("Attempts to write the usage log that failed; no line is lost yet.", ()),
    "usage_lines_lost_total": ("Lines of the usage log that were lost.", ()),
    "dialect_connections_total": ("Connections and requests of each wire.", ("dialect",)),
    "dialect_contexts_total": ("Contexts of each wire that ended.", ("dialect", "status")),
}


# Name -> what it is, and what becomes of the values of several gateways.
GAUGES: dict[str, tuple[str, Literal["livesum", "livemin", "livemax", "livemostrecent"]]] = {
    "open_connections": ("Open WebSocket connections.", "livesum"),
    "active_responses": ("Responses that are being spoken.", "livesum"),
    "resident_memory_bytes": ("Of all of the server's processes.", "livemostrecent"),
    "engine_alive": ("1 while the engine lives.", "livemin"),
    "cluster_lease_current": ("1 while the leases of the cluster hold, and without a cluster.", "livemin"),
    "requests_running": ("Requests that the engine runs and that have text.", "livemax"),
    "requests_parked": ("Requests that wait for text.", "livemax"),
    "requests_waiting": ("Requests that wait for a place.", "livemax"),
    "kv_blocks_free": ("Free blocks of the cache.", "livemin"),
    "kv_blocks_total": ("Blocks of the cache.", "livemax"),
    "decoder_slots_free": ("Free slots of the decoder.", "livemin"),
    "decoder_slots_total": ("Slots of the decoder.", "livemax"),
}
# Name -> description, and the field of ``EngineStats``. Every gateway reads them from the same engine.
ENGINE_COUNTERS: dict[str, tuple[str, str]] = {
    "engine_steps_total": ("Steps since the engine started.", "num_steps"),
    "preemptions_total": ("Requests that gave up their memory for a while.", "num_preemptions"),
    "context_limited_requests_total": (
        "Requests that went on with less of their past for want of decoder memory.",
        "num_bounded",
    ),
}


class MetricsSource(Protocol):
    """Values that a scrape reads from the server."""

    @property
    def num_connections(self) -> int: ...

    @property
    def num_active_responses(self) -> int: ...

    @property
    def is_healthy(self) -> bool: ...

    @property
    def has_current_lease(self) -> bool: ...

    @property
    def frame_s(self) -> float:
        """Duration of a codec frame."""
        ...

    def engine_stats(self) -> EngineStats | None:
        """``None`` while no statistics exist."""
        ...


class EngineCounters(Collector):
    """Totals of the engine. A sum over gateways would count each of them once per gateway."""

    def __init__(self, server: MetricsSource) -> None:
        self._server = server

    def collect(self) -> Iterator[CounterMetricFamily]:
        stats = self._server.engine_stats()
        for name, (about, field) in ENGINE_COUNTERS.items() if stats is not None else ():
            yield CounterMetricFamily(PREFIX + name, about, value=getattr(stats, field))


class ServerMetrics:
    """Implements ``sessions.metrics.Metrics``; a name that is not in the tables above raises ``KeyError``."""

    def __init__(self, server: MetricsSource) -> None:
        self._server = server
        self._is_gateway = MULTIPROCESS_FOLDER in os.environ
        self._registry = CollectorRegistry()
        self._histograms = {
            name: Histogram(PREFIX + name, about, buckets=buckets, registry=self._registry)
            for name, (about, buckets) in HISTOGRAMS.items()
        }
        self._counters = {
            name: Counter(PREFIX + name, about, labels, registry=self._registry)
            for name, (about, labels) in COUNTERS.items()
        }
        self._gauges = {
            name: Gauge(PREFIX + name, about, registry=self._registry, multiprocess_mode=mode)
            for name, (about, mode) in GAUGES.items()
        }
        self._engine_counters = EngineCounters(server)
        self._last_step = 0

    def inc(self, name: str, count: float = 1, **labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(count)

    def observe(self, name: str, value: float, **labels: str) -> None:
        self._histograms[name].observe(value)

    def refused(self, code: str) -> None:
        self.inc("refusals_total", code=code)

    def sample(self) -> None:
        """Read the gauges, and note the engine's last step if there was a new one."""
        for name, value in self._readings():
            self._gauges[name].set(value)
        stats = self._server.engine_stats()
        if stats is not None and stats.num_steps != self._last_step:
            self._last_step = stats.num_steps
            self.observe("step_time_seconds", stats.step_ms / 1000)
            self.observe("real_time_factor", stats.step_ms / 1000 / self._server.frame_s)

    def _read_memory(self) -> None:
        """Read only on a scrape: a file is read for each thread of the server and of its engine, in 2 ms."""
        self._gauges["resident_memory_bytes"].set(resident_bytes(os.getppid() if self._is_gateway else os.getpid()))

    def exposition(self) -> bytes:
        """Return the metrics of all gateways in the text format of Prometheus."""
        self.sample()
        self._read_memory()
        engine = CollectorRegistry()
        engine.register(self._engine_counters)
        return self._own_metrics() + generate_latest(engine)

    def _own_metrics(self) -> bytes:
        if not self._is_gateway:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)

    def _readings(self) -> Iterator[tuple[str, float]]:
        yield "open_connections", self._server.num_connections
        yield "active_responses", self._server.num_active_responses
        yield "engine_alive", self._server.is_healthy
        yield "cluster_lease_current", self._server.has_current_lease
        stats = self._server.engine_stats()
        if stats is None:
            return
        yield "requests_running", stats.num_running - stats.num_parked
        yield "requests_parked", stats.num_parked
        yield "requests_waiting", stats.num_waiting
        yield "kv_blocks_free", stats.blocks_free
        yield "kv_blocks_total", stats.blocks_total
        yield "decoder_slots_free", stats.slots_free
        yield "decoder_slots_total", stats.slots_total


class NoServerMetrics(ServerMetrics):
    """Counts nothing."""

    def __init__(self) -> None:
        pass

    def inc(self, name: str, count: float = 1, **labels: str) -> None:
        pass

    def observe(self, name: str, value: float, **labels: str) -> None:
        pass
