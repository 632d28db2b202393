"""A server in virtual time, a phone connected to it by a line of queues, and an agent who hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from realtime.auth import LOCAL, Authenticator
from realtime.calls.call_registry import AgentSubscription, CallRegistry
from realtime.calls.connection import CallConnection
from realtime.protocol.telephony import model
from realtime.protocol.telephony.base import TelephonyDialect
from realtime.protocol.telephony.twilio import TwilioDialect
from realtime.server import SpeechServer
from realtime.transports.transport import MessageTransport
from sessions.vad.silero import load_model
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.calls import twilio_simulator
from tests.realtime.live_server import load_test_config

SCRIPT = FakeScript(ms_per_char=50.0, first_chunk_s=0.05, real_time_factor=0.1)


class QueueLink(MessageTransport):
    """What the phone says goes in, what the server says is told at once."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self.told: Callable[[str | bytes], None] = lambda _: None
        self.closed: tuple[int, str] | None = None
        self.unblocked = asyncio.Event()
        self.unblocked.set()

    async def receive(self) -> str | bytes | None:
        return None if self.closed else await self.incoming.get()

    async def writable(self) -> bool:
        await self.unblocked.wait()
        return self.closed is None

    async def write(self, message: str | bytes) -> None:
        self.told(message)

    async def close(self, code: int, reason: str = "") -> None:
        if self.closed is None:
            self.closed = (code, reason)
            self.incoming.put_nowait(None)


class Phone:
    """A connected call, its far side, and an agent."""

    def __init__(
        self, conversing: asyncio.Task[None], link: QueueLink, agent: AgentSubscription, board: CallRegistry
    ) -> None:
        self.conversing, self.link, self.board = conversing, link, board
        self.agent = agent
        self.heard: list[model.CallEvent] = []
        self.far = twilio_simulator.TwilioSimulator(link.incoming.put_nowait)
        link.told = self.far.receive

    def say_to_server(self, *messages: str | bytes) -> None:
        for message in messages:
            self.link.incoming.put_nowait(message)

    async def command(self, command: model.Command) -> model.CallEvent | None:
        live = self.board.calls(LOCAL.name)[0]
        return await self.board.call(LOCAL.name, live.call_id).handle_command(command)

    async def event(self, kind: type[model.EventBase]) -> model.CallEvent:
        """The next of this kind; all are kept in ``heard``."""
        async with asyncio.timeout(120):
            while True:
                event = await self.agent.events.get()
                assert event is not None
                self.heard.append(event)
                if isinstance(event, kind):
                    return event


@asynccontextmanager
async def phone(
    script: FakeScript = SCRIPT, dialect: TelephonyDialect | None = None, **flags: object
) -> AsyncIterator[Phone]:
    load_model()  # real time would pass while it is loaded
    settings = {"speech.aligner": "even"} | {name.replace("__", "."): value for name, value in flags.items()}
    engine = FakeSpeechEngine(script)
    server = SpeechServer(load_test_config(settings), engine, Authenticator([]))
    await server.start()
    board, link = CallRegistry(1_000), QueueLink()
    connection = CallConnection(server, board, dialect or TwilioDialect(), LOCAL, link)
    with board.subscribe(LOCAL.name) as agent:
        conversing = asyncio.create_task(connection.run())
        try:
            yield Phone(conversing, link, agent, board)
        finally:
            await link.close(1000)
            await asyncio.wait([conversing])
            assert conversing.cancelled() or conversing.exception() is None
            await connection.aclose()
            assert not board.calls(LOCAL.name)
            assert server.registry.statistics().num_sessions == 0
            assert server.num_connections == 0
            assert not engine.streams
            await server.aclose()
