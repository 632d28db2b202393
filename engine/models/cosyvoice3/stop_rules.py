"""What a speech id may be next, written into the logits before any draw (spec 2.6, 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from engine.models.cosyvoice3.config import SpeechIds
from engine.models.cosyvoice3.sequence import CosySequence, SamplingPhase


class StopRules:
    """Past the codes stand the control ids, and any of them ends the speech, but in a block of live text, where one
    asks for more. ``merge`` makes one candidate of them all, as likely as they are together."""

    def __init__(self, ids: SpeechIds, mode: Literal["merge", "set"]) -> None:
        self.num_codes, self.mode = ids.num_codes, mode
        self.stop, self.fill = ids.eos - ids.num_codes, ids.fill - ids.num_codes

    def apply(self, logits: Tensor, rows: Sequence[CosySequence]) -> Tensor:
        """logits [N, V] in fp32 -> the same with bans at -inf."""
        in_block = self._which(logits, [row.phase is SamplingPhase.BLOCK for row in rows])
        in_rest = self._which(logits, [row.phase is SamplingPhase.REST for row in rows])
        too_soon = self._which(logits, [row.num_generated < row.min_tokens for row in rows])
        return self.limit(logits, in_block, in_rest, too_soon)

    def limit(self, logits: Tensor, in_block: Tensor, in_rest: Tensor, too_soon: Tensor) -> Tensor:
        """The same by flags [N]."""
        in_block, in_rest, too_soon = in_block[:, None], in_rest[:, None], too_soon[:, None]
        codes, control = logits.split((self.num_codes, logits.shape[-1] - self.num_codes), dim=-1)
        place = torch.arange(control.shape[-1], device=logits.device)
        ending = control.masked_fill(in_rest & (place == self.fill), -torch.inf)
        if self.mode == "merge":
            together = ending.logsumexp(-1, keepdim=True)
            ending = torch.where(place == self.stop, together, -torch.inf)
        ending = ending.masked_fill(too_soon, -torch.inf)
        asking = control.masked_fill(place != self.fill, -torch.inf)
        return torch.cat((codes, torch.where(in_block, asking, ending)), dim=-1)

    @staticmethod
    def _which(logits: Tensor, rows: list[bool]) -> Tensor:
        return torch.tensor(rows, device=logits.device)
