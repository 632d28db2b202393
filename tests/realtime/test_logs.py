from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from realtime.config import LogSettings
from realtime.logs import configure_logs


@pytest.fixture(autouse=True)
def root_logger_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_is_one_object_with_the_named_fields_alone(capsys: pytest.CaptureFixture[str]) -> None:
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
def test_an_exception_tells_what_it_is_and_where_and_only_at_debug_its_message(
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
