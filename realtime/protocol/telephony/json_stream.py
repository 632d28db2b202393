"""Providers whose messages are all JSON with the name of an ``event``: audio in base64, keys, marks, the end.

They differ in how a call starts, in the name of a mark, and in what is said to them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from realtime.protocol.dialects.parsing import dump, encode_base64, parse_json, text_only
from realtime.protocol.model import Message
from realtime.protocol.telephony import base, model

PAYLOAD = '"payload":'
INBOUND = "inbound"


class MediaMessage(Struct):
    payload: str
    track: str = INBOUND
    chunk: int | None = None


class DtmfMessage(Struct):
    digit: str


class MarkMessage(Struct):
    name: str


class JsonStreamMessage(Struct):
    event: str
    media: MediaMessage | None = None
    dtmf: DtmfMessage | None = None
    mark: MarkMessage | None = None


MessageT = TypeVar("MessageT", bound=JsonStreamMessage)


class JsonStreamDialect(base.TelephonyDialect):
    # Type of the provider's messages.
    messages: ClassVar[type[JsonStreamMessage]]
    # A message of audio, without its payload: what comes before it, and behind.
    _audio: tuple[str, str] | None = None

    def receive_message(self, message: Message) -> Sequence[model.TelephonyEvent]:
        parsed = parse_json(text_only(message), self.messages)
        match parsed.event:
            case "start":
                return [self.begin(parsed)]
            case "media":
                media = base.required(parsed.media, "media")
                audio = self.caller_audio(base.payload(media.payload), media.chunk)
                return [audio] if media.track == INBOUND else []
            case "dtmf":
                return [model.DtmfReceived(base.digit(base.required(parsed.dtmf, "dtmf").digit))]
            case "mark":
                return [model.MarkPlayed(base.mark_name(base.required(parsed.mark, "mark").name))]
            case "stop":
                return [model.StreamEnded()]
        return self.receive_more(parsed)

    @abstractmethod
    def begin(self, parsed: Any) -> model.StreamStarted:
        """Begin the stream from the provider's start message; raises ``RemoteProtocolError``."""

    def receive_more(self, parsed: Any) -> Sequence[model.TelephonyEvent]:
        """Events that only this provider has. Raises ``RemoteProtocolError``."""
        return []

    @abstractmethod
    def media(self) -> dict[str, Any]:
        """A message of audio whose ``payload``, its last text, is empty; it is the same throughout a call."""

    def send_audio(self, data: bytes) -> str:
        if self._audio is None:
            self.require_start("audio")
            before, _, behind = dump(**self.media()).rpartition(PAYLOAD + '""')
            self._audio = (before + PAYLOAD + '"', '"' + behind)
        return encode_base64(data).join(self._audio)
