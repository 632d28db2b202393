"""xiaozhi over MQTT and UDP: a device made of aiomqtt (3.1.1) and a UDP socket, as the firmware is."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import aiomqtt
import pytest

from realtime.app import create_app
from realtime.config import ConfigError, load_config
from realtime.protocol.telephony.xiaozhi import HEADER, SOUND, EncryptedAudioStream
from realtime.transports.xiaozhi_mqtt_server import XiaozhiMqttServer
from realtime.xiaozhi.device_transport import UdpServer
from sessions.audio.opus import OpusDecoder
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.calls.test_sockets import dial, told
from tests.realtime.live_server import WAIT_S, LiveServer, live_server, unchecked_server, until

Json = dict[str, Any]
HELLO = {"type": "hello", "version": 3, "transport": "udp", "audio_params": {"format": "opus", "frame_duration": 60}}
PORTS = {"xiaozhi__mqtt": "127.0.0.1:0", "xiaozhi__udp": "127.0.0.1:0", "calls__barge_in": False}
TEXT = "Hello there, how are you today?"
KEY = "a-key-of-enough-characters"


@pytest.fixture
async def live() -> AsyncIterator[LiveServer]:
    async with live_server(**PORTS, xiaozhi__end_of_speech_delay_ms=100) as server:
        yield server


def ports(live: LiveServer) -> XiaozhiMqttServer:
    found = live.uvicorn.config.app.state.device_ports
    assert isinstance(found, XiaozhiMqttServer)
    return found


class Firmware:
    """One device."""

    def __init__(self, client: aiomqtt.Client, udp: socket.socket) -> None:
        self.client, self.udp = client, udp
        self.sound = EncryptedAudioStream(b"", 0)
        self._number = 0

    async def tell(self, **message: object) -> None:
        await self.client.publish("up", json.dumps(message), 1)

    async def told(self, kind: str, **more: str) -> Json:
        async with asyncio.timeout(WAIT_S):
            async for message in self.client.messages:
                found: Json = json.loads(message.payload)
                if found["type"] == kind and more.items() <= found.items():
                    return found
        raise AssertionError("the server has left")

    async def greet(self) -> Json:
        await self.tell(**HELLO)
        hello = await self.told("hello")
        nonce = bytes.fromhex(hello["udp"]["nonce"])
        self.sound = EncryptedAudioStream(bytes.fromhex(hello["udp"]["key"]), HEADER.unpack(nonce)[3])
        self.udp.connect((hello["udp"]["server"], hello["udp"]["port"]))
        return hello

    def speak(self, packet: bytes = b"\xf8\xff\xfe", number: int | None = None) -> None:
        self._number += 1
        header = HEADER.pack(1, 0, len(packet), self.sound.stream, 0, number or self._number)
        self.udp.send(header + self.sound._crypt(header, packet))

    def heard(self) -> list[tuple[int, bytes]]:
        """Numbers and packets that have come."""
        found = []
        while True:
            try:
                datagram = self.udp.recv(2_000)
            except BlockingIOError:
                return found
            found.append((HEADER.unpack_from(datagram)[5], self.sound._crypt(datagram[:16], datagram[16:])))


@asynccontextmanager
async def device(live: LiveServer, password: str | None = None) -> AsyncIterator[Firmware]:
    port = ports(live).port
    assert port is not None
    login = {"username": "device", "password": password} if password else {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        async with aiomqtt.Client("127.0.0.1", port, identifier="aa:bb:cc", **login) as client:
            yield Firmware(client, udp)


async def test_an_agent_speaks_to_a_device(live: LiveServer) -> None:
    async with dial(live, "/v1/calls") as agent, device(live) as firmware:
        await firmware.client.subscribe("devices/p2p/#")
        hello = await firmware.greet()
        assert hello["transport"] == "udp"
        assert hello["udp"]["server"] == "127.0.0.1"
        assert hello["udp"]["port"] == ports(live).udp_port
        call = await told(agent, "call.connected")
        assert call["parameters"] == {"client_id": "aa:bb:cc"}
        await agent.send(json.dumps({"type": "say", "call_id": call["call_id"], "text": TEXT}))
        await firmware.told("tts", state="start")
        firmware.speak()
        await firmware.told("tts", state="stop")
        packets = firmware.heard()
        decoder = OpusDecoder(24_000)
        assert [number for number, _ in packets] == list(range(1, len(packets) + 1)), "those before its first waited"
        assert {decoder.decode(packet).size for _, packet in packets} == {1_440}
        assert len(packets) > 20
        await firmware.tell(type="listen", state="detect", text="Hey")
        assert (await told(agent, "call.text"))["text"] == "Hey"
        await firmware.tell(type="goodbye")
        assert (await told(agent, "call.hung_up"))["reason"] == "caller"
        await firmware.told("goodbye")
        again = await firmware.greet()
        assert again["session_id"] != hello["session_id"]
        assert again["udp"]["key"] != hello["udp"]["key"]
        await told(agent, "call.connected")


async def test_every_address_of_a_host_takes_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with two addresses: sound that comes to the second is answered from there."""
    names = {"two.test": ["127.0.0.1", "127.0.0.2"]}
    ask = socket.getaddrinfo

    def look_up(host: str, *rest: Any, **more: Any) -> list[Any]:
        return [found for one in names.get(host, [host]) for found in ask(one, *rest, **more)]

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    port = UdpServer(max_packets_per_s=100)
    async with port.open("two.test", 0):
        for address in names["two.test"]:
            heard: list[bytes] = []
            with port.stream("127.0.0.1", heard.append) as stream, socket.socket(type=socket.SOCK_DGRAM) as udp:
                udp.bind(("127.0.0.1", 0))
                udp.settimeout(WAIT_S)
                stream.send(b"hello")
                header = HEADER.pack(SOUND, 0, 5, stream.crypto.stream, 0, 1)
                udp.sendto(header + stream.crypto._crypt(header, b"sound"), (address, port.port))
                await until(lambda heard=heard: heard == [b"sound"])
                datagram, sender = udp.recvfrom(2_000)
                assert sender == (address, port.port)
                assert stream.crypto._crypt(datagram[: HEADER.size], datagram[HEADER.size :]) == b"hello"


async def test_an_abort_and_another_hello() -> None:
    slow = FakeSpeechEngine(FakeScript(ms_per_char=60.0, real_time_factor=0.1))
    async with live_server(slow, **PORTS) as live, dial(live, "/v1/calls") as agent, device(live) as firmware:
        await firmware.greet()
        firmware.speak()
        call = await told(agent, "call.connected")
        await agent.send(json.dumps({"type": "say", "call_id": call["call_id"], "text": TEXT * 5}))
        await firmware.told("tts", state="start")
        await firmware.tell(type="abort")
        await firmware.told("tts", state="stop")
        assert (await told(agent, "reply.interrupted"))["cause"] == "caller"
        await firmware.greet()
        assert (await told(agent, "call.hung_up"))["reason"] == "caller"
        await told(agent, "call.connected")
        await until(lambda: live.speech.num_connections == 2)


async def test_sound_of_strangers_and_floods_is_dropped(live: LiveServer) -> None:
    async with dial(live, "/v1/calls") as agent, device(live) as firmware:
        await firmware.greet()
        call = await told(agent, "call.connected")
        (stream,) = ports(live)._udp._streams.values()
        for junk in (b"", b"x" * 5, bytes(40), b"\x01" * 1_500):
            firmware.udp.send(junk)
        firmware.speak(number=9)
        firmware.speak(number=9)
        firmware.speak(number=3)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind(("127.0.0.2", 0))
            stranger.connect(("127.0.0.1", ports(live).udp_port))
            header = HEADER.pack(1, 0, 1, firmware.sound.stream, 0, 50)
            stranger.send(header + b"x")
        await until(lambda: stream._answer is not None)
        assert stream.crypto._heard == 9
        for number in range(10, 500):
            firmware.speak(number=number)
        await agent.send(json.dumps({"type": "say", "call_id": call["call_id"], "text": "Hi."}))
        await firmware.told("tts", state="stop")
        assert stream._answer.address[0] == "127.0.0.1"
        assert stream.crypto._heard < 250, "so many a second, and no more"


async def test_admission_by_credentials() -> None:
    async with live_server(**PORTS, auth__api_keys=f"home:{KEY}") as live:
        for wrong in (None, "not-a-key-of-this-server"):
            with pytest.raises(aiomqtt.MqttError, match="uthori"):
                async with device(live, wrong):
                    pass
        async with device(live, KEY) as firmware:
            await firmware.greet()


async def raw(live: LiveServer, stream: bytes) -> bytes:
    """What is answered before the line is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", ports(live).port)
    writer.write(stream)
    try:
        return await asyncio.wait_for(reader.read(), WAIT_S)
    finally:
        writer.close()
        await writer.wait_closed()


async def test_lines_that_are_no_mqtt(live: LiveServer) -> None:
    assert await raw(live, b"GET / HTTP/1.1\r\n\r\n" + bytes(200)) == b"\x20\x02\x00\x01"
    assert await raw(live, b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x01a") == b"\x20\x02\x00\x01"
    assert await raw(live, b"\x10\xff\xff\xff\x7f") == b""
    connect = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a"
    assert await raw(live, connect + b"\xc0\x00" + b"\x34\x05\x00\x01a\x00\x07") == b"\x20\x02\x00\x00\xd0\x00"


async def test_limits_and_silence() -> None:
    limits = {"xiaozhi__max_devices": 1, "listen__handshake_timeout_s": 0.2}
    async with live_server(**PORTS, **limits) as live:
        assert await raw(live, b"") == b"", "who says nothing is sent away"
        async with device(live) as firmware:
            with pytest.raises(aiomqtt.MqttError, match=r"navailable|code:3"):
                async with device(live):
                    pass
            await firmware.greet()
            await firmware.client.publish("up", b"\xff{", 0)
            await firmware.told("goodbye")


async def test_a_server_that_ends_with_devices_on_it() -> None:
    async with live_server(**PORTS) as live, device(live) as firmware:
        await firmware.greet()
        live.speech.draining = True
        await firmware.told("goodbye")


def test_settings_that_cannot_be_are_named() -> None:
    config = load_config(flags={"xiaozhi.mqtt": "127.0.0.1:1884", "listen.gateways": 2})
    with pytest.raises(ConfigError, match=r"xiaozhi\.mqtt needs listen\.gateways = 1"):
        create_app(config, FakeSpeechEngine())


async def test_every_hello_asks_for_room() -> None:
    async with (
        live_server(**PORTS, limits__max_connections=1) as live,
        device(live) as first,
        device(live) as second,
    ):
        await first.greet()
        await second.tell(**HELLO)
        await second.told("goodbye")
        assert live.speech.num_connections == 1
        await first.tell(type="goodbye")
        await until(lambda: live.speech.num_connections == 0)
        await second.greet()
        await second.tell(type="goodbye")


async def test_an_end_with_devices_on_it_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    devices = AsyncExitStack()
    async with unchecked_server(**PORTS) as live:
        firmware = await devices.enter_async_context(device(live))
        await firmware.greet()
    await until(firmware.client._disconnected.done)
    assert firmware.client._disconnected.exception() is not None
    with suppress(aiomqtt.MqttError):
        await devices.aclose()
    assert not [record.message for record in caplog.records if record.levelname == "ERROR"]


async def test_client_without_key_takes_no_device_slot() -> None:
    limits = {"xiaozhi__max_devices": 1, "limits__max_http_connections": 2}
    async with live_server(**PORTS, **limits, auth__api_keys=f"home:{KEY}") as live:
        strangers = [await asyncio.open_connection("127.0.0.1", ports(live).port) for _ in range(2)]
        await until(lambda: len(ports(live)._serving) == 2)
        assert await raw(live, b"") == b"", "and there is an end to strangers too"
        strangers.pop()[1].close()
        await until(lambda: len(ports(live)._serving) == 1)
        async with device(live, KEY) as firmware:
            await firmware.greet()
        strangers.pop()[1].close()
