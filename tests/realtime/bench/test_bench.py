"""The load generator: what it plans, measures and reports, alone and against a server process."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime import cli
from realtime.bench.client import BINARY, FINAL, TEXT, build_frame, parse_frame
from realtime.bench.plan import (
    CORPUS,
    MAX_PIECE_CHARS,
    LoadPlan,
    ResponseResult,
    endless,
    first_word_is_final_at,
    pieces,
    read_corpus,
)
from realtime.bench.playback import START_AFTER_S, Playback
from realtime.bench.report import plot, summarise, table
from realtime.bench.run import split
from tests.realtime.server_process import server


@given(st.text("ab ,.\n"))
def test_pieces_are_the_text_without_its_last_white_space(text: str) -> None:
    found = pieces(text)
    assert "".join(found) == text.rstrip()
    assert all(0 < len(piece) <= MAX_PIECE_CHARS for piece in found)


def test_words_begin_pieces() -> None:
    assert pieces("Hello there, you.") == ["Hell", "o", " the", "re,", " you", "."]


@pytest.mark.parametrize(
    ("text", "index"), [("Hello there", 2), ("Hi you", 1), ("Hello", 2), ("Hi", 1), (" Hi you", 1), ("", 0)]
)
def test_the_first_word_is_final_when_the_next_begins(text: str, index: int) -> None:
    assert first_word_is_final_at(pieces(text)) == index


def test_the_corpus_reads_like_an_agent() -> None:
    texts = read_corpus(CORPUS)
    assert len(texts) >= 20
    assert all(text.isascii() and 40 <= len(text) <= 300 and text[-1] in ".?!" for text in texts)


def test_a_corpus_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(ValueError, match=r"empty\.txt holds no text"):
        read_corpus(tmp_path / "empty.txt")


def test_every_text_comes_once_in_each_round() -> None:
    texts = ["a", "b", "c"]
    first = list(itertools.islice(endless(texts, seed=1), 6))
    assert sorted(first[:3]) == sorted(first[3:]) == texts
    assert first == list(itertools.islice(endless(texts, seed=1), 6))


def play(arrivals: list[tuple[float, float]], sent_chars: int = 100, text_ended: bool = True) -> Playback:
    """``arrivals`` are (seconds of audio, when it came)."""
    playback = Playback()
    playback.sent(sent_chars, 0.0, text_ended)
    for audio_s, at_s in arrivals:
        playback.received(audio_s, at_s)
    return playback


def test_audio_that_comes_in_time_plays_without_a_gap() -> None:
    playback = play([(0.08, 10.0 + 0.08 * i) for i in range(50)])
    assert playback.underruns == []
    assert playback.plays_until_s == pytest.approx(10.0 + START_AFTER_S + 4.0)


def test_audio_15_percent_too_slow_runs_dry_within_half_a_second() -> None:
    playback = play([(0.08, 0.08 * 1.15 * i) for i in range(50)])
    assert playback.underruns[0].at_s < 0.6
    assert set(playback.causes()) == {"engine"}


def test_a_gap_is_noticed_when_it_ends_and_playback_starts_anew() -> None:
    playback = play([(1.0, 0.0), (1.0, 3.0), (1.0, 4.0)])
    assert [underrun.at_s for underrun in playback.underruns] == [pytest.approx(1.0 + START_AFTER_S)]
    assert playback.plays_until_s == pytest.approx(3.0 + START_AFTER_S + 2.0)


def test_what_is_played_follows_the_clock() -> None:
    playback = play([(1.0, 5.0), (1.0, 5.1)])
    assert playback.played_s(5.0 + START_AFTER_S) == pytest.approx(0.0)
    assert playback.played_s(6.0) == pytest.approx(1.0 - START_AFTER_S)
    assert playback.played_s(100.0) == 2.0
    assert Playback().played_s(1.0) == 0.0


def test_underrun_with_all_text_spoken_is_caused_by_text() -> None:
    playback = Playback()
    playback.sent(10, 0.0)
    playback.received(1.0, 0.2)
    playback.sent(10, 4.8, ended=True)
    playback.received(1.0, 5.0)
    assert playback.causes() == ["text"]


def test_a_gap_is_the_engines_when_much_text_was_left() -> None:
    playback = play([(1.0, 0.0), (9.0, 5.0)], text_ended=False)
    assert playback.causes() == ["engine"]


@given(st.lists(st.tuples(st.floats(0.001, 1), st.floats(0, 2)), min_size=1, max_size=40))
def test_nothing_received_is_lost(steps: list[tuple[float, float]]) -> None:
    now_s, arrivals = 0.0, []
    for audio_s, wait_s in steps:
        now_s += wait_s
        arrivals.append((audio_s, now_s))
    playback = play(arrivals)
    total_s = sum(audio_s for audio_s, _ in arrivals)
    assert playback.received_s == pytest.approx(total_s)
    assert playback.played_s(playback.plays_until_s) == pytest.approx(total_s)
    assert playback.plays_until_s >= arrivals[0][1] + START_AFTER_S + total_s - 1e-9


@given(st.lists(st.sampled_from([0, 1, 125, 126, 65_535, 65_536]).map(bytes), min_size=1, max_size=3), st.data())
def test_frames_are_found_when_they_are_all_there(payloads: list[bytes], data: st.DataObject) -> None:
    sent = bytearray()
    for payload in payloads:
        size = len(payload)
        wide = bytes((126,)) + size.to_bytes(2, "big") if size < 1 << 16 else bytes((127,)) + size.to_bytes(8, "big")
        sent += bytes((FINAL | BINARY,)) + (bytes((size,)) if size < 126 else wide) + payload
    received = sent[: data.draw(st.integers(0, len(sent)))]
    found, at = [], 0
    while (frame := parse_frame(received, at)) is not None:
        opcode, start, at = frame
        assert opcode == BINARY
        found.append(bytes(received[start:at]))
    assert found == payloads[: len(found)]
    assert len(found) == len(payloads) or len(received) < len(sent)


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_servers_parser_reads_what_is_sent(size: int) -> None:
    from websockets.frames import Frame
    from websockets.streams import StreamReader

    reader = StreamReader()
    reader.feed_data(build_frame(TEXT, b"x" * size))
    parser = Frame.parse(reader.read_exact, mask=True)
    with pytest.raises(StopIteration) as parsed:
        next(parser)
    assert parsed.value.value.data == b"x" * size
    assert parsed.value.value.fin


def outcome(**fields: object) -> ResponseResult:
    usual = {"session": 0, "status": "completed", "ttfa_ms": 50.0, "audio_s": 2.0, "work_s": 1.0, "ended_s": 4.0}
    return ResponseResult(**(usual | fields))  # type: ignore[arg-type]


OUTCOMES = [
    outcome(),
    outcome(ttfa_ms=150.0, underruns_engine=2),
    outcome(status="cancelled", cancel_ms=3.0, cancel_done_ms=4.0, audio_s=1.0),
    outcome(status="failed", error="overloaded", ttfa_ms=None, audio_s=0.0),
]


def test_last_report_line_has_documented_keys() -> None:
    line = msgspec.json.decode(msgspec.json.encode(summarise(OUTCOMES, 3, burst=False, server_rss_mb=50.04)))
    assert (
        line.items()
        >= {
            "sessions": 3,
            "responses": 3,
            "errors": 1,
            "rtf": None,
            "continuity": 0.5,
            "audio_s_per_s": 1.25,
            "server_rss_mb": 50.0,
            "underruns": {"text": 0, "engine": 2},
            "error_codes": {"overloaded": 1},
        }.items()
    )
    assert {"ttfa_ms", "ttfa_first_delta_ms", "ttfa_audible_ms", "cancel_ms"} <= set(line)
    assert set(line["ttfa_ms"]) == {"p50", "p95", "p99"}
    assert line["ttfa_ms"]["p50"] == 50.0


def test_bursts_have_a_factor_and_no_continuity() -> None:
    summary = summarise(OUTCOMES, 3, burst=True, server_rss_mb=None)
    assert summary.continuity is None
    assert summary.rtf is not None
    assert summary.rtf.p50 == 0.5


@pytest.mark.parametrize(
    ("outcomes", "passed"),
    [(OUTCOMES[:1], True), (OUTCOMES[:2], False), (OUTCOMES[::3], False), (OUTCOMES[::2], True)],
)
def test_an_error_or_a_gap_fails_the_check(outcomes: list[ResponseResult], passed: bool) -> None:
    assert summarise(outcomes, 1, burst=False, server_rss_mb=None).is_success is passed


def test_report_of_no_responses_is_valid() -> None:
    summary = summarise([], 1, burst=False, server_rss_mb=None)
    assert "continuity" in table(summary)
    assert plot([]).startswith("<svg")


def test_the_table_and_the_plot() -> None:
    told = table(summarise(OUTCOMES, 3, burst=False, server_rss_mb=50.0))
    assert "3, 3 responses, 1 errors" in told
    assert "50.00 % of responses" in told
    assert "error overloaded" in told
    assert plot(OUTCOMES).count("polyline") == 1


@pytest.mark.parametrize(("num_sessions", "num_processes"), [(10, 3), (2, 5), (1, 1)])
def test_sessions_are_split_over_processes(num_sessions: int, num_processes: int) -> None:
    plan = LoadPlan(url="ws://h:1", corpus="c", num_sessions=num_sessions, total_sessions=num_sessions)
    parts = split(plan, num_processes)
    arrivals = {part.first_session + at * part.session_step: part for part in parts for at in range(part.num_sessions)}
    assert sorted(arrivals) == list(range(num_sessions))
    # Any two that arrive one after the other are of different processes, if there are several.
    assert all(arrivals[n] is not arrivals[n + 1] or len(parts) == 1 for n in range(num_sessions - 1))
    assert all(part.num_sessions > 0 for part in parts)


KEYS = {
    "sessions", "responses", "errors", "ttfa_ms", "ttfa_first_delta_ms", "ttfa_audible_ms", "rtf", "continuity",
    "audio_s_per_s", "cancel_ms", "server_rss_mb",
}  # fmt: skip
WHOLE, BROKEN = 0, 1


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    status = cli.main(["bench", *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "corpus.txt"
    path.write_text("Certainly, the small table is free.\nThat is all there was to say.\n")
    return str(path)


def assert_judged_by_continuity(status: int, line: dict[str, object]) -> None:
    """On busy cores a healthy server may run dry; the benchmark passes exactly when nothing did."""
    num_underruns = sum(line["underruns"].values())
    assert (line["continuity"] == 1.0) == (num_underruns == 0)
    assert status == (BROKEN if num_underruns else WHOLE)


def test_server_is_judged_by_what_was_measured(capsys: pytest.CaptureFixture[str], corpus: str, tmp_path: Path) -> None:
    with server({"first_chunk_s": 0.05, "real_time_factor": 0.05}) as running:
        arguments = ("--url", running.url, "--sessions", "2", "--responses", "1", "--corpus", corpus)
        status, line = bench(capsys, *arguments, "--client-processes", "2", "--plot", str(tmp_path / "plot.svg"))
    assert set(line) >= KEYS
    assert (line["errors"], line["responses"]) == (0, 2)
    assert_judged_by_continuity(status, line)
    assert line["ttfa_ms"]["p50"] >= 50
    assert line["ttfa_first_delta_ms"]["p50"] >= line["ttfa_ms"]["p50"]
    assert line["cancel_ms"] is not None
    assert line["server_rss_mb"] > 10
    assert (tmp_path / "plot.svg").read_text().startswith("<svg")


def test_a_server_15_percent_too_slow_fails_its_continuity(capsys: pytest.CaptureFixture[str], corpus: str) -> None:
    with server({"first_chunk_s": 0.05, "real_time_factor": 1.15}) as running:
        arguments = ("--url", running.url, "--sessions", "2", "--responses", "1", "--corpus", corpus, "--no-cancel")
        status, line = bench(capsys, *arguments)
    assert (status, line["errors"], line["continuity"]) == (BROKEN, 0, 0.0)
    assert line["underruns"]["engine"] > 0


def test_light_clients_measure_healthy_server_equally(capsys: pytest.CaptureFixture[str], corpus: str) -> None:
    with server({"first_chunk_s": 0.05, "real_time_factor": 0.3}) as running:
        arguments = ("--url", running.url, "--sessions", "3", "--responses", "1", "--corpus", corpus)
        whole, light = (bench(capsys, *arguments, *flags) for flags in ((), ("--count-packets",)))
    for status, line in (whole, light):
        assert_judged_by_continuity(status, line)
    assert light[1]["responses"] == whole[1]["responses"] == 3
    assert light[1]["ttfa_ms"]["p50"] >= 50
    assert light[1]["ttfa_audible_ms"] is None
    assert light[1]["cancel_done_ms"] is not None
    seconds = [line["audio_s_per_s"] for _, line in (whole, light)]
    assert 0.5 < seconds[0] / seconds[1] < 2


def test_light_clients_detect_underruns(capsys: pytest.CaptureFixture[str], corpus: str) -> None:
    with server({"first_chunk_s": 0.05, "real_time_factor": 1.15}) as running:
        arguments = ("--url", running.url, "--responses", "1", "--corpus", corpus, "--no-cancel", "--count-packets")
        status, line = bench(capsys, *arguments)
    assert (status, line["continuity"]) == (BROKEN, 0.0)


def test_bursts_measure_the_engine(capsys: pytest.CaptureFixture[str], corpus: str) -> None:
    with server({"first_chunk_s": 0.02, "real_time_factor": 0.1}) as running:
        arguments = ("--url", running.url, "--sessions", "2", "--corpus", corpus, "--burst", "--no-cancel")
        status, line = bench(capsys, *arguments)
    assert (status, line["continuity"], line["responses"]) == (WHOLE, None, 8)
    assert 0.05 < line["rtf"]["p50"] < 1
    assert line["audio_s_per_s"] > 1


@pytest.mark.parametrize("flags", [(), ("--count-packets",)], ids=["whole", "light"])
def test_refusals_are_errors(capsys: pytest.CaptureFixture[str], corpus: str, flags: tuple[str, ...]) -> None:
    with server(auth__api_keys="agent:a-key-of-enough-characters") as running:
        status, line = bench(capsys, "--url", running.url, "--sessions", "2", "--corpus", corpus, *flags)
    assert (status, line["errors"], line["error_codes"]) == (BROKEN, 2, {"http_401": 2})


def test_no_server_at_all(capsys: pytest.CaptureFixture[str], corpus: str) -> None:
    status, line = bench(capsys, "--url", "ws://127.0.0.1:9", "--corpus", corpus)
    assert (status, line["errors"], line["server_rss_mb"]) == (BROKEN, 1, None)


def test_an_address_that_is_none(capsys: pytest.CaptureFixture[str], corpus: str) -> None:
    assert cli.main(["bench", "--url", "localhost", "--corpus", corpus]) == 1
    assert "ws://HOST:PORT" in capsys.readouterr().err
