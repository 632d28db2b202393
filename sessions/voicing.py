"""The sound of a response on its way out: chunks of its segments in, packets of its format out, as one signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.api import SpeechChunk
from sessions.audio.crossfade import Crossfader
from sessions.audio.framer import Frame, Framer
from sessions.audio.g711 import pcm_to_alaw, pcm_to_mulaw
from sessions.audio.joiner import SegmentJoiner
from sessions.audio.opus import OpusEncoder, OpusSettings
from sessions.audio.pcm import Pcm, pcm_to_s16le
from sessions.audio.resampler import Resampler
from sessions.config import AudioFormat, Encoding
from sessions.encoders import EncoderThreads
from sessions.outbox import Packet

PACKET_MS = 20
JOIN_MS = 10
"""How long one segment goes over into the next."""
PAUSE_MS = 40
"""More than joiner, resampler, framer and Opus hold back together."""

BYTES_OF_PCM: dict[Encoding, Callable[[Pcm], bytes]] = {
    Encoding.PCM_S16LE: pcm_to_s16le,
    Encoding.MULAW: pcm_to_mulaw,
    Encoding.ALAW: pcm_to_alaw,
}


class PacketEncoder(Protocol):
    def push(self, pcm: Pcm) -> Sequence[Packet]: ...

    def flush(self) -> Sequence[Packet]:
        """What brings the last samples out; more may be pushed."""
        ...


@dataclass(frozen=True, slots=True)
class PlainPacket:
    data: bytes
    num_samples: int


class PlainEncoder:
    """Encodings without memory: packets of 20 ms, the last one as short as it is."""

    def __init__(self, audio: AudioFormat) -> None:
        self._to_bytes = BYTES_OF_PCM[audio.encoding]
        self._framer = Framer(audio.sample_rate * PACKET_MS // 1000)

    def push(self, pcm: Pcm) -> list[PlainPacket]:
        return self._encode(self._framer.push(pcm))

    def flush(self) -> list[PlainPacket]:
        return self._encode(self._framer.flush())

    def _encode(self, frames: list[Frame]) -> list[PlainPacket]:
        sounds = [frame.pcm[: frame.pcm.size - frame.padding_samples] for frame in frames]
        return [PlainPacket(self._to_bytes(sound), sound.size) for sound in sounds]


def opus_settings(audio: AudioFormat) -> OpusSettings:
    """Raises ``UnsupportedFormat``."""
    return OpusSettings(
        sample_rate=audio.sample_rate,
        packet_ms=PACKET_MS,
        bitrate=audio.bitrate,
        complexity=audio.complexity,
        dtx=audio.dtx,
        inband_fec=audio.fec,
        expected_loss_percent=audio.packet_loss_percent,
    )


class Voicing:
    """Crossfader, joiner, resampler and encoder of one response. One call at a time; Opus is encoded in a thread."""

    def __init__(self, audio: AudioFormat, engine_rate: int, threads: EncoderThreads) -> None:
        self._threads = threads
        self._is_opus = audio.encoding is Encoding.OPUS
        self._encoder: PacketEncoder = OpusEncoder(opus_settings(audio)) if self._is_opus else PlainEncoder(audio)
        self._resampler = Resampler(engine_rate, audio.sample_rate)
        self._join_samples = engine_rate * JOIN_MS // 1000
        self._joiner = SegmentJoiner(self._join_samples)
        self._pause_samples = engine_rate * PAUSE_MS // 1000
        self._crossfader: Crossfader | None = None
        self._holds_sound = False
        """There was sound since the last pause."""
        self.num_engine_samples = 0
        """Of the signal so far, at the engine's rate."""
        self.num_samples = 0
        """Of what has reached the encoder of it, at the format's rate."""

    async def begin_segment(self) -> Sequence[Packet]:
        is_first, self._crossfader = self._crossfader is None, Crossfader()
        if is_first:
            return []
        self.num_engine_samples = max(self.num_engine_samples - self._join_samples, 0)
        return await self._encode(self._joiner.next_segment())

    async def push(self, chunk: SpeechChunk) -> Sequence[Packet]:
        assert self._crossfader is not None, "a chunk before begin_segment"
        return await self._add(self._crossfader.push(chunk))

    async def end_segment(self) -> Sequence[Packet]:
        assert self._crossfader is not None, "an end before begin_segment"
        return await self._add(self._crossfader.finish())

    async def pause(self) -> Sequence[Packet]:
        """A little silence, which brings all sound so far out of every stage; nothing if a pause did that already."""
        packets = await self._add(np.zeros(self._pause_samples, np.float32)) if self._holds_sound else []
        self._holds_sound = False
        return packets

    async def _add(self, pcm: Pcm) -> Sequence[Packet]:
        self.num_engine_samples += pcm.size
        self._holds_sound = self._holds_sound or pcm.size > 0
        return await self._encode(self._joiner.push(pcm))

    async def finish(self) -> Sequence[Packet]:
        rest = await self._encode(self._joiner.finish())
        rest = [*rest, *await self._encode_resampled(self._resampler.flush())]
        return [*rest, *await self._run(self._encoder.flush)]

    async def _encode(self, pcm: Pcm) -> Sequence[Packet]:
        return await self._encode_resampled(self._resampler.push(pcm))

    async def _encode_resampled(self, pcm: Pcm) -> Sequence[Packet]:
        self.num_samples += pcm.size
        return await self._run(lambda: self._encoder.push(pcm)) if pcm.size else []

    async def _run(self, work: Callable[[], Sequence[Packet]]) -> Sequence[Packet]:
        return await self._threads.run(work) if self._is_opus else work()
