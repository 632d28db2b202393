"""Every draw of a run by its key, and how closely each was decided."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.ops.noise import PhiloxNoise, SampleKey
from engine.ops.sampler import RowSamplingParams

# (frame, codebook) of one request.
Place = tuple[int, int]


@dataclass
class Draw:
    # [V], bans at -inf.
    logits: Tensor
    choice: int
    key: SampleKey
    codebook: int
    # Of models that sample by ``SamplingBatch``.
    params: RowSamplingParams | None = None

    @property
    def temperature(self) -> float:
        return (self.params.temperature if self.params else 0.0) or 1.0

    def score(self, index: int) -> float:
        """The draw is the largest of these: logit / temperature - log q."""
        q = PhiloxNoise().exponential([self.key], self.codebook, torch.tensor([[index]]))
        return float(self.logits[index] / self.temperature - q.log())

    def margin(self, other: int) -> float:
        """By how much the choice was preferred to ``other``, or stood above the top-k's border if that is less."""
        top_k = self.params.top_k if self.params else 0
        kth = self.logits.topk(min(top_k or len(self.logits), len(self.logits))).values[-1]
        border = abs(float(self.logits[other] - kth))
        return min(abs(self.score(self.choice) - self.score(other)), border)


class DrawBook:
    """Records while it is installed; look up a request by its seed."""

    def __init__(self) -> None:
        self.by_seed: dict[int, dict[Place, Draw]] = {}

    def install(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> DrawBook:
        """Record what the model in ``module`` samples."""
        sample = module.sample

        def recorded(*args: Any) -> Tensor:
            choices: Tensor = sample(*args)
            given = signature(sample).bind(*args).arguments
            logits, batch, codebook = given["logits"], given.get("batch"), given.get("codebook", 0)
            for row, key in enumerate(given["keys"]):
                params = None
                if batch is not None:
                    params = RowSamplingParams(
                        float(batch.temperature[row]), int(batch.top_k[row]), float(batch.top_p[row])
                    )
                found = Draw(logits[row].clone(), int(choices[row]), key, codebook, params)
                self.by_seed.setdefault(key.seed, {})[key.frame, codebook] = found
            return choices

        monkeypatch.setattr(module, "sample", recorded)
        return self

    def of(self, seed: int) -> dict[Place, Draw]:
        return self.by_seed[seed]

    def take(self) -> dict[int, dict[Place, Draw]]:
        found, self.by_seed = self.by_seed, {}
        return found


def check_identical(first: dict[Place, Draw], second: dict[Place, Draw]) -> None:
    """Bit for bit: every logit, every choice."""
    assert first.keys() == second.keys()
    for place, draw in first.items():
        assert torch.equal(draw.logits, second[place].logits), f"logits differ at {place}"
        assert draw.choice == second[place].choice


def check_close(first: dict[Place, Draw], second: dict[Place, Draw], tolerance: float) -> int:
    """Logits within ``tolerance`` up to the first draw that came out differently, whose margin they must explain.

    Returns how many draws were compared.
    """
    for count, place in enumerate(sorted(first), start=1):
        one, other = first[place], second[place]
        finite = torch.isfinite(one.logits)
        assert torch.equal(finite, torch.isfinite(other.logits))
        torch.testing.assert_close(one.logits[finite], other.logits[finite], atol=tolerance, rtol=0)
        if one.choice != other.choice:
            assert one.margin(other.choice) <= 2 * tolerance / one.temperature, f"a clear draw differs at {place}"
            return count
    assert first.keys() == second.keys()
    return len(first)
