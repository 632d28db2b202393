"""Twilio's signature: what its holder signed is believed, and nothing else."""

from __future__ import annotations

import pytest

from realtime.protocol.telephony.twilio import is_signed, sign

TOKEN = "12345"
URL = "https://example.com/myapp.php?foo=1&bar=2"
FIELDS = {
    "CallSid": "CA1234567890ABCDE",
    "Caller": "+14158675309",
    "Digits": "1234",
    "From": "+14158675309",
    "To": "+18005551212",
}


def test_the_example_of_twilios_documentation() -> None:
    assert sign(TOKEN, "https://mycompany.com/myapp.php?foo=1&bar=2", FIELDS) == "RSOYDt4T1cUTdK1PDd93/VVr8B8="


def test_fields_are_signed_in_the_order_of_their_names() -> None:
    assert sign(TOKEN, URL, dict(reversed(FIELDS.items()))) == sign(TOKEN, URL, FIELDS)


@pytest.mark.parametrize(
    ("signed", "asked"),
    [
        ("wss://voice.example.com/v1/calls/twilio", "wss://voice.example.com/v1/calls/twilio"),
        ("wss://voice.example.com/v1/calls/twilio/", "wss://voice.example.com/v1/calls/twilio"),
        ("wss://voice.example.com:443/v1/calls/twilio", "wss://voice.example.com/v1/calls/twilio"),
        ("wss://voice.example.com/v1/calls/twilio", "wss://voice.example.com:443/v1/calls/twilio"),
    ],
)
def test_spellings_of_one_address_are_the_same(signed: str, asked: str) -> None:
    assert is_signed(TOKEN, asked, sign(TOKEN, signed))


@pytest.mark.parametrize(
    ("token", "url", "fields"),
    [
        ("12346", URL, FIELDS),
        (TOKEN, URL + "3", FIELDS),
        (TOKEN, URL.replace("https", "http"), FIELDS),
        (TOKEN, URL, FIELDS | {"Digits": "1235"}),
        (TOKEN, URL, {}),
    ],
)
def test_anything_else_is_not(token: str, url: str, fields: dict[str, str]) -> None:
    assert is_signed(TOKEN, URL, sign(TOKEN, URL, FIELDS), FIELDS)
    assert not is_signed(token, url, sign(TOKEN, URL, FIELDS), fields)


@pytest.mark.parametrize("signature", ["", "AAAA", "ä", "\udcff", "x" * 10_000])
def test_no_signature_is_none(signature: str) -> None:
    assert not is_signed(TOKEN, URL, signature, FIELDS)


@pytest.mark.parametrize(
    "url", ["wss://host:port/", "wss://host:99999/", "wss://[::1/", "wss://[x]/", "", "//", "wss://:/"]
)
def test_no_address_is_signed_or_breaks_anything(url: str) -> None:
    assert not is_signed(TOKEN, url, sign(TOKEN, URL))
