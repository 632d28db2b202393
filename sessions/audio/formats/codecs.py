"""MP3, AAC in ADTS, and FLAC: the encoders of FFmpeg (package ``av``), each of whose packets stands for itself, so
that joined they are a stream which a player can enter anywhere.

MP3 goes without its bit reservoir, with which a frame would wait for others to fill: the sound loses a little, the
first frame leaves 24 ms sooner (docs/design/audio.md has the delays).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sessions.audio.framer import Framer
from sessions.audio.pcm import S16, Pcm, float_to_s16, within_full_scale
from sessions.audio.provenance import id3_tag, vorbis_comments
from sessions.errors import UnsupportedFormat

if TYPE_CHECKING:
    from av.audio.codeccontext import AudioCodecContext

ADTS_RATES = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000, 7_350)
ADTS_HEADER_BYTES = 7
# From this sample rate on; each is one version of the MPEG standard.
MP3_MAX_BITRATES = {8_000: 64_000, 16_000: 160_000, 32_000: 320_000}
AAC_MAX_BITS_PER_SAMPLE = 6
# From level 3 on a block of FLAC is 105 ms long.
LOSSLESS_BLOCKS_OF_27_MS = {"compression_level": "2"}
WARM_UP_RATE, WARM_UP_BITRATE = 24_000, 64_000


class CodecStream:
    """Frames of the codec's own length in, packets out; the last frame is as short as the sound."""

    codec: str
    sample_format: str
    options: Mapping[str, str] = {}

    def __init__(self, sample_rate: int, bitrate: int | None = None) -> None:
        self.sample_rate = sample_rate
        self.bitrate = bitrate
        self._context: AudioCodecContext | None = None
        self._position = 0

    def push(self, pcm: Pcm) -> bytes:
        head = self._open()
        frames = self._framer.push(within_full_scale(pcm))
        return head + b"".join(self._encode(frame.pcm) for frame in frames)

    def finish(self) -> bytes:
        head = self._open()
        rest = [self._encode(frame.pcm[: frame.pcm.size - frame.padding_samples]) for frame in self._framer.flush()]
        return head + b"".join(rest) + self._encode(None)

    def _open(self) -> bytes:
        """Idempotent; the first call gives the header."""
        if self._context is not None:
            return b""
        self._context = _open_codec(self)
        self._framer = Framer(self._context.frame_size)
        return self._header(self._context)

    def _encode(self, pcm: Pcm | None) -> bytes:
        """``None`` brings out what the codec holds back; so may a codec that was given nothing."""
        assert self._context is not None
        if pcm is None and self._position == 0:
            return b""
        frame = None if pcm is None else self._frame(pcm)
        return b"".join(self._packet(bytes(packet)) for packet in self._context.encode(frame))

    def _frame(self, pcm: Pcm) -> Any:
        from av import AudioFrame

        samples: Pcm | S16 = float_to_s16(pcm) if self.sample_format == "s16" else pcm
        frame = AudioFrame.from_ndarray(samples.reshape(1, -1), format=self.sample_format, layout="mono")
        frame.sample_rate = self.sample_rate
        frame.time_base = Fraction(1, self.sample_rate)
        frame.pts = self._position
        self._position += pcm.size
        return frame

    def _header(self, context: AudioCodecContext) -> bytes:
        return b""

    def _packet(self, packet: bytes) -> bytes:
        return packet


class Mp3Stream(CodecStream):
    """Encode MP3. Raises ``UnsupportedFormat`` for a bitrate that MPEG does not have at this sample rate."""

    codec = "libmp3lame"
    sample_format = "fltp"
    options: Mapping[str, str] = {"reservoir": "0"}

    def __init__(self, sample_rate: int, bitrate: int) -> None:
        limit = max(most for rate, most in MP3_MAX_BITRATES.items() if rate <= sample_rate)
        _check_bitrate("mp3", sample_rate, bitrate, 8_000 if sample_rate < 32_000 else 32_000, limit)
        super().__init__(sample_rate, bitrate)
        self._tag = id3_tag()

    def _packet(self, packet: bytes) -> bytes:
        """The tag comes with the first sound: alone it would pass for audio that the listener can play."""
        tag, self._tag = self._tag, b""
        return tag + packet


class AacStream(CodecStream):
    """AAC-LC, each packet behind an ADTS header."""

    codec = "aac"
    sample_format = "fltp"

    def __init__(self, sample_rate: int, bitrate: int) -> None:
        _check_bitrate("aac", sample_rate, bitrate, 8_000, min(AAC_MAX_BITS_PER_SAMPLE * sample_rate, 320_000))
        super().__init__(sample_rate, bitrate)

    def _packet(self, packet: bytes) -> bytes:
        return adts_header(self.sample_rate, len(packet)) + packet


class FlacStream(CodecStream):
    """16 bits; the length in the header says "unknown"."""

    codec = "flac"
    sample_format = "s16"
    options = LOSSLESS_BLOCKS_OF_27_MS

    def _header(self, context: AudioCodecContext) -> bytes:
        stream_info = context.extradata or b""
        is_stream_info, is_last_and_comment = 0x00, 0x84
        return b"fLaC" + _flac_block(is_stream_info, stream_info) + _flac_block(is_last_and_comment, vorbis_comments())


def _flac_block(kind: int, data: bytes) -> bytes:
    return bytes([kind]) + len(data).to_bytes(3, "big") + data


@cache
def warm_up_codecs() -> None:
    """Load FFmpeg and encode a moment of silence, once in a process: without that the first listener waits for it."""
    encoder = Mp3Stream(WARM_UP_RATE, WARM_UP_BITRATE)
    encoder.push(np.zeros(WARM_UP_RATE // 10, np.float32))
    encoder.finish()


def adts_header(sample_rate: int, packet_bytes: int) -> bytes:
    """Seven bytes for one packet of mono AAC-LC (ISO/IEC 13818-7, 6.2), without a checksum."""
    sync, mpeg4_without_crc, low_complexity, mono, variable_rate = 0xFFF, 0b0001, 1, 1, 0x7FF
    bits = sync << 4 | mpeg4_without_crc
    bits = bits << 2 | low_complexity
    bits = bits << 5 | ADTS_RATES.index(sample_rate) << 1
    bits = bits << 3 | mono
    bits = bits << 17 | packet_bytes + ADTS_HEADER_BYTES
    bits = bits << 11 | variable_rate
    return (bits << 2).to_bytes(ADTS_HEADER_BYTES, "big")


def _open_codec(stream: CodecStream) -> AudioCodecContext:
    from av import AudioCodecContext  # takes 100 ms, so only where it is needed

    context = AudioCodecContext.create(stream.codec, "w")
    assert isinstance(context, AudioCodecContext)
    context.sample_rate = stream.sample_rate
    context.layout = "mono"
    context.format = stream.sample_format
    context.time_base = Fraction(1, stream.sample_rate)
    context.thread_count = 1
    context.options = dict(stream.options)
    if stream.bitrate is not None:
        context.bit_rate = stream.bitrate
    context.open()
    return context


def _check_bitrate(name: str, sample_rate: int, bitrate: int, least: int, most: int) -> None:
    if not least <= bitrate <= most:
        message = f"bitrate of {name} at {sample_rate} Hz must be between {least} and {most}, got {bitrate}"
        raise UnsupportedFormat(message, "bitrate")
