"""What the gateways of one server tell each other of their calls, and the place in the middle that passes it on.

A line of the exchange is the sender's number, a blank and a message in JSON. What one gateway says, all others hear.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from realtime.protocol import model

log = logging.getLogger("voicewire.calls")

MAX_LINE_BYTES = 16 * 1024 * 1024
# A gateway that leaves so much unread is cut off; it comes back by itself.
MAX_UNREAD_BYTES = 16 * 1024 * 1024


class HubMessage(Struct, frozen=True, tag_field="kind"):
    pass


class CallAnnounced(HubMessage, tag="here", frozen=True):
    """The sender has this call. Told when it is connected, and again whenever a gateway joins."""

    caller_name: str
    connected: model.CallConnected


class CallEventForwarded(HubMessage, tag="told", frozen=True):
    """Of a call of the sender's."""

    event: model.CallEvent


class CommandRequested(HubMessage, tag="asked", frozen=True):
    """Command for the gateway that has the call."""

    number: str
    caller_name: str
    call_id: str
    command: model.Command


class CommandAnswered(HubMessage, tag="answered", frozen=True):
    """Answer for the gateway that asked with this number."""

    number: str
    answer: model.CallEvent | None


class PeerJoined(HubMessage, tag="joined", frozen=True):
    """The sender was not there before."""


class PeerLeft(HubMessage, tag="left", frozen=True):
    """The sender is gone, and its calls with it."""


_decoder = msgspec.json.Decoder(
    CallAnnounced | CallEventForwarded | CommandRequested | CommandAnswered | PeerJoined | PeerLeft
)
_encoder = msgspec.json.Encoder()


def encode_message(message: HubMessage) -> bytes:
    return _encoder.encode(message) + b"\n"


def decode_message(line: bytes) -> tuple[int, HubMessage]:
    sender, _, message = line.partition(b" ")
    return int(sender), _decoder.decode(message)


class GatewayHub:
    """The place in the middle."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._gateways: dict[int, asyncio.StreamWriter] = {}

    @asynccontextmanager
    async def open(self, path: Path) -> AsyncIterator[None]:
        """Raises ``OSError``."""
        listener = await asyncio.start_unix_server(self._serve, path, limit=MAX_LINE_BYTES)
        try:
            yield
        finally:
            listener.close()
            for writer in self._gateways.values():
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(self._numbers)
        self._forward(number, encode_message(PeerJoined()))
        self._gateways[number] = writer
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                self._forward(number, line)
        except (OSError, ValueError):
            log.warning("a gateway's line to the exchange broke")
        finally:
            del self._gateways[number]
            writer.transport.abort()
            self._forward(number, encode_message(PeerLeft()))

    def _forward(self, sender: int, line: bytes) -> None:
        for number, writer in self._gateways.items():
            if number == sender:
                continue
            writer.write(b"%d " % sender + line)
            if writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
                writer.transport.abort()
