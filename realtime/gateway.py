"""A gateway: the process that ``gateway_supervisor`` starts in front of the engine."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from engine.api import reserve_descriptors
from realtime.app import create_app, serve
from realtime.config import ConfigError
from realtime.engine_factory import connect_engine
from realtime.gateway_plan import GatewayPlan
from realtime.logs import configure_logs


async def run_gateway(plan: GatewayPlan) -> None:
    engine = connect_engine(plan.engines, plan.config.engine)
    app = create_app(plan.config, engine, plan.open_counters(), Path(plan.exchange), plan.column)
    await serve(plan.config, app, on_ready=lambda _: print("ready", flush=True), share_port=True)


def main() -> None:
    """A gateway. It drains when its parent is gone, too."""
    if not (line := sys.stdin.buffer.readline()):
        return  # the parent has ended before there was a plan
    plan = msgspec.json.decode(line, type=GatewayPlan)
    reserve_descriptors(2 * plan.config.limits.max_connections)  # WebSockets, and others of HTTP
    configure_logs(plan.config.log)
    threading.Thread(target=exit_with_parent, name="voicewire parent watch", daemon=True).start()
    try:
        asyncio.run(run_gateway(plan))
    except ConfigError as error:
        sys.exit(f"voicewire gateway: {error}")


def exit_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):  # no input follows until the parent is gone
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
