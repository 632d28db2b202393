"""A browser that lets no page make a sound before somebody has touched it."""

from __future__ import annotations

import time
from typing import Any

from tests.web_client.conftest import LATEST, SOUNDING, launch

NOTICE = "document.querySelector('.notice')?.innerText ?? ''"


def test_blocked_audio_is_reported_and_starts_on_click(quick):
    """A script speaks before anybody touched the page. Playwright's own evaluation counts as a touch."""
    with launch("--autoplay-policy=document-user-activation-required") as browser:
        page = browser.new_page()
        page.goto(quick)
        devtools = page.context.new_cdp_session(page)

        def value(expression: str) -> Any:
            return devtools.send("Runtime.evaluate", {"expression": expression})["result"].get("value")

        def until(expression: str) -> None:
            deadline_s = time.monotonic() + 20
            while not value(expression):
                assert time.monotonic() < deadline_s, expression
                page.wait_for_timeout(50)

        until("globalThis.voicewire?.state === 'open'")
        value("document.querySelector('#composer').requestSubmit()")
        until(f"({NOTICE}).includes('until you click')")
        assert value(f"{LATEST}.played_ms") == 0
        page.click(".notice button")
        until(SOUNDING)
        until(f"({NOTICE}) === ''")
