"""The official CosyVoice3 modules on a checkpoint of ours. Runs in their environment alone (see ``make_vectors``)."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import logging
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Where the settings begin that nothing here needs.
TRAINING = "# training"
NOISE_SAMPLES = 24000 * 10
# Ids of live text after its end.
NUM_LAST = 4


def find_official(source: Path, matcha: Path) -> None:
    """Both trees on the path; two packages without what they import first and nothing here needs."""
    sys.path[:0] = [str(source), str(matcha)]
    bare_package("torchaudio")
    bare_package("torchaudio.functional")
    library = types.ModuleType("torchaudio._extension")
    vars(library)["_IS_TORCHAUDIO_EXT_AVAILABLE"] = False
    sys.modules[library.__name__] = library
    bare_package("matcha.utils")
    logger = types.ModuleType("matcha.utils.pylogger")
    vars(logger)["get_pylogger"] = logging.getLogger
    sys.modules["matcha.utils.pylogger"] = logger


def bare_package(name: str) -> None:
    """Its modules can be imported, its own ``__init__`` is not run: that of torchaudio fits no CPU build."""
    package, found = types.ModuleType(name), importlib.util.find_spec(name)
    assert found is not None
    assert found.submodule_search_locations is not None
    package.__path__ = list(found.submodule_search_locations)
    package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    sys.modules[name] = package


def official(name: str) -> Any:
    return importlib.import_module(name)


def load(folder: Path) -> tuple[Any, Any, Any]:
    """Talker, flow and vocoder, made by the folder's own yaml; every tensor must find its place."""
    transformers, talker = official("transformers"), official("cosyvoice.llm.llm")
    talker.Qwen2ForCausalLM = types.SimpleNamespace(
        from_pretrained=lambda path: transformers.Qwen2ForCausalLM(transformers.Qwen2Config.from_pretrained(path))
    )
    text = (folder / "cosyvoice3.yaml").read_text(encoding="utf-8").split(TRAINING)[0]
    overrides = {"qwen_pretrain_path": str(folder / "CosyVoice-BlankEN")}
    made = official("hyperpyyaml").load_hyperpyyaml(text, overrides=overrides)
    for name in ("llm", "flow", "hift"):
        made[name].load_state_dict(torch.load(folder / f"{name}.pt", weights_only=True), strict=True)
        made[name].eval()
    keep_phase(made["hift"])
    return made["llm"], made["flow"], made["hift"]


def keep_phase(hift: Any) -> None:
    """Phase in float64, as ours: the official float32 sum drifts by what no tolerance would let through.

    And the noise of the released sizes: the smaller modules of a small checkpoint take fewer random numbers.
    """
    sines = hift.m_source.l_sin_gen
    in_single = sines.forward
    sines.forward = lambda f0: [found.float() for found in in_single(f0.double())]
    sines.sine_waves = released_noise()[None]


def released_noise() -> Tensor:
    """As the released yaml comes to it: the flow's noise, then first weights, then numbers for the source."""
    nn = torch.nn
    torch.manual_seed(0)
    torch.randn(1, 80, 50 * 300)
    nn.Embedding(6561, 80)
    nn.Linear(192, 80)
    nn.Conv1d(80, 512, 4)
    for _ in range(4):
        nn.Conv1d(512, 512, 3)
    nn.Linear(512, 1)
    torch.rand(1, 9)
    return torch.rand(NOISE_SAMPLES, 9)


class Forced:
    """A talker that says what it is told; what it was fed and what it would have said is kept.

    With ``num_last`` it says so many ids once all text is there, and ends.
    """

    def __init__(self, llm: Any) -> None:
        self.llm, self.said, self.fed, self.scores = llm, list[int](), list[Tensor](), list[Tensor]()
        self.num_last: int | None = None
        self._task = llm.speech_embedding.weight[llm.task_id]
        self._step = llm.llm.forward_one_step
        llm.llm.forward_one_step = self._watch
        llm.sampling_ids = self._say

    def _watch(self, inputs: Tensor, masks: Tensor, cache: Any = None) -> Any:
        self.fed.append(inputs[0].clone())
        return self._step(inputs, masks=masks, cache=cache)

    def _say(self, scores: Tensor, decoded: list[int], sampling: int, ignore_eos: bool = True) -> int:
        self.scores.append(scores.clone())
        tasks = [place for place, rows in enumerate(self.fed) if torch.equal(rows[-1], self._task)]
        if self.num_last is not None and tasks and len(self.fed) - tasks[0] > self.num_last:
            return int(self.llm.eos_token)
        return self.said.pop(0)

    def begin(self, said: list[int], num_last: int | None = None) -> None:
        self.said, self.fed, self.scores, self.num_last = list(said), [], [], num_last


def batch_of(ids: tuple[int, ...] | list[int] | Tensor) -> tuple[Tensor, Tensor]:
    tensor = torch.as_tensor(ids, dtype=torch.long).view(1, -1)
    return tensor, torch.tensor([tensor.shape[1]])


def talk(forced: Forced, prompt_text: tuple[int, ...], text: tuple[int, ...], speech: Tensor, said: list[int]) -> None:
    forced.begin(said)
    (words, num_words), (before, num_before) = batch_of(text), batch_of(prompt_text)
    spoken, num_spoken = batch_of(speech)
    list(forced.llm.inference(words, num_words, before, num_before, spoken, num_spoken, torch.zeros(0, 192)))


def talk_live(
    forced: Forced, prompt_text: tuple[int, ...], pieces: Sequence[tuple[int, ...]], speech: Tensor, said: list[int]
) -> None:
    forced.begin(said, NUM_LAST)
    words = (batch_of(piece)[0] for piece in pieces)
    (before, num_before), (spoken, num_spoken) = batch_of(prompt_text), batch_of(speech)
    list(forced.llm.inference_bistream(words, before, num_before, spoken, num_spoken, torch.zeros(0, 192)))


def mel_of(
    flow: Any, prompt: Tensor, prompt_mel: Tensor, embedding: Tensor, tokens: Tensor, *, streaming: bool, final: bool
) -> Tensor:
    """[F, bins]."""
    (ids, num_ids), (before, num_before) = batch_of(tokens), batch_of(prompt)
    mel, _ = flow.inference(
        token=ids,
        token_len=num_ids,
        prompt_token=before,
        prompt_token_len=num_before,
        prompt_feat=prompt_mel[None],
        prompt_feat_len=torch.tensor([len(prompt_mel)]),
        embedding=embedding[None],
        streaming=streaming,
        finalize=final,
    )
    return mel[0].t()
