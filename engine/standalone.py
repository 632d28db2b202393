"""One engine at an address of its own, until a signal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from engine.address import EngineAddress, TlsFiles
from engine.config import EngineConfig
from engine.host import SWITCH_INTERVAL_S, load_host
from engine.listener import EngineListener

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_engine(
    settings: dict[str, Any],
    config: EngineConfig,
    address: EngineAddress,
    tls: TlsFiles | None,
    drain_timeout_s: float,
    on_ready: Callable[[EngineAddress], None],
) -> None:
    """Serve gateways until SIGTERM or Ctrl-C, then drain; the second signal ends the drain.

    Call it in the main thread. Raises ``EngineError`` or ``OSError`` before ``on_ready``.
    """
    address.check_protected(tls)  # before the model is loaded
    os.nice(config.process_nice)
    host = load_host(settings, config)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    host.start()
    listener = EngineListener(address, tls)
    signals = threading.Semaphore(0)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: signals.release())
    threading.Thread(target=host.serve, args=(listener,), name="voicewire-listener", daemon=True).start()
    on_ready(listener.address)
    signals.acquire()
    listener.close()
    draining = threading.Thread(target=_drain, args=(host.drain, drain_timeout_s, signals), daemon=True)
    draining.start()
    signals.acquire()
    host.stop()


def _drain(drain: Callable[[float], None], timeout_s: float, ended: threading.Semaphore) -> None:
    drain(timeout_s)
    ended.release()
