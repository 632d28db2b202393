"""``voicewire detect``: whether a recording has the watermark of a deployment, with which payload, and where."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from realtime.commands.startup import WRONG_SETTINGS
from realtime.config import ConfigError, load_config
from realtime.stored_secret import checked_secret
from realtime.watermark import default_payload, load_key
from sessions.audio.recordings.decode import InvalidRecording, decode_recording
from sessions.audio.watermark.detector import DETECT_RATE, MarkedSpan, common_payload, find_watermark

# Exit status where there is no mark; 1 is that of errors.
NOT_FOUND = 3
MAX_FILE_BYTES = 2**30
MAX_FILE_S = 3_600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a recording: WAV, FLAC, MP3, Ogg or M4A, at most an hour")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the server's TOML file")
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help="file with the key (default: watermark.key, or the stored key)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    try:
        key = read_key(args.key_file, args.config)
        pcm = decode_recording(read_file(args.file), DETECT_RATE, MAX_FILE_S)
    except ConfigError as error:
        print(f"voicewire detect: {error}", file=sys.stderr)
        return WRONG_SETTINGS
    except InvalidRecording as error:
        raise OSError(f"{args.file}: {error}") from None
    spans = find_watermark(pcm, key)
    print(report_json(spans, key) if args.json else report_text(spans, key))
    return 0 if spans else NOT_FOUND


def read_key(key_file: Path | None, config_file: Path | None) -> bytes:
    """Read the key, and create none. Raises ``ConfigError`` or ``OSError``."""
    settings = load_config(config_file, os.environ).watermark
    if key_file is None:
        return load_key(settings.key, creates=False)
    try:
        return checked_secret(key_file.read_text(encoding="ascii").strip(), str(key_file))
    except UnicodeError:
        raise ConfigError(f"{key_file} is not ASCII text") from None


def read_file(path: Path) -> bytes:
    """Raises ``OSError``."""
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise OSError(f"{path} has {size} bytes, at most {MAX_FILE_BYTES} are read")
    return path.read_bytes()


def report_text(spans: Sequence[MarkedSpan], key: bytes) -> str:
    if not spans:
        return "no mark of this key"
    payload = common_payload(spans)
    lines = ["marked" if payload is None else f"marked, payload {payload}{_owner(payload, key)}"]
    for span in spans:
        found = "unreadable" if span.payload is None else str(span.payload)
        lines.append(f"{span.start_s:8.1f} to {span.end_s:.1f} s  score {span.score:.1f}  payload {found}")
    return "\n".join(lines)


def _owner(payload: int, key: bytes) -> str:
    return " (the default of this key)" if payload == default_payload(key) else ""


def report_json(spans: Sequence[MarkedSpan], key: bytes) -> str:
    payload = common_payload(spans)
    found = [
        {"start_s": span.start_s, "end_s": span.end_s, "score": round(span.score, 2), "payload": span.payload}
        for span in spans
    ]
    is_default = payload is not None and payload == default_payload(key)
    return json.dumps({"marked": bool(spans), "payload": payload, "is_default_payload": is_default, "spans": found})
