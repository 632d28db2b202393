"""Opus in Ogg as a stream of PCM sees it: the encoder and the muxer in one."""

from __future__ import annotations

import secrets

from sessions.audio.ogg import OggOpusMuxer
from sessions.audio.opus import OpusEncoder, OpusSettings
from sessions.audio.pcm import Pcm, within_full_scale


class OggOpusStream:
    """Encode Ogg Opus with one page per packet, which costs 28 bytes and adds no delay.

    The last page holds the end of the audio, so that a player decodes exactly the samples that were pushed.
    """

    def __init__(self, settings: OpusSettings, serial: int | None = None) -> None:
        self._encoder = OpusEncoder(settings)
        self._muxer = OggOpusMuxer(settings, secrets.randbits(32) if serial is None else serial)
        self._head = self._muxer.headers()

    def push(self, pcm: Pcm) -> bytes:
        head, self._head = self._head, b""
        packets = self._encoder.push(within_full_scale(pcm))
        return head + b"".join(self._muxer.push([packet]) for packet in packets)

    def finish(self) -> bytes:
        head, self._head = self._head, b""
        return head + self._muxer.finish(self._encoder.flush())
