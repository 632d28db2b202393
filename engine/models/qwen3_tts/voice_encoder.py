"""A recording to what the model needs to know of a voice: the speaker's vector and, in context, the codes."""

from __future__ import annotations

import contextlib

import numpy as np
import torch

from engine.api import ClonedVoice, ReferenceAudio
from engine.errors import InvalidRequest
from engine.models.qwen3_tts.codec_encoder import CodecEncoder
from engine.models.qwen3_tts.speaker_encoder import SpeakerEncoder


class QwenVoiceEncoder:
    """In fp32 whatever the talker computes in: a voice is, but for rounding, the same wherever it was encoded."""

    def __init__(self, speaker: SpeakerEncoder, codec: CodecEncoder, device: torch.device) -> None:
        self.speaker, self.codec, self.device = speaker, codec, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @torch.inference_mode()
    def __call__(self, sample: ReferenceAudio) -> ClonedVoice:
        """Raises ``InvalidRequest`` for a recording of which no voice can be had."""
        with torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
            pcm = torch.from_numpy(np.frombuffer(sample.pcm, np.float32).copy()).to(self.device)
            embedding = self.speaker(pcm).float().cpu()
            codes = self.codec(pcm).cpu() if sample.transcript else None
        if not torch.isfinite(embedding).all():
            raise InvalidRequest("audio gives no finite speaker embedding", "audio")
        return ClonedVoice(
            embedding=embedding.numpy().tobytes(),
            codes=b"" if codes is None else codes.numpy().astype(np.int16).tobytes(),
            num_codebooks=0 if codes is None else codes.shape[1],
            transcript=sample.transcript,
        )
