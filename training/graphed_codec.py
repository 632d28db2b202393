"""Train the source-filter codec: noise on the latent first, then codebooks; each step replays as a CUDA graph.

    python -m training.graphed_codec OUT --speech FOLDER --minutes 9

``FOLDER`` is what ``python -m training.synthesis --rate-hz 24000 --voices slt-hts,rms`` fills meanwhile. Every
90 s, OUT gets weights in fp16 and copies of held-out sentences; their scores are printed. The losses
compare magnitudes and pitch; none of the scores is a loss.

With ``--resume``, ``--train encoder`` makes a new encoder for a decoder and its codebooks, and ``--train decoder``
improves the decoder while encoder and codes stay as they are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.layers.transformer import reset_ropes
from engine.models.qwen3_tts.source_filter import Controls, SourceFilterDecoder, VocoderPast
from sessions.audio.resampler import Resampler
from training import teachers
from training.checkpoints import load, say
from training.codec import Codec, autocast, load_codec, random_silence, save_codec
from training.held_out import read_sentences
from training.pitch import track_pitch
from training.quantizer import phone_targets
from training.schedule import Every, until, warm_cosine
from training.settings import FRAME_SAMPLES, LABELS_PER_FRAME, SAMPLE_RATE, CodecTraining, Settings, choose_settings
from training.spectral import envelope_loss, log_mel
from training.speech import Speech, wait_for_speech

# Steps between two waits for the GPU: replays are queued far ahead of it otherwise.
SYNC_STEPS = 20
# Of the time, before there are codebooks.
AUTOENCODE_SHARE = 0.1
# Of the pitch's error in octaves.
PITCH_WEIGHT = 50.0
# What ``--train`` may name: all of the codec, or one part that suits the other as it is.
PARTS = ("all", "encoder", "decoder")
Report = dict[str, Tensor]
Sentences = dict[str, npt.NDArray[np.int16]]


class GraphedStep:
    """Run ``step`` on inputs of fixed shapes: as one CUDA graph on a GPU, plainly elsewhere."""

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
    # Needs a GPU.
    graphed: bool = False
    # One of PARTS.
    part: str = "all"

    def run(self, total_s: float, *, resumed: bool = False) -> None:
        """Train for ``total_s``; ``resumed`` codecs have codebooks already."""
        if not resumed:
            self._train("autoencode", AUTOENCODE_SHARE * total_s, quantized=False)
            left = self.codec.quantizer.fit(self._gather_parts(), self.settings.kmeans_rounds)
            say("codec", variance_left=left)
            total_s *= 1 - AUTOENCODE_SHARE
        self._train("quantize" if self.part == "all" else self.part, total_s, quantized=True)

    def _train(self, stage: str, length_s: float, *, quantized: bool) -> None:
        cfg = self.settings
        optimizer = _adam(choose_parameters(self.codec, self.part), self.graphed)

        def step(audio: Tensor, phones: Tensor) -> Report:
            return self._step(optimizer, audio, phones, quantized)

        run_step = GraphedStep(step, self._batch(), graphed=self.graphed)
        log, look = Every(15.0), Every(cfg.save_every_s)
        for number, progress in enumerate(until(length_s)):
            rate = cfg.learning_rate * warm_cosine(progress, number, 300, 0.02 if quantized else 0.3)
            for group in optimizer.param_groups:
                group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate
            report = run_step(*self._batch())
            if self.graphed and number % SYNC_STEPS == 0:
                torch.cuda.synchronize()
            if log():
                self.speech.grow()
                values = {name: round(value.item(), 4) for name, value in report.items()}
                say("codec", stage=stage, step=number, hours=round(self.speech.hours, 1), **values)
            if look():
                self._save(stage, quantized)
        self._save(stage, quantized)

    def _save(self, stage: str, quantized: bool) -> None:
        save_codec(self.codec, self.out)
        self.evaluate(stage, quantized)

    def _batch(self) -> tuple[Tensor, Tensor]:
        """Audio [B, n] and phonemes [B, labels]; some crops begin or end in silence."""
        cfg = self.settings
        audio, phones = self.speech.crops(cfg.batch, cfg.crop_frames * LABELS_PER_FRAME)
        kept = random_silence(phones.shape, cfg.silenced_share, audio.device)
        audio = self.speech.at_24_khz(audio * kept.repeat_interleave(self.speech.label_samples, 1))
        return audio, phones * kept

    def _step(self, optimizer: torch.optim.Optimizer, audio: Tensor, phones: Tensor, quantized: bool) -> Report:
        cfg, codec = self.settings, self.codec
        with autocast(audio):
            latent = codec.encoder(audio)
            found = (
                codec.quantizer(latent, decay=0.99 if self.part == "all" else None)
                if quantized
                else codec.quantizer.noisy(latent, cfg.latent_noise)
            )
            decoder = decoder_of(codec)
            controls = decoder.read_controls(found.latent)
            controls = controls.every_hop(controls.at(slice(1)))
        pitch = track_pitch(audio)
        # The teacher's pitch makes the pulses, so that the filters learn before pitch does.
        given = Controls(pitch.hz[..., None], controls.pulses, controls.noise)
        speech, _ = decoder.vocoder(given, torch.randn_like(audio), VocoderPast.none(given))
        octaves = (controls.hz[..., 0] / pitch.hz).log2().abs()
        report = {
            "spectral": envelope_loss(speech, audio, codec.max_hz),
            "pitch": (octaves * pitch.voiced).sum() / pitch.voiced.sum().clamp_min(1),
            "phones": F.cross_entropy(found.phones.float().flatten(0, 2), phone_targets(phones).flatten()),
            "commitment": found.commitment,
        }
        weights = (cfg.mel_weight, PITCH_WEIGHT, cfg.phone_weight, cfg.commitment_weight)
        loss = sum(weight * value for weight, value in zip(weights, report.values(), strict=True))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(codec.parameters(), 5.0)
        optimizer.step()
        return {name: value.detach() for name, value in report.items()}

    @torch.no_grad()
    def _gather_parts(self) -> list[Tensor]:
        cfg, gathered = self.settings, []
        for _ in range(max(1, cfg.kmeans_latents // (cfg.batch * cfg.crop_frames))):
            audio, _ = self._batch()
            gathered.append([part.flatten(0, 1) for part in self.codec.quantizer.parts(self.codec.encoder(audio))])
        return [torch.cat(parts) for parts in zip(*gathered, strict=True)]


def decoder_of(codec: Codec) -> SourceFilterDecoder:
    assert isinstance(codec.decoder, SourceFilterDecoder)
    return codec.decoder


def choose_parameters(codec: Codec, part: str) -> list[nn.Parameter]:
    """Freeze all but ``part``, one of PARTS, and return what is left to train."""
    if part != "all":
        trained = (codec.encoder, codec.quantizer.phone_head) if part == "encoder" else (codec.decoder,)
        codec.requires_grad_(False)
        for module in trained:
            module.requires_grad_(True)
        if part == "decoder":
            # They choose the codes.
            for chain in (codec.decoder.quantizer.rvq_first, codec.decoder.quantizer.rvq_rest):
                chain.input_proj.requires_grad_(False)
    return [parameter for parameter in codec.parameters() if parameter.requires_grad]


def _adam(parameters: Iterable[nn.Parameter], graphed: bool) -> torch.optim.AdamW:
    """With its rate in a tensor where a graph replays it."""
    rate = torch.tensor(1e-4, device="cuda") if graphed else 1e-4
    return torch.optim.AdamW(parameters, rate, betas=(0.8, 0.99), weight_decay=0.01, fused=True, capturable=graphed)


def speak_held_out(every: int) -> Sentences:
    """The teachers' speech at 24 kHz, by voice and number."""
    lines = read_sentences()[::every]
    return {
        f"{voice}{number}": teachers.synthesize(line, teacher).pcm
        for voice, teacher in teachers.TEACHERS.items()
        for number, line in enumerate(lines)
    }


@torch.inference_mode()
def copy_sentences(codec: Codec, sentences: Sentences, *, quantize: bool) -> Sentences:
    device, found = next(codec.parameters()).device, {}
    for name, pcm in sentences.items():
        audio = torch.from_numpy(pcm.astype(np.float32) / 32_768).to(device)[None]
        latent = codec.encoder(F.pad(audio, (0, -audio.shape[1] % FRAME_SAMPLES)))
        quantized = codec.quantizer(latent) if quantize else codec.quantizer.noisy(latent, 0.0)
        speech = codec.decoder.decode_latent(quantized.latent)[0, : len(pcm)].float().cpu().numpy()
        found[name] = np.round(speech * 32_767).astype(np.int16)
    return found


def score(stage: str, originals: Sentences, copies: Sentences) -> dict[str, object]:
    """Means by voice: PESQ, STOI, log-mel distance, 99 % roll-off, largest sample of the first 20 ms."""
    from training import acoustics  # needs pesq and pystoi, which training itself does not

    rows: dict[str, list[list[float]]] = {}
    for name, original in originals.items():
        pair = [one.astype(np.float32) / 32_768 for one in (original, copies[name])]
        likeness = acoustics.likeness(*(_at_16_khz(one) for one in pair))
        mels = [log_mel(torch.from_numpy(one)[None], max_hz=SAMPLE_RATE / 2) for one in pair]
        band = acoustics.band(pair[1], SAMPLE_RATE)
        distance = float((mels[0] - mels[1]).abs().mean())
        row = [likeness.pesq, likeness.stoi, distance, band.roll_off_hz, band.start_peak]
        rows.setdefault(name.rstrip("0123456789"), []).append(row)
    return {"scored": stage} | {voice: np.nanmean(row, 0).round(4).tolist() for voice, row in rows.items()}


def _at_16_khz(signal: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    resampler = Resampler(SAMPLE_RATE, 16_000)
    return np.concatenate([resampler.push(signal), resampler.flush()])


@dataclass
class Evaluator:
    """Copies held-out sentences into ``out``; another process scores them, so that the GPU does not wait."""

    codec: Codec
    sentences: Sentences
    out: Path
    scores: list[Future[dict[str, object]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))

    def __call__(self, stage: str, quantized: bool) -> None:
        # Sentences have many widths: trying out algorithms for each would take longer than the copies.
        with torch.backends.cudnn.flags(benchmark=False):
            copies = copy_sentences(self.codec, self.sentences, quantize=quantized)
        np.savez_compressed(self.out / f"{stage}.npz", **copies)
        self.scores.append(self._pool.submit(score, stage, self.sentences, copies))
        self.scores[-1].add_done_callback(lambda done: say("codec", **done.result()))

    def close(self) -> None:
        self._pool.shutdown()


def on_device(codec: Codec, device: str) -> Codec:
    """Rotary frequencies, too, which are no buffers: a CUDA graph cannot hold their copy to the GPU."""
    reset_ropes(codec, torch.device(device))
    return codec.to(device)


@dataclass(frozen=True)
class Start:
    """What a run goes on from."""

    folder: Path
    part: str = "all"

    def load(self, codec: Codec) -> None:
        """A new encoder needs none: ``folder`` may hold the decoder alone."""
        if self.part == "encoder":
            load(codec.decoder, self.folder / "decoder.safetensors")
        else:
            load_codec(codec, self.folder)


def train(settings: Settings, speech_folder: Path, out: Path, total_s: float, device: str, start: Start | None) -> None:
    """Train for ``total_s`` from the first speech on; weights and scored copies go to ``out``."""
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    cfg = settings.codec
    codec = on_device(Codec(settings.sizes), device)
    if start is not None:
        start.load(codec)
    evaluator = Evaluator(codec, speak_held_out(cfg.every_sentence), out)
    speech = wait_for_speech(speech_folder, cfg.max_audio_h, cfg.least_audio_h, device, settings.source_rate)
    trainer = GraphedTrainer(codec, speech, cfg, out, evaluator, device == "cuda", start.part if start else "all")
    trainer.run(total_s, resumed=start is not None)
    evaluator.close()
    say("codec", done=True)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Train the source-filter codec.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--books", type=int, help="number of codebooks")
    parser.add_argument("--resume", type=Path, help="folder with weights: goes on with codebooks")
    parser.add_argument("--train", choices=PARTS, default="all", help="with --resume: the part to train")
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args(arguments)
    if options.train != "all" and options.resume is None:
        parser.error(f"--train {options.train} needs --resume")
    options.out.mkdir(parents=True, exist_ok=True)
    settings = choose_settings(toy=options.toy, full_band=True)
    if options.books:
        settings = replace(settings, sizes=replace(settings.sizes, code_groups=options.books))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = Start(options.resume, options.train) if options.resume else None
    train(settings, options.speech, options.out, 60 * options.minutes, device, start)


if __name__ == "__main__":
    main(sys.argv[1:])
