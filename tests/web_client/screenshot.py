"""The pictures in docs/guides/web-client.md: a running server's page, with one reply interrupted and one that speaks;
the view of voices, of a server without keys whose model clones.

python -m tests.web_client.screenshot http://127.0.0.1:8765 docs/images/page.png
python -m tests.web_client.screenshot http://127.0.0.1:8765 docs/images/voices.png RECORDING [THEME]
"""

from __future__ import annotations

import sys

from tests.web_client.conftest import LATEST, READY, SOUND_ALLOWED, launch, until

SIZE = {"width": 1240, "height": 900}
MODEL_SHOWN = "document.querySelector('#voice-list').childElementCount > 0"


def main() -> None:
    url, target, *recording = sys.argv[1:]
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


if __name__ == "__main__":
    main()
