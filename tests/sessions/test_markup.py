"""Marked-up text spoken by a response: pauses, marks, voices, rate and volume, by the client's own characters."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sessions import response as response_module
from sessions import styles
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.audio.speech_shaper import MARGIN_MS, MAX_TRIM_MS, SilenceTrimmer, SpeechShaper
from sessions.audio_track import JOIN_MS
from sessions.config import AudioFormat, Encoding, Markup, SpeechSettings
from sessions.events import MarkReached, MarkupWarned, ResponseStatus, ResponseWordTimes
from sessions.registry import SessionRegistry
from sessions.text.lexicons.lexicon import MAX_ALIAS_CHARS, Lexicon, LexiconEntry
from sessions.text.ssml.items import BreakItem, MarkItem
from sessions.text.ssml.parser import SsmlParser
from sessions.text.ssml.tokens import MAX_TAG_CHARS
from sessions.text_items import TextItem, TextSegment
from sessions.text_track import TextTrack
from sessions.timeline import ResponseTimeline
from tests.fakes.engine import SAMPLE_RATE
from tests.fakes.virtual_time import VirtualTimeLoop
from tests.sessions.conftest import (
    BURST,
    LIMITS,
    PACED,
    RecordingEngine,
    ResponseRecord,
    evenly_aligned_response,
    read,
    reading_task,
)
from tests.sessions.test_text_track import MAX_BLOCK_CHARS, MAX_CHARS, NORMALIZED, SHORT, counted_reads
from tests.sessions.text.ssml.documents import CONTEXT, documents

pytestmark = pytest.mark.virtual_time
SSML = replace(BURST, markup=Markup.SSML, avoid_dead_air=False)
JOIN_SAMPLES = SAMPLE_RATE * JOIN_MS // 1000


def cuts(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(edges)]


def items_of(pieces: list[str], normalize: bool, max_chars: int = 500) -> list[tuple[object, ...]]:
    """The items of a text, with what is spoken, how, and for which raw characters."""
    track = TextTrack(ResponseTimeline(SAMPLE_RATE), normalize, parser=SsmlParser(CONTEXT))
    items: list[TextItem] = []

    def read_on() -> None:
        while track.wants_text:
            track.read(max_chars)
            while track.waiting and (not isinstance(track.waiting[0], TextSegment) or track.waiting[0].speakable):
                items.append(track.pop())

    for piece in pieces:
        track.push(piece, 0.0)
        read_on()
    track.end()
    read_on()
    assert track.exhausted
    return [_summary(item) for item in items]


def _summary(item: TextItem) -> tuple[object, ...]:
    match item:
        case TextSegment():
            assert item.closed
            places = tuple(item.spoken.words._places)
            return item.index, item.text.rstrip(), item.style, places[: len(item.text.rstrip())]
        case BreakItem():
            return ("break", item.duration_ms)
        case MarkItem():
            return ("mark", item.name)
        case _:
            return (item,)


TOO_LONG_TO_SPELL = f"<spell>Hello <![CDATA[<{'x' * 250}>world. Hello "


@given(documents, st.lists(st.integers(0, 2000), max_size=6), st.booleans(), st.integers(1, 9))
@example(TOO_LONG_TO_SPELL, [230], True, 9)
def test_any_cut_and_budget_give_the_same_items(document: str, places: list[int], normalize: bool, max_chars: int):
    whole = items_of([document], normalize)
    assert items_of(cuts(document, places), normalize) == whole
    assert items_of([document], normalize, max_chars) == whole


@given(documents, st.booleans())
def test_spoken_characters_point_into_the_raw_text(document: str, normalize: bool):
    reached = 0
    for item in items_of([document], normalize):
        if isinstance(item[0], int):
            places = item[3]
            assert isinstance(places, tuple)
            assert not places or reached <= min(places) + 1
            reached = max([reached, *places])
    assert reached <= len(document)


async def speak(pieces: list[str], speech: SpeechSettings) -> ResponseRecord:
    async with evenly_aligned_response(speech) as (response, record):
        for piece in pieces:
            response.push_text(piece)
            await asyncio.sleep(0.001)
    return record


@pytest.mark.parametrize("normalize", [False, True])
@settings(max_examples=25, deadline=None)
@given(document=documents, places=st.lists(st.integers(0, 2000), max_size=6))
def test_any_cut_gives_the_same_samples(document: str, places: list[int], normalize: bool):
    speech = replace(SSML, normalize_text=normalize, word_times=True)
    readings = []
    for pieces in ([document], cuts(document, places)):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            readings.append(runner.run(speak(pieces, speech)))
    whole, cut = readings
    assert whole.done.status is cut.done.status is ResponseStatus.COMPLETED
    assert cut.data == whole.data
    assert cut.done.heard == whole.done.heard
    assert words_of(cut) == words_of(whole)
    assert all(document[word[1] : word[2]] == word[0] for word in words_of(whole))


def words_of(reading: ResponseRecord) -> list[tuple[str, int, int]]:
    events = [event for event in reading.events if isinstance(event, ResponseWordTimes)]
    return [(word.text, word.raw_start, word.raw_end) for event in events for word in event.words]


async def say(registry: SessionRegistry, text: str, speech: SpeechSettings = SSML) -> ResponseRecord:
    return await read(registry.create(settings=speech).create_response(text=text, text_closed=True))


def samples_of(reading: ResponseRecord) -> np.ndarray:
    return np.frombuffer(reading.data, np.int16)


def longest_silence(samples: np.ndarray) -> tuple[int, int]:
    """Start and length of the longest run of zeros."""
    edges = np.flatnonzero(np.diff(np.concatenate([[1], samples != 0, [1]])))
    runs = list(zip(edges[::2], edges[1::2], strict=True))
    start, end = max(runs, key=lambda run: run[1] - run[0])
    return int(start), int(end - start)


@pytest.mark.parametrize("speech", [SSML, replace(SSML, lead_ms=2_000)], ids=["burst", "paced"])
@pytest.mark.parametrize("duration_ms", [1, 37, 500, 2_345, 10_000])
async def test_break_is_silence_of_exactly_its_length(
    registry: SessionRegistry, speech: SpeechSettings, duration_ms: int
):
    plain = (
        samples_of(await say(registry, "Hello there.", speech)).size
        + samples_of(await say(registry, "And now this.", speech)).size
    )
    reading = await say(registry, f'Hello there.<break time="{duration_ms}ms"/>And now this.', speech)
    samples, num_silent = samples_of(reading), duration_ms * SAMPLE_RATE // 1000
    assert samples.size == plain + num_silent
    _, length = longest_silence(samples)
    assert 0 <= length - num_silent <= 8  # a fade begins and ends with samples that round to zero
    assert reading.done.heard.text.endswith("now this.")


@pytest.mark.parametrize(
    ("text", "num_ms"),
    [
        ('<break time="300ms"/>Hello.', 300),
        ('Hello.<break time="300ms"/>', 300),
        ('Hello.<break time="300ms"/> <break time="200ms"/>World.', 500),
        ('<break time="1s"/>', 1000),
        ("One <break/>two.", 500),
    ],
)
async def test_break_adds_its_length_wherever_it_is(registry: SessionRegistry, text: str, num_ms: int):
    words = text.replace("<", "\0<").replace(">", ">\0").split("\0")
    plain = 0
    for part in words:
        if part.strip() and not part.startswith("<"):
            plain += samples_of(await say(registry, part)).size
    reading = await say(registry, text)
    assert samples_of(reading).size == plain + num_ms * SAMPLE_RATE // 1000
    assert reading.done.audio_samples == samples_of(reading).size


@given(st.lists(st.integers(1, 9000), max_size=6), st.integers(0, 20_000), st.integers(0, 20_000), st.booleans())
def test_silence_beside_a_break_is_trimmed_however_it_is_cut(sizes: list[int], before: int, behind: int, trims: bool):
    loud = np.full(500, 0.5, np.float32)
    pcm = np.concatenate([np.zeros(before, np.float32), loud, np.zeros(behind, np.float32)])
    trimmer = SilenceTrimmer(SAMPLE_RATE, trims)
    pieces = np.split(pcm, np.cumsum(sizes))
    out = np.concatenate([*(trimmer.push(piece) for piece in pieces), trimmer.finish(trims)])
    margin, limit = SAMPLE_RATE * MARGIN_MS // 1000, SAMPLE_RATE * MAX_TRIM_MS // 1000
    cut_before, cut_behind = (max(min(num, limit) - margin, 0) for num in (before, behind))
    assert trimmer.num_trimmed == (cut_before if trims else 0)
    assert out.size == (pcm.size - cut_before - cut_behind if trims else pcm.size)
    assert np.count_nonzero(out) == loud.size


async def test_break_keeps_its_length_at_another_speed(registry: SessionRegistry):
    fast = replace(SSML, speed=2.0)
    plain = await say(registry, "Hello there.", fast)
    paused = await say(registry, 'Hello there.<break time="1s"/>Hello there.', fast)
    assert paused.num_samples == pytest.approx(2 * plain.num_samples + SAMPLE_RATE, abs=2)


async def test_long_silence_waits_for_its_reader(registry: SessionRegistry):
    response = registry.create(settings=replace(SSML, lead_ms=1_000)).create_response(
        text='One.<break time="10s"/>' * 12, text_closed=True
    )
    await asyncio.sleep(5)
    assert response._ring.waiting_samples <= (LIMITS.session.max_ready_ms + 10_000) * SAMPLE_RATE // 1000
    reading = await read(response)
    assert reading.done.status is ResponseStatus.COMPLETED
    assert reading.done.audio_ms > 120_000


async def test_emotion_becomes_an_instruction(registry: SessionRegistry, engine: RecordingEngine):
    text = 'Oh. <p><emotion value="Sad"/>No!</p> <emotion value="neutral"/>Well. <emotion value="&#9731;"/>Snow.'
    reading = await say(registry, text, replace(SSML, instruct="Be brief."))
    spoken = [(request.text.strip(), request.instruct) for request in engine.requests]
    assert spoken == [("Oh.", "Be brief."), ("No!", "Be brief. Tone of voice: sad."), ("Well. Snow.", "Be brief.")]
    codes = [event.code for event in reading.events if isinstance(event, MarkupWarned)]
    assert codes == ["invalid_attribute"]


async def test_emotion_without_room_in_the_instruction_is_told(registry: SessionRegistry, engine: RecordingEngine):
    long = "x" * LIMITS.session.max_instruct_chars
    reading = await say(registry, '<emotion value="sad"/>No!', replace(SSML, instruct=long))
    assert [request.instruct for request in engine.requests] == [long]
    assert [event.code for event in reading.events if isinstance(event, MarkupWarned)] == ["no_effect"]


async def test_voice_and_language_change_within_a_response(registry: SessionRegistry, engine: RecordingEngine):
    text = (
        '<voice name="ada">Hi Ben.</voice> <voice name="ben">Hi Ada. <lang xml:lang="de-DE">Servus.</lang></voice> So.'
    )
    reading = await say(registry, text, replace(SSML, voice="ada"))
    spoken = [(request.voice, request.language, request.text.strip()) for request in engine.requests]
    assert spoken == [
        ("ada", "auto", "Hi Ben."), ("ben", "auto", "Hi Ada."), ("ben", "de", "Servus."), ("ada", "auto", "So.")
    ]  # fmt: skip
    assert reading.done.status is ResponseStatus.COMPLETED
    assert engine.prefetched[:2] == ["ada", "ben"]


async def test_unknown_voice_is_told_and_the_text_is_spoken(registry: SessionRegistry, engine: RecordingEngine):
    reading = await say(registry, 'a <voice name="nobody">Hello</voice><nope>!</nope>')
    assert [request.text.strip() for request in engine.requests] == ["a Hello!"]
    warnings = [event for event in reading.events if isinstance(event, MarkupWarned)]
    assert [(event.code, event.element, event.raw_start) for event in warnings] == [
        ("unknown_voice", "voice", 2),
        ("unknown_element", "nope", 36),
    ]


@pytest.mark.parametrize(("rate", "factor"), [("x-slow", 2.0), ("200%", 0.5), ("+25%", 0.8)])
async def test_rate_stretches_its_part_alone(registry: SessionRegistry, rate: str, factor: float):
    part = "This is a part."
    plain = (await say(registry, part)).num_samples
    reading = await say(
        registry, f'{part}<prosody rate="{rate}">{part}</prosody>{part}', replace(SSML, word_times=True)
    )
    assert reading.num_samples == pytest.approx(plain * (2 + factor) - 2 * JOIN_SAMPLES, abs=2)
    words = [word for event in reading.events if isinstance(event, ResponseWordTimes) for word in event.words]
    assert len(words) == 12
    starts_ms = [word.start_ms for word in words]
    assert starts_ms == sorted(starts_ms)
    assert words[8].start_ms == pytest.approx(1000 * plain * (1 + factor) / SAMPLE_RATE, abs=2 * JOIN_MS + 1)


async def test_volume_changes_its_part_alone(registry: SessionRegistry):
    part = "This is a part."
    plain = samples_of(await say(registry, part))
    soft = samples_of(await say(registry, f'<prosody volume="-6dB">{part}</prosody>'))
    assert np.abs(soft).max() == pytest.approx(np.abs(plain).max() * 10 ** (-6 / 20), rel=0.01)
    silent = samples_of(await say(registry, f'<prosody volume="silent">{part}</prosody>'))
    assert silent.size == plain.size
    assert not silent.any()


@given(st.lists(st.integers(1, 4000), max_size=6), st.sampled_from([0.5, 1.0, 1.7]), st.sampled_from([0.3, 1.0, 4.0]))
def test_shaped_speech_does_not_depend_on_its_cut(sizes: list[int], speed: float, gain: float):
    pcm = (0.9 * np.sin(np.arange(sum(sizes)) / 9)).astype(np.float32)
    pieces = np.split(pcm, np.cumsum(sizes)[:-1]) if sizes else []
    whole, cut = (SpeechShaper(SAMPLE_RATE, speed, gain, trims_start=False) for _ in range(2))
    expected = np.concatenate([whole.push(pcm), whole.finish(trims_end=False)])
    assert np.array_equal(
        np.concatenate([*(cut.push(piece) for piece in pieces), cut.finish(trims_end=False)]), expected
    )
    assert expected.size == round(pcm.size / speed)
    assert expected.size == 0 or np.abs(expected).max() <= 1


async def test_marks_come_with_their_samples(registry: SessionRegistry):
    text = 'Hello there.<mark name="a"/><break time="1s"/><mark name="b"/>And <mark name="c"/>now.<mark name="d"/>'
    reading = await say(registry, text)
    marks = {event.name: event for event in reading.events if isinstance(event, MarkReached)}
    assert list(marks) == ["a", "b", "c", "d"]
    start, length = longest_silence(samples_of(reading))
    assert marks["a"].sample == pytest.approx(start, abs=8)
    assert marks["b"].sample == pytest.approx(start + length, abs=JOIN_SAMPLES)
    assert marks["b"].sample < marks["c"].sample < marks["d"].sample == reading.num_samples
    assert marks["d"].time_ms == pytest.approx(reading.done.audio_ms)


async def test_marks_of_text_without_sound_are_kept(registry: SessionRegistry):
    reading = await say(registry, '<mark name="a"/>🙂<mark name="b"/><break/><mark name="c"/>Hi.')
    assert [event.name for event in reading.events if isinstance(event, MarkReached)] == ["a", "b", "c"]


async def test_mark_of_opus_counts_the_pre_skip(registry: SessionRegistry):
    opus = replace(SSML, format=AudioFormat(encoding=Encoding.OPUS))
    response = registry.create(settings=opus).create_response(text='Hi.<mark name="end"/>', text_closed=True)
    reading = await read(response)
    [mark] = [event for event in reading.events if isinstance(event, MarkReached)]
    assert mark.sample == reading.done.audio_samples + response.pre_skip_samples


async def test_heard_text_ends_at_a_word_and_never_in_a_tag(registry: SessionRegistry):
    text = (
        '<speak>Good <emphasis level="the most">morning</emphasis> <sub alias="hello">hi</sub> &amp;c. to you</speak>'
    )
    heard = set()
    for played_ms in range(0, 1_500, 60):
        response = registry.create(settings=replace(PACED, markup=Markup.SSML, lead_ms=200)).create_response(
            text=text, text_closed=True
        )
        reading, task = reading_task(response)
        await asyncio.sleep(0.2 + played_ms / 1000)
        response.cancel(played_ms)
        await task
        done = reading.done
        assert done.heard.text + done.heard.remaining == text
        heard.add(done.heard.text)
    ends = {text.find(word) + len(word) for word in ("Good", "morning", "hi<", "&amp;c.", "to")}
    assert {len(one) for one in heard} - {len(text)} <= {0, *ends, text.find("hi") + 2}
    assert len(heard) >= 5


@pytest.mark.parametrize(
    "text",
    [
        '<say-as interpret-as="digits">12<b c="d e">3</b></say-as> four',
        '<sub alias="one two">12 <b c="d e">3<!-- no word --></b></sub> four',
        "<desc>no word</desc>12 <emphasis>3</emphasis> <?no word?>four",
    ],
)
async def test_no_word_lies_in_a_tag(registry: SessionRegistry, text: str):
    reading = await say(registry, text, replace(SSML, word_times=True))
    words = [word for word, _, _ in words_of(reading)]
    assert words in (["12", "3", "four"], ["12", "four"])  # the form of another word may cover two
    assert all(text[start:end] == word for word, start, end in words_of(reading))


async def test_flush_within_markup_speaks_what_is_there(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=SSML).create_response(text='<prosody rate="fast">Hello <bre')
    response.flush()
    assert [request.text.strip() for request in engine.requests] == ["Hello"]
    response.push_text('ak time="1s"/>you</prosody>')
    response.end_input()
    reading = await read(response)
    assert [request.text.strip() for request in engine.requests] == ["Hello", "you"]
    assert not [event for event in reading.events if isinstance(event, MarkupWarned)]


async def test_text_without_markup_costs_no_parser(
    registry: SessionRegistry, engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch
):
    made: list[object] = []
    monkeypatch.setattr(styles, "SsmlParser", lambda *given: made.append(given))
    monkeypatch.setattr(response_module, "StyleResolver", lambda *given: made.append(given))
    text = "a <break/> b &amp; <nope>c"
    reading = await say(registry, text, BURST)
    assert not made
    assert styles.create_parser(BURST, None, engine.info) is None
    assert [request.text for request in engine.requests] == [text]
    assert reading.done.heard.text == text


async def test_an_iteration_reads_few_characters_of_markup(registry: SessionRegistry, engine: RecordingEngine):
    """A tag of the greatest length becomes text at once: an alias, or what is left of a broken tag."""
    engine.script = SHORT
    alias, broken = f'<sub alias="{"1 " * 110}">x</sub>', f"<b {'c' * (MAX_TAG_CHARS - 4)} "
    with counted_reads() as reads:
        settings = replace(NORMALIZED, markup=Markup.SSML)
        await read(registry.create(settings=settings).create_response(text=(alias + broken) * 20, text_closed=True))
    assert reads.num_chars
    assert max(reads.normalized.values()) <= MAX_CHARS + MAX_BLOCK_CHARS + MAX_TAG_CHARS


@pytest.mark.parametrize("markup", [Markup.NONE, Markup.SSML])
async def test_lexicon_changes_what_is_spoken_and_not_what_is_heard(
    registry: SessionRegistry, engine: RecordingEngine, markup: Markup
):
    text = "Ask NGINX in New York, please. " * 2
    lexicon = Lexicon.from_entries(
        [LexiconEntry(text="nginx", alias="engine x"), LexiconEntry(text="New York", alias="Gotham")]
    )
    speech = replace(SSML, markup=markup, lexicons=(lexicon,), word_times=True)
    reading = await say(registry, text, speech)
    assert [request.text for request in engine.requests] == ["Ask engine x in Gotham, please. " * 2]
    assert [word for word, _, _ in words_of(reading)] == text.split()
    assert all(text[start:end] == word for word, start, end in words_of(reading))
    assert reading.done.heard.text == text


async def test_an_iteration_reads_few_characters_of_what_a_lexicon_gives(
    registry: SessionRegistry, engine: RecordingEngine
):
    engine.script = SHORT
    lexicon = Lexicon.from_entries([LexiconEntry(text="1", alias="1 " * 90)])
    with counted_reads() as reads:
        speech = replace(NORMALIZED, lexicons=(lexicon,))
        await read(registry.create(settings=speech).create_response(text="1 " * 200, text_closed=True))
    assert reads.num_chars > 100
    assert max(reads.normalized.values()) <= MAX_CHARS + MAX_BLOCK_CHARS + MAX_ALIAS_CHARS


@pytest.mark.parametrize("normalize", [False, True])
async def test_first_words_begin_with_the_same_character_as_plain_text(
    registry: SessionRegistry, engine: RecordingEngine, normalize: bool
):
    lexicon = Lexicon.from_entries([LexiconEntry(text="New York", alias="Gotham")])
    plain = replace(BURST, normalize_text=normalize)
    settings = [plain, replace(plain, markup=Markup.SSML), replace(plain, markup=Markup.SSML, lexicons=(lexicon,))]
    for text in ("Hello there, you.", "It's 5 km to New York.", "日本の東京。"):
        begun = []
        for speech in settings:
            response = registry.create(settings=speech).create_response()
            num_requests = len(engine.requests)
            for number, character in enumerate(text):
                response.push_text(character)
                if len(engine.requests) > num_requests:
                    begun.append((number, engine.requests[-1].text))
                    break
            response.cancel()
        assert len(begun) == len(settings) or (normalize and not begun)
        assert len(set(begun)) <= 1


async def test_marks_and_warnings_are_sent_again_after_a_lost_connection(registry: SessionRegistry):
    session = registry.create(settings=SSML, is_resumable=True)
    text = '<nope/>One two.<break time="500ms"/><mark name="m"/>Three.'
    response = session.create_response(text=text, text_closed=True)
    before = [event async for event in response]
    response.resume(0, None)
    after = [event async for event in response]
    kinds = [event for event in before if isinstance(event, MarkReached | MarkupWarned)]
    assert len(kinds) == 2
    assert [event for event in after if isinstance(event, MarkReached | MarkupWarned)] == kinds


@pytest.mark.parametrize("reads_phonemes", [False, True])
async def test_phonemes_reach_the_engine_as_its_model_reads_them(engine: RecordingEngine, reads_phonemes: bool):
    engine._info = msgspec.structs.replace(engine.info, reads_phonemes=reads_phonemes)
    registry = SessionRegistry(engine, LIMITS, make_aligner=UniformAligner)
    lexicon = Lexicon.from_entries([LexiconEntry(text="gif", phoneme="dʒɪf")])
    text = 'A gif of a <phoneme alphabet="cmu" ph="K AE1 T">dog</phoneme>.'
    reading = await say(registry, text, replace(SSML, lexicons=(lexicon,), word_times=True))
    plain = await say(registry, "A gif.", replace(BURST, lexicons=(lexicon,)))
    await registry.aclose()
    jif, cat = ("[JH][IH1][F]", "[K][AE1][T]") if reads_phonemes else ("jif", "katt")
    assert [request.text for request in engine.requests] == [f"A {jif} of a {cat}.", f"A {jif}."]
    assert [word for word, _, _ in words_of(reading)] == ["A", "gif", "of", "a", "dog"]
    assert plain.done.heard.text == "A gif."


def of_phonemes(engine: RecordingEngine) -> SessionRegistry:
    engine._info = msgspec.structs.replace(engine.info, reads_phonemes=True, max_text_tokens=200)
    return SessionRegistry(engine, LIMITS, make_aligner=UniformAligner)


async def test_no_phoneme_is_split_between_requests(engine: RecordingEngine):
    engine.script = SHORT
    registry = of_phonemes(engine)
    word = '<phoneme alphabet="cmu" ph="T AH0 M EY1 T OW0 Z">tomatoes</phoneme>'
    await say(registry, "a word " * 56 + word * 30)
    await registry.aclose()
    texts = [request.text.removeprefix("a word " * 56) for request in engine.requests]
    assert len(texts) > 1
    assert "".join(texts) == "[T][AH0][M][EY1][T][OW0][Z]" * 30
    assert all(re.fullmatch(r"(\[[A-Z]+[012]?\])*", text) for text in texts)


async def test_lexicon_leaves_phonemes_of_markup(engine: RecordingEngine):
    registry = of_phonemes(engine)
    lexicon = Lexicon.from_entries([LexiconEntry(text="k", alias="kilo"), LexiconEntry(text="T", alias="tesla")])
    text = '1 T, <phoneme alphabet="cmu" ph="K AE1 T">cat</phoneme>.'
    await say(registry, text, replace(SSML, lexicons=(lexicon,)))
    await registry.aclose()
    assert [request.text for request in engine.requests] == ["1 tesla, [K][AE1][T]."]
