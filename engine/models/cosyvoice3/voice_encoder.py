"""A recording to a voice: its speech as ids, its sound as mel, its speaker as a vector (spec 6.3).

The two networks are the released ONNX files, run on the CPU, threads asleep when idle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.api import ClonedVoice, ReferenceAudio
from engine.errors import CheckpointError, EngineError, InvalidRequest
from engine.models.cosyvoice3.config import CosyVoice3Config
from engine.models.cosyvoice3.features import ENCODER_RATE, flow_mel, resample, speaker_fbank, whisper_mel

SPEECH_FILE, SPEAKER_FILE = "speech_tokenizer_v3.onnx", "campplus.onnx"
ENCODERS = (SPEECH_FILE, SPEAKER_FILE)
MISSING_ENCODER_NOTE = "recordings cannot be listened to; named voices and voices that were encoded before work"


def missing_encoders(folder: Path) -> list[str]:
    return [name for name in ENCODERS if not (folder / name).exists()]


class CosyVoiceEncoder:
    def __init__(self, folder: Path, config: CosyVoice3Config, num_threads: int = 2) -> None:
        self.config = config
        self.speech = OnnxModel(folder / SPEECH_FILE, num_inputs=2, num_threads=num_threads)
        self.speaker = OnnxModel(folder / SPEAKER_FILE, num_inputs=1, num_threads=num_threads)

    @torch.inference_mode()
    def __call__(self, sample: ReferenceAudio) -> ClonedVoice:
        """Raises ``InvalidRequest`` for a recording of which no voice can be had."""
        pcm = torch.from_numpy(np.frombuffer(sample.pcm, np.float32).copy())
        heard = resample(pcm, self.config.sample_rate, ENCODER_RATE)
        codes, mel = self.aligned(self.tokens(heard), flow_mel(pcm, self.config.flow.dit.mel_bins))
        return ClonedVoice(
            embedding=self.embedding(heard).tobytes(),
            codes=codes.astype(np.int16).tobytes(),
            num_codebooks=1,
            transcript=sample.transcript,
            mel=mel.numpy().tobytes(),
        )

    def tokens(self, heard: Tensor) -> Any:
        """16 kHz -> ids [num_tokens]."""
        mel = whisper_mel(heard)
        length = np.array([mel.shape[1]], np.int32)
        tokens = np.asarray(self.speech.run(mel[None].numpy(), length)).reshape(-1)
        num_codes = self.config.flow.vocab_size
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < num_codes):
            raise EngineError(f"{SPEECH_FILE} gave {tokens.min()}..{tokens.max()}; codes lie in 0..{num_codes - 1}")
        return tokens

    def embedding(self, heard: Tensor) -> Any:
        vector = np.asarray(self.speaker.run(speaker_fbank(heard)[None].numpy()), np.float32).reshape(-1)
        if vector.size != self.config.flow.spk_embed_size:
            raise EngineError(f"{SPEAKER_FILE} gave {vector.size} numbers, not {self.config.flow.spk_embed_size}")
        if not np.isfinite(vector).all():
            raise InvalidRequest("audio gives no finite speaker embedding", "audio")
        return vector

    def aligned(self, tokens: Any, mel: Tensor) -> tuple[Any, Tensor]:
        """As many ids as have their frames, and as many frames as have their ids."""
        ratio = self.config.flow.token_mel_ratio
        count = min(len(tokens), len(mel) // ratio)
        if count == 0:
            raise InvalidRequest("audio is too short: it has no whole speech token", "audio")
        return tokens[:count], mel[: ratio * count].contiguous()


class OnnxModel:
    """An ONNX file. Raises ``CheckpointError`` for one that is none, or that asks for something else."""

    def __init__(self, path: Path, num_inputs: int, num_threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.name = path.name
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its own kinds, one for each of a dozen reasons, share no base
            raise CheckpointError(f"{path}: cannot be read as ONNX: {_first_line(error)}") from None
        self._inputs = [entry.name for entry in self._session.get_inputs()]
        if len(self._inputs) != num_inputs:
            raise CheckpointError(f"{path}: takes {len(self._inputs)} inputs, expected {num_inputs}")

    def run(self, *values: Any) -> Any:
        """The first output."""
        try:
            return self._session.run(None, dict(zip(self._inputs, values, strict=True)))[0]
        except Exception as error:  # as above
            raise EngineError(f"{self.name} failed: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
