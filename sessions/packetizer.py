"""Cuts a signal into packets of 20 ms, in any format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

import numpy as np
from msgspec import Struct

from sessions.audio.formats.registry import (
    BYTES_OF_PCM,
    check_rate,
    codec_delay_samples,
    opus_settings,
    stream_encoder,
)
from sessions.audio.framer import Framer, PcmFrame
from sessions.audio.opus import OpusEncoder
from sessions.audio.pcm import Pcm
from sessions.config import PACKET_MS, AudioFormat, Encoding


class AudioPacket(Protocol):
    @property
    def data(self) -> bytes: ...

    @property
    def num_samples(self) -> int: ...


class Packetizer(Protocol):
    def push(self, pcm: Pcm) -> Sequence[AudioPacket]: ...

    def flush(self) -> Sequence[AudioPacket]:
        """Return the packets of the last samples and of the end of the stream."""
        ...


class RawPacket(Struct, frozen=True):
    data: bytes
    num_samples: int


class StreamPacketizer:
    """A stream cut to 20 ms of what went in, the last packet as short as it is. Where the format holds sound back,
    the packet in which it comes out counts it."""

    def __init__(self, audio: AudioFormat) -> None:
        self._stream = stream_encoder(audio)
        self._framer = Framer(audio.sample_rate * PACKET_MS // 1000)
        self._num_held_samples = 0

    def push(self, pcm: Pcm) -> list[RawPacket]:
        return self._encode(self._framer.push(pcm))

    def flush(self) -> list[RawPacket]:
        packets = self._encode(self._framer.flush())
        end = self._stream.finish()
        return [*packets, RawPacket(end, self._num_held_samples)] if end else packets

    def _encode(self, frames: list[PcmFrame]) -> list[RawPacket]:
        packets = []
        for frame in frames:
            sound = frame.pcm[: frame.pcm.size - frame.padding_samples]
            self._num_held_samples += sound.size
            if data := self._stream.push(sound):
                packets.append(RawPacket(data, self._num_held_samples))
                self._num_held_samples = 0
        return packets


@cache
def _sample_bytes(to_bytes: Callable[[Pcm], bytes]) -> int:
    return len(to_bytes(np.zeros(1, np.float32)))


class PcmPacketizer:
    """Raw samples of any encoding. What is pushed is converted at once and cut as bytes, the last packet as short as
    it is."""

    def __init__(self, to_bytes: Callable[[Pcm], bytes], sample_rate: int) -> None:
        self._to_bytes = to_bytes
        self._sample_bytes = _sample_bytes(to_bytes)
        self._packet_bytes = sample_rate * PACKET_MS // 1000 * self._sample_bytes
        self._rest = b""

    def push(self, pcm: Pcm) -> list[RawPacket]:
        data = self._rest + self._to_bytes(pcm)
        whole = len(data) - len(data) % self._packet_bytes
        self._rest = data[whole:]
        return [self._packet(data[start : start + self._packet_bytes]) for start in range(0, whole, self._packet_bytes)]

    def flush(self) -> list[RawPacket]:
        rest, self._rest = self._rest, b""
        return [self._packet(rest)] if rest else []

    def _packet(self, data: bytes) -> RawPacket:
        return RawPacket(data, len(data) // self._sample_bytes)


def create_packetizer(audio: AudioFormat) -> Packetizer:
    """Return a packetizer for the format; raises ``UnsupportedFormat``."""
    if audio.encoding is Encoding.OPUS:
        return OpusEncoder(opus_settings(audio))
    if to_bytes := BYTES_OF_PCM.get(audio.encoding):
        check_rate(audio)
        return PcmPacketizer(to_bytes, audio.sample_rate)
    return StreamPacketizer(audio)


def codec_delay_ms(audio: AudioFormat) -> float:
    """Return the most audio that was pushed and cannot be decoded yet from the packets so far, in ms."""
    held_ms = 1000 * codec_delay_samples(audio) / audio.sample_rate
    return held_ms if audio.encoding is Encoding.OPUS else PACKET_MS + held_ms
