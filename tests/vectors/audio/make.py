"""Makes ``opus_24k.json``: packets, and what any libopus decodes them to (``python -m tests.vectors.audio.make``)."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from sessions.audio.opus import OpusEncoder, OpusSettings, decode_all
from sessions.audio.pcm import pcm_to_s16le
from tests.sessions.audio.signals import speech_like

VECTOR = Path(__file__).with_name("opus_24k.json")


def main() -> None:
    settings = OpusSettings(complexity=10, bitrate=24_000)
    encoder = OpusEncoder(settings)
    packets = encoder.push(speech_like(24_000, 24_000, 11)[:6_000]) + encoder.flush()
    vector = {
        "sample_rate": settings.sample_rate,
        "packet_samples": settings.packet_samples,
        "pre_skip_samples": settings.pre_skip_samples,
        "padding_samples": packets[-1].padding_samples,
        "packets_base64": [base64.b64encode(packet.data).decode() for packet in packets],
        "pcm_s16le_base64": base64.b64encode(pcm_to_s16le(decode_all(packets, settings))).decode(),
    }
    VECTOR.write_text(json.dumps(vector, indent=1) + "\n")


if __name__ == "__main__":
    main()
