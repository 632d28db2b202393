"""SSML read as it streams: text is spoken, markup is not, and no cut changes anything."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessions.text.ssml.items import BreakItem, MarkItem, MarkupItem, StyleItem
from sessions.text.ssml.parser import (
    MAX_DEPTH,
    MAX_EMOTION_CHARS,
    MAX_MARK_NAME_CHARS,
    MAX_MARKS,
    MAX_SAY_AS_CHARS,
    MAX_VOICE_NAMES,
    MAX_WARNINGS,
    MarkupContext,
    SsmlParser,
)
from sessions.text.ssml.style import (
    MAX_BREAK_MS,
    MAX_TOTAL_BREAK_MS,
    SpeechStyle,
    gain_of,
    parse_duration_ms,
    parse_rate,
    parse_volume_db,
)
from sessions.text.ssml.tokens import (
    MAX_NAME_CHARS,
    MAX_TAG_CHARS,
    HiddenToken,
    MarkupWarning,
    TextToken,
    WarningCode,
)
from tests.sessions.text.ssml.documents import CONTEXT, documents, random_document
from tests.sessions.text.ssml.fuzz import check_documents

# Documents of the fuzz tests; `python -m tests.sessions.text.ssml.fuzz` takes any number.
NUM_FUZZED, NUM_FUZZED_SLOW = 1_000, 200_000


def parse(pieces: Iterable[str]) -> list[MarkupItem]:
    parser = SsmlParser(CONTEXT)
    items = [item for piece in pieces for item in parser.push(piece)]
    return merged([*items, *parser.finish()])


def merged(items: list[MarkupItem]) -> list[MarkupItem]:
    """Text that follows text as one item, without what is hidden."""
    out: list[MarkupItem] = []
    hidden: list[int] = []
    for item in items:
        last = out[-1] if out else None
        if isinstance(item, TextToken) and isinstance(last, TextToken):
            out[-1] = TextToken(last.text + item.text, last.raw_start, item.raw_end)
        elif isinstance(item, HiddenToken):
            hidden += range(item.raw_start, item.raw_end)
        else:
            out.append(item)
    assert hidden == sorted(set(hidden))
    return out


def text_of(document: str) -> str:
    return "".join(item.text for item in parse([document]) if isinstance(item, TextToken))


def warnings_of(document: str) -> list[tuple[WarningCode, str]]:
    return [(item.code, item.element) for item in parse([document]) if isinstance(item, MarkupWarning)]


def cuts(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(edges)]


@given(documents, st.lists(st.integers(0, 2000), max_size=8))
def test_any_cut_gives_the_same_items(document: str, places: list[int]):
    whole = parse([document])
    assert parse(cuts(document, places)) == whole
    assert parse(document) == whole


@given(documents)
@example("<spell>é🙂 ")
@example('<phoneme alphabet="ipa" ph="x">x')
def test_places_of_text_are_exact_and_ascend(document: str):
    parser = SsmlParser(CONTEXT)
    reached = 0
    for token in [*parser.push(document), *parser.finish()]:
        if isinstance(token, TextToken):
            assert reached <= token.raw_start <= token.raw_end <= len(document)
            reached = token.raw_end
            if token.raw_end - token.raw_start == len(token.text) and "alias" not in document:
                written = document[token.raw_start : token.raw_end]
                is_replaced = any(name in document for name in ("say-as", "spell", "phoneme"))
                assert written == token.text or is_replaced


@given(documents)
def test_what_is_held_is_bounded(document: str):
    parser = SsmlParser(CONTEXT)
    for character in document:
        list(parser.push(character))
        assert parser.num_chars_held <= MAX_TAG_CHARS + MAX_SAY_AS_CHARS
    list(parser.finish())
    assert parser.num_chars_held == 0


def check_spoken(num_documents: int, seed: int) -> None:
    """Check that no tag of the root is spoken, and that items are few."""
    source = random.Random(seed)
    for _ in range(num_documents):
        document = random_document(source, max_pieces=6)
        items = parse([document])
        spoken = "".join(item.text for item in items if isinstance(item, TextToken))
        assert "<speak" not in spoken or "CDATA" in document, document
        assert len(items) <= 2 * len(document) + 1


def test_fuzzed_documents_are_read_without_an_error():
    check_spoken(NUM_FUZZED, seed=7)
    assert check_documents(NUM_FUZZED, seed=7)["lexicons"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_fuzzed_documents_are_read_without_an_error():
    check_spoken(NUM_FUZZED_SLOW, seed=8)
    check_documents(NUM_FUZZED_SLOW, seed=8)


@given(st.text(st.characters(exclude_characters="<&", exclude_categories=["Cs"])))
def test_text_without_markup_is_itself(text: str):
    assert parse([text]) == ([TextToken(text, 0, len(text))] if text else [])


@pytest.mark.parametrize(
    ("document", "spoken"),
    [
        ("<speak>Hello <emphasis>you</emphasis></speak>", "Hello you"),
        ("AT&amp;T, AT&T, &lt;3 &#65;&#x42;", "AT&T, AT&T, <3 AB"),
        ("a < b, I <3 you, 1 <2", "a < b, I <3 you, 1 <2"),
        ("x<!-- <b> -->y<?xml a?>z", "xyz"),
        ('<!DOCTYPE s [<!ENTITY a "b">]>text', "text"),
        ("<![CDATA[<b> & c]]>", "<b> & c"),
        ('<audio src="https://x/y.mp3"><desc>a dog</desc>Woof</audio>', "Woof"),
        ('<phoneme alphabet="ipa" ph="təˈmeɪtoʊ">tomato</phoneme>', "tuh-may-toh"),
        ('<phoneme alphabet="cmu-arpabet" ph="T AH0 M EY1 T OW2">tomato</phoneme>', "tuh-may-toh"),
        ('<phoneme ph="kriːt">Crete</phoneme>', "kreet"),
        ('<phoneme alphabet="ipa" ph="☃">snow</phoneme>', "snow"),
        ('<phoneme alphabet="x-sampa" ph="kat">cat</phoneme>', "cat"),
        ("<phoneme>cat</phoneme>", "cat"),
        ('<sub alias="World Wide Web">W3</sub>.', "World Wide Web."),
        ("&nope;word&#0;s", "words"),
        ("<br>One<mstts:express-as style='sad'> two</mstts:express-as>", "One two"),
        ("<metadata>m <break/></metadata>t", "t"),
        ("Code <spell>A1</spell>", "Code A one"),
        ('<emotion value="angry"/>No!', "No!"),
    ],
)
def test_text_is_spoken_and_markup_is_not(document: str, spoken: str):
    assert text_of(document) == spoken


@pytest.mark.parametrize(
    ("document", "spoken"),
    [
        ("x <b c=d> y", "x  y"),
        ("x <b is never closed", "x  is never closed"),
        ("x <b <emphasis>y</emphasis>", "x  y"),
        ('x <b c="d', "x "),
        (f"x <b {'c' * MAX_TAG_CHARS}> y", f"x  {'c' * MAX_TAG_CHARS}> y"),
        (f"<{'x' * 300}>", f"{'x' * 268}>"),
    ],
)
def test_broken_tag_is_told_and_loses_no_text_behind_it(document: str, spoken: str):
    assert text_of(document) == spoken
    assert warnings_of(document)[0][0] is WarningCode.BROKEN


@pytest.mark.parametrize(
    ("document", "warning"),
    [
        ("<nope/>", (WarningCode.UNKNOWN_ELEMENT, "nope")),
        ("&nope;", (WarningCode.UNKNOWN_ENTITY, "")),
        ('<voice name="nobody">a</voice>', (WarningCode.UNKNOWN_VOICE, "voice")),
        ("<voice>a</voice>", (WarningCode.UNKNOWN_VOICE, "voice")),
        ('<lang xml:lang="xx">a</lang>', (WarningCode.UNKNOWN_LANGUAGE, "lang")),
        ('<emotion value="sad"/>a', (WarningCode.NO_EFFECT, "emotion")),
        ('<speed ratio="quick"/>a', (WarningCode.INVALID_ATTRIBUTE, "speed")),
        (f'<emotion value="{"a" * (MAX_EMOTION_CHARS + 1)}"/>a', (WarningCode.INVALID_ATTRIBUTE, "emotion")),
        (f"<{'n' * (MAX_NAME_CHARS + 1)}>a", (WarningCode.BROKEN, "n" * MAX_NAME_CHARS)),
        ("<lang>a</lang>", (WarningCode.INVALID_ATTRIBUTE, "lang")),
        ('<break time="soon"/>', (WarningCode.INVALID_ATTRIBUTE, "break")),
        ('<break time="11s"/>', (WarningCode.OUT_OF_RANGE, "break")),
        ("<mark/>", (WarningCode.INVALID_ATTRIBUTE, "mark")),
        (f'<mark name="{"m" * (MAX_MARK_NAME_CHARS + 1)}"/>', (WarningCode.INVALID_ATTRIBUTE, "mark")),
        ('<prosody pitch="high">a</prosody>', (WarningCode.NO_EFFECT, "prosody")),
        ('<prosody rate="quick">a</prosody>', (WarningCode.INVALID_ATTRIBUTE, "prosody")),
        ('<prosody rate="900%">a</prosody>', (WarningCode.OUT_OF_RANGE, "prosody")),
        ('<prosody volume="+90dB">a</prosody>', (WarningCode.OUT_OF_RANGE, "prosody")),
        ("<emphasis>a</emphasis>", (WarningCode.NO_EFFECT, "emphasis")),
        ('<lexicon uri="http://x"/>', (WarningCode.NO_EFFECT, "lexicon")),
        ("<!DOCTYPE x>", (WarningCode.NO_EFFECT, "DOCTYPE")),
        ("<p>a", (WarningCode.UNBALANCED, "p")),
        ("a</p>", (WarningCode.UNBALANCED, "p")),
        ("<sub>a</sub>", (WarningCode.INVALID_ATTRIBUTE, "sub")),
        ('<say-as interpret-as="song">a</say-as>', (WarningCode.NOT_READABLE, "say-as")),
        ('<say-as interpret-as="cardinal">a</say-as>', (WarningCode.NOT_READABLE, "say-as")),
    ],
)
def test_warning_names_what_has_no_effect_once(document: str, warning: tuple[WarningCode, str]):
    assert warnings_of(document * 3).count(warning) == 1


def test_warnings_are_few_and_hold_no_text():
    document = "".join(f"<secret{number} a='hidden'>word</secret{number}>" for number in range(100))
    warnings = [item for item in parse([document]) if isinstance(item, MarkupWarning)]
    assert len(warnings) == MAX_WARNINGS
    assert all("hidden" not in repr(item) and "word" not in repr(item) for item in warnings)


def test_names_of_voices_are_looked_up_once_and_few():
    names: list[str] = []
    parser = SsmlParser(MarkupContext(has_voice=lambda name: not names.append(name)))
    document = "".join(f'<voice name="v{number}">a</voice>' for number in range(MAX_VOICE_NAMES + 2))
    items = [*parser.push(document * 2), *parser.finish()]
    voices = {item.style.voice for item in items if isinstance(item, StyleItem)} - {None}
    assert names == [f"v{number}" for number in range(MAX_VOICE_NAMES)]
    assert voices == set(names)
    assert WarningCode.UNKNOWN_VOICE in [item.code for item in items if isinstance(item, MarkupWarning)]


def test_nothing_that_markup_names_is_opened(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something is opened")

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("socket.socket", refuse)
    document = (
        '<?xml-stylesheet href="http://x/y"?><!DOCTYPE a SYSTEM "file:///etc/passwd" [<!ENTITY b SYSTEM "http://x/y">]>'
        '<audio src="file:///etc/passwd">A</audio><lexicon uri="http://x/y"/><meta src="http://x"/>&b;'
    )
    assert text_of(document) == "A"


def test_styles_nest_and_end_with_their_element():
    document = '<voice name="high"><prosody rate="fast">a</prosody>b</voice><lang xml:lang="de-DE">c</lang>d'
    styles = [item.style for item in parse([document.replace("de-DE", "de")]) if isinstance(item, StyleItem)]
    high = SpeechStyle(voice="high", speaker="high")
    assert styles == [
        high,
        replace(high, speed=1.25),
        high,
        SpeechStyle(),
        SpeechStyle(None, "de"),
        SpeechStyle(),
    ]


def test_ratios_hold_up_to_the_end_of_their_element():
    document = '<speed ratio="1.3"/>a<p><volume ratio="0.7"/><speed ratio="2"/>b</p>c<volume ratio="99"/>'
    styles = [item.style for item in parse([document]) if isinstance(item, StyleItem)]
    first = SpeechStyle(speed=1.3)
    assert styles[:4] == [first, SpeechStyle(speed=1.3, gain=0.7), SpeechStyle(speed=2.0, gain=0.7), first]
    assert warnings_of(document) == [(WarningCode.OUT_OF_RANGE, "volume")]


def test_end_of_an_outer_element_ends_the_inner_ones():
    items = parse(['<voice name="high"><prosody rate="fast">a</voice>b'])
    assert items[-2:] == [StyleItem(SpeechStyle()), TextToken("b", 49, 50)]


def test_elements_beyond_the_depth_are_ignored_with_their_ends():
    many = MAX_DEPTH + 5
    end = "</prosody>"
    items = parse(['<prosody rate="fast">' * many + "a" + end * (many - 1) + "b" + end + "c"])
    spoken = [item.text if isinstance(item, TextToken) else item.style.speed for item in items
              if isinstance(item, TextToken | StyleItem)]  # fmt: skip
    assert spoken == [1.25, "ab", 1.0, "c"]
    assert (WarningCode.TOO_DEEP, "prosody") in [(i.code, i.element) for i in items if isinstance(i, MarkupWarning)]


@pytest.mark.parametrize(
    ("tag", "duration_ms"),
    [
        ("<break/>", 500),
        ('<break time="1.5s"/>', 1500),
        ("<break time='300ms'></break>", 300),
        ('<break strength="x-strong"/>', 1500),
        ('<break strength="weak" time="2s"/>', 2000),
        ('<break time="99s"/>', MAX_BREAK_MS),
        ('<break time="?"/>', 500),
        ('<break strength="none"/>', None),
        ('<break time="0s"/>', None),
    ],
)
def test_break_lasts_as_its_attributes_say(tag: str, duration_ms: float | None):
    breaks = [item.duration_ms for item in parse([tag]) if isinstance(item, BreakItem)]
    assert breaks == ([] if duration_ms is None else [duration_ms])


def test_breaks_and_marks_of_a_response_are_bounded():
    items = parse(['<break time="10s"/><mark name="m"/>' * (MAX_MARKS + 50)])
    breaks = [item.duration_ms for item in items if isinstance(item, BreakItem)]
    assert sum(breaks) == MAX_TOTAL_BREAK_MS
    assert sum(isinstance(item, MarkItem) for item in items) == MAX_MARKS


@pytest.mark.parametrize(("value", "ms"), [("1s", 1000), ("+0.25s", 250), (".5s", 500), ("1", None), ("-1s", None)])
def test_durations(value: str, ms: float | None):
    assert parse_duration_ms(value) == ms


@pytest.mark.parametrize(
    ("value", "rate"),
    [("slow", 0.75), ("120%", 1.2), ("+20%", 1.2), ("-20%", 0.8), ("1.5", 1.5), ("+1.5", None), ("fastest", None)],
)
def test_rates(value: str, rate: float | None):
    assert parse_rate(value) == (None if rate is None else pytest.approx(rate))


@pytest.mark.parametrize(
    ("value", "gain"),
    [("loud", 1.995), ("-6dB", 0.501), ("+6.0dB", 1.995), ("50", 0.5), ("+20%", 1.2), ("silent", 0.0), ("high", None)],
)
def test_volumes(value: str, gain: float | None):
    decibels = parse_volume_db(value)
    assert decibels == gain if gain is None or decibels is None else gain_of(decibels) == pytest.approx(gain, abs=0.001)


@pytest.mark.parametrize(
    ("kind", "layout", "written", "spoken"),
    [
        ("characters", "", "R2-d2", "R two dash D two"),
        ("spell-out", "", "API", "A P I"),
        ("digits", "", "12 345", "one two three four five"),
        ("cardinal", "", "-1,250", "minus one thousand two hundred fifty"),
        ("cardinal", "", "XIV", "fourteen"),
        ("ordinal", "", "21", "twenty-first"),
        ("date", "mdy", "3/5/2024", "March fifth, twenty twenty-four"),
        ("date", "dmy", "3/5/24", "May third, twenty twenty-four"),
        ("date", "yyyymmdd", "20240305", "March fifth, twenty twenty-four"),
        ("date", "my", "12/1999", "December nineteen ninety-nine"),
        ("date", "md", "07-04", "July fourth"),
        ("date", "", "2024-03-05", "March fifth, twenty twenty-four"),
        ("time", "hms12", "2:30pm", "two thirty P M"),
        ("telephone", "", "+1 (555) 123-4567 x12",
         "plus one, five five five, one two three, four five six seven, extension one two"),
        ("currency", "", "USD 42.50", "forty-two dollars and fifty cents"),
        ("unit", "", "5km/h", "five kilometers per hour"),
        ("address", "", "221B Baker St.", "two hundred twenty-one B Baker Street"),
    ],
)  # fmt: skip
def test_say_as_in_english(kind: str, layout: str, written: str, spoken: str):
    assert text_of(f'<say-as interpret-as="{kind}" format="{layout}">{written}</say-as>') == spoken


@pytest.mark.parametrize(
    ("kind", "written", "spoken"),
    [
        ("characters", "äb1", "Ä B 1"),
        ("digits", "12", "1 2"),
        ("telephone", "030-12", "0 3 0, 1 2"),
        ("cardinal", "12", "12"),
    ],
)
def test_say_as_in_another_language_speaks_what_needs_no_words(kind: str, written: str, spoken: str):
    document = f'<lang xml:lang="de"><say-as interpret-as="{kind}">{written}</say-as></lang>'
    assert text_of(document) == spoken
    assert (WarningCode.NOT_READABLE, "say-as") in warnings_of(document) or kind != "cardinal"


def test_long_text_of_say_as_is_spoken_as_written():
    written = "12 " * MAX_SAY_AS_CHARS
    assert text_of(f'<say-as interpret-as="digits">{written}</say-as>') == written
