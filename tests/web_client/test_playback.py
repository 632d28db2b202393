"""What comes out of the page, sample for sample, heard by an ear in its audio thread."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import soxr

from tests.fakes.resetting_proxy import resetting_proxy
from tests.web_client.conftest import QUICK, READY, samples, until

RATE = 48_000
# Of the fake engine's first voice, in its first segment.
TONE_HZ = 160.0
LEVEL = 0.3
# Four times what Opus adds to a tone.
CLICK = 0.01
VECTOR = json.loads((Path(__file__).parents[1] / "vectors" / "audio" / "opus_24k.json").read_text())
# 1.2 s.
TEXT = "word " * 6
# For tests of what is heard, so that a busy machine makes no gap: what is there is played, however late it came.
PATIENT = {"prebuffer_ms": 1_000}
# A busy machine's device leaves frames out now and then; if ours held it up, it would do so each time.
MOST_TRIES = 3
PCM = {"format": {"encoding": "pcm_s16le"}}
# After 160 ms of sound nothing comes for 350 ms; then it catches up.
SLOW_START = QUICK | {"real_time_factor": 0.5, "stalls_s": {"2": 0.35}}
TOO_SLOW = QUICK | {"real_time_factor": 1.25}


def hear(page: Any, text: str = TEXT, **order: Any) -> dict[str, Any]:
    """Once more where the device left frames out: then not every sample can be heard."""
    for _ in range(MOST_TRIES):
        told = page.evaluate("async (order) => (await import('/harness.js')).hear(order)", {"text": text, **order})
        if "skipped" not in kinds(told):
            break
    return told


def sound(told: dict[str, Any]) -> np.ndarray:
    """All samples between the first one played and the last."""
    tap = told["tap"]
    assert tap["whole"]
    first, last = (told["events"][at]["frame"] - tap["frame"] for at in (0, -1))
    return samples(tap["pcm"])[first:last]


def kinds(told: dict[str, Any]) -> list[str]:
    return [event["kind"] for event in told["events"]]


def clicks(pcm: np.ndarray, frequency_hz: float = TONE_HZ) -> int:
    """Places where the tone does not go on as a tone does."""
    turn = 2 * np.cos(2 * np.pi * frequency_hz / RATE)
    residual = pcm[2:] - turn * pcm[1:-1] + pcm[:-2]
    found = np.flatnonzero(np.abs(residual) > CLICK)
    return int(np.count_nonzero(np.diff(found, prepend=-RATE) > RATE // 100))


def silences(pcm: np.ndarray) -> int:
    """Runs of nothing, longer than 2 ms."""
    edges = np.flatnonzero(np.diff((np.abs(pcm) < 1e-5).astype(int), prepend=0, append=0))
    return int(np.count_nonzero(edges[1::2] - edges[::2] > RATE // 500))


def assert_whole(told: dict[str, Any]) -> None:
    """Every sample that was sent was heard once, at its place, and nothing between."""
    sent = told["done"]["audio_samples"] * RATE // 24_000
    assert (told["status"], kinds(told)) == ("completed", ["started", "drained"])
    assert told["events"][-1]["position"] == sent == len(sound(told)) == told["recorded"]
    assert (clicks(sound(told)[:-1]), silences(sound(told))) == (0, 0)
    assert np.sqrt(np.mean(sound(told) ** 2)) == pytest.approx(LEVEL / np.sqrt(2), rel=0.03)
    assert told["played_ms"] == pytest.approx(told["done"]["audio_ms"], abs=1e-6)


@pytest.fixture
def page(open_page, quick):
    return open_page(f"{quick}/blank.html")


@pytest.mark.parametrize("kind", ["webcodecs", "wasm"])
def test_both_decoders_give_what_libopus_gives_and_where(page, kind):
    arguments = {"vector": VECTOR, "kind": kind}
    told = page.evaluate("async (order) => (await import('/harness.js')).decode(order)", arguments)
    assert told["chosen"] == kind
    expected = soxr.resample(samples_of_vector(), 24_000, RATE, quality="VHQ")
    found = samples(told["pcm"])[: len(expected)]
    noise = np.sum((found - expected) ** 2) / np.sum(expected**2)
    assert noise < 0.01, f"{10 * np.log10(noise):.1f} dB"
    shifted = np.sum((found[2:] - expected[:-2]) ** 2) / np.sum(expected**2)
    assert shifted > 4 * noise, "a shift by two samples would not be noticed"


def samples_of_vector() -> np.ndarray:
    return np.frombuffer(base64.b64decode(VECTOR["pcm_s16le_base64"]), "<i2").astype(np.float32) / 32_768


@pytest.mark.parametrize(
    ("decoder", "pace"),
    [
        ("webcodecs", "lead"),
        ("wasm", "burst"),
        pytest.param("webcodecs", "burst", marks=pytest.mark.slow),
        pytest.param("wasm", "lead", marks=pytest.mark.slow),
    ],
)
def test_opus_is_heard_without_a_glitch(page, decoder, pace):
    told = hear(page, options=PATIENT | {"decoder": decoder}, settings={"pace": pace})
    assert (told["opus"], told["output"]) == (decoder, "worklet")
    assert_whole(told)


@pytest.mark.parametrize(
    "format",
    [
        "pcm_s16le/24000",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("mulaw/8000", "pcm_s16le/16000", "pcm_s16le/44100", "alaw/8000")
        ),
    ],
)
def test_other_formats_are_heard_as_well(page, format):
    encoding, rate = format.split("/")
    settings = {"format": {"encoding": encoding, "sample_rate": int(rate)}}
    told = hear(page, "word " * 4, options=PATIENT, settings=settings)
    assert kinds(told) == ["started", "drained"]
    assert told["events"][-1]["position"] == pytest.approx(told["done"]["audio_samples"] * RATE / int(rate), abs=1)
    assert (clicks(sound(told)[:-1]), silences(sound(told))) == (0, 0)


@pytest.mark.parametrize(("is_hidden", "num_pieces", "step_frames"), [(False, 20, 2_048), (True, 1, 48_000)])
def test_scheduled_buffers_play_each_sample_once(page, is_hidden, num_pieces, step_frames):
    """Timers of a hidden tab run once a second."""
    page.evaluate("(value) => Object.defineProperty(document, 'hidden', { value })", is_hidden)
    sent = np.random.default_rng(1).uniform(-LEVEL, LEVEL, 57_600).astype(np.float32)
    arguments = {"pcm": base64.b64encode(sent.tobytes()).decode(), "num_pieces": num_pieces, "step_frames": step_frames}
    num_steps = num_pieces + len(sent) // step_frames + 2
    told = page.evaluate(
        "async (order) => (await import('/harness.js')).schedule(order)", arguments | {"num_steps": num_steps}
    )
    assert kinds(told) == ["started", "drained"]
    first, last = (event["frame"] for event in told["events"])
    assert (last - first, told["events"][-1]["position"]) == (len(sent), len(sent))
    heard = samples(told["pcm"])
    assert np.allclose(heard[first:last], sent, rtol=0, atol=1e-6)
    assert not heard[:first].any()
    assert not heard[last:].any()


@pytest.mark.slow
def test_text_that_arrives_in_pieces_is_heard_whole(page):
    assert_whole(hear(page, options=PATIENT, deltas=[f"word{n} " for n in range(10)], gap_ms=10))


@pytest.mark.parametrize("settings", [pytest.param({}, marks=pytest.mark.slow), PCM])
def test_lost_connection_is_not_heard(open_page, serve, settings):
    """Reset twice, in mid text: the session is resumed, and no sample is lost or repeated."""
    with resetting_proxy(urlsplit(serve(QUICK)).port) as proxy:
        page = open_page(f"http://127.0.0.1:{proxy.port}/blank.html")
        page.expected.append("WebSocket")
        num_connections: dict[int, int] = {}

        def reset_some(delta: int) -> None:
            """Reset the first connection, and later the one in its place."""
            if delta in (10, 20):
                first = num_connections.get(10, 0)
                while proxy.num_connections == first:  # the test's own time limit ends this
                    time.sleep(0.01)
                num_connections[delta] = proxy.num_connections
                proxy.reset_all()

        page.expose_function("onDelta", reset_some)
        told = hear(page, options=PATIENT, settings=settings, deltas=[f"word{n} " for n in range(30)], gap_ms=100)
        assert proxy.num_connections > num_connections[20] > num_connections[10]
        assert_whole(told)


@pytest.mark.parametrize("settings", [pytest.param({}, marks=pytest.mark.slow), PCM])
def test_lost_packets_are_detected(page, settings):
    told = hear(page, drop=3, options=PATIENT, settings=settings)
    assert told["events"][-1]["position"] < told["done"]["audio_samples"] * 2
    assert (clicks(sound(told)[:-1]) > 2) == (settings == PCM), "Opus bridges what is lost"


def test_jitter_within_the_prebuffer_is_not_heard(open_page, serve):
    page = open_page(serve(SLOW_START) + "/blank.html")
    assert_whole(hear(page, options=PATIENT))
    told = hear(page, options={"prebuffer_ms": 20})
    gaps = kinds(told).count("started") - 1
    assert sum(told["statistics"]["underruns"].values()) == gaps == silences(sound(told)) > 0
    assert told["statistics"]["underruns"]["server"] > 0
    assert clicks(sound(told)[:-1]) == 0, "the gap has fades at both ends"
    assert told["events"][-1]["position"] == told["done"]["audio_samples"] * 2, "and nothing is lost"


@pytest.mark.slow
def test_a_server_that_is_too_slow_is_detected(open_page, serve):
    told = hear(open_page(serve(TOO_SLOW) + "/blank.html"), 2 * TEXT)
    gaps = kinds(told).count("started") - 1
    assert sum(told["statistics"]["underruns"].values()) == gaps == silences(sound(told)) > 1
    assert told["statistics"]["underruns"]["server"] > 0
    assert told["events"][-1]["position"] == told["done"]["audio_samples"] * 2


@pytest.mark.slow
def test_underrun_cause_distinguishes_text_from_server(page):
    told = hear(page, deltas=["Some words to begin with. ", "And more, much later. "], gap_ms=1_800)
    underruns = told["statistics"]["underruns"]
    assert sum(underruns.values()) == kinds(told).count("started") - 1
    assert underruns["text"] > 0


MINUTES = 10


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 300)
def test_eight_replies_never_run_dry(open_page, serve):
    from benchmarks.page_latency import FAKE, at_length  # needs a browser's driver

    page = open_page(serve(FAKE))
    until(page, READY)
    page.click("#text")
    told = at_length(page, replies=8, minutes=MINUTES)
    assert (told["text"], told["server"], told["page"], told["failed"]) == (0, 0, 0, 0)
    assert told["audio_s"] > 8 * 60 * MINUTES * 0.9
