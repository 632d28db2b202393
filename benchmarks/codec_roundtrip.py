"""Encode the teacher's speech with the encoder that training saved, and decode it with the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.speech_sources import TEACHERS, Pcm, Setting, Task, TeacherSource
from engine.launch import EMBEDDED_VOICE
from training.codec import Codec, load_finished
from training.settings import FRAME_SAMPLES, FULL_BAND, SAMPLE_RATE


@dataclass(frozen=True)
class CodecCopies:
    """The teacher's speech, encoded and decoded by a checkpoint's codec (None: the embedded voice)."""

    model: Path | None
    encoder: Path
    rate_hz: int = SAMPLE_RATE

    @property
    def settings(self) -> list[Setting]:
        return [Setting(voice) for voice in TEACHERS]

    def numbers(self, setting: Setting) -> None:
        """All indices: it encodes any sentence."""

    def __call__(self, tasks: Sequence[Task], setting: Setting) -> list[Pcm]:
        codec = self.codec()
        pairs = zip(self.codes(codec, tasks, setting), TeacherSource()(tasks, setting), strict=True)
        with torch.inference_mode():
            return [codec.decoder(codes)[0, : len(pcm)].numpy() for codes, pcm in pairs]

    def codec(self) -> Codec:
        codec = Codec(FULL_BAND.sizes)
        load_finished(codec, self.encoder, self.model or EMBEDDED_VOICE)
        return codec.eval()

    def codes(self, codec: Codec, tasks: Sequence[Task], setting: Setting) -> Iterator[Tensor]:
        """Codes [1, K, T] of each sentence, padded with silence to whole frames."""
        for pcm in TeacherSource()(tasks, setting):
            audio = torch.from_numpy(pcm.astype(np.float32) / 32_768)[None]
            yield codec.encode(F.pad(audio, (0, -audio.shape[1] % FRAME_SAMPLES)))
