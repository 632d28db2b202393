"""One response with several speakers: lines with labels, changes of voice, and the speaker of each word."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct

from engine.api import InvalidRequest, UnknownVoice
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.config import InlineForm, Markup, SpeechSettings
from sessions.events import MarkupWarned, ResponseStatus, ResponseWordTimes
from sessions.registry import SessionRegistry
from sessions.text.lexicons.lexicon import Lexicon, LexiconEntry
from sessions.text.ssml.speaker_lines import MAX_LABEL_CHARS, MAX_SPEAKERS
from tests.fakes.engine import FAKE_INFO
from tests.fakes.virtual_time import VirtualTimeLoop
from tests.sessions.conftest import BURST, LIMITS, PACED, RecordingEngine, ResponseRecord, evenly_aligned_response, read

pytestmark = pytest.mark.virtual_time
SPEAKERS = {"Ann": "ada", "Ben": "ben"}
DIALOGUE = replace(BURST, speakers=SPEAKERS, word_times=True, avoid_dead_air=False)
# Lines of another voice than the one before, as a wire of dialogues sends them.
CHANGING = replace(BURST, inline_forms=(InlineForm.BRACKETS,), word_times=True, avoid_dead_air=False)


async def say(registry: SessionRegistry, text: str, speech: SpeechSettings = DIALOGUE) -> ResponseRecord:
    return await read(registry.create(settings=speech).create_response(text=text, text_closed=True))


def words_of(reading: ResponseRecord) -> list[tuple[str, str, int, int]]:
    events = [event for event in reading.events if isinstance(event, ResponseWordTimes)]
    return [(word.speaker, word.text, word.raw_start, word.raw_end) for event in events for word in event.words]


def spoken_by(reading: ResponseRecord) -> list[tuple[str, str]]:
    """Speakers in turn, with their words."""
    turns = groupby(words_of(reading), lambda word: word[0])
    return [(speaker, " ".join(word for _, word, _, _ in words)) for speaker, words in turns]


def requests_of(engine: RecordingEngine) -> list[tuple[object, str]]:
    return [(request.voice, request.text.strip()) for request in engine.requests]


@pytest.mark.parametrize("speech", [DIALOGUE, replace(DIALOGUE, lead_ms=2_000)], ids=["burst", "paced"])
async def test_each_line_has_the_voice_of_its_speaker(
    registry: SessionRegistry, engine: RecordingEngine, speech: SpeechSettings
):
    text = "A tale.\nAnn: Hello there, Ben.\nBen: Hi Ann! Ann: that is you.\nBen: And me.\n\nAnn: Yes."
    reading = await say(registry, text, replace(speech, voice="ben"))
    assert requests_of(engine) == [
        ("ben", "A tale."),
        ("ada", "Hello there, Ben."),
        ("ben", "Hi Ann! Ann: that is you.\n And me."),
        ("ada", "Yes."),
    ]
    assert spoken_by(reading) == [
        ("", "A tale."),
        ("Ann", "Hello there, Ben."),
        ("Ben", "Hi Ann! Ann: that is you. And me."),
        ("Ann", "Yes."),
    ]
    assert all(text[start:end] == word for _, word, start, end in words_of(reading))
    assert reading.done.heard.text == text
    assert engine.prefetched[:2] == ["ben", "ada"] or set(engine.prefetched[:3]) == {"ada", "ben"}


async def test_without_speakers_a_label_is_text(registry: SessionRegistry, engine: RecordingEngine):
    text = "Ann: Hello.\nBen: Hi."
    reading = await say(registry, text, replace(DIALOGUE, speakers={}))
    assert [request.text for request in engine.requests] == [text]
    assert spoken_by(reading) == [("", "Ann: Hello. Ben: Hi.")]


async def test_line_of_another_speaker_is_told_and_spoken(registry: SessionRegistry, engine: RecordingEngine):
    reading = await say(registry, "Ann: Hello.\nTom: Me, too.")
    assert requests_of(engine) == [("ada", "Hello.\nTom: Me, too.")]
    warnings = [event for event in reading.events if isinstance(event, MarkupWarned)]
    assert [(event.code, event.element, event.raw_start) for event in warnings] == [("unknown_speaker", "Tom", 12)]


async def test_labels_tags_and_lexicons_go_together(registry: SessionRegistry, engine: RecordingEngine):
    text = 'Ann: <emotion value="sad"/>Oh, NGINX.\nBen: Look: <voice name="ada">Ann: no.</voice> Yes.'
    lexicon = Lexicon.from_entries([LexiconEntry(text="NGINX", alias="engine x")])
    reading = await say(registry, text, replace(DIALOGUE, markup=Markup.SSML, lexicons=(lexicon,)))
    assert [(request.voice, request.text.strip(), request.instruct) for request in engine.requests] == [
        ("ada", "Oh, engine x.", "Tone of voice: sad."),
        ("ben", "Look:", ""),
        ("ada", "Ann: no.", ""),
        ("ben", "Yes.", ""),
    ]
    assert [speaker for speaker, _ in spoken_by(reading)] == ["Ann", "Ben", "ada", "Ben"]


async def test_voice_element_names_the_speaker_of_words(registry: SessionRegistry):
    speech = replace(DIALOGUE, speakers={}, markup=Markup.SSML)
    reading = await say(registry, 'One. <voice name="ben">Two.</voice> Three.', speech)
    assert spoken_by(reading) == [("", "One."), ("ben", "Two."), ("", "Three.")]


@pytest.mark.parametrize(
    ("speakers", "error", "words"),
    [
        ({"Ann": "nobody"}, UnknownVoice, "speakers: 'Ann' has no voice: voice 'nobody' is unknown"),
        ({"": "ada"}, InvalidRequest, f"a label must have 1 to {MAX_LABEL_CHARS} characters, has 0"),
        ({"x" * 41: "ada"}, InvalidRequest, "has 41"),
        ({"Ann:": "ada"}, InvalidRequest, "without colons"),
        ({"Ann\nBen": "ada"}, InvalidRequest, "of one line"),
        ({" Ann": "ada"}, InvalidRequest, "spaces around it, is ' Ann'"),
        ({str(number): "ada" for number in range(MAX_SPEAKERS + 1)}, InvalidRequest, "17 labels, at most 16"),
    ],
)
async def test_bad_speakers_are_refused_and_nothing_begins(
    registry: SessionRegistry, engine: RecordingEngine, speakers: dict[str, str], error: type[Exception], words: str
):
    session = registry.create(settings=BURST)
    with pytest.raises(error, match=words) as caught:
        session.create_response(settings=replace(DIALOGUE, speakers=speakers), text="Ann: Hello.")
    assert caught.value.param == "speakers"  # type: ignore[attr-defined]
    with pytest.raises(error, match=words):
        session.update(replace(DIALOGUE, speakers=speakers))
    assert session.settings is BURST
    assert session.num_active_responses == 0
    assert not engine.requests
    reading = await read(session.create_response(text="Hello.", text_closed=True))
    assert reading.done.status is ResponseStatus.COMPLETED


async def test_voice_changes_between_texts(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=replace(CHANGING, voice="ada")).create_response(text="Hello. [sad")
    response.change_speaker("Ben", "ben")
    response.push_text(" Hi. [cheerful] Well.")
    response.change_speaker("Tom", "nobody")
    response.push_text(" So.")
    response.change_speaker("", None)
    response.push_text(" Bye.")
    response.end_input()
    reading = await read(response)
    spoken = zip(engine.requests, engine.texts, strict=True)
    assert [(request.voice, request.instruct, text.strip()) for request, text in spoken] == [
        ("ada", "", "Hello. [sad"),
        ("ben", "", "Hi."),
        ("ben", "Tone of voice: cheerful.", "Well."),
        ("ada", "", "So."),
        ("ada", "", "Bye."),
    ]
    assert spoken_by(reading) == [("", "Hello. [sad"), ("Ben", "Hi. Well."), ("Tom", "So."), ("", "Bye.")]
    assert [event.code for event in reading.events if isinstance(event, MarkupWarned)] == ["unknown_voice"]


async def test_cancel_between_speakers_reports_the_words_heard(registry: SessionRegistry, engine: RecordingEngine):
    speech = replace(PACED, speakers=SPEAKERS, lead_ms=200)
    text = "Ann: Hello there.\nBen: Hi, how are you?"
    response = registry.create(settings=speech).create_response(text=text, text_closed=True)
    reading = ResponseRecord()
    task = asyncio.create_task(read(response, reading))
    await asyncio.sleep(1.4)
    response.cancel()
    await task
    heard = reading.done.heard
    assert heard.text + heard.remaining == text
    assert not heard.text.endswith(("Ben", "Ben:"))
    assert {request.voice for request in engine.requests} <= {"ada", "ben"}


PIECES = [
    "Ann", "Ben", ": ", "Ann: ", "\nBen: ", "\nTom: ", "\n", "Hello there. ", "21 ", "日本。", "<b>", "[sad] ", "é🙂 ",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=16).map("".join)
all_cuts = st.lists(st.integers(0, 2000), max_size=6)


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(edges)]


async def speak(lines: Sequence[tuple[str, Sequence[str]]], speech: SpeechSettings) -> ResponseRecord:
    """Speak lines, each by a voice and in pieces."""
    async with evenly_aligned_response(speech) as (response, record):
        for voice, pieces in lines:
            if voice:
                response.change_speaker(voice, voice)
            for piece in pieces:
                response.push_text(piece)
                await asyncio.sleep(0.001)
    return record


def in_virtual_time(lines: Sequence[tuple[str, Sequence[str]]], speech: SpeechSettings) -> ResponseRecord:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(speak(lines, speech))


def assert_same(one: ResponseRecord, other: ResponseRecord, text: str) -> None:
    assert one.done.status is other.done.status is ResponseStatus.COMPLETED
    assert one.data == other.data
    assert one.done.heard == other.done.heard
    assert words_of(one) == words_of(other)
    assert all(text[start:end] == word for _, word, start, end in words_of(one))


@pytest.mark.parametrize("normalize", [False, True])
@settings(max_examples=15, deadline=None)
@given(text=texts, places=all_cuts, markup=st.sampled_from(Markup))
def test_any_cut_of_lines_gives_the_same_samples(text: str, places: list[int], normalize: bool, markup: Markup):
    speech = replace(DIALOGUE, normalize_text=normalize, markup=markup, inline_forms=(InlineForm.BRACKETS,))
    whole, in_pieces = (in_virtual_time([("", pieces)], speech) for pieces in ([text], cut(text, places)))
    assert_same(whole, in_pieces, text)


@settings(max_examples=15, deadline=None)
@given(
    lines=st.lists(st.tuples(st.sampled_from(["", "ada", "ben"]), texts.map(lambda text: f"{text} ")), max_size=4),
    places=all_cuts,
)
def test_any_cut_between_changes_gives_the_same_samples(lines: list[tuple[str, str]], places: list[int]):
    whole = in_virtual_time([(voice, [text]) for voice, text in lines], CHANGING)
    in_pieces = in_virtual_time([(voice, cut(text, places)) for voice, text in lines], CHANGING)
    assert_same(whole, in_pieces, "".join(text for _, text in lines))


@pytest.mark.parametrize(
    ("instructions", "instruct"), [((), "Tone of voice: sad."), (("happy", "sad"), "sad"), (("happy",), "")]
)
async def test_tone_is_an_instruction_that_the_checkpoint_follows(instructions: tuple[str, ...], instruct: str):
    engine = RecordingEngine()
    engine._info = replace_struct(FAKE_INFO, instructions=instructions)
    await engine.start()
    registry = SessionRegistry(engine, LIMITS, make_aligner=UniformAligner)
    reading = await say(registry, "[sad] Oh no.", CHANGING)
    assert [(request.instruct, request.text.strip()) for request in engine.requests] == [(instruct, "Oh no.")]
    codes = [event.code for event in reading.events if isinstance(event, MarkupWarned)]
    assert codes == ([] if instruct else ["no_effect"])
    await registry.aclose()
    await engine.aclose()
