"""The hub that forwards events and commands of calls between the gateways of a server, and each gateway's client of it.

A line is the sender's number, a blank and a message in JSON. All other gateways receive what one sends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from engine.api import SpeechError
from realtime.calls.call_registry import CallRegistry, RegisteredCall
from realtime.errors import RequestRefused
from realtime.protocol.telephony import model

log = logging.getLogger("voicewire.calls")

MAX_LINE_BYTES = 16 * 1024 * 1024
# A gateway with more unread bytes is disconnected; it connects again by itself.
MAX_UNREAD_BYTES = 16 * 1024 * 1024
RETRY_S = 0.5


class HubMessage(Struct, frozen=True, tag_field="kind"):
    pass


class CallAnnounced(HubMessage, tag="here", frozen=True):
    """Announces a call of the sender: when it is connected, and again whenever a gateway joins."""

    caller_name: str
    connected: model.CallConnected


class CallEventForwarded(HubMessage, tag="told", frozen=True):
    """Forwards an event of a call of the sender."""

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
    """Announces a new gateway."""


class PeerLeft(HubMessage, tag="left", frozen=True):
    """Announces that a gateway and its calls are gone."""


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
    """Forwards messages between the gateways over a Unix socket."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._gateways: dict[int, asyncio.StreamWriter] = {}

    @asynccontextmanager
    async def open(self, path: Path) -> AsyncIterator[None]:
        """Connect the gateways while the context is open; raises ``OSError``."""
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
        except ConnectionError:
            pass  # the gateway has left: another one's end was sent to it meanwhile, or is unread
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


class HubClient:
    """Implements ``RemoteCalls``. Does nothing without a ``path``."""

    def __init__(self, switchboard: CallRegistry, path: Path | None, answer_timeout_s: float) -> None:
        self._switchboard, self._path = switchboard, path
        self._answer_timeout_s = answer_timeout_s
        self._writer: asyncio.StreamWriter | None = None
        # The gateway of each remote call.
        self._gateways: dict[str, int] = {}
        # Call and answer of each pending command, by number.
        self._pending: dict[str, tuple[str, asyncio.Future[model.CallEvent | None]]] = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        if self._path is None:
            yield
            return
        self._switchboard.elsewhere = self
        linked = asyncio.Event()
        keeping = asyncio.create_task(self._run(self._path, linked), name="voicewire relay")
        try:
            await linked.wait()
            yield
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])

    def connected(self, call: RegisteredCall) -> None:
        self._send(CallAnnounced(call.caller_name, call.connected))

    def forward_event(self, event: model.CallEvent) -> None:
        self._send(CallEventForwarded(event))

    async def _run(self, path: Path, linked: asyncio.Event) -> None:
        while True:
            try:
                await self._run_connection(path, linked)
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                log.warning("gateway hub connection lost: %s", type(error).__name__)
            except Exception:  # an internal error in one call's command must not end the hub connection
                log.exception("gateway hub client failed")
            await asyncio.sleep(RETRY_S)

    async def _run_connection(self, path: Path, linked: asyncio.Event) -> None:
        """Process messages until the connection breaks."""
        reader, self._writer = await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES)
        try:
            self._announce_calls()
            linked.set()
            while (line := await reader.readline()).endswith(b"\n"):
                await self._handle_message(*decode_message(line))
        finally:
            self._writer.transport.abort()
            self._writer = None
            self._remove_gateway(list(self._gateways))

    async def _handle_message(self, sender: int, message: HubMessage) -> None:
        match message:
            case PeerJoined():
                self._announce_calls()
            case CallAnnounced():
                self._arrived(sender, message)
            case CallEventForwarded():
                self._switchboard.on_remote_event(message.event)
                if isinstance(message.event, model.CallEnded):
                    self._remove_gateway([message.event.call_id])
            case PeerLeft():
                self._remove_gateway([call_id for call_id, gateway in self._gateways.items() if gateway == sender])
            case CommandRequested():
                await self._execute_command(message)
            case CommandAnswered():
                await self._answered(message)

    def _arrived(self, gateway: int, here: CallAnnounced) -> None:
        call_id = here.connected.call_id
        if call_id in self._gateways:
            return

        async def ask(command: model.Command) -> model.CallEvent | None:
            return await self._ask(here.caller_name, call_id, command)

        self._gateways[call_id] = gateway
        self._switchboard.on_remote_call(RegisteredCall(here.caller_name, here.connected, ask, is_local=False))

    async def _answered(self, message: CommandAnswered) -> None:
        """Drop an answer without a waiter: the call has ended, or the requester is gone."""
        _, answer = self._pending.get(message.number, (None, None))
        if answer is not None and not answer.done():
            answer.set_result(message.answer)
            await asyncio.sleep(0)  # later events are sent after the answer

    async def _ask(self, caller_name: str, call_id: str, command: model.Command) -> model.CallEvent | None:
        """Send a command to the gateway of a call; raises ``RequestRefused``."""
        number = secrets.token_hex(8)
        answer: asyncio.Future[model.CallEvent | None] = asyncio.get_running_loop().create_future()
        self._pending[number] = call_id, answer
        try:
            self._send(CommandRequested(number, caller_name, call_id, command))
            async with asyncio.timeout(self._answer_timeout_s):
                event = await answer
        except TimeoutError:
            raise RequestRefused("overloaded", f"the gateway of call {call_id!r} does not answer") from None
        finally:
            del self._pending[number]
        if isinstance(event, model.CommandRefused):
            raise RequestRefused(event.code, event.message, event.param, event.retry_after_ms)
        return event

    async def _execute_command(self, request: CommandRequested) -> None:
        """Carry out a command of another gateway's agent. A call that has ended has published its end already."""
        if request.call_id not in (call.connected.call_id for call in self._switchboard.local_calls()):
            return
        answer: model.CallEvent | None
        try:
            answer = await self._switchboard.call(request.caller_name, request.call_id).handle_command(request.command)
        except SpeechError as error:
            answer = model.CommandRefused.from_info(error.info, request.call_id)
        self._send(CommandAnswered(request.number, answer))

    def _remove_gateway(self, call_ids: list[str]) -> None:
        """Fail the pending commands of calls that have ended or whose gateway is gone."""
        for call_id in call_ids:
            if self._gateways.pop(call_id, None) is not None:
                self._switchboard.remove_remote_call(call_id)
            for of_call, answer in list(self._pending.values()):
                if of_call == call_id and not answer.done():
                    answer.set_exception(RequestRefused("unknown_call", f"call {call_id!r} has ended", "call_id"))

    def _announce_calls(self) -> None:
        for call in self._switchboard.local_calls():
            self.connected(call)

    def _send(self, message: HubMessage) -> None:
        """Announce a call. Without a connection nothing is sent: the next connection announces all calls."""
        if self._writer is None:
            return
        self._writer.write(encode_message(message))
        if self._writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._writer.transport.abort()
