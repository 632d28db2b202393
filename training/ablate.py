"""Which part of the codec costs how much: small codecs, alike but for one thing, trained side by side.

    python -m training.ablate OUT --speech FOLDER --variant base --minutes 6 --evaluation FILE

``FOLDER`` is what ``python -m training.synthesis --rate-hz 24000 --voices slt-hts,rms`` fills meanwhile. ``OUT`` gets
the variant's copies of the sentences in FILE and its weights.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from training.adversarial_finetune import AdversarialTrainer
from training.checkpoints import say
from training.codec import Codec, CodecTrainer, save_codec
from training.pipeline import wait_for_speech
from training.settings import FRAME_SAMPLES, FULL_BAND, SAMPLE_RATE, TOY, CodecTraining, Sizes

BASE = FULL_BAND.sizes
# Sizes that differ from the full-band codec's in one thing; ``no_bits`` is never quantized.
VARIANTS: dict[str, Sizes] = {
    "base": BASE,
    "books16": replace(BASE, code_groups=16),
    "book1024": replace(BASE, codebook=1_024),
    "wide": replace(BASE, latent=384, decoder_transformer=384, decoder_intermediate=1_024, decoder_heads=6),
    "slow": replace(BASE, upsampling_ratios=(2, 2, 2, 2), upsample_rates=(5, 8, 3), decoder=96),
    "wave192": replace(BASE, decoder=192),
    "no_bits": BASE,
}


def train(sizes: Sizes, cfg: CodecTraining, folder: Path, out: Path, *, quantize: bool, device: str) -> Codec:
    """Spectral losses alone, then critics for ``cfg.adversarial_s``."""
    speech = wait_for_speech(folder, cfg.max_audio_h, cfg.least_audio_h, device, SAMPLE_RATE)
    codec = Codec(sizes).to(device)
    trainer = CodecTrainer(codec, speech, cfg, out)
    if quantize:
        trainer.reconstruct()
    else:
        trainer.autoencode(cfg.autoencode_s + cfg.quantise_s)
    save_codec(codec, out)
    if cfg.adversarial_s > 0 and quantize:
        AdversarialTrainer(codec, speech, cfg, out).run()
    return codec.eval()


@torch.inference_mode()
def copies(codec: Codec, evaluation: Path, *, quantize: bool) -> dict[str, np.ndarray]:
    """int16 copies of each int16 signal at 24 kHz in the npz ``evaluation``, by name."""
    device = next(codec.parameters()).device
    found = {}
    for name, pcm in np.load(evaluation).items():
        audio = torch.from_numpy(pcm.astype(np.float32) / 32_768).to(device)[None]
        latent = codec.encoder(F.pad(audio, (0, -audio.shape[1] % FRAME_SAMPLES)))
        quantized = codec.quantizer(latent) if quantize else codec.quantizer.noisy(latent, 0.0)
        speech = codec.decoder.decode_latent(quantized.latent)[0, : len(pcm)].float().cpu().numpy()
        found[name] = np.round(speech * 32_767).astype(np.int16)
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Train one variant of the codec and copy sentences with it.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--variant", choices=VARIANTS, default="base")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--critics-share", type=float, default=0.0, help="of the time, against critics")
    parser.add_argument("--evaluation", type=Path, required=True)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    settings = TOY if options.toy else FULL_BAND
    cfg, total_s = settings.codec, 60 * options.minutes
    cfg = replace(
        cfg,
        autoencode_s=0.15 * total_s,
        quantise_s=(0.85 - options.critics_share) * total_s,
        adversarial_s=options.critics_share * total_s,
        batch=options.batch or cfg.batch,
    )
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    sizes = settings.sizes if options.toy else VARIANTS[options.variant]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    quantize = options.variant != "no_bits"
    codec = train(sizes, cfg, options.speech, options.out, quantize=quantize, device=device)
    np.savez_compressed(options.out / "copies.npz", **copies(codec, options.evaluation, quantize=quantize))
    say("ablate", variant=options.variant, done=True)


if __name__ == "__main__":
    main(sys.argv[1:])
