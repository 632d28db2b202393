"""Ports where xiaozhi devices connect by MQTT, with their sound over UDP. No broker stands between: the firmware
subscribes to nothing, and takes whatever is published to it."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

from engine.api import SpeechError
from realtime.auth import NO_KEYS, Principal
from realtime.browser_tokens import TokenScope
from realtime.config import ConfigError
from realtime.errors import RemoteProtocolError, RequestRefused
from realtime.integration_config import parse_address
from realtime.protocol import mqtt311 as mqtt
from realtime.protocol.telephony.xiaozhi import XiaozhiDialect
from realtime.transports.tcp_server import TcpStreamTransport, close_writer, create_stream_transport, run_server
from realtime.transports.xiaozhi_routes import XiaozhiService
from realtime.xiaozhi.device_transport import UdpServer, XiaozhiMqttTransport

log = logging.getLogger("voicewire.xiaozhi")

DEVICE_TOPIC = "devices/p2p/"
KEEP_ALIVE_GRACE = 1.5
# Keep-alive of devices that request none or more.
MAX_KEEP_ALIVE_S = 1_200


class XiaozhiMqttServer:
    """Listen at ``xiaozhi.mqtt`` and ``xiaozhi.udp``, if the first is set. The constructor raises ``ConfigError``."""

    def __init__(self, devices: XiaozhiService) -> None:
        self._devices, self._server = devices, devices.server
        self._settings = devices.server.config.xiaozhi
        self._udp = UdpServer(self._settings.max_packets_per_s)
        self._serving: set[asyncio.Task[None]] = set()
        # Authenticated connections among them.
        self._num_devices = 0
        # Set while it is open.
        self.port: int | None = None
        if self._settings.mqtt is not None and self._server.config.listen.gateways > 1:
            raise ConfigError("xiaozhi.mqtt needs listen.gateways = 1: both connections of a device are in one process")

    @property
    def udp_port(self) -> int:
        return self._udp.port

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Listen while the context is open. Raises ``OSError``."""
        if self._settings.mqtt is None:
            yield
            return
        async with (
            self._udp.open(*parse_address(self._settings.udp)),
            run_server(
                self._server,
                "xiaozhi",
                *parse_address(self._settings.mqtt),
                self._serve,
                self._tls(),
                requires_keys=True,
                num_unknown=lambda: len(self._serving) - self._num_devices,
            ) as port,
        ):
            self.port = port
            try:
                yield
            finally:
                for task in self._serving:
                    task.cancel()
                await asyncio.gather(*self._serving, return_exceptions=True)

    def _tls(self) -> ssl.SSLContext | None:
        """Return the TLS context of the server's port, whose certificate is validated already."""
        listen = self._server.config.listen
        if listen.tls_certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(listen.tls_certificate, listen.tls_key)
        return context

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        link = create_stream_transport(self._server, reader, writer)
        try:
            await self._handle_connection(link, str(writer.get_extra_info("peername")[0]), writer)
        except (SpeechError, TimeoutError) as error:
            code = "idle_timeout" if isinstance(error, TimeoutError) else error.code
            self._server.metrics.refused(code)
            log.info("device rejected", extra={"code": code})
        except asyncio.CancelledError:
            pass  # the port is closed; the streams of Python 3.11 call a cancelled task a fault
        finally:
            self._serving.discard(task)
            await close_writer(self._server, writer)

    async def _handle_connection(self, link: TcpStreamTransport, host: str, writer: asyncio.StreamWriter) -> None:
        self._check_capacity()
        reader = mqtt.MqttPacketReader(self._server.config.limits.max_message_bytes)
        async with asyncio.timeout(self._server.config.listen.handshake_timeout_s):
            first, early = await self._first(link, reader)
        connect, caller = await self._admit(link, first, host)
        where = str(writer.get_extra_info("sockname")[0])
        device = XiaozhiMqttDevice(
            self._devices, self._udp, link, connect, caller, host, self._settings.udp_public_host or where
        )
        self._num_devices += 1
        try:
            await self._serve_device(link, reader, device, early, self._keepalive_timeout_s(connect))
        finally:
            self._num_devices -= 1

    def _check_capacity(self) -> None:
        """Check that unauthenticated connections are within the limit; raises ``RequestRefused``."""
        limit = self._server.config.limits.max_http_connections
        if len(self._serving) - self._num_devices > limit:
            raise RequestRefused("too_many_connections", f"max_http_connections is {limit}")

    async def _serve_device(
        self,
        link: TcpStreamTransport,
        reader: mqtt.MqttPacketReader,
        device: XiaozhiMqttDevice,
        early: list[mqtt.MqttPacket],
        timeout_s: float,
    ) -> None:
        await link.send(mqtt.connack(mqtt.ACCEPTED))
        async with device:
            for packet in early:
                await device.handle_packet(packet)
            while True:
                async with asyncio.timeout(timeout_s):
                    piece = await link.receive()
                if piece is None:
                    return
                for packet in reader.push(piece):
                    if packet.kind == mqtt.DISCONNECT:
                        return
                    await device.handle_packet(packet)

    async def _first(
        self, link: TcpStreamTransport, reader: mqtt.MqttPacketReader
    ) -> tuple[mqtt.MqttPacket, list[mqtt.MqttPacket]]:
        """The first packet, and what came right behind it."""
        while (piece := await link.receive()) is not None:
            if found := list(reader.push(piece)):
                return found[0], found[1:]
        raise RemoteProtocolError("invalid_event", "the device left before it was authenticated")

    async def _admit(
        self, link: TcpStreamTransport, packet: mqtt.MqttPacket, host: str
    ) -> tuple[mqtt.ConnectPacket, Principal]:
        """Authenticate by the password, which is an API key. Raises ``RemoteProtocolError`` or ``RequestRefused``."""
        code = mqtt.WRONG_LEVEL
        try:
            connect = mqtt.parse_connect(packet)
            code = mqtt.WRONG_KEY
            gatekeeper = self._server.gatekeeper
            if not gatekeeper.has_keys and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
                raise RequestRefused("not_loopback", NO_KEYS)
            caller = gatekeeper.principal_for_key(connect.password, TokenScope.CALLS)
            code = mqtt.BUSY
            self._server.check_connection_limits(caller)
            if self._num_devices >= self._settings.max_devices:
                raise RequestRefused("too_many_connections", f"xiaozhi.max_devices is {self._settings.max_devices}")
        except (RemoteProtocolError, RequestRefused):
            await link.send(mqtt.connack(code))
            raise
        return connect, caller

    def _keepalive_timeout_s(self, connect: mqtt.ConnectPacket) -> float:
        return KEEP_ALIVE_GRACE * min(connect.keep_alive_s or MAX_KEEP_ALIVE_S, MAX_KEEP_ALIVE_S)


class XiaozhiMqttDevice:
    """A connected device, which has one conversation at a time."""

    def __init__(
        self,
        devices: XiaozhiService,
        udp: UdpServer,
        link: TcpStreamTransport,
        connect: mqtt.ConnectPacket,
        caller: Principal,
        host: str,
        public_host: str,
    ) -> None:
        self._devices, self._udp, self._link, self._caller = devices, udp, link, caller
        self._client_id, self._topic = connect.client_id, DEVICE_TOPIC + connect.client_id
        self._host, self._public_host = host, public_host
        self._line: XiaozhiMqttTransport | None = None
        self._conversing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> XiaozhiMqttDevice:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def handle_packet(self, packet: mqtt.MqttPacket) -> None:
        """Handle a packet; raises ``RemoteProtocolError``, ``RequestRefused`` or ``SessionError``."""
        match packet.kind:
            case mqtt.PUBLISH:
                published = mqtt.parse_publish(packet)
                if published.packet_id is not None:
                    await self._link.send(mqtt.puback(published.packet_id))
                await self._on_audio(published.payload)
            case mqtt.SUBSCRIBE:
                await self._link.send(mqtt.suback(*mqtt.parse_subscribe(packet)))
            case mqtt.PING:
                await self._link.send(mqtt.PINGRESP)

    async def _on_audio(self, payload: bytes) -> None:
        message = payload.decode("utf-8", "replace")
        if is_hello(message):
            await self._end()
            self._line = line = XiaozhiMqttTransport(self._publish)
            self._conversing = asyncio.create_task(self._run_conversation(line), name="voicewire device")
        if self._line is not None:
            self._line.on_text(message)

    async def _run_conversation(self, line: XiaozhiMqttTransport) -> None:
        with self._udp.stream(self._host, line.on_audio) as stream:
            line.stream = stream
            sound = stream.crypto
            place = {"server": self._public_host, "port": self._udp.port}
            udp = {**place, "key": sound.key.hex(), "nonce": sound.nonce.hex()}
            parameters = {"client_id": self._client_id} if self._client_id else {}
            dialect = XiaozhiDialect(f"device-{secrets.token_hex(8)}", parameters, "udp", udp=udp)
            try:
                await self._devices.run_conversation(line, dialect, self._caller)
            except SpeechError as error:
                self._devices.server.metrics.refused(error.code)
                log.info("device conversation rejected", extra={"code": error.code})
                await line.send(dialect.send_hang_up())
            finally:
                line.abort()

    async def _publish(self, message: str) -> None:
        await self._link.send(mqtt.publish(self._topic, message.encode()))

    async def _end(self) -> None:
        """End the conversation, if there is one."""
        line, conversing = self._line, self._conversing
        self._line = self._conversing = None
        if line is not None:
            line.abort()
        if conversing is not None:
            await asyncio.wait([conversing])


def is_hello(message: str) -> bool:
    with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
        found = msgspec.json.decode(message)
        return isinstance(found, dict) and found.get("type") == "hello"
    return False
