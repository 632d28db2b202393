"""Decode a client's audio file to mono at the given rate, up to the given length.

The input is not trusted. The container is known by its first bytes and opened as that and nothing else, so that no list
of files or addresses is ever followed; only decoders of the formats named are used; a length that is declared or
decoded beyond the limit ends the work at once.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from sessions.audio.pcm import Pcm, within_full_scale

if TYPE_CHECKING:
    from av.audio.codeccontext import AudioCodecContext
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer

DECODERS = frozenset(
    "aac alac flac mp3 mp3float opus libopus vorbis pcm_alaw pcm_mulaw pcm_f32le pcm_f64le pcm_s16le pcm_s24le "
    "pcm_s32le pcm_u8".split()
)
FORMATS = "wav, flac, mp3, ogg or m4a"
MAX_SOURCE_RATE = 192_000
MAX_CHANNELS = 8
NO_PROTOCOL = "none"
# Codecs fill up their last frame; so much over the limit is cut off and not refused.
PADDING_S = 0.1


class InvalidRecording(ValueError):
    """The message is for the client."""


def decode_recording(data: bytes, sample_rate: int, max_s: float) -> Pcm:
    """Decode a whole recording to mono at ``sample_rate``; raises ``InvalidRecording``."""
    import av

    name = container_format(data)
    options = {"protocol_whitelist": NO_PROTOCOL}
    try:
        with av.open(
            io.BytesIO(data), mode="r", format=name, container_options=options, metadata_errors="replace"
        ) as container:
            return _decode(container, sample_rate, max_s)
    except InvalidRecording:
        raise
    except (av.FFmpegError, EOFError, OverflowError, ValueError) as error:
        raise InvalidRecording(f"audio cannot be decoded: {type(error).__name__}") from None


def container_format(data: bytes) -> str:
    """FFmpeg's name for it. Raises ``InvalidRecording``."""
    if not data:
        raise InvalidRecording("audio is empty")
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "wav"
    if data[:4] == b"fLaC":
        return "flac"
    if data[:4] == b"OggS":
        return "ogg"
    if data[4:8] == b"ftyp":
        return "mov"
    if data[:3] == b"ID3" or (data[0] == 0xFF and len(data) > 1 and data[1] & 0xE6 in (0xE2, 0xE4, 0xE6)):
        return "mp3"
    raise InvalidRecording(f"audio is neither of {FORMATS}")


def _decode(container: InputContainer, sample_rate: int, max_s: float) -> Pcm:
    if not container.streams.audio:
        raise InvalidRecording("the file holds no audio")
    stream = container.streams.audio[0]
    _check_stream(stream, max_s)
    pieces, num_samples = [], 0
    for pcm in _resampled(container, stream, sample_rate):
        num_samples += pcm.size
        _check_length(num_samples / sample_rate, max_s)
        pieces.append(pcm)
    if not num_samples:
        raise InvalidRecording("audio holds no sound at all: 0 samples")
    return np.concatenate(pieces)[: int(max_s * sample_rate)]


def _check_stream(stream: AudioStream, max_s: float) -> None:
    codec: AudioCodecContext | None = stream.codec_context
    name = None if codec is None or codec.codec is None else codec.name
    if codec is None or name not in DECODERS:
        raise InvalidRecording(f"audio is coded as {name or 'an unknown codec'}; send {FORMATS}")
    if not 1 <= codec.sample_rate <= MAX_SOURCE_RATE:
        raise InvalidRecording(f"the sample rate must be 1 to {MAX_SOURCE_RATE}, is {codec.sample_rate}")
    if not 1 <= codec.channels <= MAX_CHANNELS:
        raise InvalidRecording(f"audio must have 1 to {MAX_CHANNELS} channels, has {codec.channels}")
    if stream.duration is not None and stream.time_base is not None:
        _check_length(float(stream.duration * stream.time_base), max_s)


def _check_length(length_s: float, max_s: float) -> None:
    if length_s > max_s + PADDING_S:
        raise InvalidRecording(f"audio is longer than {max_s:g} s")


def _resampled(container: InputContainer, stream: AudioStream, sample_rate: int) -> Iterator[Pcm]:
    from av import AudioResampler

    resampler = AudioResampler(format="fltp", rate=sample_rate)
    for frame in container.decode(stream):
        _check_numbers(frame)
        yield from (_pcm(out) for out in resampler.resample(frame))
    yield from (_pcm(out) for out in resampler.resample(None))


def _check_numbers(frame: AudioFrame) -> None:
    samples = frame.to_ndarray()
    if samples.dtype.kind == "f" and not np.isfinite(samples).all():
        raise InvalidRecording("audio holds samples that are no numbers (NaN or infinite)")


def _pcm(frame: AudioFrame) -> Pcm:
    """The mean of the channels: FFmpeg's own mix is louder and can pass full scale."""
    return within_full_scale(frame.to_ndarray().mean(axis=0, dtype=np.float32))
