"""Audio that a client has received over several connections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from realtime.protocol import events as ev
from sessions.audio.opus import OpusDecoder

PCM = ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=16_000)
OPUS = ev.NativeAudioFormat(encoding="opus", sample_rate=24_000)
# An Opus packet holds 20 ms.
PACKET_SAMPLES = 480

Floats = npt.NDArray[np.float64]


class ReceivedAudio(Protocol):
    rate: int
    num_samples: int

    def restart(self, is_new_encoder: bool) -> None:
        """Begin with the audio of another connection, which may repeat some."""

    def add(self, at: int, packets: Sequence[bytes]) -> bool:
        """Return False for a gap, or where repeated audio differs."""


class ReceivedPcm:
    rate = 16_000

    def __init__(self) -> None:
        self.data = bytearray()

    @property
    def num_samples(self) -> int:
        return len(self.data) // 2

    def restart(self, is_new_encoder: bool) -> None:
        pass

    def add(self, at: int, packets: Sequence[bytes]) -> bool:
        data, start = b"".join(packets), 2 * at
        is_right = at <= self.num_samples
        known = bytes(self.data[start : start + len(data)])
        self.data += data[len(known) :]
        return is_right and known == data[: len(known)]

    def decode(self) -> Floats:
        return np.frombuffer(bytes(self.data), np.int16) / 32768


@dataclass
class OpusPiece:
    """Audio of one connection: packets that the client had, for a new decoder, and those that it lacked."""

    is_new_encoder: bool = False
    repeated: list[bytes] = field(default_factory=list)
    lacking: list[bytes] = field(default_factory=list)


class ReceivedOpus:
    rate = 24_000

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.pieces = [OpusPiece()]

    @property
    def num_samples(self) -> int:
        return PACKET_SAMPLES * len(self.packets)

    def restart(self, is_new_encoder: bool) -> None:
        self.pieces.append(OpusPiece(is_new_encoder))

    def add(self, at: int, packets: Sequence[bytes]) -> bool:
        piece, is_right = self.pieces[-1], at <= self.num_samples
        for index, packet in enumerate(packets, at // PACKET_SAMPLES):
            if index < len(self.packets):
                is_right = is_right and (piece.is_new_encoder or packet == self.packets[index])
                piece.repeated.append(packet)
            else:
                self.packets.append(packet)
                piece.lacking.append(packet)
        return is_right

    @property
    def seams(self) -> list[int]:
        """First samples of all connections but the first."""
        sizes = [PACKET_SAMPLES * len(piece.lacking) for piece in self.pieces]
        return [int(at) for at in np.cumsum(sizes)[:-1]]

    def decode(self, keeps_decoder: bool = True) -> Floats:
        """Decode by one decoder, or by a new one for each connection, which decodes and drops the repeated packets."""
        decoder, parts = OpusDecoder(self.rate), []
        for piece in self.pieces:
            if not keeps_decoder:
                decoder = OpusDecoder(self.rate)
                for packet in piece.repeated:
                    decoder.decode(packet)
            parts += [decoder.decode(packet).astype(np.float64) for packet in piece.lacking]
        return np.concatenate(parts)
