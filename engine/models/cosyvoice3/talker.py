"""The talker: a Qwen2 stack between two tables, the rules that end speech, and its sampling (spec 2.1, 2.5, 2.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from engine.layers.transformer import AttentionContext, Transformer
from engine.models.cosyvoice3.config import CosyTalkerConfig, SpeechIds
from engine.models.cosyvoice3.prompt import CosySequence, RasParams, SamplingPhase
from engine.ops.noise import NoiseSource, SampleKey
from engine.ops.ras import NUCLEUS, WHOLE, ControlRules, limit_control, sample_nucleus
from engine.weights.quantize import QUANTIZERS, quantize_linears


class Backbone(Transformer):
    """The part under ``llm.model.model``."""

    def __init__(self, config: CosyTalkerConfig) -> None:
        super().__init__(config.transformer)
        self.embed_tokens = nn.Embedding(config.text_vocab_size, config.transformer.hidden_size)


class SpeechLM(nn.Module):
    """Everything that is used of ``llm.pt``, by the released names.

    An input is one number: a text id as it is, a speech id behind all of them.
    """

    def __init__(self, config: CosyTalkerConfig) -> None:
        super().__init__()
        self.config = config
        size, num_speech = config.transformer.hidden_size, config.speech_ids.table_size
        self.llm = nn.Module()
        self.llm.model = nn.Module()
        self.llm.model.model = Backbone(config)
        self.speech_embedding = nn.Embedding(num_speech, size)
        self.llm_decoder = nn.Linear(size, num_speech, bias=False)
        self.register_buffer("table", None, persistent=False)

    @property
    def backbone(self) -> Backbone:
        return self.llm.model.model

    def fuse(self) -> None:
        """One table of text and speech in place of two, merged projections; nothing is held twice. The head in fp32."""
        self.llm_decoder.float()
        self.backbone.fuse()
        self.table = torch.cat((self.backbone.embed_tokens.weight, self.speech_embedding.weight)).detach()
        del self.backbone.embed_tokens, self.speech_embedding

    def quantize(self, precision: str, device: torch.device) -> None:
        """Quantize the products of the fused layers on ``device``; tables and head stay as they are."""
        if precision != "bf16":
            quantize_linears(self.backbone.layers, QUANTIZERS[precision], device)

    def embed(self, inputs: Tensor) -> Tensor:
        """inputs [...] -> [..., H]."""
        if self.table is not None:
            return self.table[inputs]
        is_speech = inputs >= self.config.text_vocab_size
        text = self.backbone.embed_tokens(inputs.masked_fill(is_speech, 0))
        speech = self.speech_embedding((inputs - self.config.text_vocab_size).clamp(min=0))
        return torch.where(is_speech[..., None], speech, text)

    def forward(self, inputs: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
        """inputs and positions [B, T] -> hidden states [B, T, H], normed: what the head takes."""
        return self.backbone(self.embed(inputs), positions, context)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, H] -> [N, speech ids] in fp32, which the head is in whatever the rest computes in."""
        return self.llm_decoder(hidden.float())


class StopRules:
    """Past the codes stand the control ids, and any of them ends the speech, but in a block of live text, where one
    asks for more. ``merge`` makes one candidate of them all, as likely as they are together."""

    def __init__(self, ids: SpeechIds, mode: Literal["merge", "set"]) -> None:
        self.ids, self.merge = ids, mode == "merge"

    def apply(self, logits: Tensor, rows: Sequence[CosySequence]) -> Tensor:
        """logits [N, V] in fp32 -> the same with bans at -inf."""
        in_block = self._which(logits, [row.phase is SamplingPhase.BLOCK for row in rows])
        in_rest = self._which(logits, [row.phase is SamplingPhase.REST for row in rows])
        too_soon = self._which(logits, [row.num_generated < row.min_tokens for row in rows])
        return limit_control(logits, self.rules(in_block, in_rest, too_soon))

    def rules(self, in_block: Tensor, in_rest: Tensor, too_soon: Tensor) -> ControlRules:
        """By flags [N]."""
        return ControlRules(in_block, in_rest, too_soon, self.ids.num_codes, self.ids.eos, self.ids.fill, self.merge)

    @staticmethod
    def _which(logits: Tensor, rows: list[bool]) -> Tensor:
        return torch.tensor(rows, device=logits.device)


# An id that no token has: fills up a history.
NOTHING = -1


def sample(
    logits: Tensor,
    params: Sequence[RasParams],
    histories: Sequence[Sequence[int]],
    keys: list[SampleKey],
    noise: NoiseSource,
) -> Tensor:
    """logits [N, V] in fp32, bans already -inf; a history's last ids -> ids [N]."""
    greedy = torch.tensor([p.temperature == 0 for p in params], device=logits.device)
    scaled = logits / torch.tensor([[p.temperature or 1.0] for p in params], device=logits.device)
    picked = _sample_nucleus(scaled, params, keys, noise)
    again = _is_recent(picked, params, histories).logical_and(~greedy).nonzero()[:, 0]
    if len(again):
        picked[again] = _sample_excluding(scaled[again], picked[again], [keys[i] for i in again.tolist()], noise)
    return torch.where(greedy, logits.argmax(-1), picked)


def _sample_nucleus(scaled: Tensor, params: Sequence[RasParams], keys: list[SampleKey], noise: NoiseSource) -> Tensor:
    """Nothing beyond the largest top_k can be kept, so no more is ranked."""
    size = scaled.shape[-1]
    top_k = torch.tensor([[p.top_k or size] for p in params], device=scaled.device)
    top_p = torch.tensor([[p.top_p] for p in params], device=scaled.device)
    widest = max(p.top_k or size for p in params)
    return sample_nucleus(scaled, top_p, top_k, widest, lambda ids: noise.exponential(keys, NUCLEUS, ids))


def _is_recent(picked: Tensor, params: Sequence[RasParams], histories: Sequence[Sequence[int]]) -> Tensor:
    """[N] bool: ``picked`` came at least window * tau times in the last ``window`` ids."""
    rows = zip(picked.tolist(), params, histories, strict=True)
    return torch.tensor([_is_repeated(token, p, history) for token, p, history in rows], device=picked.device)


def _is_repeated(token: int, params: RasParams, history: Sequence[int]) -> bool:
    return list(history[-params.window :]).count(token) >= params.window * params.tau


def _sample_excluding(scaled: Tensor, picked: Tensor, keys: list[SampleKey], noise: NoiseSource) -> Tensor:
    """From all that is allowed but ``picked``, which stays where nothing else is."""
    others = scaled.scatter(-1, picked[:, None], -torch.inf)
    alone = others.isneginf().all(-1)
    ids = torch.arange(scaled.shape[-1], device=scaled.device).expand_as(scaled)
    drawn = (others.softmax(-1) / noise.exponential(keys, WHOLE, ids)).argmax(-1)
    return torch.where(alone, picked, drawn)
