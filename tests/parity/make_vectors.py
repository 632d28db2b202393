"""Golden vectors by the official ``qwen-tts`` package, on random checkpoints of ours.

Its pinned environment does not fit the project's, so it gets one of its own; run from the checkout:

    python3.11 -m venv ../official
    ../official/bin/pip install torch==2.13.0 transformers==4.57.3 accelerate==1.12.0 einops soundfile \\
        librosa==0.11.0 safetensors msgspec
    ../official/bin/pip install --no-deps qwen-tts==0.1.1
    ../official/bin/python -m tests.parity.make_vectors --seed 7

Then ``pytest tests/parity`` holds the engine against what came out. Any seed will do; ``--out`` and the variable
``VOICEWIRE_PARITY_VECTORS`` keep fresh vectors away from those that are committed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.machinery
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tests.fakes.checkpoints import TINY, TINY_PROJECTED, write_checkpoint
from tests.parity.cases import AUDIO_SECONDS, GREEDY, LONG, MAX_NEW_TOKENS, SHORT, SIZES, TASKS, Case, named

SHAPES = {"0b6": TINY, "1b7": TINY_PROJECTED}
# The official package imports them for another codec; empty modules do.
UNUSED_IMPORTS = ("sox", "onnxruntime", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi")
# No requirement of this project: it lives in an environment of its own.
OFFICIAL_PACKAGE = "qwen_tts"
MAX_TRIES = 300
LONGEST_STOP = 60


def official_model() -> Any:
    for name in UNUSED_IMPORTS:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        parent, _, child = name.rpartition(".")
        sys.modules[name] = module
        if parent:
            setattr(sys.modules[parent], child, module)
    return importlib.import_module(OFFICIAL_PACKAGE).Qwen3TTSModel


def load(folder: Path) -> Any:
    """Every tensor of the folder must have found its place, and none may be missing."""
    model = official_model().from_pretrained(str(folder))
    rooms = ((folder, model.model), (folder / "speech_tokenizer", model.model.speech_tokenizer.model))
    for room, module in rooms:
        with safe_open(str(room / "model.safetensors"), "pt") as tensors:
            assert set(tensors.keys()) == set(module.state_dict()), room
    return model


class Watched:
    """The official model, and what went into its talker and came out at the last call."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.given: dict[str, Any] = {}
        self.codes: list[Tensor] = []
        self.hidden: list[Tensor] = []
        self._talk, self._generate = model.model.talker.generate, model.model.generate
        model.model.talker.generate = self._watch_talker
        model.model.generate = self._watch_model

    def _watch_talker(self, **given: Any) -> Any:
        self.given = given
        return self._talk(**given)

    def _watch_model(self, *args: Any, **given: Any) -> Any:
        self.codes, self.hidden = self._generate(*args, **given)
        return self.codes, self.hidden

    def speak(self, case: Case, audio: dict[str, np.ndarray], text: str | list[str] | None = None, **more: Any) -> Any:
        settings = {"max_new_tokens": MAX_NEW_TOKENS} | case.official | more
        settings["non_streaming_mode"] = case.layout == "full"
        common = {"text": text or case.text, "language": case.language} | settings
        if case.task == "custom_voice":
            return self.model.generate_custom_voice(speaker=case.speaker, instruct=case.instruct, **common)[0]
        if case.task == "voice_design":
            return self.model.generate_voice_design(instruct=case.instruct, **common)[0]
        return self.model.generate_voice_clone(
            ref_audio=(audio[case.audio], 24000),
            ref_text=case.transcript or None,
            x_vector_only_mode=not case.transcript,
            **common,
        )[0]

    def text_ids(self, text: str) -> list[int]:
        return self.model._tokenize_texts([self.model._build_assistant_text(text)])[0][0, 3:-5].tolist()


def recordings(seed: int) -> dict[str, np.ndarray]:
    """Voiced noise of a few lengths, in whole 16-bit steps."""
    noise = np.random.default_rng(seed)
    found = {}
    for name, seconds in AUDIO_SECONDS.items():
        time_s = np.arange(round(seconds * 24000)) / 24000
        tone = np.sin(2 * np.pi * 140 * time_s) * (0.3 + 0.2 * np.sin(2 * np.pi * 3 * time_s))
        sound = tone + 0.15 * noise.standard_normal(len(time_s))
        found[name] = (np.round(np.clip(sound, -1, 1) * 32767) / 32768).astype(np.float32)
    return found


def file_sum(folder: Path) -> str:
    """Of what a test must have before it the same: vocabulary, merges and weights."""
    names = ("vocab.json", "merges.txt", "model.safetensors", "speech_tokenizer/model.safetensors")
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()


def spoken(watched: Watched, case: Case, audio: dict[str, np.ndarray], seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    (wave,) = watched.speak(case, audio)
    tensors = {
        "prompt": watched.given["inputs_embeds"][0],
        "trailing": watched.given["trailing_text_hidden"][0],
        "codes": watched.codes[0].short(),
        "hidden": watched.hidden[0],
    }
    if case.keeps_wave:
        tensors["wave"] = torch.from_numpy(wave)
    return tensors


def long_enough(watched: Watched, case: Case, audio: dict[str, np.ndarray], seed: int) -> tuple[dict[str, Tensor], int]:
    """What is said with the first seed from ``seed`` on that says enough for what the case is about."""
    for number in range(seed, seed + MAX_TRIES):
        found = spoken(watched, case, audio, number)
        if len(found["codes"]) >= case.min_frames:
            return found, number
    raise SystemExit(f"{case.name} of {case.task} never said {case.min_frames} frames")


def stopped(watched: Watched, task: str, audio: dict[str, np.ndarray], seed: int) -> tuple[dict[str, Tensor], int]:
    """An utterance that the model ends itself, found by trying seeds."""
    case = Case("stop", task, speaker="ada" if task == "custom_voice" else None, official={}, draws=True)
    case = case if task != "base" else Case("stop", task, audio="brief", official={}, draws=True)
    for number in range(seed, seed + MAX_TRIES):
        torch.manual_seed(number)
        watched.speak(case, audio, text=SHORT, max_new_tokens=LONGEST_STOP)
        if 2 < len(watched.codes[0]) < LONGEST_STOP - 1:
            return {"codes": watched.codes[0].short()}, number
    raise SystemExit(f"no speech of {task} ended by itself in {MAX_TRIES} tries")


def eager(watched: Watched, hidden: Tensor, case: Case, audio: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """A head that wants to end the speech at every step: the minimum alone holds it back."""
    head, talker = watched.model.model.talker.codec_head.weight, watched.model.model.config.talker_config
    row = hidden.sum(0) / hidden.norm()
    row = 50 * row
    before = head.data[talker.codec_eos_token_id].clone()
    head.data[talker.codec_eos_token_id] = row
    watched.speak(case, audio)
    head.data[talker.codec_eos_token_id] = before
    return {"codes": watched.codes[0].short(), "row": row}


def listened(model: Any, audio: dict[str, np.ndarray]) -> dict[str, Tensor]:
    found = {}
    for name, pcm in audio.items():
        found[f"audio/{name}/pcm"] = torch.from_numpy(np.round(pcm * 32768).astype(np.int16))
        found[f"audio/{name}/embedding"] = model.model.extract_speaker_embedding(pcm, 24000)
        found[f"audio/{name}/codes"] = model.model.speech_tokenizer.encode(pcm, sr=24000).audio_codes[0].short()
    return found


def make_task(
    size: str, task: str, seed: int, audio: dict[str, np.ndarray]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), SHAPES[size], seed, task)
        watched, checksum = Watched(load(Path(folder))), file_sum(Path(folder))
    tensors: dict[str, Tensor] = {}
    texts, seeds = {}, {}
    for number, case in enumerate(named(task)):
        found, seeds[case.name] = long_enough(watched, case, audio, seed + number)
        tensors |= {f"{task}/{case.name}/{key}": value for key, value in found.items()}
        texts[case.name] = watched.text_ids(case.text)
    first = named(task)[0]
    watched.speak(first, audio, text=[LONG, SHORT], **GREEDY)
    tensors |= {f"{task}/batch/{i}": codes.short() for i, codes in enumerate(watched.codes)}
    found, stop_seed = stopped(watched, task, audio, seed)
    tensors |= {f"{task}/stop/{key}": value for key, value in found.items()}
    found = eager(watched, tensors[f"{task}/{first.name}/hidden"], first, audio)
    tensors |= {f"{task}/eager/{key}": value for key, value in found.items()}
    if task == "base":
        tensors |= listened(watched.model, audio)
    return tensors, {"checksum": checksum, "text_ids": texts, "seeds": seeds, "stop_seed": stop_seed}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "vectors")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    audio = recordings(args.seed)
    for size in SIZES:
        tensors: dict[str, Tensor] = {}
        about: dict[str, Any] = {"seed": args.seed, "torch": torch.__version__, "tasks": {}}
        for task in TASKS:
            found, about["tasks"][task] = make_task(size, task, args.seed, audio)
            tensors |= found
            print(f"{size} {task}: {len(found)} tensors")
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, args.out / f"{size}.safetensors")
        (args.out / f"{size}.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
