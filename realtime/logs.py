"""Structured logs: one JSON object a line. Only the fields named here are ever written, and none of them holds what a
client said."""

from __future__ import annotations

import logging
import re
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import msgspec

from realtime.config_sections import LogSettings

# Fields that a call may pass in ``extra``.
FIELDS = (
    "session_id",
    "response_id",
    "request_id",
    "api_key_name",
    "dialect",
    "code",
    "status",
    "close_code",
    "num_active_responses",
    "audio_ms",
    "first_audio_ms",
    "endpointing_ms",
    "stt_ms",
    "llm_first_token_ms",
    "file",
    "host",
    "port",
    "tls",
    "model",
    "replica",
    "reason",
    "error",
)

# Separator between asyncio's own text and other text.
QUOTES = re.compile(r"""[<('"\[{:=]""")


class RedactingFormatter(logging.Formatter):
    """Tells of an exception its type and where it came from; its message, which may quote a client, at debug alone."""

    def __init__(self, format: str | None = None, *, debug: bool = False) -> None:
        super().__init__(format)
        self._debug = debug

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return super().formatException(ei) if self._debug else "".join(_format_traceback(ei[1], set())).rstrip()


def redact_asyncio_record(record: logging.LogRecord) -> bool:
    """A filter: asyncio describes what failed by its repr, which may quote a client. What happened is enough."""
    if record.name == "asyncio":
        first_line = record.getMessage().partition("\n")[0]
        record.msg, record.args = QUOTES.split(first_line, maxsplit=1)[0].rstrip(), ()
    return True


class JsonFormatter(RedactingFormatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        } | _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextFormatter(RedactingFormatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        return f"{super().format(record)} {fields}".rstrip()


def redact_opentelemetry_record(record: logging.LogRecord) -> bool:
    """A filter that drops the arguments of OpenTelemetry's messages: they may quote headers."""
    if record.name.startswith("opentelemetry"):
        record.msg, record.args = str(record.msg).replace("%s", "...").replace("%d", "..."), ()
    return True


def configure_logs(settings: LogSettings) -> None:
    """Send all logs to standard error. The lines of HTTP libraries stay out: they can hold API keys."""
    handler = logging.StreamHandler(sys.stderr)
    debug = settings.level == "debug"
    text = "%(asctime)s %(levelname)s %(message)s"
    handler.setFormatter(JsonFormatter(debug=debug) if settings.format == "json" else TextFormatter(text, debug=debug))
    if not debug:
        handler.addFilter(redact_asyncio_record)
        handler.addFilter(redact_opentelemetry_record)
    logging.basicConfig(handlers=[handler], level=settings.level.upper(), force=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "websockets", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in FIELDS if getattr(record, name, None) is not None}


def _format_traceback(error: BaseException | None, seen: set[int]) -> Iterator[str]:
    """Types and frames: of what led to it, of itself, and of all it holds."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield from _format_traceback(error.__cause__ or error.__context__, seen)
    yield from traceback.format_tb(error.__traceback__)
    yield f"{type(error).__module__}.{type(error).__qualname__}\n"
    for one in getattr(error, "exceptions", ()):
        yield from _format_traceback(one, seen)
