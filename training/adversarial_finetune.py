"""The codec's third stage: the decoder alone learns, against critics; encoder, codebooks and so the codes stay.

    python -m training.adversarial_finetune OUT --speech FOLDER --minutes 17

goes on from a finished checkpoint's decoder, so that its talker keeps speaking through the new one; ``FOLDER`` is what
``python -m training.synthesis`` fills meanwhile. ``OUT/decoder.safetensors`` is the moving average of the weights.
With ``--former-weight`` the speech stays near that of the decoder it began with, as when seams alone are to go.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from training.asr_features import hearing_loss
from training.checkpoints import Average, load, save, say
from training.codec import Codec, adam, autocast, random_silence, set_rate
from training.discriminators import Discriminators, critic_loss, fooling_loss
from training.export import replace_decoder
from training.schedule import Every, until, warm_cosine
from training.seam_loss import seam_loss
from training.settings import FRAME_SAMPLES, LABELS_PER_FRAME, TOY, CodecTraining, Settings
from training.spectral import former_loss, spectral_loss
from training.speech import Speech

DECODER_FILE = "decoder.safetensors"


@dataclass(frozen=True)
class Pieces:
    """At 24 kHz [B, n]: the speech as the decoder makes it, the original, and what the decoder made of it before."""

    speech: Tensor
    audio: Tensor
    former: Tensor
    # Of each frame [B, n / FRAME_SAMPLES].
    voices: Tensor


@dataclass
class AdversarialTrainer:
    """Decoder and critics take turns until the time is over."""

    codec: Codec
    speech: Speech
    settings: CodecTraining
    out: Path

    def __post_init__(self) -> None:
        self.codec.eval().requires_grad_(False)
        self._former = copy.deepcopy(self.codec.decoder)

    def run(self) -> None:
        cfg = self.settings
        decoder = self.codec.decoder.train().requires_grad_(True)
        critics = Discriminators(cfg.discriminator_channels).to(self.speech.device)
        rates = cfg.adversarial_learning_rate, cfg.critics_learning_rate
        optimisers = [adam(module.parameters(), rate) for module, rate in zip((decoder, critics), rates, strict=True)]
        average, log, keep = Average(decoder, cfg.ema_decay), Every(20.0), Every(cfg.save_every_s)
        for step, progress in enumerate(until(cfg.adversarial_s)):
            for optimiser, rate in zip(optimisers, rates, strict=True):
                set_rate(optimiser, rate * warm_cosine(progress, step, 200, floor=0.0))
            report = self._duel(critics, *optimisers, armed=step >= cfg.discriminator_warmup_steps)
            average.follow(decoder, step)
            if log():
                self.speech.grow()
                say("codec", stage="sharpen", step=step, **{k: round(v.item(), 4) for k, v in report.items()})
            if keep():
                save(average.module, self.out / DECODER_FILE)
        save(average.module, self.out / DECODER_FILE)
        self.codec.decoder = average.module

    def _pieces(self) -> Pieces:
        """Without the frames that only give the decoder a past and the encoder a future."""
        cfg = self.settings
        num_labels = cfg.adversarial_crop_frames * LABELS_PER_FRAME
        starts = self.speech.starts(cfg.adversarial_batch, num_labels)
        audio, phones = self.speech.pieces(starts, num_labels)
        heard = random_silence(phones.shape, cfg.silenced_share, audio.device)
        audio = self.speech.at_24_khz(audio * heard.repeat_interleave(self.speech.label_samples, 1))
        codes = self.codec.encode(audio)
        with torch.no_grad():
            former = self._former(codes)
        past_frames = 0 if torch.rand(()) < cfg.begun_share else cfg.past_frames
        frames = slice(past_frames, cfg.adversarial_crop_frames - cfg.future_frames)
        samples = slice(frames.start * FRAME_SAMPLES, frames.stop * FRAME_SAMPLES)
        middles = starts + torch.arange(num_labels, device=starts.device)[LABELS_PER_FRAME // 2 :: LABELS_PER_FRAME]
        voices = self.speech.speakers[middles]
        speech = self.codec.decoder(codes)
        return Pieces(speech[:, samples], audio[:, samples], former[:, samples], voices[:, frames])

    def _duel(
        self,
        critics: Discriminators,
        of_decoder: torch.optim.Optimizer,
        of_critics: torch.optim.Optimizer,
        *,
        armed: bool,
    ) -> dict[str, Tensor]:
        """One step of the critics, then one of the decoder. Speech is made in fp32: bf16 would add noise to hear."""
        cfg, pieces = self.settings, self._pieces()
        speech, audio = pieces.speech, pieces.audio
        with autocast(audio):
            judged = critic_loss(critics(audio), critics(speech.detach()))
        of_critics.zero_grad(set_to_none=True)
        judged.backward()
        of_critics.step()
        spectral, hearing = spectral_loss(speech, audio, self.codec.max_hz), hearing_loss(speech, audio)
        seams, former = seam_loss(speech, pieces.voices), former_loss(speech, pieces.former)
        loss = cfg.mel_weight * spectral + cfg.hearing_weight * hearing
        loss = loss + cfg.seam_weight * seams + cfg.former_weight * former
        adversarial = features = spectral.new_zeros(())
        if armed:
            critics.requires_grad_(False)
            with autocast(audio):
                adversarial, features = fooling_loss(critics(audio), critics(speech))
            critics.requires_grad_(True)
            loss = loss + cfg.adversarial_weight * adversarial + cfg.feature_weight * features
        of_decoder.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.codec.decoder.parameters(), 10.0)
        of_decoder.step()
        named = {"spectral": spectral, "hearing": hearing, "seams": seams, "former": former, "critics": judged}
        return named | {"adversarial": adversarial, "features": features}


def load_finished(codec: Codec, encoder: Path, voice: Path) -> None:
    """The encoder that was kept, and the decoder and codebooks of a checkpoint folder."""
    load(codec.encoder, encoder)
    state = load_file(voice / "speech_tokenizer" / "model.safetensors")
    codec.decoder.load_state_dict({name.removeprefix("decoder."): value for name, value in state.items()})


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Refine the decoder of a finished voice; its codes stay.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--speech", type=Path, required=True, help="folder of shards; may still grow")
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--voice", type=Path, default=Path("engine/voices/embedded"))
    parser.add_argument("--minutes", type=float, default=17.0)
    parser.add_argument("--seed", type=int, default=1)
    for name in WEIGHTS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(CodecTraining, name))
    parser.add_argument("--toy", action="store_true", help="tiny sizes: to see that everything runs")
    options = parser.parse_args(arguments)
    settings = TOY if options.toy else Settings()
    weights = {name: getattr(options, name) for name in WEIGHTS}
    cfg = replace(settings.codec, adversarial_s=60 * options.minutes, **weights)
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    options.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    codec = Codec(settings.sizes)
    load_finished(codec, options.encoder, options.voice)
    speech = Speech(options.speech, cfg.max_audio_h, device)
    while speech.hours < cfg.least_audio_h:
        time.sleep(0.5)
        speech.grow()
    say("codec", hours=round(speech.hours, 2), **weights)
    AdversarialTrainer(codec.to(device), speech, cfg, options.out).run()
    replace_decoder(options.voice, options.out / DECODER_FILE, options.out / "voice")


WEIGHTS = (
    "mel_weight", "hearing_weight", "seam_weight", "former_weight", "adversarial_weight", "feature_weight",
    "adversarial_learning_rate", "critics_learning_rate", "begun_share",
)  # fmt: skip

if __name__ == "__main__":
    main(sys.argv[1:])
