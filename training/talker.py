"""Training the talker and its predictor on the engine's own prompts, both text layouts half and half."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.layers.transformer import CausalContext, DecoderLayer
from engine.models.qwen3_tts.config import Qwen3TTSConfig
from engine.models.qwen3_tts.talker import Talker
from training.checkpoints import Average, save, say
from training.encode import EncodedSpeech
from training.flite import PHONEMES
from training.prompt_batches import END, IGNORED, Prefixes, Rows, build_rows, num_positions
from training.schedule import Every, until, warm_cosine
from training.settings import TalkerTraining

# (frames ahead, label in that frame) whose phoneme the hidden state must tell, in training only.
AHEAD = ((0, 1), (0, 3), (0, 5), (0, 7), (1, 4), (2, 4), (4, 4))


class TalkerInTraining(nn.Module):
    """The engine's talker with dropout on every branch, corrupted history and a phoneme head."""

    def __init__(self, talker: Talker, cfg: TalkerTraining) -> None:
        super().__init__()
        self.talker, self._cfg = talker, cfg
        self.phone_head = nn.Linear(talker.config.transformer.hidden_size, len(AHEAD) * len(PHONEMES))
        _initialise(talker)
        for layer in talker.modules():
            if isinstance(layer, DecoderLayer):
                layer.self_attn.register_forward_hook(self._drop)
                layer.mlp.register_forward_hook(self._drop)

    def _drop(self, module: nn.Module, _: object, output: Tensor) -> Tensor:
        return F.dropout(output, self._cfg.dropout, module.training)

    def embed(self, rows: Rows, codes: Tensor) -> Tensor:
        """[B, L, H]: the sum of each row's sides."""
        text = self.talker.embed_text(rows.text)
        codec = self.talker.embed_codec(rows.codec.clamp_min(0)) * (rows.codec >= 0)[..., None]
        history, heard = codes[rows.frame.clamp_min(0)].long(), rows.frame >= 0
        if self.training:
            history, heard = self._corrupt(history, heard)
        frames = self.talker.embed_frame(history.flatten(0, 1)).view_as(text) * heard[..., None]
        return text + codec + frames

    def _corrupt(self, history: Tensor, heard: Tensor) -> tuple[Tensor, Tensor]:
        """At a rate drawn per utterance, frames are dropped or replaced by random codes."""
        rate = torch.rand(len(heard), 1, device=heard.device) * self._cfg.max_corruption
        hit = torch.rand(heard.shape, device=heard.device) < rate
        random = hit & (torch.rand(heard.shape, device=heard.device) < self._cfg.random_share)
        noise = torch.randint_like(history, self.talker.config.num_codes)
        return torch.where(random[..., None], noise, history), heard & ~(hit & ~random)

    def losses(self, rows: Rows, codes: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Mean cross-entropies in nats: code 0 with the end, the other codes, the phonemes."""
        x = self.embed(rows, codes)
        positions = torch.arange(x.shape[1], device=x.device)[None]
        hidden = self.talker(x, positions, CausalContext())
        scored = rows.target != IGNORED
        hidden, target = hidden[scored], rows.target[scored]
        wanted = codes[target.clamp_min(0)].long()
        code0 = torch.where(target == END, self.talker.config.control.eos, wanted[:, 0])
        first = F.cross_entropy(self.talker.codec_head(hidden).float(), code0)
        return {"code0": first, "others": self._others(hidden, target, wanted), **self._phones(hidden, target, labels)}

    def _others(self, hidden: Tensor, target: Tensor, wanted: Tensor) -> Tensor:
        frames = (target != END).nonzero()[:, 0]
        chosen = frames[torch.randint(len(frames), (self._cfg.predictor_frames,), device=frames.device)]
        codes = wanted[chosen]
        logits = self.talker.code_predictor.teacher_logits(
            hidden[chosen], self.talker.embed_codec(codes[:, 0]), codes[:, 1:]
        )
        return F.cross_entropy(logits.float().flatten(0, 1), codes[:, 1:].flatten())

    def _phones(self, hidden: Tensor, target: Tensor, labels: Tensor) -> dict[str, Tensor]:
        at = torch.where(target == END, 0, target)
        wanted = torch.stack([labels[(at + ahead).clamp_max(len(labels) - 1), label] for ahead, label in AHEAD], 1)
        wanted = torch.where(target[:, None] == END, 0, wanted.long())
        logits = self.phone_head(hidden).unflatten(1, (len(AHEAD), -1))
        return {"phones": F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())}


def _initialise(talker: Talker) -> None:
    """Small embeddings and small branch outputs, so that all layers learn from the first step."""
    for name, parameter in talker.named_parameters():
        if "embedding" in name:
            nn.init.normal_(parameter, std=0.05)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.normal_(parameter, std=0.01)


class Batches:
    """Endless batches of about ``frames_per_step`` rows: alike in length, layouts and languages drawn at random."""

    def __init__(self, encoded: EncodedSpeech, config: Qwen3TTSConfig, prefixes: Prefixes, cfg: TalkerTraining) -> None:
        self._encoded, self._config, self._prefixes, self._cfg = encoded, config, prefixes, cfg

    def __iter__(self) -> Iterator[Rows]:
        while True:
            items = self._encoded.items
            pool = items[torch.randperm(len(items))[:20_000]].to(self._encoded.codes.device)
            yield from self.of(pool, torch.rand(len(pool)) < 0.5)

    def of(self, items: Tensor, full: Tensor) -> Iterator[Rows]:
        """All of ``items`` [N, 5] once, in random order of batches."""
        cfg, device = self._cfg, items.device
        full, language = full.to(device), torch.randint(2, (len(items),), device=device)
        length = num_positions(items, full, language, self._prefixes)
        order = length.argsort().cpu()
        lengths = length.cpu()[order].tolist()
        cuts = [cut for cut in self._cuts(lengths) if cut[2] <= cfg.max_positions]
        for at in torch.randperm(len(cuts)).tolist():
            first, last, width = cuts[at]
            chosen = order[first:last].to(device)
            layout = (full[chosen], language[chosen], self._encoded.text, self._prefixes, self._config, width)
            yield build_rows(items[chosen], *layout)

    def _cuts(self, lengths: list[int]) -> Iterator[tuple[int, int, int]]:
        """(first, last, width) over ascending lengths."""
        bucket, first = self._cfg.bucket_positions, 0
        while first < len(lengths):
            width = -(-lengths[first] // bucket) * bucket
            last = first
            while last < len(lengths) and lengths[last] <= width and (last - first + 1) * width <= self._rows:
                last += 1
            last = max(last, first + 1)
            yield first, last, width
            first = last

    @property
    def _rows(self) -> int:
        return self._cfg.frames_per_step


@dataclass
class TalkerTrainer:
    model: TalkerInTraining
    encoded: EncodedSpeech
    batches: Batches
    settings: TalkerTraining
    out: Path
    # Takes in speech that was made meanwhile.
    refresh: Callable[[], None]
    # [N, 5] items never trained on.
    held_out: Tensor

    def run(self) -> None:
        cfg = self.settings
        optimiser = _adam(self.model, cfg)
        average = Average(self.model.talker, cfg.ema_decay)
        log, keep, renew = Every(cfg.log_every_s), Every(cfg.save_every_s), Every(cfg.refresh_every_s)
        batches = iter(self.batches)
        for step, progress in enumerate(until(cfg.train_s)):
            for group in optimiser.param_groups:
                group["lr"] = cfg.learning_rate * warm_cosine(progress, step, cfg.warmup_steps)
            losses = self._step(optimiser, next(batches))
            average.follow(self.model.talker, step)
            if renew():
                self.refresh()
            if log():
                self._report(step, losses)
            if keep():
                save(average.module, self.out / "talker.safetensors")
        save(average.module, self.out / "talker.safetensors")
        say("talker", done_steps=step, items=len(self.encoded.items), frames=len(self.encoded.codes))

    def _step(self, optimiser: torch.optim.Optimizer, rows: Rows) -> dict[str, Tensor]:
        self.model.train()
        losses = self._losses(rows)
        loss = losses["code0"] + 2 * losses["others"] + self.settings.phone_weight * losses["phones"]
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        optimiser.step()
        return losses

    def _losses(self, rows: Rows) -> dict[str, Tensor]:
        device = self.encoded.codes.device.type
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            return self.model.losses(rows, self.encoded.codes, self.encoded.labels)

    @torch.no_grad()
    def _report(self, step: int, losses: dict[str, Tensor]) -> None:
        self.model.eval()
        found = {name: round(value.item(), 3) for name, value in losses.items()}
        for layout, full in (("streaming", False), ("full", True)):
            batches = self.batches.of(self.held_out, torch.full((len(self.held_out),), full))
            held = [self._losses(rows) for rows in batches]
            found |= {f"{layout}_{name}": _mean(losses[name] for losses in held) for name in losses}
        say("talker", step=step, frames=len(self.encoded.codes), **found)


def _mean(values: Iterable[Tensor]) -> float:
    return round(torch.stack(list(values)).mean().item(), 3)


def _adam(model: nn.Module, cfg: TalkerTraining) -> torch.optim.AdamW:
    decayed = [p for n, p in model.named_parameters() if p.ndim > 1 and "embedding" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim <= 1 or "embedding" in n]
    groups = [{"params": decayed, "weight_decay": cfg.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, cfg.learning_rate, betas=(0.9, 0.98), fused=True)
