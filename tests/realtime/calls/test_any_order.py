"""Whatever the agent and the phone do, in any order: each reply ends once, the hang-up is the last that is told of a
call, nothing is sent of what was cut, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest

from engine.api import SpeechError
from realtime.auth import LOCAL
from realtime.protocol import model
from tests.fakes.engine import FakeScript
from tests.realtime.calls import twilio_simulator
from tests.realtime.calls.conftest import Phone, phone

pytestmark = pytest.mark.virtual_time

NUM_RUNS, NUM_RUNS_SLOW = 6, 200
NUM_ACTS = 60
ENDS = (model.CallReplyPlayed, model.CallReplyInterrupted, model.CallReplyFailed)
TEXTS = ("", "  ", "Hi.", "Hello there, how are you today?", "It is nice to hear you. " * 8)


def act(rng: random.Random, call: Phone) -> model.Command | str:
    """What somebody does next."""
    reply_id = rng.choice("abcd")
    chunk = rng.randrange(3_000)
    choices: list[tuple[int, model.Command | str]] = [
        (8, model.SayCommand(text=rng.choice(TEXTS), reply_id=rng.choice((reply_id, None)), end=rng.random() < 0.7)),
        (5, model.AppendCommand(reply_id=reply_id, text=rng.choice(TEXTS))),
        (4, model.MarkCommand(reply_id=reply_id, name="m")),
        (4, model.EndReplyCommand(reply_id=reply_id)),
        (2, model.InterruptCommand()),
        (1, model.HangUpCommand(after_speech=rng.random() < 0.5)),
        (4, twilio_simulator.media(chunk=chunk)),
        (2, twilio_simulator.dtmf("5")),
        (1, twilio_simulator.mark(f"vw{rng.randrange(30)}")),
        (1, twilio_simulator.stop() if rng.random() < 0.3 else twilio_simulator.connected()),
    ]
    weights, acts = zip(*choices, strict=True)
    return rng.choices(acts, weights)[0]


async def live_through(seed: int) -> None:
    rng = random.Random(seed)
    script = FakeScript(ms_per_char=50.0, real_time_factor=0.1, fail_at_frame=rng.choice((None, None, 5, 30)))
    limits = {"limits__text_timeout_s": 4.0, "calls__max_pending_replies": 4, "calls__max_marks_per_reply": 3}
    async with phone(script, **limits, calls__lead_ms=rng.choice((40, 400, 3_000))) as call:
        call.far._returns_marks = rng.random() < 0.7
        call.say_to_server(twilio_simulator.connected(), twilio_simulator.start())
        call_id = (await call.event(model.CallConnected)).call_id or ""
        accepted = Counter[str]()
        for _ in range(NUM_ACTS):
            await asyncio.sleep(rng.choice((0, 0, 0.005, 0.1, 0.6)))
            rng.choice((call.link.writable.set, call.link.writable.set, call.link.writable.clear))()
            match act(rng, call):
                case str(message):
                    call.say_to_server(message)
                case command:
                    with suppress(SpeechError):
                        answer = await call.board.call(LOCAL.name, call_id).handle_command(command)
                        if isinstance(answer, model.CallReplyAccepted):
                            accepted[answer.reply_id] += 1
        call.link.writable.set()
        call.say_to_server(twilio_simulator.stop())
        await call.event(model.CallEnded)
        assert call.agent.events.empty(), "something was told after the hang-up"
        assert Counter(event.reply_id for event in call.heard if isinstance(event, ENDS)) == accepted
        assert sum(isinstance(event, model.CallEnded) for event in call.heard) == 1
        num_messages = len(call.far.events)
        await asyncio.sleep(2.0)
        assert len(call.far.events) == num_messages, "something was sent after the hang-up"


@pytest.mark.parametrize("seed", range(NUM_RUNS))
async def test_in_any_order(seed: int) -> None:
    await live_through(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_in_many_orders() -> None:
    for seed in range(NUM_RUNS, NUM_RUNS_SLOW):
        await live_through(seed)
