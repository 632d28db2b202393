"""What real clients play is speech: a recogniser hears it word for word, and each word when its wire says it comes.

``tests/sdk/run -m heard`` runs them against ``voicewire serve`` and its embedded voice. Where a turn is interrupted,
the turn after it is heard whole, and what came of the interrupted one is the beginning of its text.
The recogniser is pocketsphinx with a bigram model of the turns among 38 other sentences, as in
``benchmarks/voice_quality``: what is not speech, or not these words, it hears as other words of the forty.
With ``VOICEWIRE_HEARD=FILE`` a line of JSON is added to FILE for every client.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pocketsphinx", reason="the dependency group training is not installed")
pytest.importorskip("jiwer", reason="the dependency group training is not installed")

from tests.realtime.certificates import self_signed
from tests.realtime.server_process import ServerProcess, wire_address
from tests.sdk.client_matrix import KEY, Run, all_runs
from tests.sdk.clients.client_turns import LONG, TURNS
from tests.sdk.test_clients import named, seconds
from training.asr_judge import GROUP_SENTENCES, Recognizer, Signal, Transcription, compare, to_16k
from training.held_out import read_sentences, words_of

pytestmark = [pytest.mark.heard, pytest.mark.timeout(240)]

# They keep what came of a turn before they interrupted it.
CUT_MODES = {"cancel", "clear", "interrupt", "v2_interrupt"}
# Into the second of the long turn's sentences.
CUT_AFTER_S = 5
LEAST_CUT_WORDS = 10
MOST_CUT_SENTENCES = 12
# So many more or fewer may have been said than were heard.
SLACK_WORDS = 5
# The recogniser misses the "of" of some sentences, one of their ten words; the second may be cut after nine.
MAX_CUT_WORDS_WRONG = 0.15
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
# Of a client's turns, 20 words as a rule; the voice itself has 1 to 3 in a hundred wrong.
MAX_WORDS_WRONG = 0.1
# Of the distance between the time that a client tells of a word and the time that it is heard to begin at.
MAX_MEDIAN_MS, MAX_WORST_MS = 50.0, 250.0
TURN_TIMEOUT_S = "90"
# They take the first start above 0 off every time, and play the silence before it none the less.
COUNT_FROM_FIRST_SOUND = {("livekit-js", "elevenlabs"), ("livekit-js", "elevenlabs_defaults")}


@dataclass
class Hearing:
    """What was heard of one client's turns."""

    run: str
    words: int = 0
    wrong: int = 0
    # Words that the client told a time of and that were heard.
    times: int = 0
    median_ms: float | None = None
    worst_ms: float | None = None
    # Heard of a turn before it was interrupted, but for the last.
    cut_words: int | None = None


@contextmanager
def speaking(*flags: str) -> Iterator[ServerProcess]:
    """``voicewire serve`` with the voice that comes with it."""
    command = [sys.executable, "-m", "realtime.cli", "serve", "--port", "0", "--log-level", "error", *flags]
    environment = os.environ | {"VOICEWIRE_AUTH_API_KEYS": f"agent:{KEY}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        assert process.stdout is not None
        try:
            yield ServerProcess(process, wire_address(process.stdout).removesuffix("/v1/speech"))
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def running() -> Iterator[ServerProcess]:
    with speaking() as started:
        yield started


@pytest.fixture(scope="module")
def over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, str]]:
    certificate, key = self_signed(tmp_path_factory.mktemp("tls"))
    with speaking("--tls-certificate", str(certificate), "--tls-key", str(key)) as started:
        yield started, str(certificate)


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    return Recognizer([*TURNS, *read_sentences()[: GROUP_SENTENCES - len(TURNS)]])


@pytest.fixture(scope="module")
def cut_recognizer() -> Recognizer:
    return Recognizer([*long_sentences(), *read_sentences()[: GROUP_SENTENCES - MOST_CUT_SENTENCES]])


def long_sentences() -> list[str]:
    """How the long turn begins, its numbers in words."""
    sentences = LONG.split(".")[:MOST_CUT_SENTENCES]
    return [
        sentence.replace(str(at), number) for (at, number), sentence in zip(enumerate(NUMBERS), sentences, strict=True)
    ]


@pytest.mark.parametrize("run", all_runs(needs_tls=False), ids=named)
def test_what_a_client_plays_is_understood(
    running: ServerProcess, recognizer: Recognizer, cut_recognizer: Recognizer, run: Run, tmp_path: Path
) -> None:
    told = speak(run, running.url.replace("ws", "http", 1), tmp_path)
    check(run, told, recognizer, cut_recognizer, tmp_path)


@pytest.mark.parametrize("run", all_runs(needs_tls=True), ids=named)
def test_what_a_client_plays_over_tls_is_understood(
    over_tls: tuple[ServerProcess, str], recognizer: Recognizer, cut_recognizer: Recognizer, run: Run, tmp_path: Path
) -> None:
    started, certificate = over_tls
    told = speak(run, started.url.replace("wss", "https", 1), tmp_path, NODE_EXTRA_CA_CERTS=certificate)
    check(run, told, recognizer, cut_recognizer, tmp_path)


def test_a_hum_is_not_taken_for_speech(recognizer: Recognizer) -> None:
    hum = np.sin(np.arange(64_000) * 2 * np.pi * 220 / 16_000).astype(np.float32)
    assert share_wrong([compare(TURNS[0], recognizer.hear(hum))]) > 5 * MAX_WORDS_WRONG


def test_other_words_are_told_from_these(recognizer: Recognizer) -> None:
    assert share_wrong([compare(TURNS[0], TURNS[1])]) > 5 * MAX_WORDS_WRONG


def test_a_beginning_is_told_from_what_is_none() -> None:
    said = words_of(" ".join(long_sentences()))
    assert is_beginning([*said[:14], "sten"])
    assert is_beginning([*said[:5], *said[6:15], *said[16:20]])
    assert not is_beginning(said[10:30])
    assert not is_beginning([*said[:4], *said[5:30]])
    assert not is_beginning([*said[:10], *said[20:30]])
    assert not is_beginning([*said[:7], *said[12:30]])
    assert not is_beginning(said[:LEAST_CUT_WORDS])


def test_times_half_a_second_late_are_seen() -> None:
    heard = [("this", 0.1), ("is", 0.3), ("the", 0.5), ("second", 0.6), ("turn", 1.0)]
    told: list[list[Any]] = [["This", 0.6], ["is", 0.8], ["the", 0.5], ["third", 0.9], ["turn.", 1.5]]
    assert distances(told, heard) == pytest.approx([500, 500, 0, 500])


def speak(run: Run, url: str, folder: Path, **trusted: str) -> dict[str, Any]:
    waits = {"VOICEWIRE_TURN_TIMEOUT_S": TURN_TIMEOUT_S, "VOICEWIRE_CUT_AFTER_S": str(CUT_AFTER_S)}
    return run.speak(url, **waits, **trusted, VOICEWIRE_PLAYED=str(folder))


def check(run: Run, told: dict[str, Any], recognizer: Recognizer, cut_recognizer: Recognizer, folder: Path) -> None:
    """A client tells of a turn once its terminal event came; without one it gives up and prints nothing."""
    assert told["errors"] == []
    assert told["turns"]
    heard, distances_ms = [], []
    for turn in told["turns"]:
        signal = read_wave(folder / turn["sound"])
        heard.append(compare(turn["text"], recognizer.hear(signal)))
        if run.is_timed:
            distances_ms += distances(turn["words"], recognizer.hear_times(signal), run[:2] in COUNT_FROM_FIRST_SOUND)
    hearing = summed(run, heard, distances_ms)
    beginning = words_of(cut_recognizer.hear(read_wave(folder / "cut.wav"))) if run.mode in CUT_MODES else None
    hearing.cut_words = None if beginning is None else len(beginning) - 1
    keep(hearing)
    assert beginning is None or is_beginning(beginning), beginning
    assert share_wrong(heard) <= MAX_WORDS_WRONG, [one.hypothesis for one in heard]
    if run.is_timed:
        assert hearing.times >= (1 - MAX_WORDS_WRONG) * hearing.words - hearing.wrong
        assert hearing.median_ms is not None
        assert hearing.worst_ms is not None
        assert hearing.median_ms <= MAX_MEDIAN_MS
        assert hearing.worst_ms <= MAX_WORST_MS


def is_beginning(heard: list[str]) -> bool:
    """Of the long turn, but for the last word, which may be cut. Its sentences tell their numbers."""
    whole = heard[:-1]
    numbers = tuple(word for word in whole if word in NUMBERS)
    near = wrong_of_beginning(whole) <= MAX_CUT_WORDS_WRONG * len(whole)
    return len(whole) >= LEAST_CUT_WORDS and numbers == NUMBERS[: len(numbers)] and near


def wrong_of_beginning(heard: list[str]) -> int:
    """Words, against the beginning of the long turn that is nearest."""
    said = words_of(" ".join(long_sentences()))
    beginnings = range(max(1, len(heard) - SLACK_WORDS), len(heard) + SLACK_WORDS)
    return min(compare(" ".join(said[:end]), " ".join(heard)).errors for end in beginnings)


def read_wave(path: Path) -> Signal:
    with wave.open(str(path)) as file:
        return to_16k(np.frombuffer(file.readframes(file.getnframes()), np.int16), file.getframerate())


def share_wrong(heard: list[Transcription]) -> float:
    return sum(one.errors for one in heard) / sum(one.words for one in heard)


def distances(told: list[list[Any]], heard: list[tuple[str, float]], only_steps: bool = False) -> list[float]:
    """In ms, of the words both have in the same order; times in ns are those of a clock, so only their steps count."""
    times_s = [seconds(word[1]) for word in told]
    words = [" ".join(words_of(word[0])) for word in told]
    matches = SequenceMatcher(None, words, [word for word, _ in heard], autojunk=False).get_matching_blocks()
    found = [times_s[m.a + i] - heard[m.b + i][1] for m in matches for i in range(m.size)]
    if found and (only_steps or times_s[0] != told[0][1]):
        middle = statistics.median(found)
        found = [distance - middle for distance in found]
    return [abs(distance) * 1000 for distance in found]


def summed(run: Run, heard: list[Transcription], distances_ms: list[float]) -> Hearing:
    hearing = Hearing(named(run), sum(one.words for one in heard), sum(one.errors for one in heard), len(distances_ms))
    if distances_ms:
        hearing.median_ms, hearing.worst_ms = round(statistics.median(distances_ms), 1), round(max(distances_ms), 1)
    return hearing


def keep(hearing: Hearing) -> None:
    if kept := os.environ.get("VOICEWIRE_HEARD"):
        with Path(kept).open("a") as lines:
            lines.write(json.dumps(asdict(hearing)) + "\n")
