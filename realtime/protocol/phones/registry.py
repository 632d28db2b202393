"""Every provider's line: where it is found, and which dialect is spoken there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from realtime.protocol.phones.asterisk import Asterisk
from realtime.protocol.phones.base import PhoneDialect
from realtime.protocol.phones.plivo import Plivo
from realtime.protocol.phones.telnyx import Telnyx
from realtime.protocol.phones.twilio import Twilio
from realtime.protocol.phones.vonage import Vonage


class Phone(NamedTuple):
    path: str
    dialect: Callable[[str], PhoneDialect]
    """Of an id that the call has if the provider gives none."""
    signed: bool = False
    """Requests may carry Twilio's signature in place of a key."""


PHONES: tuple[Phone, ...] = (
    Phone("/v1/calls/twilio", lambda _: Twilio(), signed=True),
    Phone("/v1/calls/telnyx", lambda _: Telnyx()),
    Phone("/v1/calls/plivo", lambda _: Plivo()),
    Phone("/v1/calls/vonage", Vonage),
    Phone("/v1/calls/asterisk", lambda _: Asterisk()),
)
