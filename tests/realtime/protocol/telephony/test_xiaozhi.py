"""The codecs of xiaozhi: packets over the WebSocket, sound over UDP, and no message that breaks them."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.telephony.xiaozhi import (
    FROM_US,
    HEADER,
    VERSIONS,
    EncryptedAudioStream,
    XiaozhiDialect,
    pack_frame,
    stream_id_of,
    unpack_frame,
)
from tests.realtime.dialects.chaotic_client import ChaoticClient

NUM_MESSAGES, NUM_MESSAGES_SLOW = 2_000, 50_000
RIGHT = (
    {"type": "hello", "version": 1, "transport": "websocket", "audio_params": {"format": "opus"}},
    {"type": "listen", "state": "detect", "text": "Hey"},
    {"type": "listen", "state": "start", "mode": "auto"},
    {"type": "abort", "reason": "wake_word_detected"},
    {"type": "goodbye"},
    {"type": "mcp", "payload": {"jsonrpc": "2.0"}},
    bytes(960),
)
KEY = bytes(range(16))


def play(seed: int, num_messages: int) -> int:
    """How many devices hung up, or broke the wire."""
    rng = random.Random(seed)
    client = ChaoticClient(rng, RIGHT)
    device, num_devices = XiaozhiDialect("d", {}), 0
    for _ in range(num_messages):
        message = client.message()
        try:
            events = device.receive_message(message)
            assert all(isinstance(event, model.TelephonyEvent) for event in events)
            ended = any(isinstance(event, model.StreamEnded) for event in events)
        except RemoteProtocolError:
            ended = True
        if ended:
            device, num_devices = XiaozhiDialect("d", {}), num_devices + 1
    return num_devices


def test_no_message_breaks_a_device() -> None:
    assert play(1, NUM_MESSAGES) > 5


@pytest.mark.slow
def test_no_message_breaks_a_device_at_length() -> None:
    assert play(2, NUM_MESSAGES_SLOW) > 100


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


def test_no_datagram_breaks_a_stream() -> None:
    assert shake(1, NUM_MESSAGES) > NUM_MESSAGES / 4


@pytest.mark.slow
def test_no_datagram_breaks_a_stream_at_length() -> None:
    assert shake(2, NUM_MESSAGES_SLOW) > NUM_MESSAGES_SLOW / 4
