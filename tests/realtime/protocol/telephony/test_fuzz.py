"""Whatever a provider's side sends, in any order: a codec tells events or refuses, and never breaks."""

from __future__ import annotations

import random

import pytest

from realtime.errors import RemoteProtocolError
from realtime.protocol.model import CallerAudioReceived
from realtime.protocol.telephony.audiosocket import AudioSocketDialect
from realtime.protocol.telephony.base import TelephonyDialect
from realtime.protocol.telephony.registry import TELEPHONY_ROUTES, TelephonyRoute
from tests.realtime.protocol.telephony.test_phones import ASTERISK, AUDIOSOCKET, PLIVO, TELNYX, TWILIO, VONAGE

NUM_MESSAGES, NUM_MESSAGES_SLOW = 2_000, 50_000
CORPORA: dict[str, list[str | bytes]] = {
    "twilio": [message for message, _ in TWILIO],
    "telnyx": [message for message, _ in TELNYX],
    "plivo": [message for message, _ in PLIVO],
    "vonage": [message for message, _ in VONAGE],
    "asterisk": [message for message, _ in ASTERISK],
    "audiosocket": [message for message, _ in AUDIOSOCKET],
}
LINES = (*TELEPHONY_ROUTES, TelephonyRoute("audiosocket", lambda _: AudioSocketDialect()))
SPICES = ("null", "-1", "1e400", '""', "{}", "[]", '"\\ud800"', "true", '"x"', "[[[", "\x00", "9" * 40)


def mangled(message: str | bytes, rng: random.Random) -> str | bytes:
    """As it is, cut, spiced, or in the other kind of frame."""
    if isinstance(message, bytes):
        return rng.choice((message, message[: rng.randrange(len(message) + 1)], rng.randbytes(rng.randrange(700))))
    at = rng.randrange(len(message) + 1)
    spiced = message[:at] + rng.choice(SPICES) + message[at + rng.randrange(12) :]
    return rng.choice((message, message, spiced, message[:at], message.encode(), rng.choice(SPICES)))


def check(make: object, name: str, num_messages: int) -> None:
    rng = random.Random(name)
    dialect: TelephonyDialect = make("line")  # type: ignore[operator]
    num_heard = num_refused = 0
    for number in range(num_messages):
        if number % 50 == 0:
            dialect = make("line")  # type: ignore[operator]
        try:
            events = dialect.receive_message(mangled(rng.choice(CORPORA[name]), rng))
        except RemoteProtocolError:
            num_refused += 1
            continue
        num_heard += len(events)
        if dialect.format is not None:
            assert all(
                isinstance(message, str | bytes)
                for message in (dialect.send_audio(b"\0\0"), dialect.send_clear() or "")
            )
        else:
            assert not any(isinstance(event, CallerAudioReceived) for event in events)
    assert num_heard > num_messages / 20
    assert num_refused > num_messages / 20


@pytest.mark.parametrize("phone", LINES, ids=lambda phone: phone.path)
def test_anything_in_any_order(phone: object) -> None:
    check(phone.dialect, phone.path.rpartition("/")[2], NUM_MESSAGES)  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("phone", LINES, ids=lambda phone: phone.path)
def test_much_of_it(phone: object) -> None:
    check(phone.dialect, phone.path.rpartition("/")[2], NUM_MESSAGES_SLOW)  # type: ignore[attr-defined]
