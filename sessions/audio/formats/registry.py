"""Map formats to their stream encoders, rates and delays, and complete files whose length was unknown.

Raw PCM, G.711 and WAV need no encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sessions.audio.formats.codecs import AacStream, FlacStream, Mp3Stream
from sessions.audio.formats.ogg_opus import OggOpusStream
from sessions.audio.g711 import pcm_to_alaw, pcm_to_mulaw
from sessions.audio.opus import SAMPLE_RATES as OPUS_RATES
from sessions.audio.opus import OpusApplication, OpusSettings
from sessions.audio.pcm import Pcm, pcm_to_f32le, pcm_to_s16le
from sessions.audio.provenance import wav_info_chunk
from sessions.audio.wav import HEADER_BYTES, wav_header
from sessions.config import AudioFormat, Encoding
from sessions.errors import UnsupportedFormat

COMMON_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
RATES: dict[Encoding, tuple[int, ...]] = dict.fromkeys(Encoding, COMMON_RATES)
RATES |= dict.fromkeys((Encoding.OPUS, Encoding.OGG_OPUS), OPUS_RATES)

# From this bitrate on Opus is tuned for audio, which there sounds as good as tuned for voices.
AUDIO_FROM_BITRATE = 64_000
# From this bitrate on it sounds better without any search than with 64 kbit/s and a search, for half the work.
NO_SEARCH_FROM_BITRATE = 76_000
DEFAULT_COMPLEXITY = 5

# A sample becomes bytes whatever is before or after it.
BYTES_OF_PCM: dict[Encoding, Callable[[Pcm], bytes]] = {
    Encoding.PCM_S16LE: pcm_to_s16le,
    Encoding.PCM_F32LE: pcm_to_f32le,
    Encoding.MULAW: pcm_to_mulaw,
    Encoding.ALAW: pcm_to_alaw,
}


class StreamEncoder(Protocol):
    """PCM in runs of any length, bytes out as soon as the format can give them. However the PCM is cut, the bytes of
    all calls together are the same.

    Encoding may take milliseconds and releases the GIL: call it in a worker thread, one encoder in one thread at a
    time. What an encoder needs is made when first needed and freed with it.
    """

    def push(self, pcm: Pcm) -> bytes:
        """Mono float32 in [-1, 1] at the format's rate; the first bytes hold the header, where there is one."""
        ...

    def finish(self) -> bytes:
        """The last of the sound and the end of the stream; nothing is pushed after it."""
        ...


class RawStream:
    """Holds nothing back. ``header`` comes before the first samples, also when there are none."""

    def __init__(self, to_bytes: Callable[[Pcm], bytes], header: bytes = b"") -> None:
        self._to_bytes = to_bytes
        self._header = header

    def push(self, pcm: Pcm) -> bytes:
        header, self._header = self._header, b""
        return header + self._to_bytes(pcm)

    def finish(self) -> bytes:
        header, self._header = self._header, b""
        return header


def wav_stream(sample_rate: int) -> RawStream:
    """s16le; both lengths in the header say "unknown", so that players read to the end of the stream."""
    return RawStream(pcm_to_s16le, wav_header(sample_rate))


def is_cpu_intensive(encoding: Encoding) -> bool:
    """Return True if encoding belongs in a worker thread."""
    return encoding not in {*BYTES_OF_PCM, Encoding.WAV}


def stream_encoder(audio: AudioFormat) -> StreamEncoder:
    """Create any encoding but bare Opus, whose packets are no stream. Nothing heavy is made before it is needed.

    Raises ``UnsupportedFormat``, which names the field, the limit and the value.
    """
    check_rate(audio)
    match audio.encoding:
        case Encoding.WAV:
            return wav_stream(audio.sample_rate)
        case Encoding.MP3:
            return Mp3Stream(audio.sample_rate, audio.bitrate)
        case Encoding.AAC:
            return AacStream(audio.sample_rate, audio.bitrate)
        case Encoding.FLAC:
            return FlacStream(audio.sample_rate)
        case Encoding.OGG_OPUS:
            return OggOpusStream(opus_settings(audio))
        case Encoding.OPUS:
            raise UnsupportedFormat("opus without a container is no stream; use ogg_opus", "encoding")
        case _:
            return RawStream(BYTES_OF_PCM[audio.encoding])


def check_format(audio: AudioFormat) -> None:
    """Check an audio format; raises ``UnsupportedFormat``."""
    if audio.encoding is Encoding.OPUS:
        opus_settings(audio)
    else:
        stream_encoder(audio)


def check_rate(audio: AudioFormat) -> None:
    """Check the sample rate against the format; raises ``UnsupportedFormat``."""
    if audio.sample_rate not in RATES[audio.encoding]:
        allowed = ", ".join(str(rate) for rate in RATES[audio.encoding])
        message = f"sample_rate of {audio.encoding} must be one of {allowed}; is {audio.sample_rate}"
        raise UnsupportedFormat(message, "sample_rate")


def opus_settings(audio: AudioFormat) -> OpusSettings:
    """Return the encoder settings of an Opus format; raises ``UnsupportedFormat``."""
    return OpusSettings(
        sample_rate=audio.sample_rate,
        packet_ms=audio.packet_ms,
        bitrate=audio.bitrate,
        complexity=opus_complexity(audio),
        application=_application(audio),
        dtx=audio.dtx,
        inband_fec=audio.fec,
        expected_loss_percent=audio.packet_loss_percent,
    )


def opus_complexity(audio: AudioFormat) -> int:
    """Return the complexity that is set, or the least that sounds well."""
    if audio.complexity is not None:
        return audio.complexity
    needs_no_search = _application(audio) is OpusApplication.AUDIO and audio.bitrate >= NO_SEARCH_FROM_BITRATE
    return 0 if needs_no_search else DEFAULT_COMPLEXITY


def _application(audio: AudioFormat) -> OpusApplication:
    """Select the Opus application: with few bits, or copies of what may be lost, only one of them sounds well."""
    is_good = audio.bitrate >= AUDIO_FROM_BITRATE and not audio.fec
    return OpusApplication.AUDIO if audio.application == "audio" and is_good else OpusApplication.VOIP


def codec_delay_samples(audio: AudioFormat) -> int:
    """Return the most audio that was pushed and cannot be decoded from the bytes so far.

    MP3: a frame in the making, one in look-ahead, and 1,105 samples that encoder and decoder delay. AAC: two frames
    and the overlap with the next. FLAC: a block.
    """
    rate = audio.sample_rate
    match audio.encoding:
        case Encoding.MP3:
            return 2 * mp3_frame_samples(rate) + 1_105
        case Encoding.AAC:
            return 3 * 1_024
        case Encoding.FLAC:
            return rate * 27 // 1000
        case Encoding.OPUS | Encoding.OGG_OPUS:
            return opus_settings(audio).packet_samples + opus_settings(audio).pre_skip_samples
        case _:
            return 0


def mp3_frame_samples(sample_rate: int) -> int:
    return 1_152 if sample_rate >= 32_000 else 576


# The eight bytes of a FLAC header whose low 36 bits are the number of samples, 0 if unknown.
FLAC_TOTAL = slice(18, 26)


def finalize_file(stream: bytes, audio: AudioFormat, num_samples: int) -> bytes:
    """Complete a stream as a file: set the length in its header and append its trailer, where the format has them."""
    return finalize_header(stream, audio, num_samples) + file_trailer(audio)


def file_trailer(audio: AudioFormat) -> bytes:
    """What follows the samples of a file. WAV has its provenance there: many clients skip 44 bytes of any header."""
    return wav_info_chunk() if audio.encoding is Encoding.WAV else b""


def finalize_header(stream: bytes, audio: AudioFormat, num_samples: int) -> bytes:
    """Set the length in the header of formats that have one; return all others unchanged."""
    match audio.encoding:
        case Encoding.WAV:
            header = wav_header(audio.sample_rate, num_samples, len(file_trailer(audio)))
            return header + stream[HEADER_BYTES:]
        case Encoding.FLAC:
            total = int.from_bytes(stream[FLAC_TOTAL], "big") | num_samples
            return stream[: FLAC_TOTAL.start] + total.to_bytes(8, "big") + stream[FLAC_TOTAL.stop :]
        case _:
            return stream
