"""Ten minutes of eight replies at once, over a real socket, in real time."""

from __future__ import annotations

import pytest

from tests.web_client.conftest import READY, until

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
