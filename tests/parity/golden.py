"""The golden vectors, and the engine on the very checkpoints that they were made of."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.api import ClonedVoice, ReferenceAudio, SamplingParams, SpeechRequest, TextLayout
from engine.config import EngineConfig
from engine.layers.transformer import CausalContext
from engine.load import make_stage
from engine.models.base import AwaitText, Family
from engine.models.qwen3_tts.load import load_family
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.models.qwen3_tts.prompt import PromptPosition, QwenSequence
from engine.runtime.engine import Engine
from tests.engine.engine_harness import EngineHarness
from tests.fakes.checkpoints import TINY, TINY_PROJECTED, write_checkpoint
from tests.parity.cases import MAX_NEW_TOKENS, Case

VECTORS = Path(os.environ.get("VOICEWIRE_PARITY_VECTORS", Path(__file__).parent / "vectors"))
SHAPES = {"0b6": TINY, "1b7": TINY_PROJECTED}
# Without the guards that the official code does not have.
CONFIG = EngineConfig(
    ban_eos_until_text_end=False,
    silence_limit_s=1e6,
    loop_limit_frames=10_000,
    min_frame_cap=256,
    kv_memory_mb=8,
    max_running_requests=4,
    max_batch_size=4,
)
OFFICIAL_NAMES = {
    "subtalker_dosample": "predictor_do_sample",
    "subtalker_temperature": "predictor_temperature",
    "subtalker_top_k": "predictor_top_k",
    "subtalker_top_p": "predictor_top_p",
}


@dataclass(frozen=True)
class Golden:
    """Of one size of checkpoint."""

    size: str
    tensors: dict[str, Tensor]
    about: dict[str, Any]

    @staticmethod
    def read(size: str) -> Golden:
        about = json.loads((VECTORS / f"{size}.json").read_text(encoding="utf-8"))
        return Golden(size, load_file(VECTORS / f"{size}.safetensors"), about)

    def of(self, case: Case, key: str) -> Tensor:
        return self.tensors[f"{case.task}/{case.name}/{key}"]

    def text_ids(self, case: Case) -> list[int]:
        found: list[int] = self.about["tasks"][case.task]["text_ids"][case.name]
        return found

    def seed(self, case: Case) -> int:
        """What the official package's generator was seeded with."""
        found: int = self.about["tasks"][case.task]["seeds"][case.name]
        return found

    def sample(self, name: str, transcript: str) -> ReferenceAudio:
        pcm = self.tensors[f"audio/{name}/pcm"].float() / 32768
        return ReferenceAudio(pcm=pcm.numpy().astype(np.float32).tobytes(), transcript=transcript)

    def voice(self, name: str, transcript: str) -> ClonedVoice:
        """What the official encoders found in a recording."""
        embedding = self.tensors[f"audio/{name}/embedding"].numpy().tobytes()
        if not transcript:
            return ClonedVoice(embedding=embedding)
        codes = self.tensors[f"audio/{name}/codes"].numpy()
        return ClonedVoice(
            embedding=embedding, codes=codes.tobytes(), num_codebooks=codes.shape[1], transcript=transcript
        )

    def request(self, case: Case) -> dict[str, Any]:
        """The fields of the same request to the engine; the small CustomVoice drops instructions."""
        official = dict(case.official)
        max_new_tokens = official.pop("max_new_tokens", MAX_NEW_TOKENS)
        drops_instruct = case.task == "custom_voice" and self.size == "0b6"
        return {
            "voice": self.voice(case.audio, case.transcript) if case.audio else case.speaker,
            "language": case.language,
            "instruct": "" if drops_instruct else case.instruct,
            "layout": TextLayout(case.layout),
            "sampling": SamplingParams(**{OFFICIAL_NAMES.get(k, k): v for k, v in official.items()}),
            "max_frames": max_new_tokens - 1,
            "text": case.text,
            "text_closed": True,
        }


class Speaker:
    """The engine on one checkpoint, reused from case to case."""

    def __init__(
        self, golden: Golden, task: str, folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32
    ):
        """A folder that holds a checkpoint already is taken as it is."""
        if not (folder / "config.json").exists():
            write_checkpoint(folder, SHAPES[golden.size], golden.about["seed"], task)
        self.golden, self.folder, self.device = golden, folder, torch.device(device)
        self.family: Family = load_family(folder, CONFIG, self.device, dtype)
        assert isinstance(self.family.model, Qwen3TTS)
        self.model: Qwen3TTS = self.family.model
        self.engine = Engine(self.model, make_stage(self.family, CONFIG), CONFIG, dtype=dtype, device=self.device)

    def speak(self, *requests: dict[str, Any], pieces: Sequence[str] = ()) -> list[tuple[list[list[int]], Any]]:
        """Codes and what was heard of each, spoken side by side; ``pieces`` are pushed one after the other."""
        bench = EngineHarness(self.engine)
        epochs = [bench.submit(**request) for request in requests]
        rows = [bench.request(epoch).row for epoch in epochs]
        for piece in pieces:
            bench.run()
            bench.push_text(epochs[0], piece)
        if pieces:
            bench.run()
            bench.end_input(epochs[0])
        bench.run()
        bench.check_idle()
        found = []
        for row, epoch in zip(rows, epochs, strict=True):
            assert isinstance(row, QwenSequence)
            found.append(([list(codes) for codes in row.codes], bench.heard[epoch]))
        return found

    def inputs(self, case: Case) -> tuple[QwenSequence, list[PromptPosition], list[int]]:
        """A row, its whole prompt, and the text ids that it is fed afterwards, as many as the official queue has."""
        row = self.model.new_sequence(SpeechRequest(request_id="r", **self.golden.request(case)), 0)
        row.text.ids, row.text.closed = self.golden.text_ids(case), True
        prompt: list[PromptPosition] = []
        sampled = False
        while not sampled:
            sampled = self._fetch(row, prompt)
        trailing: list[PromptPosition] = []
        for number in range(len(self.golden.of(case, "trailing"))):
            row.codes.append([number % 7] * self.model.config.talker.num_code_groups)
            self._fetch(row, trailing)
        return row, prompt, [item.text for item in trailing]

    def _fetch(self, row: QwenSequence, rows: list[PromptPosition]) -> bool:
        found = self.model.next_input(row)
        assert not isinstance(found, AwaitText)
        row.inputs += found.inputs
        rows += found.inputs
        return found.sample

    def teacher_forced(self, case: Case) -> Tensor:
        """The hidden states that the golden codes were sampled from [frames, H]."""
        row, prompt, text = self.inputs(case)
        row.codes = self.golden.of(case, "codes").tolist()
        pad = self.model.config.text.tts_pad
        text += [pad] * len(row.codes)
        inputs = [*prompt, *(PromptPosition(text[i], frame=i) for i in range(len(row.codes) - 1))]
        positions = torch.arange(len(inputs), device=self.device)[None]
        hidden = self.model.forward([row], [inputs], positions, CausalContext())[0]
        return hidden[len(prompt) - 1 :]
