"""``POST /v1/speak`` and ``/v2/speak``: a text in, its audio out as it is spoken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from engine.api import ErrorInfo
from realtime.protocol import model
from realtime.protocol.dialects.deepgram_common import number, parse_options, refusal, sample_rate, unsupported
from realtime.protocol.dialects.http_dialect import HttpDialect
from realtime.protocol.dialects.parsing import parse_json

MEDIA_TYPES = {
    "pcm_s16le": "audio/l16",
    "wav": "audio/wav",
    "mulaw": "audio/mulaw",
    "alaw": "audio/alaw",
    "mp3": "audio/mpeg",
    "ogg_opus": "audio/ogg",
    "flac": "audio/flac",
    "aac": "audio/aac",
}
ENCODINGS = {"mp3": "mp3", "opus": "ogg_opus", "flac": "flac", "aac": "aac", "mulaw": "mulaw", "alaw": "alaw"}
CONTAINERS = ("none", "wav", "ogg")


class DeepgramBody(Struct):
    text: str


class DeepgramHttp(HttpDialect):
    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self.options = parse_options(handshake.query, file_format(handshake.query))
        self.media_type = MEDIA_TYPES[self.options.format.encoding]

    def headers(self) -> dict[str, str]:
        model = self.handshake.query.get("model") or "default"
        return {"dg-request-id": self.handshake.request_id, "dg-model-name": model}

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        body = parse_json(message, DeepgramBody)
        assert self.options is not None
        yield from self.start_response(self.options, body.text)

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return refusal(error)


def file_format(query: Mapping[str, str]) -> model.RequestedFormat:
    """MP3 unless the query says otherwise; linear16 comes as WAV unless it asks for no container.

    Raises ``RemoteProtocolError``.
    """
    encoding, container = query.get("encoding") or "mp3", query.get("container")
    if container and container not in CONTAINERS:
        raise unsupported("container", CONTAINERS, container)
    rate = sample_rate(query, encoding if encoding in (*ENCODINGS, "linear16") else "linear16")
    if encoding == "linear16":
        return model.RequestedFormat("pcm_s16le" if container == "none" else "wav", rate)
    if encoding not in ENCODINGS:
        raise unsupported("encoding", ("linear16", *ENCODINGS), encoding)
    return model.RequestedFormat(ENCODINGS[encoding], rate, number(query, "bit_rate"))
