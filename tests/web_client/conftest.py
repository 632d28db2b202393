"""Real Chromium, a server with the fake engine, and files that only the tests have."""

from __future__ import annotations

import base64
import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.realtime.server_process import ServerProcess, server

HERE = Path(__file__).parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP tts.example 127.0.0.1",  # a name that is no loopback one: not a secure context
]
SOUND_ALLOWED = "--autoplay-policy=no-user-gesture-required"
# Fifty times faster than speech.
QUICK = {"ms_per_char": 40.0, "first_chunk_s": 0.005, "real_time_factor": 0.02}

READY = "voicewire.state === 'open'"
LATEST = "[...voicewire.responses.values()].at(-1)"
SOUNDING = f"{LATEST}?.statistics.ttfa_ms > 0 && {LATEST}.played_ms > 0"
OVER = f"{LATEST}?.over && {LATEST}.status !== 'speaking'"


@contextmanager
def launch(*arguments: str) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt install chromium)")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS, *arguments])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for each module: while it lives, no event loop can run in this thread."""
    with launch(SOUND_ALLOWED) as browser:
        yield browser


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, and what only the tests have."""
    folder = tmp_path_factory.mktemp("page") / "web_client"
    shutil.copytree(HERE.parents[1] / "web_client", folder)
    for name in ("probe.js", "harness.js"):
        shutil.copy(HERE / name, folder)
    (folder / "blank.html").write_text('<!doctype html><title>test</title><link rel="icon" href="icon.svg">')
    return folder


@pytest.fixture(scope="module")
def quick(folder: Path) -> Iterator[str]:
    """The address of a server that speaks much faster than speech."""
    with server(QUICK, listen__page=str(folder)) as running:
        yield http(running)


@pytest.fixture
def serve(folder: Path) -> Iterator[Callable[..., str]]:
    """``serve(script, **flags)``: the address of a server of its own."""
    with ExitStack() as servers:

        def serve(script: dict[str, Any], **flags: Any) -> str:
            return http(servers.enter_context(server(script, listen__page=str(folder), **flags)))

        yield serve


@pytest.fixture
def open_page(browser: Any, serve: Any) -> Iterator[Callable[..., Any]]:
    """``open_page(url)``: a tab of its own. Errors in its console fail the test, unless ``page.expected`` names a part
    of them. Tabs are closed before servers."""
    problems: list[str] = []
    contexts = []

    def open_page(url: str, **options: Any) -> Any:
        contexts.append(context := browser.new_context(**options))
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.expected = []

        def note(text: str) -> None:
            if not any(part in text for part in page.expected):
                problems.append(text)

        page.on("pageerror", lambda error: note(str(error)))
        page.on("console", lambda message: note(message.text) if message.type in ("error", "warning") else None)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def http(running: ServerProcess) -> str:
    return running.url.replace("ws:", "http:")


def speech_token(url: str, key: str) -> str:
    """A token of a key; it opens all that the page needs to speak."""
    order = urllib.request.Request(f"{url}/v1/tokens", b"{}", {"X-API-Key": key})
    with urllib.request.urlopen(order) as answer:
        return json.load(answer)["token"]


def until(page: Any, condition: str, timeout_s: float = 20.0) -> None:
    """Look again and again, in the page: each look from here would cost milliseconds in three processes.

    Playwright's own wait evaluates text, which the content policy forbids.
    """
    look = f"""async (timeout_ms) => {{
        const end_ms = performance.now() + timeout_ms;
        while (!({condition})) {{
            if (performance.now() > end_ms) return false;
            await new Promise((resolve) => setTimeout(resolve, 10));
        }}
        return true;
    }}"""
    assert page.evaluate(look, 1_000 * timeout_s), f"never came true: {condition}"


def samples(text: str) -> np.ndarray:
    """Floats as the harness hands them over."""
    return np.frombuffer(base64.b64decode(text), np.float32)
