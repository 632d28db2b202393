"""A codec with phases, trained in four stages whose steps replay as CUDA graphs: small batches, many steps.

    python -m training.graphed_codec OUT --speech FOLDER --minutes 14 --evaluation FILE

``FOLDER`` is what ``python -m training.synthesis --rate-hz 24000 --voices slt-hts,rms`` fills meanwhile. The stages:
noise on the latent; through codebooks; the same against critics; then the decoder alone against critics, with fixed
codes. ``OUT`` gets weights in fp16 after each stage, and copies of the sentences in FILE, also every ``--evaluate-s``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.layers.transformer import Rope
from training.ablate import copies
from training.checkpoints import Average, say
from training.codec import Codec, autocast, load_codec, random_silence, save_codec
from training.discriminators import Discriminators, critic_loss, fooling_loss
from training.pipeline import wait_for_speech
from training.quantizer import Quantised, phone_targets
from training.schedule import Every, until, warm_cosine
from training.settings import FRAME_SAMPLES, FULL_BAND, LABELS_PER_FRAME, SAMPLE_RATE, TOY, CodecTraining, Sizes
from training.spectral import log_mel, phase_loss, spectral_loss
from training.speech import Speech

# Chosen by decode time on one thread: about 9.7 ms a frame with talker and predictor.
SIZES = replace(
    FULL_BAND.sizes, phase_blocks=2, decoder_layers=3, upsampling_ratios=(2, 2, 2), upsample_rates=(4, 4, 5, 3)
)
# Steps between two looks at the clock: replays are queued far ahead of the GPU otherwise.
SYNC_STEPS = 20
Report = dict[str, Tensor]


@dataclass(frozen=True)
class Stage:
    name: str
    # Of the whole time.
    share: float
    quantized: bool
    critics: bool
    # Only the decoder learns.
    fixed_codes: bool
    learning_rate: float
    phase_weight: float


STAGES = (
    Stage("autoencode", 0.18, quantized=False, critics=False, fixed_codes=False, learning_rate=1e-3, phase_weight=8.0),
    Stage("quantize", 0.22, quantized=True, critics=False, fixed_codes=False, learning_rate=8e-4, phase_weight=8.0),
    Stage("critics", 0.30, quantized=True, critics=True, fixed_codes=False, learning_rate=5e-4, phase_weight=4.0),
    Stage("decoder", 0.30, quantized=True, critics=True, fixed_codes=True, learning_rate=4e-4, phase_weight=4.0),
)


class GraphedStep:
    """Runs ``step`` on inputs of fixed shapes: as one CUDA graph on a GPU, plainly elsewhere."""

    def __init__(self, step: Callable[..., Report], example: tuple[Tensor, ...], *, graphed: bool) -> None:
        self._step, self._graph = step, None
        if not graphed:
            return
        self._inputs = tuple(one.clone() for one in example)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._report = step(*self._inputs)

    def __call__(self, *inputs: Tensor) -> Report:
        if self._graph is None:
            return self._step(*inputs)
        for ours, theirs in zip(self._inputs, inputs, strict=True):
            ours.copy_(theirs)
        self._graph.replay()
        return self._report


@dataclass
class GraphedTrainer:
    codec: Codec
    speech: Speech
    settings: CodecTraining
    out: Path
    evaluate: Callable[[str, bool], None]
    evaluate_s: float = 90.0
    # Needs a GPU.
    graphed: bool = False

    def __post_init__(self) -> None:
        self._critics = Discriminators(self.settings.discriminator_channels).to(self.speech.device)

    def run(self, total_s: float, stages: tuple[Stage, ...] = STAGES) -> None:
        whole = sum(stage.share for stage in stages)
        for stage in stages:
            if stage.name == "quantize":
                left = self.codec.quantizer.fit(self._gather_parts(), self.settings.kmeans_rounds)
                say("codec", variance_left=left)
            self._train(stage, total_s * stage.share / whole)
            save_codec(self.codec, self.out)
            self.evaluate(stage.name, stage.quantized)

    def _train(self, stage: Stage, length_s: float) -> None:
        cfg, graphed = self.settings, self.graphed
        learner = self.codec.decoder if stage.fixed_codes else self.codec
        self.codec.requires_grad_(not stage.fixed_codes)
        learner.requires_grad_(True)
        ours, theirs = _adam(learner, graphed), _adam(self._critics, graphed)
        average = Average(self.codec.decoder, cfg.ema_decay) if stage.fixed_codes else None

        def step(audio: Tensor, phones: Tensor, begins: Tensor) -> Report:
            return self._step(stage, learner, ours, theirs, audio, phones, begins)

        run_step = GraphedStep(step, self._batch(stage), graphed=graphed)
        log, look = Every(15.0), Every(self.evaluate_s)
        for number, progress in enumerate(until(length_s)):
            for group in (*ours.param_groups, *theirs.param_groups):
                rate = stage.learning_rate * warm_cosine(progress, number, 300, 0.1 if not stage.fixed_codes else 0.0)
                group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate
            report = run_step(*self._batch(stage))
            if average is not None:
                average.follow(self.codec.decoder, number)
            if graphed and number % SYNC_STEPS == 0:
                torch.cuda.synchronize()
            if log():
                self.speech.grow()
                values = {name: round(value.item(), 4) for name, value in report.items()}
                say("codec", stage=stage.name, step=number, hours=round(self.speech.hours, 1), **values)
            if look():
                self.evaluate(stage.name, stage.quantized)
        if average is not None:
            self.codec.decoder.load_state_dict(average.module.state_dict())

    def _batch(self, stage: Stage) -> tuple[Tensor, Tensor, Tensor]:
        """Audio [B, n], phonemes [B, labels], and the frame [B, 1] from which on critics judge each row."""
        cfg = self.settings
        size, frames = cfg.batch, cfg.crop_frames
        if stage.critics:
            size, frames = cfg.adversarial_batch, cfg.adversarial_crop_frames
        audio, phones = self.speech.crops(size, frames * LABELS_PER_FRAME)
        kept = random_silence(phones.shape, cfg.silenced_share, audio.device)
        audio = self.speech.at_24_khz(audio * kept.repeat_interleave(self.speech.label_samples, 1))
        begun = torch.rand(size, 1, device=audio.device) >= cfg.begun_share
        return audio, phones * kept, begun * cfg.past_frames

    def _step(
        self,
        stage: Stage,
        learner: nn.Module,
        ours: torch.optim.Optimizer,
        theirs: torch.optim.Optimizer,
        audio: Tensor,
        phones: Tensor,
        begins: Tensor,
    ) -> Report:
        cfg = self.settings
        found = self._found(stage, audio)
        speech = self.codec.decoder.decode_latent(found.latent.float())
        report = {"spectral": spectral_loss(speech, audio, self.codec.max_hz), "phase": phase_loss(speech, audio)}
        loss = cfg.mel_weight * report["spectral"] + stage.phase_weight * report["phase"]
        if not stage.fixed_codes:
            phone_logits = found.phones.float().flatten(0, 2)
            report["phones"] = F.cross_entropy(phone_logits, phone_targets(phones).flatten())
            report["commitment"] = found.commitment
            loss = loss + cfg.phone_weight * report["phones"] + cfg.commitment_weight * found.commitment
        if stage.critics:
            report |= self._judge(theirs, *self._judged(begins, audio, speech))
            loss = loss + cfg.adversarial_weight * report["adversarial"] + cfg.feature_weight * report["features"]
        ours.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(learner.parameters(), 5.0)
        ours.step()
        return {name: value.detach() for name, value in report.items()}

    def _found(self, stage: Stage, audio: Tensor) -> Quantised:
        quantizer = self.codec.quantizer
        if stage.fixed_codes:
            with torch.no_grad(), autocast(audio):
                found = quantizer(self.codec.encoder(audio))
            return replace(found, latent=self.codec.decoder.dequantize(found.codes))
        with autocast(audio):
            latent = self.codec.encoder(audio)
            if stage.quantized:
                return quantizer(latent, decay=0.99)
            return quantizer.noisy(latent, self.settings.latent_noise)

    def _judged(self, begins: Tensor, *signals: Tensor) -> list[Tensor]:
        """Of each row the frames that critics judge, from its own beginning on."""
        cfg = self.settings
        frames = cfg.adversarial_crop_frames - cfg.past_frames - cfg.future_frames
        places = begins * FRAME_SAMPLES + torch.arange(frames * FRAME_SAMPLES, device=begins.device)
        return [signal.gather(1, places) for signal in signals]

    def _judge(self, theirs: torch.optim.Optimizer, real: Tensor, made: Tensor) -> Report:
        critics = self._critics
        with autocast(real):
            judged = critic_loss(critics(real), critics(made.detach()))
        theirs.zero_grad(set_to_none=True)
        judged.backward()
        theirs.step()
        critics.requires_grad_(False)
        with autocast(real):
            with torch.no_grad():
                truth = critics(real)
            adversarial, features = fooling_loss(truth, critics(made))
        critics.requires_grad_(True)
        return {"critics": judged, "adversarial": adversarial, "features": features}

    @torch.no_grad()
    def _gather_parts(self) -> list[Tensor]:
        cfg, gathered = self.settings, []
        for _ in range(max(1, cfg.kmeans_latents // (cfg.batch * cfg.crop_frames))):
            audio, _, _ = self._batch(STAGES[0])
            gathered.append([part.flatten(0, 1) for part in self.codec.quantizer.parts(self.codec.encoder(audio))])
        return [torch.cat(parts) for parts in zip(*gathered, strict=True)]


def _adam(module: nn.Module, graphed: bool) -> torch.optim.AdamW:
    """With its rate in a tensor where a graph replays it."""
    rate = torch.tensor(1e-4, device="cuda") if graphed else 1e-4
    kept = [p for p in module.parameters() if p.requires_grad]
    return torch.optim.AdamW(kept, rate, betas=(0.8, 0.99), weight_decay=0.01, fused=True, capturable=graphed)


def evaluator(codec: Codec, evaluation: Path, out: Path) -> Callable[[str, bool], None]:
    """Writes copies of the held-out sentences and says how far their log-mel is."""
    originals = np.load(evaluation)

    def evaluate(stage: str, quantized: bool) -> None:
        # Sentences have many widths: trying out algorithms for each would take longer than the copies.
        with torch.backends.cudnn.flags(benchmark=False):
            made = copies(codec, evaluation, quantize=quantized)
        temporary = out / f"{stage}.part.npz"
        np.savez_compressed(temporary, **made)
        temporary.rename(out / f"{stage}.npz")
        off: dict[str, list[float]] = {}
        for name, copy in made.items():
            pair = [torch.from_numpy(pcm.astype(np.float32) / 32_768)[None] for pcm in (originals[name], copy)]
            ours, theirs = (log_mel(one, max_hz=codec.max_hz) for one in pair)
            off.setdefault(name.rstrip("0123456789"), []).append(float((ours - theirs).abs().mean()))
        say("codec", evaluated=stage, mel={voice: round(sum(one) / len(one), 3) for voice, one in off.items()})

    return evaluate


def on_device(codec: Codec, device: str) -> Codec:
    """Rotary frequencies, too, which are no buffers: a CUDA graph cannot hold their copy to the GPU."""
    for module in codec.modules():
        if isinstance(module, Rope):
            module.reset(torch.device(device))
    return codec.to(device)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Train a full-band codec with phases.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=14.0)
    parser.add_argument("--evaluation", type=Path, required=True)
    parser.add_argument("--evaluate-s", type=float, default=90.0)
    parser.add_argument("--resume", type=Path, help="folder with weights: goes on with the stages against critics")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(FULL_BAND.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes, cfg = toy() if options.toy else (SIZES, TRAINING)
    speech = wait_for_speech(options.speech, cfg.max_audio_h, cfg.least_audio_h, device, SAMPLE_RATE)
    codec = on_device(Codec(sizes), device)
    if options.resume:
        load_codec(codec, options.resume)
    stages = STAGES[2:] if options.resume else STAGES
    evaluate = evaluator(codec, options.evaluation, options.out)
    graphed = device == "cuda" and not options.eager
    trainer = GraphedTrainer(codec, speech, cfg, options.out, evaluate, options.evaluate_s, graphed)
    trainer.run(60 * options.minutes, stages)
    say("codec", done=True)


TRAINING = replace(
    FULL_BAND.codec,
    batch=48,
    crop_frames=16,
    adversarial_batch=32,
    adversarial_crop_frames=17,
    past_frames=6,
    future_frames=1,
    discriminator_channels=24,
    ema_decay=0.999,
    max_audio_h=80.0,
)


def toy() -> tuple[Sizes, CodecTraining]:
    return replace(TOY.sizes, phase_blocks=1), TOY.codec


if __name__ == "__main__":
    main(sys.argv[1:])
