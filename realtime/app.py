"""The composition root: a configuration in, an application or a running server out."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.trace import NoOpTracer
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route, WebSocketRoute

from engine.api import SpeechEngine, SpeechError, freeze_gc
from realtime.api_keys import load_authenticator
from realtime.auth import Authenticator
from realtime.calls.call_registry import CallRegistry
from realtime.calls.gateway_hub import HubClient
from realtime.cluster.membership import join_cluster
from realtime.config import ConfigError, ServerConfig, load_config
from realtime.config_sections import WatermarkSettings
from realtime.engine_factory import make_server_engine, make_silent_engine
from realtime.metrics import NoServerMetrics
from realtime.mqtt.bridge import MqttBridge
from realtime.protocol.dialects.native import NATIVE_ROUTE
from realtime.quota_history import restore_day_counts
from realtime.server import SpeechServer
from realtime.session_relay import SessionRelay
from realtime.signals import run_until_signal
from realtime.tracing import SpanRecorder, TraceParents
from realtime.transports.audiosocket import AudioSocketServer
from realtime.transports.call_routes import call_routes
from realtime.transports.dialect_routes import DialectEndpoint, dialect_routes
from realtime.transports.dictionary_routes import DICTIONARY_ROUTES
from realtime.transports.http_routes import INFORMATION_ROUTES, error_handler, page_routes, reject_unknown_websocket
from realtime.transports.lexicon_routes import LEXICON_ROUTES
from realtime.transports.listener import DrainingServer, UvicornConfig
from realtime.transports.listening_sockets import Ports, check_ports, open_listeners
from realtime.transports.quota_headers import QuotaHeaders
from realtime.transports.speech_batch_routes import speech_batch
from realtime.transports.speech_routes import SpeechEndpoint
from realtime.transports.telephony_routes import default_call_owner, telephony_routes
from realtime.transports.token_routes import token_routes
from realtime.transports.vendor_voices import VENDOR_VOICE_ROUTES, open_webui_routes
from realtime.transports.voice_routes import VOICE_ROUTES
from realtime.transports.wyoming_server import WyomingServer
from realtime.transports.xiaozhi_mqtt_server import XiaozhiMqttServer
from realtime.transports.xiaozhi_routes import XiaozhiService, device_routes
from realtime.warm_up import warm_up
from sessions.admission import LocalUsageCounters, UsageCounters
from sessions.quotas import QuotaCounters, WindowedCounts

if TYPE_CHECKING:
    from realtime.agent.voice_agent import VoiceAgent

# With Python's default of 10, full garbage collections stop a busy gateway every 5 to 30 s. The cycles that they find
# are asyncio's transports of closed connections, a kilobyte each.
FULL_GC_AFTER = 50


def create_app(
    config: ServerConfig | None = None,
    engine: SpeechEngine | None = None,
    tally: UsageCounters | None = None,
    exchange: Path | None = None,
    gateway: int = 0,
) -> Starlette:
    """The ASGI application; the engine starts with its lifespan. Without a ``config`` the environment gives it.

    The engine gets a process of its own unless its options say otherwise: as a thread it would wait for the sockets'
    Python code at every operator. Gateways, which have numbers, learn of each other's calls by the ``exchange``, and
    of each other's sessions by sockets beside it.

    Raises ``ConfigError``.
    """
    config = load_config(environment=os.environ) if config is None else config
    if engine is None:
        engine = make_server_engine(config)
    keys = load_authenticator(config.auth)
    restore: Callable[[], Awaitable[None]] | None = None  # counts of several gateways are restored before they start
    if tally is None:
        new_counts = WindowedCounts.in_memory(keys.quota_names)
        tally = QuotaCounters(LocalUsageCounters(), new_counts)
        restore = partial(restore_day_counts, config.log, keys, new_counts)
    cluster = join_cluster(config, keys, tally)
    server = SpeechServer(config, engine, keys, cluster.counters, gateway, cluster.voices, cluster.lexicons)
    try:
        return _assemble(server, cluster.context, exchange, restore)
    except BaseException:
        server.close_threads()
        raise


def _assemble(
    server: SpeechServer,
    cluster: AbstractAsyncContextManager[None],
    exchange: Path | None,
    restore: Callable[[], Awaitable[None]] | None,
) -> Starlette:
    calls = server.config.calls
    switchboard = CallRegistry(calls.max_queued_events)
    server.agent = _load_agent(server, switchboard)
    server.call_agent = server.agent if calls.agent == "builtin" else None
    services = AppServices(server, switchboard, cluster, exchange, restore)
    has_quotas = bool(server.gatekeeper.quota_names)
    app = Starlette(
        routes=_routes(server, switchboard, services.devices),
        middleware=[Middleware(TraceParents), *([Middleware(QuotaHeaders, server)] if has_quotas else [])],
        exception_handlers=dict.fromkeys((SpeechError, 404, 405, 500), error_handler),
        lifespan=services.run,
    )
    app.state.server = server
    app.state.audiosocket = services.audiosocket
    app.state.mqtt = services.mqtt
    app.state.wyoming = services.wyoming
    app.state.device_ports = services.device_ports
    return app


class AppServices:
    """What runs beside the routes of an application."""

    def __init__(
        self,
        server: SpeechServer,
        switchboard: CallRegistry,
        cluster: AbstractAsyncContextManager[None],
        exchange: Path | None,
        restore: Callable[[], Awaitable[None]] | None,
    ) -> None:
        """``restore`` is awaited before the server starts."""
        self.audiosocket = AudioSocketServer(server, switchboard, default_call_owner(server))
        self.mqtt = MqttBridge(server, switchboard)
        self.wyoming = WyomingServer(server)
        self.devices = XiaozhiService(server, switchboard)
        self.device_ports = XiaozhiMqttServer(self.devices)
        self._server = server
        self._cluster = cluster
        self._restore = restore
        hub = HubClient(switchboard, exchange, server.config.calls.remote_command_timeout_s)
        relay = SessionRelay(server, switchboard, None if exchange is None else exchange.parent)
        self._opened = (hub, relay, self.audiosocket, self.mqtt, self.wyoming, self.device_ports)

    @asynccontextmanager
    async def run(self, _: Starlette) -> AsyncIterator[None]:
        """Start the server and all services, and end them in reverse order."""
        async with self._server.tracer.export(os.environ):
            if self._restore is not None:
                await self._restore()
            await self._server.start()
            try:
                if self._server.agent is not None:
                    await self._server.agent.start()
                async with AsyncExitStack() as services:
                    await services.enter_async_context(self._cluster)
                    for service in self._opened:
                        await services.enter_async_context(service.open())
                    yield
            finally:
                self.devices.close()
                await self._server.aclose()


def _load_agent(server: SpeechServer, switchboard: CallRegistry) -> VoiceAgent | None:
    """Return the agent, if there is one: only then its modules are loaded. Raises ``ConfigError``."""
    settings = server.config.agent
    if server.config.calls.agent == "builtin":
        for name, flag in (("llm_url", "--llm"), ("stt_url", "--stt")):
            if getattr(settings, name) is None:
                raise ConfigError(f"calls.agent = builtin needs agent.{name} ({flag} URL)")
    if (settings.llm_url, settings.stt_url, settings.file) == (None, None, None):
        return None
    from realtime.agent.voice_agent import load_agent

    return load_agent(server.config, os.environ, server.metrics, switchboard.vad_scheduler, server.tracer)


def _routes(server: SpeechServer, switchboard: CallRegistry, devices: XiaozhiService) -> list[BaseRoute]:
    speech = Route("/v1/audio/speech", SpeechEndpoint(server), methods=["POST"])
    api: list[BaseRoute] = [
        speech,
        WebSocketRoute(NATIVE_ROUTE.path, DialectEndpoint(server, NATIVE_ROUTE)),
        *dialect_routes(server),
        *token_routes(),
        *telephony_routes(server, switchboard),
        *call_routes(server, switchboard),
        *device_routes(devices),
        Route("/v1/audio/speech/batch", speech_batch, methods=["POST"]),
        *VOICE_ROUTES,
        *LEXICON_ROUTES,
        *DICTIONARY_ROUTES,
        *VENDOR_VOICE_ROUTES,
        *INFORMATION_ROUTES,
        WebSocketRoute("/{path:path}", reject_unknown_websocket),
    ]
    # The speech first: a request tries the routes in order.
    return [speech, *open_webui_routes(api), *api, *page_routes(server)]


async def check_settings(config: ServerConfig, engine: SpeechEngine) -> None:
    """Create the parts of a server of this configuration, and drop them. Raises ``ConfigError``.

    ``engine`` has not started."""
    app = create_app(config, engine)
    try:
        UvicornConfig(app, config.listen, config.limits).load()
    finally:
        await app.state.server.aclose()


def create_silent_server(server: SpeechServer) -> SpeechServer:
    """Return a server of the same model and watermark that speaks silence, for this machine alone.

    It counts and traces nothing.

    Raises ``ConfigError``."""
    mark = server.watermark
    key, payload = (None, None) if mark is None else (mark.key.decode(), mark.payload)
    config = ServerConfig(watermark=WatermarkSettings(enabled=mark is not None, key=key, payload=payload))
    return SpeechServer(
        config,
        make_silent_engine(server.engine.info),
        Authenticator([]),
        voices=server.voices,
        lexicons=server.lexicons,
        metrics=NoServerMetrics(),
        tracer=SpanRecorder(NoOpTracer()),
    )


async def serve(
    config: ServerConfig,
    app: Starlette | None = None,
    on_ready: Callable[[Ports], None] | None = None,
    share_port: bool = False,
) -> None:
    """Listen until SIGTERM or SIGINT, then drain; a second SIGINT cuts that short.

    ``on_ready`` receives the ports once requests are taken.

    With ``share_port`` other processes may listen on the same one.

    Raises ``ConfigError``, ``OSError`` or ``CheckpointError`` before that.
    """
    app = create_app(config) if app is None else app
    listen = UvicornConfig(app, config.listen, config.limits)
    listen.load()
    check_ports(config)
    listeners = open_listeners(config.listen, share_port)
    server = DrainingServer(listen, app.state.server, listeners)

    def started() -> None:
        if config.limits.gc_freeze_on_start:
            freeze_gc(FULL_GC_AFTER)
        if on_ready is not None:
            on_ready(listeners.ports)

    server.on_started = started
    try:
        warming = partial(warm_up, partial(create_silent_server, app.state.server))
        if await run_until_signal(app.state.server.start()) and await run_until_signal(warming()):
            await server.serve(listeners.all)
        else:
            await app.state.server.aclose()
    finally:
        listeners.close()
