"""The pictures in docs/guides/web-client.md: a running server's page, with one reply interrupted and one that speaks;
the view of voices, of a server without keys whose model clones; a conversation, with a server and agent of its own.

python -m tests.web_client.screenshot http://127.0.0.1:8765 docs/images/page.png
python -m tests.web_client.screenshot http://127.0.0.1:8765 docs/images/voices.png RECORDING [THEME]
python -m tests.web_client.screenshot talk docs/images/talk.png [THEME]
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from tests.realtime.agent.stub_backend import ScriptedAnswer, stub_backend_thread
from tests.realtime.server_process import wire_address
from tests.web_client.conftest import LATEST, READY, SOUND_ALLOWED, launch, until

SIZE = {"width": 1240, "height": 900}
# The form of a dialogue is folded.
SAY_SIZE = {"width": 1240, "height": 940}
MODEL_SHOWN = "document.querySelector('#voice-list').childElementCount > 0"


def main() -> None:
    url, target, *recording = sys.argv[1:]
    if url == "talk":
        show_talk(target, *recording)
        return
    if recording:
        show_voices(url, target, *recording)
        return
    with launch(SOUND_ALLOWED) as browser:
        page = browser.new_page(viewport=SAY_SIZE)
        page.goto(url)
        until(page, READY)
        page.click("#speak")
        until(page, f"{LATEST}?.played_ms > 3500")
        page.keyboard.press("Space")
        until(page, f"{LATEST}.heard !== null")
        page.check("input[value=tokens]", force=True)
        page.click("#speak")
        until(page, f"{LATEST}.played_ms > 4200")
        page.screenshot(path=target)


def show_voices(url: str, target: str, recording: str, theme: str = "light") -> None:
    """Store the recording twice, and show it selected for a third voice."""
    with launch() as browser:
        page = browser.new_page(viewport=SIZE, color_scheme=theme)
        page.goto(f"{url}/#voices")
        until(page, MODEL_SHOWN)
        for name in ("ann", "bob"):
            page.set_input_files("#recording-file", recording)
            page.fill("#voice-name", name)
            page.fill("#voice-consent", "signed on 1 May, file 12")
            page.locator("#trim").wait_for()
            page.click("#store-voice")
            page.locator("#recording-status", has_text=f"Voice {name} is stored.").wait_for()
        page.set_input_files("#recording-file", recording)
        page.locator("#trim").wait_for()
        for _ in range(60):
            page.locator("#trim-start").press("ArrowRight")
        page.screenshot(path=target)


def show_talk(target: str, theme: str = "light") -> None:
    """Interrupt an answer, with the embedded voice; the next one is being spoken."""
    with stub_backend_thread() as backend, launch(SOUND_ALLOWED) as browser:
        backend.answers += [
            ScriptedAnswer("We have green tea, black tea and a mild oolong. The oolong is from the hills of Taiwan."),
            ScriptedAnswer("With pleasure, one pot of oolong. It takes three minutes."),
        ]
        options = ("--port", "0", "--llm", backend.url, "--stt", backend.url)
        command = [sys.executable, "-c", "from realtime.cli import main; main()", "serve", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
            assert running.stdout is not None
            url = wire_address(running.stdout).removesuffix("/v1/speech").replace("ws:", "http:")
            page = browser.new_page(viewport=SIZE, color_scheme=theme)
            page.goto(f"{url}/#talk")
            ask(page, "Which teas do you have?", "and a mild")
            page.keyboard.press("Escape")
            page.locator(".turn[data-heard]").wait_for()
            ask(page, "The oolong, please.", "one pot of")
            page.locator(".turn .numbers").last.wait_for()
            page.screenshot(path=target)
            running.terminate()


def ask(page: Any, text: str, heard: str) -> None:
    """Send a turn; return when so much of its answer is heard."""
    page.locator("#talk-status", has_text="Ready.").wait_for()
    page.fill("#talk-text", text)
    page.press("#talk-text", "Enter")
    page.locator(".turn .heard", has_text=heard).wait_for()


if __name__ == "__main__":
    main()
