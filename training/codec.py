"""The convolutional codec: autoencode with noise, then quantise. After that the talker can start on its codes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from engine.models.qwen3_tts.load import create_codec
from engine.models.qwen3_tts.source_filter import SourceFilterDecoder
from training.checkpoints import load, save, say
from training.encoder import Encoder
from training.flite import PHONEMES
from training.layout import codec_config
from training.quantizer import Quantised, TrainingQuantizer, books, phone_targets
from training.schedule import Every, until, warm_cosine
from training.settings import LABELS_PER_FRAME, CodecTraining, Sizes
from training.spectral import spectral_loss
from training.speech import Speech

# This file says that encoder and codebooks are at their end: the talker may start.
CODES_FIXED = "codes.fixed"
CODEC_FILES = ("encoder.safetensors", "decoder.safetensors", "phone_head.safetensors")


class Codec(nn.Module):
    """Encoder and quantiser around the engine's decoder."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.max_hz = sizes.max_hz
        self.encoder = Encoder(sizes)
        self.decoder = create_codec(codec_config(sizes))
        self.quantizer = TrainingQuantizer(self.decoder.quantizer, len(PHONEMES))
        self._open_branches()

    def _open_branches(self) -> None:
        """Residual branches start at a tenth, not at the released 0.01 and 1e-6: there is little time to grow them."""
        for name, parameter in self.decoder.named_parameters():
            if name.endswith(("gamma", "layer_scale.scale")):
                nn.init.constant_(parameter, 0.1)
        if isinstance(self.decoder, SourceFilterDecoder):
            nn.init.normal_(self.decoder.controls.weight, std=0.01)
            nn.init.zeros_(self.decoder.controls.bias)

    @torch.no_grad()
    def encode(self, audio: Tensor) -> Tensor:
        """24 kHz [B, T * 1920] -> codes [B, K, T]."""
        return self.quantizer(self.encoder(audio)).codes


def save_codec(codec: Codec, folder: Path) -> None:
    """Three files in fp16, the codebooks as plain tables with a count of one."""
    decoder = codec.decoder
    for chain in (decoder.quantizer.rvq_first, decoder.quantizer.rvq_rest):
        for book in books(chain):
            book.embedding_sum.copy_(book.table())
            book.cluster_usage.fill_(1.0)
    save(decoder, folder / "decoder.safetensors")
    save(codec.encoder, folder / "encoder.safetensors")
    save(codec.quantizer.phone_head, folder / "phone_head.safetensors")


def load_codec(codec: Codec, folder: Path) -> None:
    load(codec.encoder, folder / "encoder.safetensors")
    load(codec.decoder, folder / "decoder.safetensors")
    load(codec.quantizer.phone_head, folder / "phone_head.safetensors")


def load_finished(codec: Codec, encoder: Path, voice: Path) -> None:
    """Load the encoder that was kept, and decoder and codebooks of the checkpoint folder ``voice``."""
    load(codec.encoder, encoder)
    state = load_file(voice / "speech_tokenizer" / "model.safetensors")
    codec.decoder.load_state_dict({name.removeprefix("decoder."): value for name, value in state.items()})


def copy_codec(source: Path, folder: Path) -> None:
    for name in CODEC_FILES:
        shutil.copyfile(source / name, folder / name)


@dataclass
class CodecTrainer:
    """One run; every stage is a method that ends on the clock."""

    codec: Codec
    speech: Speech
    settings: CodecTraining
    out: Path

    def run(self, resume: Path | None) -> None:
        if resume is not None:
            load_codec(self.codec, resume)
            say("codec", resumed=str(resume.name))
            self.quantise(self.settings.refine_s, self.settings.refining_rate, 0.0)
        else:
            self.reconstruct()
        save_codec(self.codec, self.out)
        (self.out / CODES_FIXED).touch()

    def batch(self, size: int, frames: int) -> tuple[Tensor, Tensor]:
        """Speech at 24 kHz [size, frames * 1920] and its labels; some pieces begin or end in silence."""
        audio, labels = self.speech.crops(size, frames * LABELS_PER_FRAME)
        heard = random_silence(labels.shape, self.settings.silenced_share, audio.device)
        audio = audio * heard.repeat_interleave(self.speech.label_samples, 1)
        return self.speech.at_24_khz(audio), labels * heard

    def reconstruct(self) -> None:
        """Stages one and two: the latent, then its codebooks, by spectral loss alone."""
        cfg = self.settings
        share = cfg.autoencode_s / (cfg.autoencode_s + cfg.quantise_s)
        self.autoencode(cfg.autoencode_s, share)
        say("codec", variance_left=self.codec.quantizer.fit(self._gather_parts(), cfg.kmeans_rounds))
        self.quantise(cfg.quantise_s, cfg.learning_rate, share)

    def autoencode(self, length_s: float, end: float = 1.0) -> None:
        """Stage one: noise on the latent; the rate's cosine stops at ``end``."""
        cfg = self.settings
        optimiser = adam(self.codec.parameters(), cfg.learning_rate)
        for audio, labels in self._steps("autoencode", optimiser, length_s, 0.0, end):
            with autocast(audio):
                found = self.codec.quantizer.noisy(self.codec.encoder(audio), cfg.latent_noise)
            self._descend(optimiser, found, audio, labels)

    def quantise(self, length_s: float, learning_rate: float, begin: float) -> None:
        """Stage two: straight through the codebooks; the rate's cosine starts at ``begin``."""
        optimiser = adam(self.codec.parameters(), learning_rate)
        for audio, labels in self._steps("quantise", optimiser, length_s, begin, 1.0):
            with autocast(audio):
                found = self.codec.quantizer(self.codec.encoder(audio), decay=0.99)
            self._descend(optimiser, found, audio, labels)

    def _steps(
        self, stage: str, optimiser: torch.optim.Optimizer, length_s: float, begin: float, end: float
    ) -> Iterator[tuple[Tensor, Tensor]]:
        cfg, log, rate = self.settings, Every(10.0), optimiser.defaults["lr"]
        for step, progress in enumerate(until(length_s)):
            set_rate(optimiser, rate * warm_cosine(begin + (end - begin) * progress, step, 200, 0.05))
            yield self.batch(cfg.batch, cfg.crop_frames)
            if log():
                self.speech.grow()
                say("codec", stage=stage, step=step, hours=round(self.speech.hours, 1), **self._report)

    def _descend(self, optimiser: torch.optim.Optimizer, found: Quantised, audio: Tensor, labels: Tensor) -> None:
        cfg = self.settings
        with autocast(audio):
            speech = self.codec.decoder.decode_latent(found.latent)
        spectral = spectral_loss(speech.float(), audio, self.codec.max_hz)
        targets = phone_targets(labels)
        phones = F.cross_entropy(found.phones.float().flatten(0, 2), targets.flatten())
        loss = cfg.mel_weight * spectral + cfg.phone_weight * phones + cfg.commitment_weight * found.commitment
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.codec.parameters(), 5.0)
        optimiser.step()
        self._last = {"spectral": spectral, "phones": phones, "commitment": found.commitment}
        self._codes = found.codes

    @property
    def _report(self) -> dict[str, object]:
        used = [len(book.unique()) for book in self._codes.transpose(0, 1) if self._codes.numel()]
        return {name: round(value.item(), 4) for name, value in self._last.items()} | {"used": used}

    @torch.no_grad()
    def _gather_parts(self) -> list[Tensor]:
        cfg, gathered = self.settings, []
        for _ in range(max(1, cfg.kmeans_latents // (cfg.batch * cfg.crop_frames))):
            audio, _ = self.batch(cfg.batch, cfg.crop_frames)
            gathered.append([part.flatten(0, 1) for part in self.codec.quantizer.parts(self.codec.encoder(audio))])
        return [torch.cat(parts) for parts in zip(*gathered, strict=True)]


def random_silence(shape: torch.Size, share: float, device: str | torch.device) -> Tensor:
    """Masks [B, n] of 0 and 1; ``share`` of the rows are 0 before or after a random place."""
    place = torch.randint(shape[1], (shape[0], 1), device=device)
    after = torch.arange(shape[1], device=device) >= place
    flipped = after ^ (torch.rand(shape[0], 1, device=device) < 0.5)
    return torch.where(torch.rand(shape[0], 1, device=device) < share, flipped, True).long()


def adam(parameters: Iterator[nn.Parameter], learning_rate: float) -> torch.optim.AdamW:
    kept = [p for p in parameters if p.requires_grad]
    return torch.optim.AdamW(kept, learning_rate, betas=(0.8, 0.99), weight_decay=0.01, fused=True)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate


def autocast(like: Tensor) -> torch.autocast:
    return torch.autocast(like.device.type, dtype=torch.bfloat16, enabled=like.device.type == "cuda")
