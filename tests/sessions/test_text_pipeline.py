"""Text on its way: however it is sliced the segments are the same, words stay whole, and flushes keep their place."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sessions.text_pipeline import READ_AHEAD_SEGMENTS, FlushItem, TextPipeline, TextSegment
from sessions.timeline import ResponseTimeline
from sessions.word_buffer import MAX_HELD_CHARS, WordBuffer

TEXT = st.text(st.sampled_from("ab ,.\n é🙂日本3$%"), max_size=400) | st.text(max_size=60)


def read_on(script: TextPipeline, max_chars: int = 500) -> None:
    while script.wants_text:
        script.read(max_chars)


def take_all(script: TextPipeline, max_chars: int = 500) -> list[TextSegment | FlushItem]:
    """As the speaker does: a segment once there is something in it to be spoken."""
    taken = []
    read_on(script, max_chars)
    while script.waiting and (isinstance(script.waiting[0], FlushItem) or script.waiting[0].speakable):
        taken.append(script.pop())
        read_on(script, max_chars)
    return taken


def read_pieces(pieces: list[str], normalize: bool) -> tuple[list[str], list[int], TextPipeline]:
    told = ResponseTimeline(24_000)
    script = TextPipeline(told, normalize)
    segments = []
    for piece in pieces:
        script.push_text(piece)
        segments += take_all(script)
    script.end()
    segments += take_all(script)
    assert script.exhausted
    spoken = [segment for segment in segments if isinstance(segment, TextSegment) and segment.speakable]
    return [segment.text.rstrip() for segment in spoken], [segment.spoken.words.raw_end for segment in spoken], script


def cuts(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(edges)]


@given(TEXT, st.lists(st.integers(0, 1000), max_size=8), st.booleans())
def test_any_cut_gives_the_same_segments(text: str, places: list[int], normalize: bool):
    assert read_pieces(cuts(text, places), normalize)[:2] == read_pieces([text], normalize)[:2]


@given(TEXT, st.booleans())
def test_segments_close_and_follow_each_other_in_the_clients_text(text: str, normalize: bool):
    told = ResponseTimeline(24_000)
    script = TextPipeline(told, normalize)
    script.push_text(text)
    script.end()
    segments = [segment for segment in take_all(script) if isinstance(segment, TextSegment)]
    assert all(segment.closed for segment in segments)
    assert [segment.index for segment in segments] == sorted({segment.index for segment in segments})
    ranges = [(segment.spoken.words.raw_start, segment.spoken.words.raw_end) for segment in segments]
    assert ranges == sorted(ranges)
    assert all(start <= end <= len(text) for start, end in ranges)


def test_a_long_text_is_read_as_far_as_needed():
    script = TextPipeline(ResponseTimeline(24_000), normalize=False)
    script.push_text("A sentence that is not long. " * 1_000)
    script.end()
    read_on(script)
    assert READ_AHEAD_SEGMENTS < len(script.waiting) <= READ_AHEAD_SEGMENTS + 5
    assert not script.exhausted
    assert sum(len(segment.text) for segment in take_all(script) if isinstance(segment, TextSegment)) > 28_000
    assert script.exhausted


@given(TEXT, st.lists(st.integers(0, 1000), max_size=8), st.booleans(), st.integers(1, 9))
def test_any_budget_gives_the_same_segments(text: str, places: list[int], normalize: bool, max_chars: int):
    scripts = [TextPipeline(ResponseTimeline(24_000), normalize) for _ in range(2)]
    for script in scripts:
        for piece in cuts(text, places):
            script.push_text(piece)
            script.flush()
        script.end()
    small, large = (
        [_summary(item) for item in take_all(script, num_chars)]
        for script, num_chars in zip(scripts, (max_chars, 500), strict=True)
    )
    assert small == large


def _summary(item: TextSegment | FlushItem) -> tuple[object, ...]:
    return (item.flush,) if isinstance(item, FlushItem) else (item.index, item.text, item.closed)


def test_a_read_stays_within_its_budget():
    script = TextPipeline(ResponseTimeline(24_000), normalize=False)
    for _ in range(5):
        script.push_text("word ")
    assert script.read(12) == 12
    assert script.read(12) == 12
    assert script.read(12) == len(" ") + len("word")
    assert not script.wants_text


def test_flushes_keep_their_place():
    script = TextPipeline(ResponseTimeline(24_000), normalize=False)
    script.push_text("One")
    assert script.flush() == 0
    script.push_text("two three")
    script.push_text(" four")
    assert script.flush() == 1
    script.push_text("🙂")
    assert script.flush() == 2
    items = take_all(script)
    assert [item.text if isinstance(item, TextSegment) else item.flush for item in items] == [
        "One",
        0,
        "two three four",
        1,
        2,
    ]


def test_an_early_close_keeps_the_unfinished_word_for_the_next_segment():
    script = TextPipeline(ResponseTimeline(24_000), normalize=False)
    script.push_text("One two thr")
    (first,) = take_all(script)
    script.close_early()
    script.push_text("ee four")
    script.end()
    (second,) = take_all(script)
    assert isinstance(first, TextSegment)
    assert isinstance(second, TextSegment)
    assert (first.text, first.closed, first.is_gathering) == ("One two ", True, False)
    assert (second.text, second.is_gathering) == ("three four", True)


# Whole words


def pushed(pieces: list[str]) -> list[str]:
    words = WordBuffer()
    return [*(words.push(piece).text for piece in pieces), words.flush().text]


@given(TEXT, st.lists(st.integers(0, 1000), max_size=8))
def test_text_as_written_passes_unchanged(text: str, places: list[int]):
    assert "".join(pushed(cuts(text, places))) == text


def test_a_word_waits_for_the_space_behind_it_and_takes_it_along():
    assert pushed(["Hel", "lo", " wor", "ld. "]) == ["", "", "Hello ", "world. ", ""]


def test_letters_of_scripts_without_spaces_pass_at_once():
    assert pushed(["你", "好abc", "。"]) == ["你", "好", "abc。", ""]


def test_a_run_without_end_passes_in_parts():
    assert pushed(["a" * (MAX_HELD_CHARS + 1), "b"]) == ["a" * (MAX_HELD_CHARS + 1), "", "b"]
