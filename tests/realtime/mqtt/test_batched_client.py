"""Publishing and receiving past paho-mqtt: order, limits, refusals, and malformed packets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from importlib.metadata import version
from pathlib import Path

import pytest

from realtime.errors import LocalProtocolError, RequestRefused
from realtime.integration_config import MqttSettings
from realtime.mqtt.batched_client import CHECKED_VERSIONS, MAX_INFLIGHT, MAX_WAITING_BYTES, BatchedSocket
from realtime.mqtt.broker_connector import BrokerConnector
from realtime.mqtt.connection import BrokerDisconnected, IncomingMessage, MqttConnection, Publication
from tests.realtime.live_server import WAIT_S, until
from tests.realtime.mqtt.mqtt_client import Mosquitto, mqtt_settings, running

GREETING = b"\x20\x03\x00\x00\x00"


class Pair:
    """One end gathered, the other a plain socket."""

    def __init__(self) -> None:
        held, self.other = socket.socketpair()
        held.setblocking(False)
        self.other.setblocking(False)
        self.heard: list[bytes] = []
        self.socket = BatchedSocket(held, self.heard.append, lambda: None)

    def read_all(self) -> bytes:
        found = b""
        with suppress(BlockingIOError):
            while piece := self.other.recv(65_536):
                found += piece
        return found


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    yield made
    made.socket.close()
    made.other.close()


async def test_what_is_written_in_a_turn_leaves_after_it(pair: Pair) -> None:
    assert [pair.socket.send(piece) for piece in (b"one ", b"two ", b"three")] == [4, 4, 5]
    assert pair.read_all() == b""
    await asyncio.sleep(0)
    assert pair.other.recv(100) == b"one two three"


async def test_writer_waits_when_the_buffer_is_full(pair: Pair) -> None:
    said = bytes(range(256)) * (MAX_WAITING_BYTES * 32 // 256)
    pair.socket.send(said)
    await asyncio.sleep(0)
    assert not pair.socket.has_capacity()
    waiting = asyncio.create_task(pair.socket.free_bytes())
    heard = b""
    async with asyncio.timeout(WAIT_S):
        while len(heard) < len(said):
            heard += pair.read_all()
            await asyncio.sleep(0)
        await waiting
    assert heard == said


async def test_what_was_written_leaves_before_it_closes(pair: Pair) -> None:
    pair.socket.send(b"farewell")
    pair.socket.close()
    assert pair.other.recv(100) == b"farewell"
    assert pair.other.recv(100) == b""


async def test_waiter_for_capacity_is_released_at_close(pair: Pair) -> None:
    pair.socket.send(bytes(64 * MAX_WAITING_BYTES))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(pair.socket.free_bytes())
    await asyncio.sleep(0)
    pair.socket.close()
    await asyncio.wait_for(waiting, WAIT_S)


async def test_the_end_is_read_once_all_else_is(pair: Pair) -> None:
    pair.other.send(b"last words")
    pair.other.close()
    await until(lambda: pair.heard == [b"last words", b""])


def test_private_parts_are_of_checked_versions() -> None:
    """Another version needs this file's tests, ``benchmarks.mqtt_latency``, and a new entry."""
    assert {name: version(name) for name in CHECKED_VERSIONS} == CHECKED_VERSIONS


@asynccontextmanager
async def lines(broker: Mosquitto, **settings: object) -> AsyncIterator[tuple[MqttConnection, MqttConnection]]:
    """Two at the broker."""
    given = mqtt_settings(broker.port, **settings)
    async with BrokerConnector(given, "one").connected() as one, BrokerConnector(given, "two").connected() as two:
        yield one, two


async def next_of(arrivals: AsyncIterator[IncomingMessage], num: int) -> list[IncomingMessage]:
    async with asyncio.timeout(WAIT_S):
        return [await anext(arrivals) for _ in range(num)]


async def test_what_is_posted_is_never_overtaken(broker: Mosquitto) -> None:
    async with lines(broker) as (one, two):
        await two.subscribe("row", qos=0)  # of those with more, Mosquitto itself lets some wait
        num = 3 * MAX_INFLIGHT
        for number in range(num):
            await one.publish_nowait(Publication(topic="row", payload=str(number), qos=number % 3 > 0))
        heard = await next_of(two.messages(), num)
        assert [int(arrival.payload) for arrival in heard] == list(range(num))


async def test_what_a_message_carries(broker: Mosquitto) -> None:
    async with lines(broker) as (one, two):
        await two.subscribe("all")
        said = Publication(
            topic="all",
            payload="é" * 40_000,
            qos=1,
            content_type="text/plain",
            correlation=b"\0\xff",
            response_topic="answers",
            expiry_s=7,
            user=(("a", "1"), ("a", "2"), ("ü", "")),
        )
        await one.publish(said)
        (heard,) = await next_of(two.messages(), 1)
        assert heard == IncomingMessage(
            "all", ("é" * 40_000).encode(), False, "answers", b"\0\xff", "text/plain", said.user
        )


async def test_what_is_posted_and_not_taken_ends_the_line(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with lines(broker, response_timeout_s=0.3) as (one, _):
            broker.stop_answering()
            await one.publish_nowait(Publication(topic="nobody", qos=1))
            with pytest.raises(BrokerDisconnected):
                await asyncio.wait_for(one.wait_disconnected(), WAIT_S)
            with pytest.raises(BrokerDisconnected):
                await one.publish_nowait(Publication(topic="nobody"))
            broker.kill()


async def test_dead_broker_blocks_no_publisher(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with lines(broker, response_timeout_s=10 * WAIT_S) as (one, two):
            broker.stop_answering()
            said = Publication(topic="nobody", qos=1)
            posts = [one.publish_nowait(said) for _ in range(MAX_INFLIGHT + 5)]
            work = [asyncio.create_task(asking) for asking in (*posts, one.subscribe("row"), two.publish(said))]
            await asyncio.sleep(0.1)
            broker.kill()
            done, waiting = await asyncio.wait(work, timeout=WAIT_S)
            assert not waiting
            assert sum(isinstance(one.exception(), BrokerDisconnected) for one in done) == 5 + 2


async def test_what_is_too_long_costs_itself_alone(tmp_path: Path) -> None:
    with running(tmp_path, "max_packet_size 3000") as broker:
        async with lines(broker) as (one, two):
            await two.subscribe("row")
            for qos in [0, *[1] * (MAX_INFLIGHT + 1)]:
                with pytest.raises(LocalProtocolError, match="3000"):
                    await one.publish_nowait(Publication(topic="row", payload=bytes(3_000), qos=qos))
            await one.publish(Publication(topic="row", payload=b"short", qos=1))
            (heard,) = await next_of(two.messages(), 1)
            assert heard.payload == b"short"


async def test_what_the_broker_does_not_allow_is_no_success(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite row\n")
    with running(tmp_path, f"acl_file {acl}") as broker:
        async with lines(broker) as (one, two):
            await two.subscribe("row")
            with pytest.raises(RequestRefused, match="refuses a message to secret: reason code 135"):
                await one.publish(Publication(topic="secret", qos=1))
            refused: list[str] = []
            for topic in ("row", "secret", "row"):
                await one.publish_nowait(Publication(topic=topic, qos=1), lambda topic=topic: refused.append(topic))  # type: ignore[misc]
            await one.publish(Publication(topic="row", payload=b"last", qos=1))
            assert refused == ["secret"]
            assert [heard.payload for heard in await next_of(two.messages(), 3)] == [b"", b"", b"last"]


async def test_no_message_is_read_after_last_listener_left(broker: Mosquitto) -> None:
    async with lines(broker) as (one, two):
        await one.subscribe("row")
        taken: list[IncomingMessage] = []
        listening = asyncio.create_task(one.set_handler(taken.append))
        await two.publish(Publication(topic="row", payload=b"heard", qos=1))
        await until(lambda: len(taken) == 1)
        listening.cancel()
        await asyncio.wait([listening])
        await two.publish(Publication(topic="row", payload=b"kept", qos=1))
        assert (await next_of(one.messages(), 1))[0].payload == b"kept"
        assert len(taken) == 1


@pytest.fixture
def liar() -> Iterator[tuple[socket.socket, int]]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server, server.getsockname()[1]


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(b"\x30\xff\xff\xff\xff\x7f", id="a length without end"),
        pytest.param(b"\x30\x03\x00\x09a", id="a topic without end"),
        pytest.param(b"\x30\x05\x00\x01a\x01\x77", id="an unknown property"),
        pytest.param(b"\x30\x04\x00\x01\xff\x00", id="no UTF-8"),
        pytest.param(b"\xe0\x00\xd0\x00", id="words after its goodbye"),
    ],
)
async def test_nonsense_of_a_broker_ends_the_line(liar: tuple[socket.socket, int], nonsense: bytes) -> None:
    server, port = liar
    connected = asyncio.Event()
    speaking = asyncio.create_task(speak(server, GREETING, connected, nonsense))
    async with BrokerConnector(MqttSettings(url=f"mqtt://127.0.0.1:{port}"), "x").connected() as line:
        connected.set()
        with pytest.raises(BrokerDisconnected):
            await next_of(line.messages(), 1)
    await asyncio.wait_for(speaking, WAIT_S)


async def test_a_broker_that_breaks_off_with_its_first_words(liar: tuple[socket.socket, int]) -> None:
    server, port = liar
    at_once = GREETING + b"\x30\xff\xff\xff\xff\x7f"
    speaking = asyncio.create_task(speak(server, at_once, asyncio.Event(), b""))
    with pytest.raises(BrokerDisconnected):
        async with BrokerConnector(MqttSettings(url=f"mqtt://127.0.0.1:{port}"), "x").connected():
            pass
    speaking.cancel()
    await asyncio.wait([speaking])


async def test_no_more_is_on_its_way_than_the_broker_takes(liar: tuple[socket.socket, int]) -> None:
    server, port = liar
    connected, three_at_once = asyncio.Event(), b"\x20\x06\x00\x00\x03\x21\x00\x03"
    speaking = asyncio.create_task(speak(server, three_at_once, connected, b""))
    settings = mqtt_settings(port, response_timeout_s=0.3)
    async with BrokerConnector(settings, "x").connected() as line:
        await asyncio.gather(
            *(line.publish_nowait(Publication(topic="row", qos=1)) for _ in range(10)), return_exceptions=True
        )
        connected.set()
        heard = await asyncio.wait_for(speaking, WAIT_S)
        assert heard.count(b"\x00\x03row") == 3


async def test_verbose_client_delays_no_other(liar: tuple[socket.socket, int]) -> None:
    server, port = liar
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    reading = asyncio.create_task(read_slowly(server))
    async with BrokerConnector(mqtt_settings(port, response_timeout_s=2.0), "x").connected() as line:

        async def say_much() -> None:
            while True:
                await line.publish_nowait(Publication(topic="much", payload=bytes(4_000)))

        much = [asyncio.create_task(say_much()) for _ in range(3)]
        await until(lambda: not line._client.socket.has_capacity())
        for _ in range(5):
            await line.publish_nowait(Publication(topic="little"))
        for task in (*much, reading):
            task.cancel()
        await asyncio.wait([*much, reading])


async def read_slowly(server: socket.socket) -> None:
    server.setblocking(False)
    loop = asyncio.get_running_loop()
    far, _ = await loop.sock_accept(server)
    with closing(far):
        await loop.sock_recv(far, 1_000)
        await loop.sock_sendall(far, GREETING)
        while await loop.sock_recv(far, 8_192):
            await asyncio.sleep(0.01)


async def speak(server: socket.socket, at_once: bytes, connected: asyncio.Event, later: bytes) -> bytes:
    """A broker of few words. Gives what it is told after the last."""
    server.setblocking(False)
    loop = asyncio.get_running_loop()
    far, _ = await loop.sock_accept(server)
    with closing(far):
        await loop.sock_recv(far, 1_000)
        await loop.sock_sendall(far, at_once)
        await connected.wait()
        await loop.sock_sendall(far, later)
        return await loop.sock_recv(far, 1_000)
