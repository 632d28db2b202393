"""``voicewire serve``: listen, load the voice, serve clients, and drain on SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.api import available_cores, reserve_descriptors
from realtime.commands.startup import WRONG_SETTINGS, StartupProgress, add_setting_arguments, collect_settings
from realtime.config import ConfigError, ServerConfig, allowed, load_config, settings
from realtime.engine_factory import has_gpu_engine
from realtime.integration_config import parse_address
from realtime.logs import configure_logs
from realtime.transports.http_routes import page_folder
from realtime.transports.listening_sockets import Ports

# Flags for the commonest settings.
FLAGS = {
    "host": "listen.host",
    "port": "listen.port",
    "gateways": "listen.gateways",
    "model": "engine.model",
    "llm": "agent.llm_url",
    "llm_model": "agent.llm_model",
    "stt": "agent.stt_url",
    "stt_model": "agent.stt_model",
    "agent_file": "agent.file",
    "keys_file": "auth.keys_file",
    "tls_certificate": "listen.tls_certificate",
    "tls_key": "listen.tls_key",
    "log_level": "log.level",
    "log_format": "log.format",
}


# The engine's process, and what else the machine does.
RESERVED_CORES = 3
MAX_AUTOMATIC_GATEWAYS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file (docs/guides/deployment.md)")
    add_setting_arguments(parser, FLAGS)
    parser.add_argument("--list-settings", action="store_true", help="list all settings and stop")


def run(args: argparse.Namespace) -> int:
    if args.list_settings:
        print("\n".join(f"{name} = {field.default!r}: {allowed(field)}" for name, field in settings().items()))
        return 0
    try:
        config = load_config(args.config, os.environ, collect_settings(args, FLAGS))
        configure_logs(config.log)
        raise_fd_limit()
        reserve_descriptors(2 * config.limits.max_connections)  # WebSockets, and others of HTTP
        config = with_gateways(config)
        with StartupProgress("loading the voice") as progress:
            asyncio.run(run_server(config, lambda ports: print_address(config, ports, progress)))
    except ConfigError as error:
        print(f"voicewire serve: {error}", file=sys.stderr)
        return WRONG_SETTINGS
    return 0


def with_gateways(config: ServerConfig) -> ServerConfig:
    """Return ``config`` with a number of gateways.

    The engine of a CPU needs all cores itself. Free ports and devices with MQTT need a single process.
    """
    if config.listen.gateways:
        return config
    ports = [config.listen.port, config.listen.tls_port]
    ports += [parse_address(text).port for text in (config.calls.audiosocket, config.wyoming.address) if text]
    is_single = 0 in ports or config.xiaozhi.mqtt is not None or not has_gpu_engine(config)
    num_free = available_cores() - RESERVED_CORES
    gateways = 1 if is_single else min(max(num_free, 1), MAX_AUTOMATIC_GATEWAYS)
    return msgspec.structs.replace(config, listen=msgspec.structs.replace(config.listen, gateways=gateways))


async def run_server(config: ServerConfig, on_ready: Callable[[Ports], None]) -> None:
    """Serve in this process, or with gateways."""
    if config.listen.gateways > 1:
        from realtime.gateway_supervisor import serve_with_gateways

        await serve_with_gateways(config, on_ready)
    else:
        from realtime.app import serve

        await serve(config, on_ready=on_ready)


def print_address(config: ServerConfig, ports: Ports, progress: StartupProgress) -> None:
    """Print the address on standard output; programs read the last line."""
    progress.stop()
    listen = config.listen
    secure = "s" if listen.tls_certificate and ports.tls is None else ""
    address = f"{in_url(listen.host)}:{ports.main}"
    if page_folder(config):
        print(f"page  http{secure}://{address}/")
        if config.agent.llm_url is not None:
            print(f"talk  http{secure}://{address}/#talk")
    if ports.tls is not None:
        print(f"tls   wss://{in_url(listen.tls_host or listen.host)}:{ports.tls}/v1/speech")
    print(f"wire  ws{secure}://{address}/v1/speech", flush=True)


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def raise_fd_limit() -> None:
    """Raise the soft limit of open files, usually 1,024: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
