"""All uses of private parts of aiomqtt and paho-mqtt, which expose no other way.

A test pins the versions for which this module was checked (``TESTED``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiomqtt
import paho.mqtt.client as paho

TESTED = {"aiomqtt": "2.5.1", "paho-mqtt": "2.2.0"}


class ClientInternals:
    """The state of an ``aiomqtt.Client``: its connection, its paho client, and that one's socket."""

    def __init__(self, client: aiomqtt.Client) -> None:
        self.paho: paho.Client = client._client
        self._disconnected = client._disconnected

    @property
    def is_disconnected(self) -> bool:
        return bool(self._disconnected.done())

    @property
    def disconnect_error(self) -> BaseException | None:
        """The error that ended the connection; reading it marks it as retrieved."""
        return self._disconnected.exception() if self._disconnected.done() else None

    def on_disconnected(self, callback: Callable[[], None]) -> None:
        self._disconnected.add_done_callback(lambda _: callback())

    def disconnect(self, error: Exception) -> None:
        """End the connection with an error, as aiomqtt does for one of its own."""
        if not self._disconnected.done():
            self._disconnected.set_exception(error)

    @property
    def socket(self) -> Any:
        """paho's socket, ``None`` once closed; an object with the same methods may replace it."""
        return self.paho._sock

    @socket.setter
    def socket(self, socket: Any) -> None:
        self.paho._sock = socket

    def close_socket(self) -> None:
        self.paho._sock_close()

    def next_packet_id(self) -> int:
        number: int = self.paho._mid_generate()
        return number

    def limit_unacknowledged(self, num_messages: int) -> None:
        """Set the maximum of unacknowledged messages; paho's own setter is refused once it connects."""
        self.paho._max_inflight_messages = num_messages
