"""Opus packets out of PCM, and PCM out of packets.

Encoding a packet of 20 ms takes 100 to 200 us and releases the GIL: call ``OpusEncoder.push`` and ``flush`` in a worker
thread, never on the event loop, and one encoder in one thread at a time. A decoder puts ``pre_skip_samples`` out before
the first sample that was pushed.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from msgspec import Struct

from sessions.audio.framer import Framer, PcmFrame
from sessions.audio.opus_library import load_opuslib
from sessions.audio.pcm import EMPTY, Pcm
from sessions.errors import UnsupportedFormat

SAMPLE_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
PACKET_MS = (2.5, 5, 10, 20, 40, 60, 80, 100, 120)
MAX_PACKET_MS = 120


class OpusApplication(StrEnum):
    VOIP = "voip"
    AUDIO = "audio"
    # 4 ms less delay; no FEC.
    LOW_DELAY = "restricted_lowdelay"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpusSettings:
    """Settings of an Opus encoder. Raises ``UnsupportedFormat``, which names the field, the limit and the value."""

    sample_rate: int = 24_000
    packet_ms: float = 20
    # Bits per second; 6,000 to 510,000.
    bitrate: int = 32_000
    # 0 to 10: at 24 kbit/s, 10 sounds better than 5 does at 32, for a third more work.
    complexity: int = 5
    application: OpusApplication = OpusApplication.VOIP
    vbr: bool = True
    # Packets of one or two bytes during silence.
    dtx: bool = False
    # Each packet also carries a coarse copy of the one before it; not below 10 ms a packet.
    inband_fec: bool = False
    # Packet loss for which FEC is tuned, 1 to 100; without effect if FEC is off.
    expected_loss_percent: int = 10

    def __post_init__(self) -> None:
        _require_one_of("sample_rate", self.sample_rate, SAMPLE_RATES)
        _require_one_of("packet_ms", self.packet_ms, PACKET_MS)
        _require_one_of("application", self.application, tuple(OpusApplication))
        _require_between("bitrate", self.bitrate, 6_000, 510_000)
        _require_between("complexity", self.complexity, 0, 10)
        _require_between("expected_loss_percent", self.expected_loss_percent, 1, 100)
        if self.inband_fec and (self.packet_ms < 10 or self.application is OpusApplication.LOW_DELAY):
            message = "opus inband_fec needs packet_ms of at least 10 and an application other than restricted_lowdelay"
            raise UnsupportedFormat(f"{message}, got {self.packet_ms:g} and {self.application}", "inband_fec")

    @property
    def packet_samples(self) -> int:
        return int(self.sample_rate * self.packet_ms / 1000)

    @property
    def pre_skip_samples(self) -> int:
        """The delay of encoder and decoder together: 6.5 ms, or 2.5 ms with ``restricted_lowdelay``."""
        delay_ms = 2.5 if self.application is OpusApplication.LOW_DELAY else 6.5
        return int(self.sample_rate * delay_ms / 1000)


class OpusPacket(Struct, frozen=True):
    # Position of its first sample as a decoder counts, pre-skip included.
    start_sample: int
    num_samples: int
    data: bytes
    # At the end of it: silence that was not pushed, to be dropped after decoding.
    padding_samples: int = 0


class OpusError(RuntimeError):
    """libopus refused: for a decoder, a packet that is broken."""


class OpusEncoder:
    """PCM in runs of any length, packets out; one for each response. The state of libopus is made when first needed.

    After ``flush``, what the packets decode to is the pre-skip, every sample that was pushed, and the last packet's
    padding.
    """

    def __init__(self, settings: OpusSettings) -> None:
        self.settings = settings
        self._framer = Framer(settings.packet_samples)
        self._encoder: Any = None
        self._all_is_out = True

    def push(self, pcm: Pcm) -> list[OpusPacket]:
        self._all_is_out = self._all_is_out and not pcm.size
        return self._encode(self._framer.push(pcm))

    def flush(self) -> list[OpusPacket]:
        """Return the packets that bring the last samples out of the decoder: two at most.

        More samples may be pushed; the silence that filled the packets is then part of the audio.
        """
        if self._all_is_out:
            return []
        self._all_is_out = True
        delayed = self._framer.push(np.zeros(self.settings.pre_skip_samples, np.float32))
        return self._encode(delayed + self._framer.flush())

    def _encode(self, frames: list[PcmFrame]) -> list[OpusPacket]:
        if frames and self._encoder is None:
            self._encoder = _new_encoder(self.settings)
        return [self._packet(frame) for frame in frames]

    def _packet(self, frame: PcmFrame) -> OpusPacket:
        data = self._encoder.encode_float(frame.pcm.tobytes(), frame.pcm.size)
        return OpusPacket(frame.start_sample, frame.pcm.size, data, frame.padding_samples)


class OpusDecoder:
    """Packets in, PCM out; the first ``pre_skip_samples`` are dropped."""

    def __init__(self, sample_rate: int, pre_skip_samples: int = 0) -> None:
        _require_one_of("sample_rate", sample_rate, SAMPLE_RATES)
        self._decoder = load_opuslib().Decoder(sample_rate, 1)
        self._max_samples = sample_rate * MAX_PACKET_MS // 1000
        self._skip_samples = pre_skip_samples

    def decode(self, packet: bytes) -> Pcm:
        """Decode one packet; raises ``OpusError`` if it is broken."""
        if not packet:
            raise OpusError("a packet has at least one byte, got 0")
        opuslib = load_opuslib()
        pcm = np.empty(self._max_samples, np.float32)
        into = pcm.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        state, size = self._decoder.decoder_state, len(packet)
        num_samples = opuslib.api.decoder.libopus_decode_float(state, packet, size, into, self._max_samples, 0)
        if num_samples < 0:
            raise OpusError(f"packet of {size} bytes: {opuslib.OpusError(num_samples)}")
        return self._without_pre_skip(pcm[:num_samples])

    def _without_pre_skip(self, pcm: Pcm) -> Pcm:
        skipped = min(self._skip_samples, pcm.size)
        self._skip_samples -= skipped
        return pcm[skipped:]


def decode_all(packets: list[OpusPacket], settings: OpusSettings) -> Pcm:
    """Decode all packets to as many samples as were pushed into the encoder."""
    decoder = OpusDecoder(settings.sample_rate, settings.pre_skip_samples)
    pcm = np.concatenate([EMPTY, *(decoder.decode(packet.data) for packet in packets)])
    return pcm[: pcm.size - packets[-1].padding_samples] if packets else pcm


def _new_encoder(settings: OpusSettings) -> Any:
    encoder = load_opuslib().Encoder(settings.sample_rate, 1, settings.application.value)
    encoder.bitrate = settings.bitrate
    encoder.complexity = settings.complexity
    encoder.vbr = int(settings.vbr)
    encoder.dtx = int(settings.dtx)
    encoder.inband_fec = int(settings.inband_fec)
    encoder.packet_loss_perc = settings.expected_loss_percent if settings.inband_fec else 0
    if encoder.lookahead != settings.pre_skip_samples:
        raise OpusError(f"libopus looks {encoder.lookahead} samples ahead, expected {settings.pre_skip_samples}")
    return encoder


def _require_one_of(field: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        options = ", ".join(str(option) for option in allowed)
        raise UnsupportedFormat(f"opus {field} must be one of {options}; got {value}", field)


def _require_between(field: str, value: int, minimum: int, maximum: int) -> None:
    if not minimum <= value <= maximum:
        raise UnsupportedFormat(f"opus {field} must be between {minimum} and {maximum}, got {value}", field)
