"""The server behind all connections: authentication, limits, the engine, draining and the watchdog."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, Protocol

import msgspec

from engine.api import EngineError, EngineStats, SpeechEngine
from realtime.auth import Authenticator, Principal
from realtime.config import ServerConfig
from realtime.errors import RequestRefused
from realtime.memory import HeapTrimmer
from realtime.metrics import ServerMetrics
from realtime.resumption import RefusalCause, ResumptionTable, resume_refused
from realtime.setting_mapping import default_settings
from realtime.tracing import SpanRecorder
from realtime.usage_log import UsageLog
from realtime.voice_cloner import VoiceCloner
from realtime.watermark import load_watermark
from sessions.admission import CONNECTIONS, LocalUsageCounters, UsageCounters, key_counter
from sessions.alignment.aligner import AlignerFactory, ForcedAligner
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.config import RegistryLimits, SessionLimits
from sessions.lexicon_store import LEXICON_FOLDER, LexiconStore
from sessions.owned_files import voices_folder
from sessions.quotas import NO_QUOTAS, KeyMeter
from sessions.registry import SessionRegistry
from sessions.session import Session
from sessions.voices.store import VoiceStore

if TYPE_CHECKING:
    from realtime.agent.voice_agent import VoiceAgent
    from realtime.relayed_client import RelayedClient, RelayRequest
    from realtime.session_relay import SessionRelay

log = logging.getLogger("voicewire.server")

TICK_S = 0.25
RESUME_PURPOSE = b"voicewire resume token"
P = ParamSpec("P")


class ManagedConnection(Protocol):
    """Interface of a connection to the server."""

    def on_tick(self, now_s: float) -> None:
        """Check time-outs and draining. Called every ``TICK_S``."""
        ...

    def close(self, code: str) -> None:
        """Close the connection with this error code."""
        ...


ALIGNERS: dict[str, AlignerFactory] = {"letters": ForcedAligner, "even": UniformAligner}


class SpeechServer:
    """Owns the engine, the sessions and the connections. Call ``start``, serve, ``drain``, ``aclose``."""

    def __init__(
        self,
        config: ServerConfig,
        engine: SpeechEngine,
        gatekeeper: Authenticator,
        tally: UsageCounters | None = None,
        gateway: int = 0,
        voices: VoiceStore | None = None,
        lexicons: LexiconStore | None = None,
        metrics: ServerMetrics | None = None,
        tracer: SpanRecorder | None = None,
    ) -> None:
        """``gateway`` is the number of this process among those of the server. Raises ``ConfigError``."""
        self.config = config
        self.tally = tally or LocalUsageCounters()
        self.engine = engine
        self.gatekeeper = gatekeeper
        self.draining = False
        self.metrics = metrics or ServerMetrics(self)
        self.voices = voices or VoiceStore(
            voices_folder(config.voices.folder), config.voices.max_voices, config.voices.max_voices_per_key
        )
        self.lexicons = lexicons or LexiconStore(voices_folder(config.voices.folder) / LEXICON_FOLDER)
        token_ttl_s = config.limits.max_session_duration_s + config.limits.resume_grace_s
        self.resumption = ResumptionTable(gatekeeper.derive_secret(RESUME_PURPOSE), gateway, token_ttl_s)
        # Set where there are other gateways.
        self.relay: SessionRelay | None = None
        # Set where a language model is configured.
        self.agent: VoiceAgent | None = None
        # The same where it answers calls.
        self.call_agent: VoiceAgent | None = None
        self.cloning = VoiceCloner(config, engine, self.tally)
        self.watermark = load_watermark(config.watermark)
        self.tracer = tracer or SpanRecorder()
        usage_file = config.log.usage_file  # its thread starts after all that raises
        self._usage_log = None if usage_file is None else UsageLog(Path(usage_file), self.metrics)
        self.registry = SessionRegistry(
            engine,
            registry_limits(config, len(gatekeeper.key_names)),
            self.metrics,
            self.voices,
            ALIGNERS[config.speech.aligner],
            self.tally,
            self.resumption.evict_speech,
            self.lexicons,
            self._usage_log,
            self.watermark,
            self.tracer,
        )
        self.settings = default_settings(config.speech)
        self._connections: set[ManagedConnection] = set()
        self._heap_trimmer = HeapTrimmer()
        self._overloaded_since_s: float | None = None
        # Set when a drain need not wait for speech.
        self._may_close = asyncio.Event()
        self._drained = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the engine and the watchdog. Idempotent. Raises ``CheckpointError``."""
        if self._watch is not None:
            return
        warming = asyncio.create_task(self.registry.warm_up(), name="voicewire warm-up")
        try:
            await self.engine.start()
        except BaseException:
            await asyncio.wait([warming])
            await self.registry.aclose()
            raise
        await warming
        self._watch = asyncio.create_task(self._watchdog(), name="voicewire watch")
        log.info("ready", extra={"model": self.engine.info.model})

    async def aclose(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        if self.agent is not None:
            await self.agent.aclose()
        await self.registry.close_all()
        self.close_threads()
        await self.engine.aclose()

    def close_threads(self) -> None:
        """End threads that were created before ``start``. Without a start nothing else has to be closed."""
        self.registry.close_threads()
        if self._usage_log is not None:
            self._usage_log.close()

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    @property
    def num_active_responses(self) -> int:
        return self.registry.statistics().num_active_responses

    @property
    def is_healthy(self) -> bool:
        return self.engine.is_alive

    @property
    def is_ready(self) -> bool:
        return self.is_healthy and not self.draining

    @property
    def has_current_lease(self) -> bool:
        return self.tally.is_current

    @property
    def frame_s(self) -> float:
        return self.engine.info.frame_samples / self.engine.info.sample_rate

    def engine_stats(self) -> EngineStats | None:
        """Return the engine's statistics; ``None`` while it is dead or has not reported yet."""
        try:
            return self.engine.stats() if self.engine.is_alive else None
        except EngineError:
            return None

    def open_session(self, caller: Principal, is_resumable: bool = False) -> Session:
        # Keys share the engine's burst capacity; without keys sessions do.
        group = caller.name if self.gatekeeper.has_keys else ""
        is_resumable = is_resumable and self.config.limits.resume_grace_s > 0
        return self.registry.create(
            caller.name, self.settings, caller.max_active_responses, group, is_resumable, caller.quotas, caller.is_bulk
        )

    def check_not_draining(self) -> None:
        """Check that the server accepts work; raises ``RequestRefused`` while it drains."""
        if self.draining:
            raise RequestRefused(
                "draining", "the server is about to stop", retry_after_ms=self.config.limits.retry_after_ms
            )

    def check_connection_limits(self, caller: Principal) -> None:
        """Check that the key may open one more connection; raises ``RequestRefused``."""
        self.check_not_draining()
        limits = self.config.limits
        self._check("max_connections", CONNECTIONS, limits.max_connections)
        share = key_share(limits.max_connections_per_key, limits.max_connections, len(self.gatekeeper.key_names))
        limit = share if caller.max_connections is None else caller.max_connections
        name = "max_connections_per_key" if caller.is_authenticated else "max_unauthenticated_connections"
        self._check(name, key_counter(CONNECTIONS, caller.name), limit, caller.name)
        now_s = asyncio.get_running_loop().time()
        if self._overloaded_since_s is not None and now_s - self._overloaded_since_s >= limits.overload_grace_s:
            raise RequestRefused("overloaded", "every place to speak is taken", retry_after_ms=limits.retry_after_ms)

    def check_response_limits(self, caller: Principal) -> None:
        """Check that the key may begin one more response; raises ``LimitExceeded`` or ``QuotaExceeded``."""
        self.registry.check_capacity(caller.name, caller.max_active_responses)
        if caller.quotas != NO_QUOTAS:
            self.meter_for(caller).check()

    def meter_for(self, caller: Principal) -> KeyMeter:
        """Return what counts the use of the key."""
        return self.registry.create_meter(caller.name, caller.quotas)

    @contextmanager
    def track_connection(
        self, connection: ManagedConnection, caller: Principal, num_counted: int = 1
    ) -> Iterator[None]:
        """Count a connection while the context is open; of a relayed client another gateway counts one."""
        self._connections.add(connection)
        self._count(caller, num_counted)
        try:
            yield
        finally:
            self._connections.remove(connection)
            self._heap_trimmer.note_close()
            self._count(caller, -num_counted)
            self._on_drained()

    async def reach_gateway(self, gateway: int, request: RelayRequest) -> RelayedClient:
        """Reach the gateway of a session. Raises ``RequestRefused``."""
        if self.relay is None:
            raise resume_refused(cause=RefusalCause.GONE)
        return await self.relay.connect(gateway, request)

    def _count(self, caller: Principal, by: int) -> None:
        self.tally.add(CONNECTIONS, by)
        self.tally.add(key_counter(CONNECTIONS, caller.name), by)

    async def drain(self) -> None:
        """Refuse new work, let responses end, then close every connection."""
        self.draining = True
        self.resumption.evict_all()
        log.info("draining", extra={"num_active_responses": self.num_active_responses})
        self._on_drained()
        await _wait_for(self.config.listen.drain_timeout_s, self._may_close)
        for connection in list(self._connections):
            _shielded(connection.close, "draining")
        await _wait_for(self.config.listen.close_timeout_s, self._drained)

    def skip_drain(self) -> None:
        """Stop waiting for responses in a drain."""
        self._may_close.set()

    def _check(self, name: str, counter: str, limit: int, key: str = "") -> None:
        while self.tally.total(counter) >= self.tally.places(counter, limit):
            if self.resumption.evict(lambda state: key in ("", state.key_name)):
                continue
            wait_ms = self.config.limits.retry_after_ms
            raise RequestRefused("too_many_connections", f"{name} is {limit}", retry_after_ms=wait_ms)

    async def _watchdog(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_s = asyncio.get_running_loop().time()
            _shielded(self._track_overload, now_s)
            _shielded(self.metrics.sample)
            _shielded(self.registry.expire)
            self._tick_connections(now_s)
            _shielded(self._heap_trimmer.tick, now_s)
            self._on_drained()

    def _tick_connections(self, now_s: float) -> None:
        for connection in list(self._connections):
            _shielded(connection.on_tick, now_s)

    def _on_drained(self) -> None:
        if self.draining and not self.num_active_responses and not self._connections:
            self._may_close.set()
            self._drained.set()

    def _track_overload(self, now_s: float) -> None:
        full = self.num_active_responses >= self.config.limits.max_active_responses
        stats = self.engine_stats()
        # Queued burst requests do not count: paced requests still get slots.
        num_waiting = 0 if stats is None else stats.num_waiting - stats.num_waiting_burst
        for _ in range(num_waiting if stats is not None and not stats.slots_free else 0):
            self.resumption.evict_speech(lambda session: session.is_generating)
        if not full and not num_waiting:
            self._overloaded_since_s = None
        elif self._overloaded_since_s is None:
            self._overloaded_since_s = now_s


async def _wait_for(timeout_s: float, event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def _shielded(work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call it and log its exception, so that one connection's fault does not affect others."""
    try:
        work(*args, **kwargs)
    except Exception:
        log.exception("server watchdog failed")


def key_share(given: int, limit: int, num_keys: int) -> int:
    """Return one API key's share of a limit: ``given``; with 0 all for the only key, else half."""
    if given:
        return given
    return limit if num_keys == 1 else max(limit // 2, 1)


def registry_limits(config: ServerConfig, num_keys: int) -> RegistryLimits:
    """Return the session limits; those not set here come from settings of the same name."""
    limits = msgspec.structs.replace(config.limits, encoder_threads=config.num_encoder_threads)
    return replace(
        msgspec.convert(limits, RegistryLimits, from_attributes=True),
        max_sessions=limits.max_connections + limits.max_active_responses,
        aligner_threads=1 if config.limits.encoder_threads is None else None,
        max_active_responses_per_key=key_share(
            limits.max_active_responses_per_key, limits.max_active_responses, num_keys
        ),
        max_alignment_backlog_mb=0 if config.speech.aligner == "even" else limits.max_alignment_backlog_mb,
        session=msgspec.convert(limits, SessionLimits, from_attributes=True),
    )
