"""Training the decoder's own codebooks: noise at first, then k-means, then straight-through with moving averages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.models.qwen3_tts.codec_decoder import Codebook, ResidualQuantizer, SplitQuantizer
from training.settings import LABELS_PER_FRAME

# Which of a frame's 10 ms labels code 0 must tell.
PHONE_LABELS = slice(1, 8, 2)
NUM_PHONE_LABELS = 4


def nearest(book: Codebook, vectors: Tensor) -> Tensor:
    """Codes [N] of [N, width] by Euclidean distance."""
    table = book.table()
    return (table.square().sum(1)[None] - 2 * vectors @ table.T).argmin(1)


def count(book: Codebook, vectors: Tensor, codes: Tensor, decay: float) -> None:
    """Moves sums and counts towards the vectors that chose each entry."""
    sums = torch.zeros_like(book.embedding_sum).index_add_(0, codes, vectors)
    counts = torch.zeros_like(book.cluster_usage).index_add_(0, codes, torch.ones_like(vectors[:, 0]))
    book.embedding_sum.lerp_(sums, 1 - decay)
    book.cluster_usage.lerp_(counts, 1 - decay)


def restart(book: Codebook, dead: Tensor, vectors: Tensor, usage: float) -> None:
    """Gives every dead entry [entries] a random vector and the given count."""
    fresh = vectors[torch.randint(len(vectors), (len(dead),), device=vectors.device)]
    book.embedding_sum.copy_(torch.where(dead[:, None], fresh * usage, book.embedding_sum))
    book.cluster_usage.copy_(book.cluster_usage.masked_fill(dead, usage))


def fit(book: Codebook, vectors: Tensor, rounds: int) -> None:
    """k-means over all of ``vectors``; afterwards the mean count is 1."""
    restart(book, torch.ones_like(book.cluster_usage, dtype=torch.bool), vectors, 1.0)
    for _ in range(rounds):
        count(book, vectors, nearest(book, vectors), decay=0.0)
        restart(book, book.cluster_usage < 1, vectors, 1.0)
    scale = len(book.cluster_usage) / len(vectors)
    book.embedding_sum.mul_(scale)
    book.cluster_usage.mul_(scale)


def books(chain: ResidualQuantizer) -> list[Codebook]:
    return [layer._codebook for layer in chain.vq.layers]


def fit_chain(chain: ResidualQuantizer, latents: Tensor, rounds: int) -> list[float]:
    """k-means level by level; returns the share of variance left after each."""
    rest, variance, left = latents, (latents - latents.mean(0)).square().mean(), []
    for book in books(chain):
        fit(book, rest, rounds)
        rest = rest - book.table()[nearest(book, rest)]
        left.append(round(float(rest.square().mean() / variance), 4))
    return left


def quantise(chain: ResidualQuantizer, latents: Tensor, decay: float | None) -> tuple[Tensor, Tensor]:
    """latents [N, width] -> (sum of table rows [N, width], codes [N, books]); with a decay the books learn."""
    rest, codes = latents, []
    for book in books(chain):
        chosen = nearest(book, rest)
        rows = book.table()[chosen]
        if decay is not None:
            count(book, rest, chosen, decay)
            restart(book, book.cluster_usage < 0.03, rest, 0.5)
        rest = rest - rows
        codes.append(chosen)
    return latents - rest, torch.stack(codes, 1)


@dataclass
class Quantised:
    # [B, codebook_dim, T], what the decoder starts from.
    latent: Tensor
    # [B, K, T]
    codes: Tensor
    commitment: Tensor
    # Logits [B, T, NUM_PHONE_LABELS, phonemes], read off code 0 alone.
    phones: Tensor


class TrainingQuantizer(nn.Module):
    """The decoder's ``SplitQuantizer`` in training: the first book learns phonemes, the rest what else is heard.

    Both chains read their own projection of the same latent, as in the released codec. The projections are scaled to
    unit RMS per frame, so that noise and distances mean the same throughout.
    """

    def __init__(self, quantizer: SplitQuantizer, num_phones: int) -> None:
        super().__init__()
        self.chains = nn.ModuleList((quantizer.rvq_first, quantizer.rvq_rest))
        self.num_phones = num_phones
        width = quantizer.rvq_first.input_proj.out_channels
        self.phone_head = nn.Linear(width, NUM_PHONE_LABELS * num_phones)

    def parts(self, latent: Tensor) -> list[Tensor]:
        """What each chain quantises: two of [B, T, width], fp32."""
        projected = [chain.input_proj(latent).transpose(1, 2).float() for chain in self.chains]
        return [part * (part.square().mean(2, keepdim=True) + 1e-4).rsqrt() for part in projected]

    def noisy(self, latent: Tensor, noise: float) -> Quantised:
        """The stage before there are codebooks: noise where quantisation will be."""
        parts = [part + noise * torch.randn_like(part) for part in self.parts(latent)]
        codes = torch.zeros(len(latent), 0, latent.shape[2], dtype=torch.long, device=latent.device)
        return Quantised(self._join(parts), codes, latent.new_zeros(()), self._phones(parts[0]))

    def forward(self, latent: Tensor, decay: float | None = None) -> Quantised:
        straight, codes, commitment = [], [], []
        for chain, part in zip(self.chains, self.parts(latent), strict=True):
            with torch.autocast(latent.device.type, enabled=False), torch.no_grad():
                rows, chosen = quantise(chain, part.flatten(0, 1), decay)
            rows, chosen = rows.view_as(part), chosen.unflatten(0, part.shape[:2])
            straight.append(part + (rows - part).detach())
            commitment.append(F.mse_loss(part, rows))
            codes.append(chosen)
        all_codes = torch.cat(codes, 2).transpose(1, 2)
        return Quantised(self._join(straight), all_codes, torch.stack(commitment).sum(), self._phones(straight[0]))

    def fit(self, parts: list[Tensor], rounds: int) -> list[list[float]]:
        """k-means of every book on gathered ``parts`` [N, width]; the variance left, per chain and level."""
        return [fit_chain(chain, part, rounds) for chain, part in zip(self.chains, parts, strict=True)]

    def _join(self, parts: list[Tensor]) -> Tensor:
        projected = [chain.output_proj(part.transpose(1, 2)) for chain, part in zip(self.chains, parts, strict=True)]
        return projected[0] + projected[1]

    def _phones(self, first: Tensor) -> Tensor:
        return self.phone_head(first).unflatten(2, (NUM_PHONE_LABELS, self.num_phones))


def phone_targets(labels: Tensor) -> Tensor:
    """Labels [B, T * 8] -> [B, T, NUM_PHONE_LABELS].

    A slice, not a list: a list is copied to the GPU at each call, which a CUDA graph cannot hold.
    """
    return labels.unflatten(1, (-1, LABELS_PER_FRAME))[:, :, PHONE_LABELS]
