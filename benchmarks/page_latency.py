"""Compare the first audio of the page with that of the native client, and count underruns of the page.

A server with the embedded voice serves both in turn (``--fake``: a fake engine, four times faster than speech). Native:
from sending the text to the first audio message. Page, in headless Chromium: from the click on Speak to the first
sample out of the page's audio thread, without the latency of the device. With ``--minutes`` the page then plays
``--replies`` concurrent responses for that time, and every underrun is counted.

    python -m benchmarks.page_latency [--rounds 30] [--replies 8 --minutes 10] [--fake] [--url http://127.0.0.1:8765]

The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright

from realtime.client import open_session
from realtime.protocol import events as ev

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
SOUND_ALLOWED = "--autoplay-policy=no-user-gesture-required"
FAKE = {"ms_per_char": 60.0, "first_chunk_s": 0.03, "real_time_factor": 0.25}
SHORT = "Good morning, how can I help you today?"
LONG = " ".join(
    f"This is sentence number {number}, which is there to be spoken for a while without anything happening."
    for number in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
)
LATEST = "[...voicewire.responses.values()].at(-1)"


@contextlib.contextmanager
def server(fake: bool) -> Iterator[str]:
    """Run a server that prints its port, or a line for the page, when it is ready."""
    settings = {"listen.port": 0, "log.level": "error"}
    command = [sys.executable, "-m", "tests.realtime.fake_server", json.dumps(settings), json.dumps(FAKE)]
    if not fake:
        command = [sys.executable, "-m", "realtime.cli", "serve", "--port", "0", "--set", "log.level=error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline().split()[-1]
        try:
            yield f"http://127.0.0.1:{line}" if fake else line
        finally:
            process.terminate()


async def first_audio_ms(url: str) -> float:
    """Milliseconds to the first audio of the native client, with an open session."""
    async with await open_session(url) as client:
        asked_s = time.perf_counter()
        await client.send(ev.ResponseCreate(text=SHORT, end=True, settings=ev.NativeSpeechSettings(word_times=True)))
        async for message in client:
            if isinstance(message, ev.AudioMessage):
                return 1000 * (time.perf_counter() - asked_s)
    raise ConnectionError("closed before any sound")


def until(page: Page, condition: str, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not page.evaluate(condition):
        if time.monotonic() > deadline_s:
            raise TimeoutError(condition)
        page.wait_for_timeout(20)


def first_sound_ms(page: Page) -> dict[str, float]:
    page.evaluate("window.before = voicewire.responses.size ? [...voicewire.responses.keys()].at(-1) : null")
    page.click("#speak")
    until(page, f"{LATEST} && {LATEST}.id !== before && {LATEST}.over && {LATEST}.status !== 'speaking'", 60)
    told: dict[str, float] = page.evaluate(f"{LATEST}.statistics")
    return told


def side_by_side(page: Page, url: str, rounds: int) -> dict[str, Any]:
    page.fill("#text", SHORT)
    until(page, "voicewire.state === 'open'", 30)
    first = first_sound_ms(page)["ttfa_ms"]
    native, heard, server_share = [], [], []
    for _ in range(rounds):
        native.append(run_apart(first_audio_ms(url)))
        told = first_sound_ms(page)
        heard.append(told["ttfa_ms"])
        server_share.append(told["server_first_audio_ms"])
    added = np.percentile(heard, (50, 95)) - np.percentile(native, (50, 95))
    return {
        "native_ttfa_ms": percentiles(native),
        "page_ttfa_ms": percentiles(heard),
        "page_server_share_ms": percentiles(server_share),
        "page_first_of_all_ms": round(first, 1),
        "page_over_native_ms": {"p50": round(float(added[0]), 1), "p95": round(float(added[1]), 1)},
        "output_latency_ms": round(1000 * page.evaluate("voicewire.player.output_latency_s"), 1),
    }


def run_apart(coroutine: Any) -> float:
    """Run in a separate thread, because Playwright has an event loop in this one."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return float(pool.submit(asyncio.run, coroutine).result())


def at_length(page: Page, replies: int, minutes: float) -> dict[str, Any]:
    """Play a number of replies; count underruns by cause, and frames skipped by the device."""
    until(page, "voicewire.state === 'open'", 30)
    page.evaluate(
        """([text, replies]) => {
          window.tally = {text: 0, server: 0, page: 0, skipped: 0, replies: 0, failed: 0, audio_s: 0};
          window.keep = async () => {
            const response = await voicewire.speak({text, end: true, settings: {word_times: true}});
            response.voice.on("skipped", () => (tally.skipped += 1));
            response.on("over", (status) => {
              const {underruns, audio_ms} = response.statistics;
              for (const cause of Object.keys(underruns)) tally[cause] += underruns[cause];
              tally.replies += 1;
              tally.failed += status === "failed";
              tally.audio_s += audio_ms / 1000;
              if (performance.now() < stop_ms) keep();
            });
          };
        }""",
        [LONG, replies],
    )
    page.evaluate("(minutes) => { window.stop_ms = performance.now() + 60_000 * minutes; }", minutes)
    page.evaluate("async (replies) => { for (let n = 0; n < replies; n += 1) await keep(); }", replies)
    until(page, "performance.now() > stop_ms && voicewire.active.length === 0", 60 * minutes + 300)
    tally: dict[str, Any] = page.evaluate("tally")
    return {"minutes": minutes, "replies_at_once": replies, **tally, "audio_s": round(tally["audio_s"])}


def percentiles(values: list[float]) -> dict[str, float]:
    return {f"p{at}": round(float(np.percentile(values, at)), 1) for at in (50, 95)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--replies", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--url", help="URL of a running server")
    args = parser.parse_args()
    if CHROMIUM is None:
        sys.exit("chromium is not installed (Debian: apt install chromium)")
    with contextlib.ExitStack() as stack:
        url = args.url or stack.enter_context(server(args.fake))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS, SOUND_ALLOWED])
        page = browser.new_page()
        page.goto(url)
        line: dict[str, Any] = {"engine": "fake" if args.fake else page.inner_text("#connection")}
        if args.rounds:
            line |= side_by_side(page, url, args.rounds)
        if args.minutes:
            line["at_length"] = at_length(page, args.replies, args.minutes)
        browser.close()
    print("\n".join(f"{name:<24} {value}" for name, value in line.items()))
    print(json.dumps(line))


if __name__ == "__main__":
    main()
