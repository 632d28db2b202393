"""The page in headless Chromium, hands-free, with a microphone that interrupts each answer."""

from __future__ import annotations

import asyncio
import shutil
import sys
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
# Audio in the last moments before a detection is playback that is interrupted.
PLAYBACK_S = 0.1
# The turn itself lasts longer, so that what is audible until then is not the next answer.
MAX_SILENCE_S = 1.0
WAIT_S = 60.0
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
IS_READY = "voicewire.state === 'open' && document.querySelector('#talk-status').textContent === 'Ready.'"
NUM_ANSWERS = "document.querySelectorAll('.turn[data-kind=agent] .cut').length"


async def measure(audio: Path | None, num_turns: int, options: list[str]) -> tuple[dict[str, list[float]], int]:
    """Return the times in milliseconds by name, and the number of interruptions that were missed."""
    if CHROMIUM is None:
        sys.exit("chromium is not installed (Debian: apt install chromium)")
    with TemporaryDirectory() as folder:
        pages, microphone = Path(folder) / "page", Path(folder) / "microphone.wav"
        shutil.copytree(WEB_CLIENT, pages)
        (pages / "audible.js").write_text(PROBE)
        microphone.write_bytes(wav_file(np.pad(load_speech(audio, RATE), (0, round(PAUSE_S * RATE))), RATE))
        device = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        arguments = [*ARGUMENTS, SOUND_ALLOWED, *device, f"--use-file-for-fake-audio-capture={microphone}"]
        async with (
            recording_server(["--set", f"listen.page={pages}", *options]) as (url, file),
            async_playwright() as playwright,
        ):
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
            page = await browser.new_page()
            await page.goto(f"{url.replace('ws', 'http', 1)}/#talk")
            audible_s = await interrupt(page, num_turns)
            detections_s = read_detections(file)
            await browser.close()
    return silences(detections_s, audible_s)


async def interrupt(page: Page, num_turns: int) -> list[float]:
    """Let the microphone interrupt answers; return when the page was audible."""
    await until(page, IS_READY)
    await page.evaluate(INSTALL)
    await page.locator("#talk-microphone label", has_text="hands-free").click()
    await until(page, f"{NUM_ANSWERS} >= {num_turns}", WAIT_S * num_turns)
    return [one / 1000 for one in await page.evaluate("audible_ms")]


async def until(page: Page, condition: str, timeout_s: float = WAIT_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not await page.evaluate(condition):
            await page.wait_for_timeout(50)


def silences(detections_s: list[float], audible_s: list[float]) -> tuple[dict[str, list[float]], int]:
    """Return the times from detections during playback to the last audible block, and the number of answers that went
    on."""
    times_ms, num_missed = [], 0
    for found_s in detections_s:
        around_s = [one - found_s for one in audible_s if -PLAYBACK_S < one - found_s < MAX_SILENCE_S]
        if around_s and around_s[-1] > MAX_SILENCE_S / 2:
            num_missed += 1
        elif around_s:
            times_ms.append(1000 * max(around_s[-1], 0.0))
    return {"silence": times_ms}, num_missed
