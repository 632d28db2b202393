from __future__ import annotations

import ast
import asyncio
import gc
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from realtime.config import LogSettings
from realtime.logs import FIELDS, configure_logs


@pytest.fixture(autouse=True)
def root_logger_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_log_line_is_one_object_with_known_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(format="json"))
    logging.getLogger("voicewire").info("session opened", extra={"session_id": "s1", "text": "what was said"})
    line = json.loads(capsys.readouterr().err)
    assert line.pop("time").endswith("Z")
    assert line == {"level": "info", "logger": "voicewire", "message": "session opened", "session_id": "s1"}


def fail(said: str) -> None:
    try:
        raise KeyError(said)
    except KeyError as error:
        raise ExceptionGroup(said, [ValueError(said)]) from error


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize(("level", "is_told"), [("info", False), ("debug", True)])
def test_exception_message_is_logged_at_debug_only(
    capsys: pytest.CaptureFixture[str], format: str, level: str, is_told: bool
) -> None:
    configure_logs(LogSettings(format=format, level=level))
    try:
        fail("what a client said")
    except ExceptionGroup:
        logging.getLogger("voicewire").exception("failed")
    written = capsys.readouterr().err
    if format == "json":
        written = json.loads(written)["exception"]
    assert all(part in written for part in ("KeyError", "ExceptionGroup", "ValueError", "in fail"))
    assert ("what a client said" in written.replace('fail("what a client said")', "")) is is_told


def test_addresses_stay_out_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(format="text", level="debug"))
    logging.getLogger("uvicorn.error").info('"WebSocket /v1/speech?api_key=secret" [accepted]')
    logging.getLogger("uvicorn.access").info("GET /v1/voices?api_key=secret")
    logging.getLogger("voicewire").warning("kept", extra={"code": "draining"})
    written = capsys.readouterr().err
    assert "secret" not in written
    assert "kept code=draining" in written


def test_every_field_that_a_call_passes_is_known() -> None:
    root = Path(__file__).parents[2]
    files = [*root.glob("realtime/**/*.py"), *root.glob("sessions/**/*.py")]
    passed = {name for file in files for name in fields_passed(ast.parse(file.read_text()))}
    assert passed == set(FIELDS)


def fields_passed(module: ast.Module) -> Iterator[str]:
    """Keys of every ``extra=``; of one that a method makes, those of the method."""
    methods = {node.name: node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(module):
        if isinstance(node, ast.keyword) and node.arg == "extra":
            made_by = getattr(getattr(node.value, "func", None), "attr", None)
            made = methods[made_by] if made_by else node.value
            found = [one for one in ast.walk(made) if isinstance(one, ast.Dict)]
            assert found, ast.unparse(node)
            yield from (ast.literal_eval(key) for one in found for key in one.keys if key)


async def lost(said: str) -> None:
    raise ValueError(said)


def callback(said: str) -> None:
    raise ValueError(said)


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize("fault", ["task", "future", "callback", "destroyed"])
def test_what_asyncio_says_of_faults_quotes_nobody(capsys: pytest.CaptureFixture[str], format: str, fault: str) -> None:
    configure_logs(LogSettings(format=format))
    secret = "what a client said"

    async def run() -> None:
        loop = asyncio.get_running_loop()
        match fault:
            case "task":
                task = loop.create_task(lost(secret), name=secret)
                await asyncio.wait([task])
                del task
            case "future":
                loop.create_future().set_exception(ValueError(secret))
            case "callback":
                loop.call_soon(callback, secret)
            case "destroyed":
                loop.call_exception_handler({"message": "Task was destroyed", "task": secret, secret: 1})
        await asyncio.sleep(0)
        gc.collect()

    asyncio.run(run())
    told = capsys.readouterr().err
    assert secret not in told
    expected = {
        "task": "Task exception was never retrieved",
        "future": "Future exception was never retrieved",
        "callback": "Exception in callback callback",
        "destroyed": "Task was destroyed",
    }
    assert expected[fault] in told
    assert "ValueError" in told or fault == "destroyed"


def test_asyncio_errors_are_logged_in_full_at_debug(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(format="text", level="debug"))
    logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: %r", "what a client said")
    assert "what a client said" in capsys.readouterr().err
