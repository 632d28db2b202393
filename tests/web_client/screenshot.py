"""The pictures in docs/guides/web-client.md: a running server's page, with one reply interrupted and one that speaks;
the view of voices, of a server without keys whose model clones; a conversation, with a server and agent of its own.

python -m tests.web_client.screenshot http://127.0.0.1:8765 docs/images/page.png
python -m tests.web_client.screenshot http://127.0.0.1:8765 docs/images/voices.png RECORDING [THEME]
python -m tests.web_client.screenshot talk docs/images/talk.png [THEME]
"""

from __future__ import annotations

import sys

from tests.realtime.agent.stub_backend import ScriptedAnswer, stub_backend_thread
from tests.realtime.server_process import server
from tests.web_client.conftest import LATEST, QUICK, READY, SOUND_ALLOWED, http, launch, until

SIZE = {"width": 1240, "height": 900}
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
        page = browser.new_page(viewport=SIZE)
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
    """Interrupt an answer; then wait until the next one is spoken."""
    with stub_backend_thread() as backend, launch(SOUND_ALLOWED) as browser:
        flags = {"agent__llm_url": backend.url, "agent__stt_url": backend.url, "agent__llm_model": "m"}
        backend.answers += [
            ScriptedAnswer("We have green tea, black tea and a mild oolong. " + "The oolong is from Taiwan. " * 20),
            ScriptedAnswer("With pleasure: one pot of oolong. It takes three minutes."),
        ]
        with server(QUICK, **flags) as running:
            page = browser.new_page(viewport=SIZE, color_scheme=theme)
            page.goto(f"{http(running)}/#talk")
            page.locator("#talk-status", has_text="Ready.").wait_for()
            for text, shown in (("Which teas do you have?", "and a mild"), ("The oolong, please.", "one pot of")):
                page.fill("#talk-text", text)
                page.press("#talk-text", "Enter")
                page.locator(".turn .heard", has_text=shown).wait_for()
                if shown == "and a mild":
                    page.keyboard.press("Escape")
                    page.locator(".turn[data-heard]").wait_for()
            page.locator(".turn .numbers").last.wait_for()
            page.screenshot(path=target)


if __name__ == "__main__":
    main()
