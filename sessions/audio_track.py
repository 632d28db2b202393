"""The audio of a response on its way out: chunks of its segments in, packets of its format out, as one signal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from engine.api import SpeechChunk
from sessions.audio.formats.registry import is_cpu_intensive
from sessions.audio.pcm import Pcm
from sessions.audio.resampler import Resampler
from sessions.audio.segment_joiner import SegmentJoiner
from sessions.audio.speech_shaper import SpeechShaper
from sessions.audio.time_stretch import TimeStretcher
from sessions.audio.watermark.embedder import Watermark
from sessions.config import PACKET_MS, AudioFormat, Encoding
from sessions.encoders import EncoderPool
from sessions.packetizer import AudioPacket, RawPacket, codec_delay_ms, create_packetizer
from sessions.text.ssml.style import PLAIN_STYLE, SpeechStyle
from sessions.text_items import FlushItem

# Encoded on the event loop without a turn for others: 0.3 ms.
ENCODE_SLICE_PACKETS = 4
# Crossfade between segments.
JOIN_MS = 10
# More than the resampler looks ahead.
RESAMPLE_MS = 3
# More than a change of speed holds back of what goes into it.
STRETCH_MS = 150
# Enough for joiner, resampler and encoder to release all sound, where the format holds back no more than Opus.
PAUSE_MS = 40

# Output of the track in order: packets, and flushes after the packets of their audio.
AudioOutput = Sequence[AudioPacket] | FlushItem


class ChunkOrderError(ValueError):
    """A chunk that does not follow the chunks before it: a fault of the engine that made the chunks."""


class AudioTrack:
    """Joiner, change of speed, resampler and encoder of one response. One call at a time; costly work runs in a
    thread."""

    def __init__(
        self,
        audio: AudioFormat,
        engine_rate: int,
        encoders: EncoderPool,
        speed: float = 1.0,
        has_styles: bool = False,
        watermark: Watermark | None = None,
        num_dropped_samples: int = 0,
    ) -> None:
        """With ``has_styles``, segments have styles and breaks between them. Packets that begin within the first
        ``num_dropped_samples``, at the format's rate, are dropped by the reader: they may be longer, and empty."""
        self._encoders = encoders
        self._is_costly = is_cpu_intensive(audio.encoding)
        self._encoder = create_packetizer(audio)
        self._changes_speed = speed != 1.0
        self._stretcher = TimeStretcher(engine_rate, speed)
        self._embedder = None if watermark is None else watermark.create_embedder(engine_rate)
        self._resampler = Resampler(engine_rate, audio.sample_rate)
        self._join_samples = engine_rate * JOIN_MS // 1000
        self._first_samples = engine_rate * (JOIN_MS + RESAMPLE_MS + PACKET_MS) // 1000
        self._packet_samples = audio.sample_rate * PACKET_MS // 1000
        # What Opus makes of a sample depends on all before it.
        self._num_dropped_samples = 0 if audio.encoding is Encoding.OPUS else num_dropped_samples
        self._joiner = SegmentJoiner(self._join_samples)
        pause_ms, drain_ms = float(PAUSE_MS), max(JOIN_MS + RESAMPLE_MS + codec_delay_ms(audio) - PAUSE_MS, 0.0)
        if self._changes_speed:
            pause_ms, drain_ms = pause_ms * speed + STRETCH_MS, drain_ms * speed
        self._pause_samples = int(engine_rate * pause_ms / 1000)
        self._drain_samples = int(engine_rate * drain_ms / 1000)
        # Where the next chunk of the segment starts; ``None`` before the first segment.
        self._next_start_sample: int | None = None
        self._is_segment_complete = False
        self._engine_rate = engine_rate
        self._has_styles = has_styles
        self._shaper: SpeechShaper | None = None
        # The last sound is that of a break.
        self._is_silent = False
        # There was sound since the last pause.
        self._has_pending_audio = False
        # More of the signal that has to follow a pause until the encoder holds back no sound from before it.
        self._num_held_samples = 0
        # The flush whose sound the encoder still holds back: the next segment's sound pushes it out.
        self._pending_flush: FlushItem | None = None
        # Samples pushed, at the engine's rate.
        self.num_engine_samples = 0
        # Samples passed to the encoder, at the format's rate.
        self.num_samples = 0

    @property
    def has_pending_flush(self) -> bool:
        return self._pending_flush is not None

    async def begin_segment(self, style: SpeechStyle = PLAIN_STYLE) -> Sequence[AudioPacket]:
        """Begin the next segment. Behind a break its first silence is left out."""
        is_first = self._next_start_sample is None
        self._next_start_sample, self._is_segment_complete = 0, False
        if self._has_styles:
            self._shaper = SpeechShaper(self._engine_rate, style.speed, style.gain, trims_start=self._is_silent)
        self._is_silent = False
        return [] if is_first else await self._begin_join()

    async def insert_break(self, duration_ms: float, speed: float) -> Sequence[AudioPacket]:
        """Insert silence of this length, at a playback rate of ``speed``, between the sound before and after it: both
        fade outside of it."""
        num_samples = round(duration_ms * self._engine_rate * speed / 1000)
        packets: list[AudioPacket] = []
        if not self._is_silent:
            if self.num_engine_samples >= self._join_samples:
                packets += await self._begin_join()
                num_samples += self._join_samples
            num_samples += self._join_samples
        # What follows joins the silence, even if nothing was before it.
        self._next_start_sample, self._is_silent = 0, True
        for start in range(0, num_samples, self._engine_rate):
            packets += await self._add(np.zeros(min(self._engine_rate, num_samples - start), np.float32))
            await asyncio.sleep(0)
        return packets

    async def _begin_join(self) -> Sequence[AudioPacket]:
        """Begin sound that fades into what came before."""
        self.num_engine_samples = max(self.num_engine_samples - self._join_samples, 0)
        if self._num_held_samples:
            self._num_held_samples += self._join_samples
        return await self._encode(self._joiner.next_segment())

    def split_first_packet(self, chunk: SpeechChunk) -> tuple[SpeechChunk, SpeechChunk]:
        """The first chunk of all in two: as much of it as one packet takes, and the remainder, maybe empty."""
        return split_chunk(chunk, self._first_samples)

    async def push(self, chunk: SpeechChunk) -> list[AudioOutput]:
        """Encode a chunk. A pending flush is completed as soon as the chunk has pushed out the sound before it."""
        if self._pending_flush is None:
            return [await self._push_speech(chunk)]
        head, chunk = split_chunk(chunk, self._num_held_samples)
        outputs: list[AudioOutput] = [await self._push_speech(head)]
        if not self._num_held_samples:
            outputs += await self.complete_flush()
        return [*outputs, await self._push_speech(chunk)]

    @property
    def num_trimmed(self) -> int:
        """Samples of speech that were left out at the start of the segment."""
        return 0 if self._shaper is None else self._shaper.num_trimmed

    async def end_segment(self, is_break_next: bool = False) -> list[AudioOutput]:
        """End the segment. Before a break its last silence is left out."""
        assert self._next_start_sample is not None, "an end before begin_segment"
        self._is_segment_complete = True
        packets: Sequence[AudioPacket] = []
        if self._shaper is not None:
            packets = await self._add(await self._encoders.run(partial(self._shaper.finish, is_break_next)))
        return [packets, *await self.complete_flush()]

    async def flush(self, item: FlushItem, is_segment_next: bool) -> list[AudioOutput]:
        """Insert a pause, once. The flush is completed with the sound of the next segment, or by silence if none
        follows."""
        outputs: list[AudioOutput] = [await self._insert_pause()]
        self._pending_flush = item
        if not (self._num_held_samples and is_segment_next):
            outputs += await self.complete_flush()
        return outputs

    async def complete_flush(self) -> list[AudioOutput]:
        """Emit the pending flush; silence pushes out what the encoder still holds of the sound before it."""
        outputs: list[AudioOutput] = [await self._drain()] if self._num_held_samples else []
        item, self._pending_flush = self._pending_flush, None
        return outputs if item is None else [*outputs, item]

    async def finish(self) -> Sequence[AudioPacket]:
        rest = self._joiner.finish()
        if self._is_silent:  # nothing fades into the end of the silence
            rest = rest[: rest.size - self._join_samples]
            self.num_engine_samples -= self._join_samples
        packets = [*await self._encode(rest)]
        packets += await self._encode_stretched(self._stretcher.flush())
        self._begin_partial_packet()
        packets += await self._encode_resampled(self._resampler.flush())
        return [*packets, *await self._run(self._encoder.flush)]

    async def _push_speech(self, chunk: SpeechChunk) -> Sequence[AudioPacket]:
        self._check_order(chunk)
        self._next_start_sample = chunk.start_sample + chunk.pcm.size
        self._is_segment_complete = chunk.last
        shaper, pcm = self._shaper, chunk.pcm
        return await self._add(pcm if shaper is None else await self._encoders.run(lambda: shaper.push(pcm)))

    def _check_order(self, chunk: SpeechChunk) -> None:
        """Raise ``ChunkOrderError`` for a gap, an overlap, or a chunk after the last."""
        assert self._next_start_sample is not None, "a chunk before begin_segment"
        if self._is_segment_complete:
            raise ChunkOrderError(f"chunk at sample {chunk.start_sample} comes after the last chunk")
        if chunk.start_sample != self._next_start_sample:
            raise ChunkOrderError(f"chunk starts at sample {chunk.start_sample}, expected {self._next_start_sample}")

    async def _insert_pause(self) -> Sequence[AudioPacket]:
        """Insert silence; nothing if a pause did that already. It brings all sound so far out of the encoder, but for
        what ``_num_held_samples`` more of the signal have to push out."""
        if not self._has_pending_audio:
            return []
        packets = await self._add(np.zeros(self._pause_samples, np.float32))
        self._has_pending_audio, self._num_held_samples = False, self._drain_samples
        return packets

    async def _drain(self) -> Sequence[AudioPacket]:
        """Insert as much silence as the sound before the last pause still needs to leave the encoder."""
        has_pending_audio = self._has_pending_audio
        packets = await self._add(np.zeros(self._num_held_samples, np.float32))
        self._has_pending_audio = has_pending_audio
        return packets

    async def _add(self, pcm: Pcm) -> Sequence[AudioPacket]:
        self.num_engine_samples += pcm.size
        self._num_held_samples = max(self._num_held_samples - pcm.size, 0)
        self._has_pending_audio = self._has_pending_audio or pcm.size > 0
        return await self._encode(self._joiner.push(pcm))

    async def _encode(self, pcm: Pcm) -> Sequence[AudioPacket]:
        if self._changes_speed:
            return await self._encode_stretched(await self._encoders.run(lambda: self._stretcher.push(pcm)))
        return await self._encode_stretched(pcm)

    async def _encode_stretched(self, pcm: Pcm) -> Sequence[AudioPacket]:
        """Mark and encode speech at its final rate of playback."""
        if self.num_samples + self._resampler.num_ready(pcm.size) <= self._num_dropped_samples:
            return self._skip(pcm)
        self._begin_partial_packet()
        if self._embedder is not None:
            pcm = self._embedder.push(pcm)
        return await self._encode_resampled(self._resampler.push(pcm))

    def _begin_partial_packet(self) -> None:
        """Begin the first packet behind what is dropped, with silence for its part of that."""
        if self._num_dropped_samples:
            self._encoder.push(np.zeros(self.num_samples % self._packet_samples, np.float32))
            self._num_dropped_samples = 0

    def _skip(self, pcm: Pcm) -> Sequence[AudioPacket]:
        """Go on behind speech that is dropped, without making it."""
        if self._embedder is not None:
            self._embedder.skip(pcm)
        num_before = self.num_samples // self._packet_samples
        self.num_samples += self._resampler.skip(pcm)
        num_packets = self.num_samples // self._packet_samples - num_before
        return [RawPacket(b"", num_packets * self._packet_samples)] if num_packets else []

    async def _encode_resampled(self, pcm: Pcm) -> Sequence[AudioPacket]:
        """Encode in small pieces on the event loop, so that a response with a long lead does not delay others."""
        self.num_samples += pcm.size
        slice_samples = ENCODE_SLICE_PACKETS * self._packet_samples if self._encoders.is_inline else max(pcm.size, 1)
        packets: list[AudioPacket] = []
        for start in range(0, pcm.size, slice_samples):
            packets += await self._run(partial(self._encoder.push, pcm[start : start + slice_samples]))
        return packets

    async def _run(self, work: Callable[[], Sequence[AudioPacket]]) -> Sequence[AudioPacket]:
        """Encode the first packet on the event loop: that takes less time than a thread's start, and the listener
        waits for it."""
        is_first_packet = self.num_samples < 2 * self._packet_samples
        return await self._encoders.run(work) if self._is_costly and not is_first_packet else work()


def split_chunk(chunk: SpeechChunk, num_samples: int) -> tuple[SpeechChunk, SpeechChunk]:
    """The first ``num_samples`` of a chunk, and the remainder, maybe empty."""
    num_samples = min(num_samples, chunk.pcm.size)
    first = SpeechChunk(chunk.request_id, chunk.start_sample, chunk.pcm[:num_samples])
    return first, SpeechChunk(
        chunk.request_id, chunk.start_sample + num_samples, chunk.pcm[num_samples:], chunk.last, chunk.codes
    )
