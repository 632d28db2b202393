"""Phone lines: recorded exchanges of every provider, any message in any order, signatures, and codecs of devices."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.errors import RemoteProtocolError
from realtime.protocol.telephony import model
from realtime.protocol.telephony.twilio import is_signed, sign
from realtime.protocol.telephony.xiaozhi import (
    FROM_US,
    HEADER,
    VERSIONS,
    EncryptedAudioStream,
    pack_frame,
    stream_id_of,
    unpack_frame,
)
from tests.realtime.dialects.chaotic_client import AT_LENGTH
from tests.realtime.protocol.telephony.lines import LINES, exchanges, messages, replay

SPICES = ("null", "-1", "1e400", '""', "{}", "[]", '"\\ud800"', "true", '"x"', "[[[", "\x00", "9" * 40)
KEY = bytes(range(16))


@pytest.mark.parametrize("name", LINES)
def test_exchange_replays_equal(name: str) -> None:
    for exchange in exchanges(name):
        for number, (recorded, replayed) in enumerate(replay(exchange)):
            assert replayed == recorded, f"step {number}"


def mangled(message: str | bytes, rng: random.Random) -> str | bytes:
    """As it is, cut, spiced, or in the other kind of frame."""
    if isinstance(message, bytes):
        return rng.choice((message, message[: rng.randrange(len(message) + 1)], rng.randbytes(rng.randrange(700))))
    at = rng.randrange(len(message) + 1)
    spiced = message[:at] + rng.choice(SPICES) + message[at + rng.randrange(12) :]
    return rng.choice((message, message, spiced, message[:at], message.encode(), rng.choice(SPICES)))


@AT_LENGTH
@pytest.mark.parametrize("name", LINES)
def test_no_message_breaks_a_line(name: str, num_messages: int) -> None:
    rng, corpus = random.Random(name), [message for message in messages(name) if len(message) < 1_000]
    num_events = num_refused = 0
    for number in range(num_messages):
        if number % 50 == 0:
            line = LINES[name]()
        try:
            events = line.receive_message(mangled(rng.choice(corpus), rng))
        except RemoteProtocolError:
            num_refused += 1
            continue
        num_events += len(events)
        assert all(isinstance(event, model.TelephonyEvent) for event in events)
        if line.format is None:
            assert not any(isinstance(event, model.CallerAudioReceived) for event in events)
        else:
            assert all(isinstance(given, str | bytes) for given in (line.send_audio(b"\0\0"), line.send_clear() or ""))
    assert num_events > num_messages / 20
    assert num_refused > num_messages / 20


TOKEN = "12345"
URL = "https://example.com/myapp.php?foo=1&bar=2"
FIELDS = {
    "CallSid": "CA1234567890ABCDE",
    "Caller": "+14158675309",
    "Digits": "1234",
    "From": "+14158675309",
    "To": "+18005551212",
}


def test_signature_is_that_of_twilios_documentation() -> None:
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
def test_changed_request_is_not_signed(token: str, url: str, fields: dict[str, str]) -> None:
    assert is_signed(TOKEN, URL, sign(TOKEN, URL, FIELDS), FIELDS)
    assert not is_signed(token, url, sign(TOKEN, URL, FIELDS), fields)


@pytest.mark.parametrize("signature", ["", "AAAA", "ä", "\udcff", "x" * 10_000])
def test_broken_signature_is_none(signature: str) -> None:
    assert not is_signed(TOKEN, URL, signature, FIELDS)


@pytest.mark.parametrize(
    "url", ["wss://host:port/", "wss://host:99999/", "wss://[::1/", "wss://[x]/", "", "//", "wss://:/"]
)
def test_broken_address_is_not_signed(url: str) -> None:
    assert not is_signed(TOKEN, url, sign(TOKEN, URL))


@given(st.sampled_from(VERSIONS), st.binary(min_size=1, max_size=300), st.integers(0, 2**40))
def test_packets_go_there_and_back(version: int, packet: bytes, time_ms: int) -> None:
    assert unpack_frame(version, pack_frame(version, packet, time_ms)) == packet


@given(st.sampled_from(VERSIONS), st.binary(max_size=60))
def test_no_frame_breaks_the_reader(version: int, message: bytes) -> None:
    with suppress(RemoteProtocolError):
        assert unpack_frame(version, message) in message


def device_seals(number: int, packet: bytes, stream: int = 7) -> bytes:
    """As the firmware does: a header from the nonce of our hello, and everything under it."""
    header = HEADER.pack(1, 0, len(packet), stream, 0, number)
    return header + EncryptedAudioStream(KEY, stream)._crypt(header, packet)


def test_the_cipher_is_the_one_of_the_book() -> None:
    """NIST SP 800-38A, F.5.1: AES-128 in counter mode."""
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    nonce = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")
    sealed = bytes.fromhex("874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff")
    assert EncryptedAudioStream(key, 0)._crypt(nonce, plain) == sealed


@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=6))
def test_sound_goes_there_and_back(packets: list[bytes]) -> None:
    ours = EncryptedAudioStream(KEY, 7)
    sealed = [ours.encrypt(packet, 60 * number) for number, packet in enumerate(packets)]
    for number, (datagram, packet) in enumerate(zip(sealed, packets, strict=True)):
        kind, flags, length, stream, time_ms, count = HEADER.unpack_from(datagram)
        assert (kind, flags, length, stream) == (1, FROM_US, len(packet), 7)
        assert (time_ms, count) == (60 * number, number + 1)
        assert EncryptedAudioStream(KEY, 7)._crypt(datagram[:16], datagram[16:]) == packet
    assert [EncryptedAudioStream(KEY, 7).decrypt(device_seals(1, packet)) for packet in packets] == packets


def test_doubled_late_and_foreign_packets_are_dropped() -> None:
    ours = EncryptedAudioStream(KEY, 7)
    assert ours.decrypt(device_seals(5, b"five")) == b"five"
    assert ours.decrypt(device_seals(5, b"five")) is None
    assert ours.decrypt(device_seals(4, b"four")) is None
    assert ours.decrypt(device_seals(9, b"nine")) == b"nine"
    assert ours.decrypt(device_seals(10, b"ten", stream=8)) is None
    assert ours.decrypt(EncryptedAudioStream(KEY, 7).encrypt(b"of our own", 0)) is None, (
        "nobody sends us back what we said"
    )
    ours._heard = 2**32 - 1
    assert ours.decrypt(device_seals(0, b"around")) == b"around"


def test_no_nonce_serves_twice() -> None:
    ours = EncryptedAudioStream(KEY, 7)
    nonces = {ours.encrypt(b"same", 0)[:16] for _ in range(100)} | {
        device_seals(n, b"same")[:16] for n in range(1, 101)
    }
    assert len(nonces) == 200


@pytest.mark.parametrize(
    "datagram", [b"", bytes(16), bytes(17), b"\x01" * 40, device_seals(1, b"x")[:-1], device_seals(1, bytes(1_500))]
)
def test_what_cannot_be_sound_has_no_stream(datagram: bytes) -> None:
    assert stream_id_of(datagram) is None


def shake(seed: int, num_datagrams: int) -> int:
    rng, ours, num_opened = random.Random(seed), EncryptedAudioStream(KEY, 7), 0
    for number in range(1, num_datagrams + 1):
        datagram = bytearray(device_seals(number, rng.randbytes(rng.randint(1, 60))))
        for _ in range(rng.choice((0, 0, 1, 4))):
            datagram[rng.randrange(len(datagram))] = rng.randrange(256)
        num_opened += ours.decrypt(bytes(datagram[: rng.choice((None, None, 10))])) is not None
        ours._heard = number
    return num_opened


@AT_LENGTH
def test_no_datagram_breaks_a_stream(num_messages: int) -> None:
    assert shake(1, num_messages) > num_messages / 4
