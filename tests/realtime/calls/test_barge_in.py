"""The caller speaks into a reply: it is cut at once, cleared at the far side, and what was heard is told."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator

import numpy as np
import pytest

from realtime.protocol.telephony import model
from sessions.audio.g711 import pcm_to_mulaw
from sessions.audio.pcm import Pcm
from sessions.audio.resampler import Resampler
from tests.realtime.calls import twilio_simulator
from tests.realtime.calls.conftest import Phone, phone

pytestmark = pytest.mark.virtual_time

TEXT = "This is a rather long answer to a rather short question, and nobody wants to hear all of it to its end."


@pytest.fixture(scope="module")
def speech() -> list[str]:
    """Payloads of 20 ms."""
    from training.flite import SAMPLE_RATE_HZ, available, synthesize

    if not available():
        pytest.skip("flite is not installed")

    spoken = np.asarray(synthesize("Wait a moment, please.", "slt").pcm, np.float32) / 32768
    return list(payloads(Resampler(SAMPLE_RATE_HZ, 8_000).push(spoken)))


def payloads(pcm: Pcm) -> Iterator[str]:
    coded = pcm_to_mulaw(pcm)
    for at in range(0, len(coded) - 159, 160):
        yield base64.b64encode(coded[at : at + 160]).decode()


async def speak(call: Phone, said: list[str], first_chunk: int = 1) -> None:
    for chunk, payload in enumerate(said, first_chunk):
        call.say_to_server(twilio_simulator.media(payload, chunk))
        await asyncio.sleep(0.02)


async def connect(call: Phone) -> None:
    call.say_to_server(twilio_simulator.connected(), twilio_simulator.start())
    await call.event(model.CallConnected)
    await call.command(model.SayCommand(text=TEXT, reply_id="r"))
    await asyncio.sleep(1.5)


async def test_the_callers_voice_cuts_the_reply(speech: list[str]) -> None:
    async with phone() as call:
        await connect(call)
        began_s = asyncio.get_running_loop().time()
        speaking = asyncio.create_task(speak(call, speech))
        await call.event(model.CallerBargeIn)
        assert asyncio.get_running_loop().time() - began_s < 0.2
        await asyncio.sleep(0)
        assert call.far.num_clears == 1
        cut = await call.event(model.CallReplyInterrupted)
        assert (cut.reply_id, cut.cause) == ("r", "caller")
        assert cut.heard.text + cut.heard.remaining == TEXT
        assert cut.heard.text
        assert cut.heard.remaining
        num_messages = len(call.far.events)
        await speaking
        await asyncio.sleep(5.0)
        assert len(call.far.events) == num_messages, "something came after the clear"
        assert call.agent.events.empty()


async def test_a_voice_in_a_silent_call_interrupts_nothing(speech: list[str]) -> None:
    async with phone() as call:
        call.say_to_server(twilio_simulator.connected(), twilio_simulator.start())
        await call.event(model.CallConnected)
        await speak(call, speech)
        assert call.agent.events.empty()
        assert call.far.events == []


async def test_it_can_be_turned_off(speech: list[str]) -> None:
    async with phone(calls__barge_in=False) as call:
        await connect(call)
        await speak(call, speech)
        await call.event(model.CallReplyPlayed)
        assert call.far.num_clears == 0


async def test_noise_and_dtmf_do_not_interrupt() -> None:
    rng = np.random.default_rng(4)
    noise = list(payloads((0.003 * rng.standard_normal(24_000)).astype(np.float32)))
    async with phone() as call:
        await connect(call)
        await speak(call, noise)
        call.say_to_server(twilio_simulator.dtmf("1"))
        await call.event(model.CallReplyPlayed)
        assert call.far.num_clears == 0


async def test_our_own_echo_interrupts_nothing(speech: list[str]) -> None:
    """The caller's side brings speech that is as much quieter than our own voice as an echo is."""
    quiet = [quieter(payload, 0.06) for payload in speech]
    async with phone(calls__vad_min_level_db=-90.0) as call:
        await connect(call)
        await speak(call, quiet)
        await call.event(model.CallReplyPlayed)
        assert call.far.num_clears == 0
    async with phone(calls__vad_min_level_db=-90.0, calls__echo_return_loss_db=120.0) as call:
        await connect(call)
        await speak(call, quiet)
        await call.event(model.CallerBargeIn)


def quieter(payload: str, factor: float) -> str:
    from sessions.audio.g711 import mulaw_to_pcm

    return next(payloads(mulaw_to_pcm(base64.b64decode(payload)) * np.float32(factor)))


async def test_bunched_packets_are_a_voice_too(speech: list[str]) -> None:
    """200 ms of jitter: ten packets at a time."""
    async with phone() as call:
        await connect(call)
        for first in range(0, len(speech), 10):
            call.say_to_server(*(twilio_simulator.media(payload) for payload in speech[first : first + 1]))
            for chunk, payload in enumerate(speech[first : first + 10], first + 1):
                call.say_to_server(twilio_simulator.media(payload, chunk))
            await asyncio.sleep(0.2)
        await call.event(model.CallerBargeIn)
        assert call.far.num_clears == 1


async def test_a_voice_is_noticed_again_in_the_next_reply(speech: list[str]) -> None:
    """Nobody listens to the silence between the replies."""
    async with phone() as call:
        await connect(call)
        for number in range(3):
            await speak(call, speech[:40], 1 + 40 * number)
            await call.event(model.CallerBargeIn)
            await call.command(model.SayCommand(text=TEXT))
            await asyncio.sleep(0.3)


async def test_a_phone_that_counts_anew_is_heard(speech: list[str]) -> None:
    async with phone() as call:
        await connect(call)
        call.say_to_server(twilio_simulator.media(chunk=1_000_000))
        await speak(call, speech)
        await call.event(model.CallerBargeIn)
