"""Text on its way: however it is sliced the segments are the same, words stay whole, and flushes keep their place."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sessions.text.word_joiner import MAX_HELD_CHARS, WordBuffer
from sessions.text_track import READ_AHEAD_SEGMENTS, FlushItem, TextSegment, TextTrack
from sessions.timeline import ResponseTimeline

TEXT = st.text(st.sampled_from("ab ,.\n é🙂日本3$%"), max_size=400) | st.text(max_size=60)


def read_on(track: TextTrack, max_chars: int = 500) -> None:
    while track.wants_text:
        track.read(max_chars)


def pop_all(track: TextTrack, max_chars: int = 500) -> list[TextSegment | FlushItem]:
    """Pop items as the response does: a segment once it has text that can be spoken."""
    popped = []
    read_on(track, max_chars)
    while track.waiting and (isinstance(track.waiting[0], FlushItem) or track.waiting[0].speakable):
        popped.append(track.pop())
        read_on(track, max_chars)
    return popped


def read_pieces(pieces: list[str], normalize: bool) -> tuple[list[str], list[int], TextTrack]:
    timeline = ResponseTimeline(24_000)
    track = TextTrack(timeline, normalize)
    segments = []
    for piece in pieces:
        track.push(piece, 0.0)
        segments += pop_all(track)
    track.end()
    segments += pop_all(track)
    assert track.exhausted
    spoken = [segment for segment in segments if isinstance(segment, TextSegment) and segment.speakable]
    return [segment.text.rstrip() for segment in spoken], [segment.spoken.words.raw_end for segment in spoken], track


def cuts(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(edges)]


@given(TEXT, st.lists(st.integers(0, 1000), max_size=8), st.booleans())
def test_any_cut_gives_the_same_segments(text: str, places: list[int], normalize: bool):
    assert read_pieces(cuts(text, places), normalize)[:2] == read_pieces([text], normalize)[:2]


@given(TEXT, st.booleans())
def test_segments_close_and_follow_each_other_in_the_clients_text(text: str, normalize: bool):
    timeline = ResponseTimeline(24_000)
    track = TextTrack(timeline, normalize)
    track.push(text, 0.0)
    track.end()
    segments = [segment for segment in pop_all(track) if isinstance(segment, TextSegment)]
    assert all(segment.closed for segment in segments)
    assert [segment.index for segment in segments] == sorted({segment.index for segment in segments})
    ranges = [(segment.spoken.words.raw_start, segment.spoken.words.raw_end) for segment in segments]
    assert ranges == sorted(ranges)
    assert all(start <= end <= len(text) for start, end in ranges)


def test_a_long_text_is_read_as_far_as_needed():
    track = TextTrack(ResponseTimeline(24_000), normalize=False)
    track.push("A sentence that is not long. " * 1_000, 0.0)
    track.end()
    read_on(track)
    assert READ_AHEAD_SEGMENTS < len(track.waiting) <= READ_AHEAD_SEGMENTS + 5
    assert not track.exhausted
    assert sum(len(segment.text) for segment in pop_all(track) if isinstance(segment, TextSegment)) > 28_000
    assert track.exhausted


@given(TEXT, st.lists(st.integers(0, 1000), max_size=8), st.booleans(), st.integers(1, 9))
def test_any_budget_gives_the_same_segments(text: str, places: list[int], normalize: bool, max_chars: int):
    tracks = [TextTrack(ResponseTimeline(24_000), normalize) for _ in range(2)]
    for track in tracks:
        for piece in cuts(text, places):
            track.push(piece, 0.0)
            track.flush()
        track.end()
    small, large = (
        [_summary(item) for item in pop_all(track, num_chars)]
        for track, num_chars in zip(tracks, (max_chars, 500), strict=True)
    )
    assert small == large


def _summary(item: TextSegment | FlushItem) -> tuple[object, ...]:
    return (item.flush,) if isinstance(item, FlushItem) else (item.index, item.text, item.closed)


def test_a_read_stays_within_its_budget():
    track = TextTrack(ResponseTimeline(24_000), normalize=False)
    for _ in range(5):
        track.push("word ", 0.0)
    assert track.read(12) == 12
    assert track.read(12) == 12
    assert track.read(12) == len(" ") + len("word")
    assert not track.wants_text


def test_flushes_keep_their_place():
    track = TextTrack(ResponseTimeline(24_000), normalize=False)
    track.push("One", 0.0)
    assert track.flush() == 0
    track.push("two three", 0.0)
    track.push(" four", 0.0)
    assert track.flush() == 1
    track.push("🙂", 0.0)
    assert track.flush() == 2
    items = pop_all(track)
    assert [item.text if isinstance(item, TextSegment) else item.flush for item in items] == [
        "One",
        0,
        "two three four",
        1,
        2,
    ]


def test_an_early_close_keeps_the_unfinished_word_for_the_next_segment():
    track = TextTrack(ResponseTimeline(24_000), normalize=False)
    track.push("One two thr", 0.0)
    (first,) = pop_all(track)
    track.close_early()
    track.push("ee four", 0.0)
    track.end()
    (second,) = pop_all(track)
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


def test_letters_of_tracks_without_spaces_pass_at_once():
    assert pushed(["你", "好abc", "。"]) == ["你", "好", "abc。", ""]


def test_a_run_without_end_passes_in_parts():
    assert pushed(["a" * (MAX_HELD_CHARS + 1), "b"]) == ["a" * (MAX_HELD_CHARS + 1), "", "b"]
