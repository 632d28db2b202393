"""The routes of telephony providers and their dialects."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from realtime.protocol.telephony.asterisk import AsteriskDialect
from realtime.protocol.telephony.base import TelephonyDialect
from realtime.protocol.telephony.plivo import PlivoDialect
from realtime.protocol.telephony.telnyx import TelnyxDialect
from realtime.protocol.telephony.twilio import TwilioDialect
from realtime.protocol.telephony.vonage import VonageDialect


class TelephonyRoute(NamedTuple):
    path: str
    # Takes the id of the call for providers that give none.
    dialect: Callable[[str], TelephonyDialect]
    # Requests may carry Twilio's signature in place of a key.
    signed: bool = False


TELEPHONY_ROUTES: tuple[TelephonyRoute, ...] = (
    TelephonyRoute("/v1/calls/twilio", lambda _: TwilioDialect(), signed=True),
    TelephonyRoute("/v1/calls/telnyx", lambda _: TelnyxDialect()),
    TelephonyRoute("/v1/calls/plivo", lambda _: PlivoDialect()),
    TelephonyRoute("/v1/calls/vonage", VonageDialect),
    TelephonyRoute("/v1/calls/asterisk", lambda _: AsteriskDialect()),
)
