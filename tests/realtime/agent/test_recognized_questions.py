"""Spoken questions, a real recognizer, the embedded voice: the right answer is spoken, and recognized.

The recognizer is pocketsphinx, with a language model of the twenty questions for what the user says, and one of the
twenty answers for what the server says.
"""

from __future__ import annotations

import sys
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO

import numpy as np
import pytest

pytest.importorskip("pocketsphinx", reason="the dependency group training is not installed")
pytest.importorskip("jiwer", reason="the dependency group training is not installed")

from asyncio.subprocess import PIPE, create_subprocess_exec

from sessions.audio.pcm import pcm_to_s16le
from sessions.audio.resampler import Resampler
from tests.realtime.agent.agent_client import RATE, connected_client
from tests.realtime.agent.stub_backend import ScriptedAnswer, StubBackend
from training.asr_judge import RATE_HZ, Recognizer, compare, to_16k
from training.flite import SAMPLE_RATE_HZ, available, synthesize
from training.held_out import words_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ANSWERS = {
    "Where is the station?": "The station is behind the old church.",
    "When does the train leave?": "The train leaves at seven in the morning.",
    "How far is the river?": "The river is two miles from here.",
    "Who wrote this letter?": "My brother wrote it last summer.",
    "What is the color of the house?": "The house is yellow with a green roof.",
    "How many eggs do you need?": "I need twelve eggs for the cake.",
    "Can I see the garden?": "Yes, the garden is open until the evening.",
    "Which way is north?": "North is where the tall tower stands.",
    "Is the water warm?": "No, the water is still very cold.",
    "What do the horses eat?": "Horses eat grass and a little corn.",
    "How much is the bread?": "One loaf of bread costs three dollars.",
    "Where did you find the key?": "I found the key under the kitchen table.",
    "Why is the window open?": "Because somebody forgot to close it.",
    "When will the doctor come?": "The doctor will come on Friday afternoon.",
    "Do you like strong coffee?": "I like strong coffee with some milk.",
    "What is the name of your daughter?": "My daughter has the name of her grandmother.",
    "Who painted that picture?": "A young artist from Spain painted that picture.",
    "Did it rain yesterday?": "It rained all day and most of the night.",
    "How old is the bridge?": "The bridge was built a hundred years ago.",
    "Where do the children play?": "The children play in the yard behind the school.",
}
# Of all words; pocketsphinx has 1 to 3 in a hundred of this voice wrong.
MAX_WORDS_WRONG = 0.1
# Questions that the recognizer may understand wrong: then the answer is that to another question.
MAX_QUESTIONS_WRONG = 1


def key(text: str) -> str:
    return " ".join(words_of(text))


BY_WORDS = {key(question): answer for question, answer in ANSWERS.items()}


@asynccontextmanager
async def talking_server(backend: StubBackend) -> AsyncIterator[str]:
    """``voicewire serve`` with the embedded voice, the model and the recognizer; its address."""
    command = ["-m", "realtime.cli", "serve", "--port", "0", "--log-level", "error", "--llm", backend.url]
    process = await create_subprocess_exec(sys.executable, *command, "--stt", backend.url, stdout=PIPE)
    assert process.stdout is not None
    try:
        address = ""
        while not address.startswith("ws"):
            line = (await process.stdout.readline()).decode()
            assert line, "the server ended before it was ready"
            address = line.split()[1]
        yield address.removesuffix("/v1/speech")
    finally:
        process.terminate()
        await process.wait()


def spoken_question(text: str) -> bytes:
    """The question by flite, and the silence that ends the turn."""
    pcm = np.asarray(synthesize(text, "rms").pcm, np.float32) / 32768
    return pcm_to_s16le(Resampler(SAMPLE_RATE_HZ, RATE).push(pcm)) + bytes(RATE * 2)


async def test_twenty_questions_are_answered_aloud(backend: StubBackend) -> None:
    if not available():
        pytest.skip("flite is not installed")
    questions, answers = Recognizer([*ANSWERS]), Recognizer([*ANSWERS.values()])

    def recognize(recording: bytes) -> str:
        with wave.open(BytesIO(recording)) as file:
            return questions.hear(to_16k(np.frombuffer(file.readframes(file.getnframes()), np.int16), RATE_HZ))

    backend.recognize = recognize
    backend.answer_to = lambda text: ScriptedAnswer(BY_WORDS.get(key(text), "I did not understand you."))
    num_wrong, heard = 0, []
    async with talking_server(backend) as url, connected_client(url) as client:
        for question, answer in ANSWERS.items():
            client.audio.clear()
            await client.speak(spoken_question(question))
            response = (await client.until("response.done"))["response"]
            assert response["status"] == "completed"
            [transcript] = [event["transcript"] for event in client.events if event["type"].endswith("tion.completed")]
            client.events.clear()
            if key(transcript) == key(question):
                heard.append(compare(answer, answers.hear(to_16k(np.frombuffer(client.audio, np.int16), RATE))))
            num_wrong += key(transcript) != key(question)
    assert num_wrong <= MAX_QUESTIONS_WRONG
    wrong = sum(one.errors for one in heard) / sum(one.words for one in heard)
    assert wrong <= MAX_WORDS_WRONG, [one.hypothesis for one in heard if one.errors]
