"""Gateways hear of each other's calls: an agent need not be where the line is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from realtime.calls import gateway_hub
from realtime.calls.call_registry import AgentSubscription, CallRegistry, RegisteredCall
from realtime.calls.gateway_hub import GatewayHub, HubClient
from realtime.errors import RequestRefused
from realtime.protocol.telephony import model
from sessions.errors import DuplicateResponse
from tests.realtime.live_server import WAIT_S, until

KEY = "agent"


class Gateway:
    def __init__(self, board: CallRegistry, relay: HubClient, stack: AsyncExitStack) -> None:
        self.board, self.relay, self._stack = board, relay, stack

    async def leave(self) -> None:
        await self._stack.aclose()


class Fleet:
    def __init__(self, path: Path, stack: AsyncExitStack) -> None:
        self._path, self._stack = path, stack

    async def gateway(self, max_events: int = 100, answer_timeout_s: float = WAIT_S) -> Gateway:
        own = await self._stack.enter_async_context(AsyncExitStack())
        board = CallRegistry(max_events)
        relay = HubClient(board, self._path, answer_timeout_s)
        await own.enter_async_context(relay.open())
        return Gateway(board, relay, own)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    path = tmp_path / "x"
    async with GatewayHub().open(path), AsyncExitStack() as stack:
        yield Fleet(path, stack)


@asynccontextmanager
async def call(gateway: Gateway, call_id: str = "c1") -> AsyncIterator[RegisteredCall]:
    """A call that accepts whatever is said, and tells that it is played before that is answered."""

    async def obey(command: model.Command) -> model.CallEvent | None:
        match command:
            case model.SayCommand(text="again"):
                raise DuplicateResponse("it exists already", "reply_id")
            case model.SayCommand():
                asyncio.get_running_loop().call_soon(gateway.board.publish, live, played(call_id))
                return model.CallReplyAccepted(call_id=call_id, reply_id="r")
            case model.HangUpCommand():
                gateway.board.publish(live, model.CallEnded(call_id=call_id, reason="agent"))
        return None

    live = RegisteredCall(KEY, connected(call_id), obey)
    with gateway.board.connected(live):
        yield live


def connected(call_id: str) -> model.CallConnected:
    about = {"provider": "twilio", "provider_call_id": "CA1", "encoding": "mulaw", "sample_rate": 8_000}
    return model.CallConnected(call_id=call_id, **about, parameters={"a": "b\n"})  # type: ignore[arg-type]


def played(call_id: str) -> model.CallReplyPlayed:
    return model.CallReplyPlayed(call_id=call_id, reply_id="r", played_ms=20.0, confirmed=True)


async def heard(agent: AgentSubscription) -> model.CallEvent | None:
    async with asyncio.timeout(WAIT_S):
        return await agent.events.get()


async def test_a_call_is_known_spoken_into_and_ended_from_everywhere(fleet: Fleet) -> None:
    here, there = await fleet.gateway(), await fleet.gateway()
    with there.board.subscribe(KEY) as agent, there.board.subscribe("other") as stranger:
        async with call(here) as live:
            assert await heard(agent) == live.connected
            assert there.board.calls(KEY) == [live.connected]
            assert there.board.local_calls() == []
            answer = await there.board.call(KEY, "c1").handle_command(model.SayCommand(text="Hi\nthere"))
            assert answer == model.CallReplyAccepted(call_id="c1", reply_id="r")
            assert await heard(agent) == played("c1")
            with pytest.raises(RequestRefused, match="exists already") as refused:
                await there.board.call(KEY, "c1").handle_command(model.SayCommand(text="again"))
            assert (refused.value.code, refused.value.param) == ("duplicate_response", "reply_id")
            with there.board.subscribe(KEY, "c1") as only:
                with pytest.raises(RequestRefused, match="has ended"):
                    await there.board.call(KEY, "c1").handle_command(model.HangUpCommand())
                ended = model.CallEnded(call_id="c1", reason="agent")
                assert [await heard(only) for _ in range(3)] == [live.connected, ended, None]
            assert await heard(agent) == ended
            assert there.board.calls(KEY) == []
        assert stranger.events.empty()


async def test_late_hub_client_receives_existing_calls(fleet: Fleet) -> None:
    here, there = await fleet.gateway(), await fleet.gateway()
    async with call(here) as first, call(there, "c2") as second:
        late = await fleet.gateway()
        await until(lambda: len(late.board.calls(KEY)) == 2)
        assert {one.call_id for one in late.board.calls(KEY)} == {first.connected.call_id, second.connected.call_id}
        with here.board.subscribe(KEY) as agent, here.board.subscribe(KEY, only_here=True) as own:
            assert {(await heard(agent)).call_id for _ in range(2)} == {"c1", "c2"}  # type: ignore[union-attr]
            assert await heard(own) == first.connected
            assert (agent.events.qsize(), own.events.qsize()) == (0, 0), "nothing is told twice"


async def test_a_gateway_that_goes_takes_its_calls_along(fleet: Fleet) -> None:
    here, there = await fleet.gateway(), await fleet.gateway()
    never = asyncio.Event()

    async def obey(_: model.Command) -> None:
        await never.wait()

    with there.board.subscribe(KEY) as agent, here.board.connected(RegisteredCall(KEY, connected("c1"), obey)):
        await heard(agent)
        asking = asyncio.create_task(there.board.call(KEY, "c1").handle_command(model.InterruptCommand()))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        await here.leave()
        assert await heard(agent) == model.CallEnded(call_id="c1", reason="internal_error")
        with pytest.raises(RequestRefused):
            await asking
        assert there.board.calls(KEY) == []


async def test_a_gateway_that_hangs_holds_no_agent_for_ever(fleet: Fleet) -> None:
    here, there = await fleet.gateway(), await fleet.gateway(answer_timeout_s=0.05)
    never = asyncio.Event()

    async def obey(_: model.Command) -> None:
        await never.wait()

    with here.board.connected(RegisteredCall(KEY, connected("c1"), obey)):
        await until(lambda: bool(there.board.calls(KEY)))
        with pytest.raises(RequestRefused, match="does not answer"):
            await there.board.call(KEY, "c1").handle_command(model.InterruptCommand())


async def test_hub_answer_after_end_of_call_is_ignored(fleet: Fleet) -> None:
    """Both in one piece: who asked has not heard of the end yet when the answer is read."""
    here, there = await fleet.gateway(), await fleet.gateway()
    async with call(here) as first, call(here, "c2") as second:

        async def obey(_: model.Command) -> None:
            here.board.publish(first, model.CallEnded(call_id="c1", reason="caller"))

        first.handle_command = obey
        await until(lambda: len(there.board.calls(KEY)) == 2)
        with there.board.subscribe(KEY, "c2") as agent:
            with pytest.raises(RequestRefused, match="has ended"):
                await there.board.call(KEY, "c1").handle_command(model.InterruptCommand())
            assert isinstance(
                await there.board.call(KEY, "c2").handle_command(model.SayCommand(text="x")), model.CallReplyAccepted
            )
            assert [await heard(agent), await heard(agent)] == [second.connected, played("c2")]


async def test_broken_hub_connection_is_reconnected(fleet: Fleet) -> None:
    here, there = await fleet.gateway(), await fleet.gateway()
    with there.board.subscribe(KEY) as agent:
        async with call(here) as live:
            assert await heard(agent) == live.connected
            assert here.relay._writer is not None
            here.relay._writer.transport.abort()
            assert isinstance(await heard(agent), model.CallEnded)
            assert await heard(agent) == live.connected
            assert isinstance(
                await there.board.call(KEY, "c1").handle_command(model.SayCommand(text="x")), model.CallReplyAccepted
            )


async def test_hub_logs_invalid_lines_and_no_gateway_that_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gateway_hub, "MAX_LINE_BYTES", 100)
    hub, path = GatewayHub(), tmp_path / "x"
    async with hub.open(path):
        with socket.socket(socket.AF_UNIX) as leaving, socket.socket(socket.AF_UNIX) as other:
            for num_gateways, gateway in enumerate((leaving, other), 1):
                gateway.connect(str(path))
                await until(lambda num=num_gateways: len(hub._gateways) == num)
            leaving.close()  # without having read of the other one
            await until(lambda: len(hub._gateways) == 1)
            assert not caplog.records
            other.sendall(bytes(1000))
            await until(lambda: not hub._gateways)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_fault_in_a_command_cuts_nothing_off_for_good(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    here, there = await fleet.gateway(), await fleet.gateway()

    async def obey(_: model.Command) -> None:
        raise AssertionError

    with there.board.subscribe(KEY) as agent, here.board.connected(RegisteredCall(KEY, connected("c1"), obey)):
        await heard(agent)
        with pytest.raises(RequestRefused, match="has ended"):
            await there.board.call(KEY, "c1").handle_command(model.InterruptCommand())
        assert isinstance(await heard(agent), model.CallEnded)
        assert await heard(agent) == connected("c1"), "it is told again"
    assert "gateway hub client failed" in caplog.text


async def test_no_exchange_gives_no_report() -> None:
    board = CallRegistry(10)
    async with HubClient(board, None, WAIT_S).open():
        assert board.elsewhere is None
