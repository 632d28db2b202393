"""The page in headless Chromium: a microphone, the button or the Escape key interrupts its answers."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from playwright.async_api import Page, async_playwright

from benchmarks.agent_latency import load_speech
from benchmarks.interruption.detections import read_detections, recording_server
from benchmarks.page_latency import ARGUMENTS, CHROMIUM, SOUND_ALLOWED
from sessions.audio.wav import wav_file

RATE = 48_000
# Longer than the turn takes to be answered, and the answer sounds for a while.
PAUSE_S = 4.0
# Audio in the last moments before an interruption is playback that is interrupted. A press is made while the page is
# audible, so that silence of two blocks of the device before it is an underrun, and interrupts nothing.
PLAYBACK_S = 0.1
PLAYBACK_BEFORE_PRESS_S = 0.025
# The turn itself lasts longer, so that what is audible until then is not the next answer.
MAX_SILENCE_S = 1.0
WAIT_S = 60.0
# Playback before a button or key is pressed.
LISTENING_S = (0.5, 2.0)
WEB_CLIENT = Path(__file__).parents[2] / "web_client"
# Reports the wall clock of each audible block.
PROBE = """class Probe extends AudioWorkletProcessor {
  process([input]) {
    if (input[0]?.some((sample) => Math.abs(sample) > 0.003)) this.port.postMessage(Date.now());
    return true;
  }
}
registerProcessor("audible", Probe);
"""
INSTALL = """async () => {
  const { context, output } = await voicewire.prepare();
  await context.audioWorklet.addModule("/audible.js");
  const probe = new AudioWorkletNode(context, "audible", { numberOfOutputs: 0 });
  window.audible_ms = [];
  probe.port.onmessage = ({ data }) => audible_ms.push(data);
  output.node.connect(probe);
}"""
# Records the wall clock of each press, by the time of its event.
RECORD_PRESSES = """() => {
  window.pressed_ms = [];
  for (const kind of ["pointerdown", "keydown"]) {
    addEventListener(kind, ({ timeStamp }) => pressed_ms.push(performance.timeOrigin + timeStamp), { capture: true });
  }
}"""
IS_READY = "voicewire.state === 'open' && document.querySelector('#talk-status').textContent === 'Ready.'"
IS_SOUNDING = "Date.now() - audible_ms.at(-1) < 30"
NUM_ANSWERS = "document.querySelectorAll('.turn[data-kind=agent] .cut').length"


async def measure(audio: Path | None, num_turns: int, options: list[str]) -> tuple[dict[str, list[float]], int]:
    """Interrupt by voice. Return the times in milliseconds by name, and the number of missed interruptions."""
    with TemporaryDirectory() as folder:
        microphone = Path(folder) / "microphone.wav"
        microphone.write_bytes(wav_file(np.pad(load_speech(audio, RATE), (0, round(PAUSE_S * RATE))), RATE))
        device = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        arguments = [*device, f"--use-file-for-fake-audio-capture={microphone}"]
        async with talking_page(arguments, options) as (page, file):
            await page.locator("#talk-microphone label", has_text="hands-free").click()
            await until(page, f"{NUM_ANSWERS} >= {num_turns}", WAIT_S * num_turns)
            return silences("silence", read_detections(file), await read_audible(page), PLAYBACK_S)


async def measure_presses(num_turns: int, options: list[str]) -> tuple[dict[str, list[float]], int]:
    """Interrupt answers to typed turns by the button and the Escape key in turn; return as ``measure``."""
    rng = random.Random(1)
    pressed_s: dict[str, list[float]] = {"button": [], "escape": []}
    async with talking_page([], options) as (page, _):
        await page.evaluate(RECORD_PRESSES)
        for _ in range(num_turns):
            for name, times_s in pressed_s.items():
                await begin_answer(page)
                await asyncio.sleep(rng.uniform(*LISTENING_S))
                times_s.append(await press(page, name))
                await asyncio.sleep(MAX_SILENCE_S)
        audible_s = await read_audible(page)
    button, escape = (silences(*each, audible_s, PLAYBACK_BEFORE_PRESS_S) for each in pressed_s.items())
    return button[0] | escape[0], button[1] + escape[1]


@asynccontextmanager
async def talking_page(arguments: list[str], options: list[str]) -> AsyncIterator[tuple[Page, Path]]:
    """The view for talking, and the file of the server's detections. The page records when it is audible."""
    if CHROMIUM is None:
        sys.exit("chromium is not installed (Debian: apt install chromium)")
    with TemporaryDirectory() as folder:
        pages = Path(folder) / "page"
        shutil.copytree(WEB_CLIENT, pages)
        (pages / "audible.js").write_text(PROBE)
        async with (
            recording_server(["--set", f"listen.page={pages}", *options]) as (url, file),
            async_playwright() as playwright,
        ):
            arguments = [*ARGUMENTS, SOUND_ALLOWED, *arguments]
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
            page = await browser.new_page()
            await page.goto(f"{url.replace('ws', 'http', 1)}/#talk")
            await until(page, IS_READY)
            await page.evaluate(INSTALL)
            yield page, file
            await browser.close()


async def begin_answer(page: Page) -> None:
    """Type a turn, and wait until its answer is audible."""
    num_audible = await page.evaluate("audible_ms.length")
    await page.fill("#talk-text", "When are you open?")
    await page.press("#talk-text", "Enter")
    await until(page, f"audible_ms.length > {num_audible}")


async def press(page: Page, name: str) -> float:
    """Press the button or key while the answer sounds; return when, in seconds of the wall clock."""
    await page.hover("#talk-interrupt")
    await until(page, IS_SOUNDING)
    await page.evaluate("pressed_ms.length = 0")
    if name == "button":  # it acts when it is released
        await page.mouse.down()
        await page.mouse.up()
    else:
        await page.keyboard.press("Escape")
    pressed_ms: float = await page.evaluate("pressed_ms[0]")
    return pressed_ms / 1000


async def read_audible(page: Page) -> list[float]:
    return [one / 1000 for one in await page.evaluate("audible_ms")]


async def until(page: Page, condition: str, timeout_s: float = WAIT_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not await page.evaluate(condition):
            await page.wait_for_timeout(50)


def silences(
    name: str, cuts_s: list[float], audible_s: list[float], playback_s: float
) -> tuple[dict[str, list[float]], int]:
    """Return the times from detections or presses during playback to the last audible block, and the number of answers
    that went on."""
    times_ms, num_missed = [], 0
    for cut_s in cuts_s:
        around_s = [one - cut_s for one in audible_s if -playback_s < one - cut_s < MAX_SILENCE_S]
        if around_s and around_s[-1] > MAX_SILENCE_S / 2:
            num_missed += 1
        elif around_s:
            times_ms.append(1000 * max(around_s[-1], 0.0))
    return {name: times_ms}, num_missed
