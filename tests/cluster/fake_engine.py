"""An engine process that computes nothing: it announces an address and ends at SIGTERM."""

from __future__ import annotations

import signal
import socket


def main() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        print(f"engine tcp://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


# Its arguments, those of ``voicewire engine``, are not read.
if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
