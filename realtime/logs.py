"""Structured logs: one JSON object a line. Only the fields named here are ever written, and none of them holds what a
client said."""

from __future__ import annotations

import logging
import sys
import time

import msgspec

from realtime.config import LogSettings

FIELDS = (
    "session_id",
    "response_id",
    "key_name",
    "code",
    "status",
    "close_code",
    "num_active_responses",
    "audio_ms",
    "first_audio_ms",
    "host",
    "port",
    "model",
)
"""What a call may pass in ``extra``."""


class JsonFormatter(logging.Formatter):
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


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        return f"{super().format(record)} {fields}".rstrip()


def configure_logs(settings: LogSettings) -> None:
    """Send all logs to standard error. The access lines of the server library stay out: addresses can hold API keys."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if settings.format == "json" else TextFormatter("%(asctime)s %(levelname)s %(message)s")
    )
    logging.basicConfig(handlers=[handler], level=settings.level.upper(), force=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "websockets"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in FIELDS if getattr(record, name, None) is not None}
