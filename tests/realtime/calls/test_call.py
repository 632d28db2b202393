"""A call from its connection to the hang-up: replies in turn, marks, clears, and whatever goes wrong on a line."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from engine.api import SpeechError
from realtime.auth import LOCAL
from realtime.calls.playout import CallPlayout
from realtime.errors import RequestRefused
from realtime.integration_config import CallSettings
from realtime.protocol.telephony import model
from realtime.protocol.telephony.asterisk import AsteriskDialect
from realtime.protocol.telephony.model import TelephonyFormat
from realtime.protocol.telephony.twilio import TwilioDialect
from sessions.clock import TICK_S, WakeEvent, next_tick, now_s
from sessions.errors import DuplicateResponse, LimitExceeded, TextInputClosed, UnknownResponse
from sessions.vad.energy import SILENCE_DB
from tests.fakes.engine import FakeScript
from tests.realtime.calls import twilio_simulator
from tests.realtime.calls.conftest import Phone, phone

pytestmark = pytest.mark.virtual_time

TEXT = "Hello there, how are you today? It is nice to hear you."


async def connect(call: Phone) -> model.CallConnected:
    call.say_to_server(twilio_simulator.connected(), twilio_simulator.start(name="Ann"))
    event = await call.event(model.CallConnected)
    assert isinstance(event, model.CallConnected)
    return event


async def test_a_reply_is_played_in_frames_at_the_callers_pace() -> None:
    async with phone() as call:
        told = await connect(call)
        assert (told.provider, told.provider_call_id, told.parameters) == (
            "twilio",
            twilio_simulator.CALL,
            {"name": "Ann"},
        )
        accepted = await call.command(model.SayCommand(text=TEXT))
        played = await call.event(model.CallReplyPlayed)
        assert isinstance(accepted, model.CallReplyAccepted)
        assert (played.reply_id, played.confirmed) == (accepted.reply_id, True)
        assert set(call.far.payload_sizes) == {160}
        assert call.far.played_s == pytest.approx(played.played_ms / 1000, abs=0.02)
        assert played.played_ms == pytest.approx(len(TEXT) * 50, rel=0.1)
        assert call.far.longest_queue_s <= 0.261
        assert call.far.events.count("mark") == 3


def began_line(wake: Callable[[], None] = lambda: None) -> CallPlayout:
    """Of Twilio's."""
    dialect = TwilioDialect()
    dialect.receive_message(twilio_simulator.connected())
    dialect.receive_message(twilio_simulator.start())
    return CallPlayout(dialect, TelephonyFormat(), CallSettings(lead_ms=100), wake)


async def play(line: CallPlayout, data: bytes, alarm: WakeEvent | None = None) -> list[float]:
    """Put it, and pop every frame when it is due; when that was."""
    line.put(data)
    sent_s = []
    while line.has_frame:
        if line.pop_due(now_s()):
            sent_s.append(now_s())
        else:
            await (alarm or WakeEvent()).wait(until_s=line.due_s(now_s()))
    return sent_s


@pytest.mark.parametrize("is_cleared", [True, False])
async def test_our_own_voice_comes_back_for_a_moment_only(is_cleared: bool) -> None:
    line = began_line()
    for _ in range(2):
        assert line.playout_level_db() == SILENCE_DB
        await play(line, bytes(160 * 50))
        assert line.playout_level_db() > -10
        if is_cleared:
            line.on_cleared()
        await asyncio.sleep(0.5)
        assert line.playout_level_db() > -10
        await asyncio.sleep(0.4)


async def test_marks_that_were_cleared_are_never_reached() -> None:
    reached: list[bool] = []
    line = began_line()
    await play(line, bytes(160))
    line.put_mark(reached.append)
    assert len(line.pop_due(now_s())) == 1
    line.put(bytes(8_000))
    line.put_mark(reached.append)
    line.on_cleared()
    assert line.pop_due(now_s()) == []
    await play(line, bytes(800))
    await asyncio.sleep(60)
    line.on_tick()
    assert reached == []


async def test_writer_wakes_on_resume_mark_and_clear() -> None:
    alarm = Counter[str]()
    line = began_line(lambda: alarm.update(["wake"]))
    line.set_paused(False)
    assert alarm["wake"] == 1
    line.put_mark(lambda _: None)
    line.pop_due(now_s())
    line.on_mark_reached("vw1")
    assert alarm["wake"] == 2
    line.on_cleared()
    assert alarm["wake"] == 3


async def test_line_has_room_once_whole_frames_and_marks_are_popped() -> None:
    line = began_line()
    line.put(bytes(100))
    assert line.has_room
    line.fill_frame()
    line.put_mark(lambda _: None)
    assert not line.has_room
    assert len(line.pop_due(now_s())) == 1
    assert not line.has_room
    assert len(line.pop_due(now_s())) == 1
    assert line.has_room


async def test_frames_leave_on_ticks_though_the_first_did_not() -> None:
    """Else whoever wakes for another reason would send sooner than who is woken by a tick, by up to one."""
    line, alarm = began_line(), WakeEvent()
    await asyncio.sleep(next_tick(now_s()) + 0.0013 - now_s())
    playing = asyncio.create_task(play(line, bytes(160 * 50), alarm))
    while not playing.done():
        await asyncio.sleep(0.0007)
        alarm.set()
    sent_s = await playing
    paced_s = [moment_s for moment_s in sent_s if moment_s > sent_s[0] + 0.02]
    assert len(paced_s) > 40
    after_tick_s = [moment_s - next_tick(moment_s - TICK_S + 0.0001) for moment_s in paced_s]
    assert max(after_tick_s) < 0.001


async def test_replies_are_spoken_in_turn_without_a_growing_lead() -> None:
    async with phone() as call:
        await connect(call)
        for number in range(12):
            await call.command(model.SayCommand(text="Hello there.", reply_id=f"r{number}"))
        for number in range(12):
            assert (await call.event(model.CallReplyPlayed)).reply_id == f"r{number}"
        assert call.far.longest_queue_s <= 0.261


async def test_text_may_come_piece_by_piece_with_marks_between() -> None:
    async with phone() as call:
        await connect(call)
        await call.command(model.SayCommand(reply_id="r", end=False))
        await call.command(model.AppendCommand(reply_id="r", text="Hello there. "))
        await call.command(model.MarkCommand(reply_id="r", name="greeted"))
        await asyncio.sleep(0.3)
        await call.command(model.AppendCommand(reply_id="r", text="How are you? "))
        await call.command(model.MarkCommand(reply_id="r", name="asked"))
        await call.command(model.EndReplyCommand(reply_id="r"))
        await call.event(model.CallReplyPlayed)
        kinds = [(type(event), getattr(event, "name", None)) for event in call.heard[1:]]
        assert kinds == [
            (model.CallMarkReached, "greeted"),
            (model.CallMarkReached, "asked"),
            (model.CallReplyPlayed, None),
        ]
        with pytest.raises(UnknownResponse):
            await call.command(model.AppendCommand(reply_id="r", text="more"))


async def test_interrupt_stops_all_replies_and_reports_heard_text() -> None:
    async with phone() as call:
        await connect(call)
        await call.command(model.SayCommand(text=TEXT, reply_id="first"))
        await call.command(model.SayCommand(text=TEXT, reply_id="second"))
        await asyncio.sleep(1.0)
        await call.command(model.InterruptCommand())
        num_messages = len(call.far.events)
        assert call.far.events[-1] == "clear"
        first, second = await call.event(model.CallReplyInterrupted), await call.event(model.CallReplyInterrupted)
        assert (first.reply_id, first.cause) == ("first", "agent")
        assert first.heard.text + first.heard.remaining == TEXT
        assert first.heard.text.startswith("Hello")
        assert first.heard.remaining
        assert first.heard.played_ms == pytest.approx(1000 * call.far.played_s, abs=120)
        assert (second.heard.text, second.heard.remaining, second.heard.played_ms) == ("", TEXT, 0.0)
        await asyncio.sleep(3.0)
        assert len(call.far.events) == num_messages, "something came after the clear"
        await call.command(model.SayCommand(text="Again.", reply_id="third"))
        assert (await call.event(model.CallReplyPlayed)).reply_id == "third"
        assert not any(isinstance(event, model.CallReplyPlayed) for event in call.heard[:-1])


async def test_a_mark_within_a_piece_of_audio_stands_where_it_was_sent() -> None:
    """A piece is longer than what may be sent of it at once: what waits of it is behind the mark."""
    async with phone(FakeScript(ms_per_char=50.0, first_chunk_s=0.05, real_time_factor=0.01, chunk_frames=3)) as call:
        await connect(call)
        await call.command(model.SayCommand(text=TEXT))
        await asyncio.sleep(1.6)
        await call.command(model.InterruptCommand())
        cut = await call.event(model.CallReplyInterrupted)
        assert call.far.events.count("mark") == 1
        assert cut.heard.played_ms == pytest.approx(1000 * call.far.played_s, abs=20)
        assert call.far.longest_queue_s <= 0.261


async def test_what_was_sent_and_not_played_is_cut_too() -> None:
    async with phone(calls__lead_ms=3_000) as call:
        await connect(call)
        await call.command(model.SayCommand(text="Hello there, good day.", reply_id="r"))
        await asyncio.sleep(0.85)
        await call.command(model.InterruptCommand())
        cut = await call.event(model.CallReplyInterrupted)
        assert cut.heard.text == "Hello there,"
        assert cut.heard.remaining.strip() == "good day."


async def test_marks_that_never_return_are_reported_by_clock() -> None:
    async with phone(calls__mark_timeout_s=2.0) as call:
        call.far._returns_marks = False
        await connect(call)
        await call.command(model.SayCommand(text="Hello there.", reply_id="r"))
        for _ in range(40):
            await asyncio.sleep(0.25)
        played = await call.event(model.CallReplyPlayed)
        assert not played.confirmed


async def test_dtmf_during_playout_is_reported_without_interruption() -> None:
    async with phone() as call:
        await connect(call)
        await call.command(model.SayCommand(text=TEXT))
        await asyncio.sleep(0.5)
        call.say_to_server(twilio_simulator.dtmf("5"), twilio_simulator.dtmf("#"))
        assert [(await call.event(model.CallDtmf)).digit for _ in range(2)] == ["5", "#"]
        assert (await call.event(model.CallReplyPlayed)).played_ms == pytest.approx(len(TEXT) * 50, rel=0.1)


async def test_a_hang_up_in_mid_word_ends_everything_once() -> None:
    async with phone() as call:
        await connect(call)
        await call.command(model.SayCommand(text=TEXT, reply_id="r"))
        await asyncio.sleep(0.5)
        call.say_to_server(twilio_simulator.stop())
        cut = await call.event(model.CallReplyInterrupted)
        assert (cut.reply_id, cut.cause) == ("r", "hang_up")
        assert (await call.event(model.CallEnded)).reason == "caller"
        assert call.agent.events.empty()
        assert call.link.closed == (1000, "caller")


async def test_the_agent_hangs_up_once_all_is_heard() -> None:
    async with phone() as call:
        await connect(call)
        await call.command(model.SayCommand(text="Goodbye."))
        await call.command(model.HangUpCommand(after_speech=True))
        await call.event(model.CallEnded)
        assert [type(event) for event in call.heard[1:]] == [model.CallReplyPlayed, model.CallEnded]
        assert call.heard[-1].reason == "agent"


@pytest.mark.parametrize(
    ("messages", "code", "reason"),
    [
        ([twilio_simulator.media()], 1007, "invalid_event"),
        ([twilio_simulator.dtmf("1")], 1007, "invalid_event"),
        ([twilio_simulator.start(encoding="audio/opus")], 1007, "unsupported_format"),
        ([twilio_simulator.start(rate=16_000)], 1007, "unsupported_format"),
        ([twilio_simulator.start(), twilio_simulator.start()], 1007, "invalid_event"),
        ([twilio_simulator.start(), twilio_simulator.media(payload="%%")], 1007, "invalid_event"),
        ([twilio_simulator.start(), twilio_simulator.dtmf("ff")], 1007, "invalid_event"),
        (["{"], 1007, "malformed_json"),
        (["[]"], 1007, "invalid_event"),
        ([b"\0"], 1003, "binary_not_accepted"),
        ([twilio_simulator.start(), "x" * 300_000], 1009, "message_too_big"),
    ],
)
async def test_a_broken_wire_is_hung_up_with_its_reason(messages: list[str], code: int, reason: str) -> None:
    async with phone() as call:
        call.say_to_server(*messages)
        while call.link.closed is None:
            await asyncio.sleep(0.01)
        assert call.link.closed == (code, reason)


async def test_a_phone_that_never_starts_is_hung_up() -> None:
    async with phone() as call:
        call.say_to_server(twilio_simulator.connected())
        for _ in range(50):
            await asyncio.sleep(0.25)
        assert call.link.closed == (1008, "body_timeout")


async def test_packets_lost_doubled_late_and_bunched_break_nothing() -> None:
    async with phone() as call:
        await connect(call)
        await call.command(model.SayCommand(text=TEXT))
        for chunk in (1, 2, 2, 5, 4, 3, 9, 900, 8):
            call.say_to_server(twilio_simulator.media(chunk=chunk))
            await asyncio.sleep(0.2 if chunk == 9 else 0.0)
        call.say_to_server(*(twilio_simulator.media(track="outbound") for _ in range(5)))
        await call.event(model.CallReplyPlayed)


async def test_forbidden_message_is_refused() -> None:
    async with phone(calls__max_pending_replies=2, calls__max_marks_per_reply=1, limits__max_response_chars=40) as call:
        await connect(call)
        await call.command(model.SayCommand(text="Hello.", reply_id="a", end=False))
        with pytest.raises(DuplicateResponse):
            await call.command(model.SayCommand(text="Hello.", reply_id="a"))
        await call.command(model.MarkCommand(reply_id="a", name="m"))
        with pytest.raises(LimitExceeded, match="1 marks"):
            await call.command(model.MarkCommand(reply_id="a", name="n"))
        await call.command(model.EndReplyCommand(reply_id="a"))
        with pytest.raises(TextInputClosed):
            await call.command(model.AppendCommand(reply_id="a", text="x"))
        await call.command(model.SayCommand(text="Hello.", reply_id="b", end=False))
        with pytest.raises(LimitExceeded, match="max_replies of a call is 2"):
            await call.command(model.SayCommand(text="Hello."))
        with pytest.raises(LimitExceeded, match="40 characters"):
            await call.command(model.AppendCommand(reply_id="b", text="x" * 40))


async def test_a_reply_without_text_times_out_and_the_next_is_spoken() -> None:
    async with phone(limits__text_timeout_s=3.0) as call:
        await connect(call)
        await asyncio.sleep(0.1)  # between two ticks of the server
        began_s = now_s()
        await call.command(model.SayCommand(reply_id="empty", end=False))
        await call.command(model.SayCommand(text="Hello.", reply_id="next"))
        failed = await call.event(model.CallReplyFailed)
        assert now_s() - began_s == pytest.approx(3.0, abs=2 * TICK_S)
        assert (failed.reply_id, failed.error.code) == ("empty", "text_timeout")
        assert (await call.event(model.CallReplyPlayed)).reply_id == "next"


async def test_a_blank_reply_is_played_at_once() -> None:
    async with phone() as call:
        await connect(call)
        await call.command(model.SayCommand(text="  "))
        assert (await call.event(model.CallReplyPlayed)).played_ms == 0.0


async def test_a_reply_that_fails_leaves_the_call_alive() -> None:
    async with phone(FakeScript(ms_per_char=50.0, real_time_factor=0.1, fail_at_frame=8)) as call:
        await connect(call)
        await call.command(model.SayCommand(text=TEXT, reply_id="r"))
        failed = await call.event(model.CallReplyFailed)
        assert failed.error.code == "engine_error"
        assert failed.heard.text + failed.heard.remaining == TEXT
        await call.command(model.SayCommand(text="Hi.", reply_id="s"))
        assert (await call.event(model.CallReplyPlayed)).reply_id == "s"


@pytest.mark.parametrize(("text", "code"), [(TEXT, "engine_error"), ("", "text_timeout")])
async def test_a_last_reply_that_fails_is_reported_before_the_hang_up(text: str, code: str) -> None:
    script = FakeScript(ms_per_char=50.0, real_time_factor=0.1, fail_at_frame=8)
    async with phone(script, limits__text_timeout_s=3.0) as call:
        await connect(call)
        await call.command(model.SayCommand(text=text, reply_id="r", end=bool(text)))
        await call.command(model.HangUpCommand(after_speech=True))
        assert (await call.event(model.CallEnded)).reason == "agent"
        [failed] = [event for event in call.heard if isinstance(event, model.CallReplyFailed)]
        assert (failed.reply_id, failed.error.code) == ("r", code)


async def test_a_line_that_takes_nothing_does_not_keep_a_call_alive() -> None:
    async with phone() as call:
        await connect(call)
        call.link.unblocked.clear()
        await call.command(model.SayCommand(text=TEXT * 5, reply_id="r"))
        await asyncio.sleep(2.0)
        call.say_to_server(twilio_simulator.stop())
        await asyncio.sleep(0.1)
        call.link.unblocked.set()
        await call.event(model.CallEnded)


async def test_call_paused_by_peer_fails_one_reply_only() -> None:
    async with phone(dialect=AsteriskDialect(), limits__reader_timeout_s=2.0) as call:
        heard: list[str | bytes] = []
        call.link.told = heard.append
        call.say_to_server('{"event":"MEDIA_START","channel_id":"1.2","format":"ulaw"}', '{"event":"MEDIA_XOFF"}')
        await call.event(model.CallConnected)
        await call.command(model.SayCommand(text=TEXT, reply_id="r"))
        failed = await call.event(model.CallReplyFailed)
        assert failed.error.code == "slow_reader"
        assert not any(isinstance(message, bytes) for message in heard)
        call.say_to_server('{"event":"MEDIA_XON"}')
        await call.command(model.SayCommand(text="Hello.", reply_id="s"))
        await call.command(model.HangUpCommand(after_speech=True))
        assert (await call.event(model.CallEnded)).reason == "agent"
        assert isinstance(call.heard[-2], model.CallReplyPlayed)
        assert heard[-1] == '{"command":"HANGUP"}'


async def test_a_reply_that_failed_is_not_interrupted_too() -> None:
    """What it had left to play is cleared all the same."""
    async with phone(FakeScript(ms_per_char=50.0, real_time_factor=0.1, fail_at_frame=8)) as call:
        await connect(call)
        await call.command(model.SayCommand(text=TEXT, reply_id="r"))
        await call.event(model.CallReplyFailed)
        await call.command(model.InterruptCommand())
        assert call.far.events[-1] == "clear"
        call.say_to_server(twilio_simulator.stop())
        await call.event(model.CallEnded)
        assert not any(isinstance(event, model.CallReplyInterrupted) for event in call.heard)


async def test_an_interrupted_goodbye_hangs_up_at_once() -> None:
    """Also when all of it was sent already, and it is only not heard yet."""
    async with phone(calls__lead_ms=3_000) as call:
        await connect(call)
        await call.command(model.SayCommand(text="Goodbye."))
        await call.command(model.HangUpCommand(after_speech=True))
        await asyncio.sleep(0.3)
        await call.command(model.InterruptCommand())
        await call.event(model.CallReplyInterrupted)
        assert (await call.event(model.CallEnded)).reason == "agent"


async def test_a_call_that_has_ended_takes_no_command() -> None:
    """Although its line takes long to close."""
    async with phone() as call:
        told = await connect(call)
        call.link.unblocked.clear()
        call.say_to_server(twilio_simulator.stop())
        call.link.incoming.put_nowait(None)
        await call.event(model.CallEnded)
        with pytest.raises(RequestRefused, match="unknown"):
            call.board.call(LOCAL.name, told.call_id)
        call.link.unblocked.set()


async def test_an_agent_waits_for_no_line() -> None:
    """A phone that takes nothing holds nobody up who speaks into other calls too."""
    async with phone() as call:
        await connect(call)
        await call.command(model.SayCommand(text=TEXT, reply_id="r"))
        await asyncio.sleep(0.5)
        call.link.unblocked.clear()
        async with asyncio.timeout(0.1):
            await call.command(model.InterruptCommand())
        call.link.unblocked.set()
        await asyncio.sleep(1.0)
        assert call.far.events[-1] == "clear"


async def test_broken_pipe_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with phone() as call:
        await connect(call)
        call.say_to_server(*["{"] * 100)
        await call.event(model.CallEnded)
    assert sum("telephony protocol error" in record.message for record in caplog.records) == 1


async def test_cancelled_call_is_reported_as_hung_up() -> None:
    async with phone() as call:
        await connect(call)
        await call.command(model.SayCommand(text=TEXT, reply_id="r"))
        await asyncio.sleep(0.5)
        call.conversing.cancel()
        assert (await call.event(model.CallReplyInterrupted)).cause == "hang_up"
        assert (await call.event(model.CallEnded)).reason == "draining"


REACH = {
    "before the start": [],
    "started": [0.0],
    "waiting for text": [model.SayCommand(text="", reply_id="r", end=False), 1.0],
    "before its first sound": [model.SayCommand(text=TEXT, reply_id="r"), 0.0],
    "speaking": [model.SayCommand(text=TEXT, reply_id="r"), 0.7],
    "speaking, another waits": [
        model.SayCommand(text=TEXT, reply_id="r"),
        model.SayCommand(text=TEXT, reply_id="s"),
        0.7,
    ],
    "sent and not heard": [model.SayCommand(text="Hello there.", reply_id="r"), 0.3],
    "heard": [model.SayCommand(text="Hi.", reply_id="r"), 3.0],
    "hung up by the agent": [model.SayCommand(text=TEXT, reply_id="r"), 0.5, model.HangUpCommand()],
    "about to be hung up": [model.SayCommand(text=TEXT, reply_id="r"), model.HangUpCommand(after_speech=True), 0.5],
    "interrupted": [model.SayCommand(text=TEXT, reply_id="r"), 0.5, model.InterruptCommand()],
}


@pytest.mark.parametrize("says_stop", [True, False], ids=["stop", "gone"])
@pytest.mark.parametrize("state", REACH)
async def test_a_hang_up_in_any_state_ends_all_once(state: str, says_stop: bool) -> None:
    async with phone(calls__lead_ms=3_000) as call:
        call.say_to_server(twilio_simulator.connected())
        if state != "before the start":
            call.say_to_server(twilio_simulator.start())
            await call.event(model.CallConnected)
        num_said = 0
        for step in REACH[state]:
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                await call.command(step)
                num_said += isinstance(step, model.SayCommand)
        call.link.incoming.put_nowait(twilio_simulator.stop() if says_stop else None)
        if state == "before the start":
            await asyncio.sleep(0.1)
            assert call.agent.events.empty()
            return
        await call.event(model.CallEnded)
        ended = [event for event in call.heard if isinstance(event, model.CallReplyPlayed | model.CallReplyInterrupted)]
        assert len(ended) == num_said
        assert call.agent.events.empty()


async def test_an_id_that_we_make_is_none_of_the_agents() -> None:
    async with phone() as call:
        await connect(call)
        await call.command(model.SayCommand(text="Hello there.", reply_id="reply-1"))
        accepted = await call.command(model.SayCommand(text="Good day."))
        assert isinstance(accepted, model.CallReplyAccepted)
        assert accepted.reply_id == "reply-2"


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
            rng.choice((call.link.unblocked.set, call.link.unblocked.set, call.link.unblocked.clear))()
            match act(rng, call):
                case str(message):
                    call.say_to_server(message)
                case command:
                    with suppress(SpeechError):
                        answer = await call.board.call(LOCAL.name, call_id).handle_command(command)
                        if isinstance(answer, model.CallReplyAccepted):
                            accepted[answer.reply_id] += 1
        call.link.unblocked.set()
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
