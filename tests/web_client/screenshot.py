"""The picture in docs/guides/web-client.md: a running server's page, with one reply interrupted and one that speaks.

python -m tests.web_client.screenshot http://127.0.0.1:8765 docs/images/page.png
"""

from __future__ import annotations

import sys

from tests.web_client.conftest import LATEST, READY, SOUND_ALLOWED, launch, until

SIZE = {"width": 1240, "height": 900}


def main() -> None:
    url, target = sys.argv[1:3]
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


if __name__ == "__main__":
    main()
