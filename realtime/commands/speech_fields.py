"""Arguments of ``voicewire say`` that are fields of the speech API: a style, a voice that comes along, sampling."""

from __future__ import annotations

import argparse
import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.api import InvalidRequest, SamplingFields, SamplingParams, check_sampling
from realtime.config_sections import VoiceStoreSettings
from realtime.protocol.events import NativeSamplingOptions

VOICE_FIELDS = ("ref_audio", "ref_text", "speaker_embedding")
# As much as a server accepts by default.
MAX_FILE_BYTES = VoiceStoreSettings().max_upload_bytes
SAMPLING_TYPES = {field.name: field.type for field in msgspec.structs.fields(SamplingFields)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instruct", metavar="TEXT", help="style of the speech, or a description of the voice")
    parser.add_argument("--ref-audio", type=Path, metavar="FILE", help="speak like this recording of 1 to 30 s")
    parser.add_argument("--ref-text", metavar="TEXT", help="what is said in it, which brings the voice closer")
    parser.add_argument(
        "--speaker-embedding", type=Path, metavar="FILE", help="speak like this one (`voicewire voices embed`)"
    )
    parser.add_argument(
        "--sampling",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"one of {', '.join(SAMPLING_TYPES)}; repeatable",
    )


def read_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that are given, by their names in the speech API. Raises ``InvalidRequest`` or ``OSError``."""
    fields = {
        "instructions": args.instruct,
        "ref_audio": args.ref_audio and data_uri(read_file(args.ref_audio, "ref_audio")),
        "ref_text": args.ref_text,
        "speaker_embedding": args.speaker_embedding and read_embedding(args.speaker_embedding, "speaker_embedding"),
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return given | parse_sampling(args.sampling)


def parse_sampling(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` pairs and check their ranges; raises ``InvalidRequest``."""
    given: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in SAMPLING_TYPES:
            known = ", ".join(SAMPLING_TYPES)
            raise InvalidRequest(f"sampling must be KEY=VALUE with a key of {known}; is {pair[:80]!r}", "sampling")
        try:
            given[name] = msgspec.convert(value, SAMPLING_TYPES[name], strict=False)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"{name} is {value[:80]!r}: {error}", name) from None
    check_sampling(SamplingParams(**given))
    return given


def read_file(path: Path, field: str) -> bytes:
    """Read a file of at most ``MAX_FILE_BYTES``. Raises ``InvalidRequest`` or ``OSError``."""
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{field} {path} has more than {MAX_FILE_BYTES} bytes", field)
    return data


def read_embedding(path: Path, field: str) -> list[float]:
    """Read a JSON list of numbers. Raises ``InvalidRequest`` or ``OSError``."""
    try:
        return msgspec.json.decode(read_file(path, field), type=list[float])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidRequest(f"{path} is no JSON list of numbers: {error}", field) from None


def data_uri(data: bytes) -> str:
    return f"data:audio/any;base64,{base64.b64encode(data).decode()}"


def name_field(message: str, field: str | None) -> str:
    """Return the message of an error, with the field that it does not name in front."""
    return message if field is None or field in message else f"{field}: {message}"


def sampling_options(fields: Mapping[str, Any]) -> NativeSamplingOptions | None:
    """Return the sampling among the fields as the native wire and MQTT send it."""
    given = {name: fields[name] for name in SAMPLING_TYPES if name in fields}
    return NativeSamplingOptions(**given) if given else None
