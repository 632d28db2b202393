"""Cloned voices: encoded from a recording, and prepared for prompts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.api import ClonedVoice, ReferenceAudio, TextLayout
from engine.errors import InvalidRequest
from engine.memory.lru_cache import VoiceCache
from engine.models.qwen3_tts.codec_encoder import CodecEncoder
from engine.models.qwen3_tts.speaker_encoder import SpeakerEncoder


@dataclass(frozen=True, slots=True, eq=False)
class PreparedVoice:
    """Equal keys are equal voices."""

    key: bytes
    # [H], as the talker computes.
    embedding: Tensor
    # [num_frames, num_codebooks] of the recording; empty where it is cloned by the embedding alone.
    codes: list[list[int]]
    transcript_ids: list[int]

    @property
    def num_code_rows(self) -> int:
        """Rows that a prompt gives to codes: one to begin with, and one for each frame."""
        return len(self.codes) + 1 if self.codes else 0

    @property
    def num_prompt_tokens(self) -> int:
        """Text tokens in the streaming layout's prompt: rows that the transcript leaves free (spec 3.7)."""
        return max(1, self.num_code_rows - len(self.transcript_ids))

    def num_prefix_ids(self, layout: TextLayout) -> int:
        """Transcript ids in the prefix; it ends before the last row of the recording, the one that is sampled."""
        if layout is TextLayout.FULL:
            return len(self.transcript_ids)
        return min(len(self.transcript_ids), max(self.num_code_rows - 1, 0))

    def num_reserved(self, layout: TextLayout) -> int:
        """Rows of the recording behind the prefix."""
        return self.num_code_rows - (0 if layout is TextLayout.FULL else self.num_prefix_ids(layout))


class QwenVoiceCache(VoiceCache[PreparedVoice]):
    """``encode`` turns a transcript to ids."""

    def __init__(
        self,
        num_codebooks: int,
        dtype: torch.dtype,
        device: torch.device,
        encode: Callable[[str], list[int]],
        max_voices: int,
    ) -> None:
        super().__init__(max_voices)
        self._num_codebooks, self._dtype, self._device, self._encode = num_codebooks, dtype, device, encode

    def prepare(self, key: bytes, voice: ClonedVoice) -> PreparedVoice:
        """The vector takes the talker's type: wider rows would widen all that they are added to (spec 4.4)."""
        embedding = torch.from_numpy(np.frombuffer(voice.embedding, np.float32).copy())
        codes = np.frombuffer(voice.codes, np.int16).reshape(-1, self._num_codebooks)
        transcript = voice.transcript.strip() if voice.codes else ""
        return PreparedVoice(
            key=key,
            embedding=embedding.to(self._device, self._dtype),
            codes=codes.tolist(),
            transcript_ids=self._encode(transcript) if transcript else [],
        )


class QwenVoiceEncoder:
    """In fp32 whatever the talker computes in: a voice is, but for rounding, the same wherever it was encoded."""

    def __init__(self, speaker: SpeakerEncoder, codec: CodecEncoder, device: torch.device) -> None:
        self.speaker, self.codec, self.device = speaker, codec, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @torch.inference_mode()
    def __call__(self, sample: ReferenceAudio) -> ClonedVoice:
        """Encode a voice. Raises ``InvalidRequest`` for an unusable recording."""
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
