"""The whole benchmark against a server process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from realtime import cli
from tests.realtime.server_process import server

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


def test_a_healthy_server_passes(capsys: pytest.CaptureFixture[str], corpus: str, tmp_path: Path) -> None:
    with server({"first_chunk_s": 0.05, "real_time_factor": 0.05}) as running:
        arguments = ("--url", running.url, "--sessions", "2", "--responses", "1", "--corpus", corpus)
        status, line = bench(capsys, *arguments, "--client-processes", "2", "--plot", str(tmp_path / "plot.svg"))
    assert set(line) >= KEYS
    assert (status, line["errors"], line["continuity"], line["responses"]) == (WHOLE, 0, 1.0, 2)
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
    assert [status for status, _ in (whole, light)] == [WHOLE, WHOLE]
    assert light[1]["continuity"] == 1.0
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
