"""The whole making of the voice on one machine and one clock.

Synthesis runs in the background from the first second. The codec comes next, then the talker until the time is over.
With ``--resume`` both go on from the weights in that folder.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from engine.models.qwen3_tts.config import Qwen3TTSConfig
from engine.models.qwen3_tts.prompt import PromptBuilder
from engine.models.qwen3_tts.talker import Talker
from training.checkpoints import load, say
from training.codec import CODES_FIXED, Codec, CodecTrainer, copy_codec, load_codec
from training.encode import EncodedSpeech
from training.export import export
from training.graphed_codec import Start
from training.graphed_codec import train as train_source_filter
from training.held_out import read_sentences
from training.layout import TextIds, codec_config, talker_config
from training.prompt_batches import Prefixes
from training.reference_inference import Speaker, SpokenLine
from training.settings import Sampling, Settings, choose_settings
from training.speech import Speech, wait_for_speech
from training.synthesis import SynthesisPool, SynthesisSettings
from training.talker import Batches, TalkerInTraining, TalkerTrainer
from training.text import TextSettings
from training.tokenizer import load_tokenizer, read_ids

NUM_HELD_OUT = 256
ENDLESS = 10**9
TEMPERATURES = (0.0, 0.3, 0.6, 0.9)


@dataclass(frozen=True)
class Run:
    settings: Settings
    # Where synthesis writes: best in memory.
    speech: Path
    out: Path
    tokenizer: Path
    prose: Path | None
    resume: Path | None
    device: str
    # On the wall clock.
    deadline_s: float
    # A folder with a finished codec: only the talker is trained.
    codec: Path | None = None

    @property
    def left_s(self) -> float:
        return self.deadline_s - time.time()


def voice_config(settings: Settings, ids: TextIds) -> Qwen3TTSConfig:
    talker = talker_config(settings, ids.vocab_size)
    return Qwen3TTSConfig("custom_voice", "embedded", talker, codec_config(settings.sizes), ids.special)


def prepare(run: Run) -> None:
    torch.manual_seed(run.settings.seed)
    torch.set_float32_matmul_precision("high")


def train_codec(run: Run) -> None:
    prepare(run)
    torch.backends.cudnn.benchmark = True
    cfg = run.settings.codec
    if run.settings.sizes.pulse_cepstra:
        start = Start(run.resume) if run.resume else None
        train_source_filter(run.settings, run.speech, run.out, cfg.graphed_s, run.device, start)
        (run.out / CODES_FIXED).touch()
        return
    speech = wait_for_speech(run.speech, cfg.max_audio_h, cfg.least_audio_h, run.device, run.settings.source_rate)
    say("codec", hours=round(speech.hours, 2))
    CodecTrainer(Codec(run.settings.sizes).to(run.device), speech, cfg, run.out).run(run.resume)
    say("codec", done=True)


def train_talker(run: Run) -> None:
    prepare(run)
    cfg, ids = run.settings.talker, TextIds(**read_ids(run.tokenizer, run.settings.sizes.text_vocab))
    plain, varied = load_tokenizer(run.tokenizer), load_tokenizer(run.tokenizer, cfg.merge_dropout)
    speech = wait_for_speech(run.speech, cfg.max_audio_h, cfg.least_audio_h, run.device, run.settings.source_rate)
    codec = Codec(run.settings.sizes)
    load_codec(codec, run.out)
    encoded = EncodedSpeech(speech, codec.to(run.device), cfg.max_offset_ms // 10)
    held_out = set_aside(encoded, speech, plain)
    config = voice_config(run.settings, ids)
    prompts = PromptBuilder(config, (ids.im_start, ids.assistant, ids.newline))
    prefixes = Prefixes.of(prompts, run.settings.speakers, run.device)
    model = TalkerInTraining(Talker(config.talker), cfg).to(run.device)
    if run.resume is not None:
        load(model.talker, run.resume / "talker.safetensors")
        cfg = replace(cfg, learning_rate=cfg.resumed_learning_rate, warmup_steps=cfg.resumed_warmup_steps)

    taken = len(held_out)

    def refresh() -> None:
        nonlocal taken
        speech.grow()
        for turn in range(cfg.encodings if len(speech.texts) > taken else 0):
            encoded.add(taken, len(speech.texts), varied if turn else plain)
        taken = len(speech.texts)

    refresh()
    say("talker", hours=round(speech.hours, 1), frames=len(encoded.codes), left_s=round(run.left_s))
    cfg = replace(cfg, train_s=max(0.0, run.left_s - cfg.closing_s))
    batches = Batches(encoded, config, prefixes, cfg)
    TalkerTrainer(model, encoded, batches, cfg, run.out, refresh, held_out.to(run.device)).run()
    load(model.talker, run.out / "talker.safetensors")
    model.eval()
    listen(run, Speaker(model.talker, config, prompts, Sampling()), plain)
    say("talker", done=True)


def set_aside(encoded: EncodedSpeech, speech: Speech, tokenizer: Tokenizer) -> torch.Tensor:
    """The first utterances, encoded once, out of the training items."""
    encoded.add(0, min(NUM_HELD_OUT, len(speech.texts) // 4), tokenizer)
    held_out, encoded.items = encoded.items, encoded.items[:0]
    return held_out


def listen(run: Run, speaker: Speaker, tokenizer: Tokenizer) -> None:
    """Speaks the benchmark's sentences at several temperatures, in both layouts, into codes.safetensors."""
    names, found = run.settings.speakers, dict[str, torch.Tensor]()
    sentences = [tokenizer.encode(text, add_special_tokens=False).ids for text in read_sentences()]
    sentences = sentences[: run.settings.talker.listen_sentences]
    for layout in ("streaming", "full"):
        lines = [SpokenLine(ids, names[i % len(names)], layout == "full") for i, ids in enumerate(sentences)]
        for temperature in TEMPERATURES:
            if run.left_s < 0:
                break
            sampling = Sampling(temperature, predictor_temperature=temperature)
            codes = speaker.with_sampling(sampling).speak(lines, run.settings.talker.listen_frames)
            ended = sum(len(c) < run.settings.talker.listen_frames for c in codes)
            say("talker", layout=layout, temperature=temperature, ended=ended, of=len(codes))
            key = f"{layout}_{temperature}"
            found |= {key: torch.cat(codes).to(torch.int16), f"{key}_lengths": torch.tensor([len(c) for c in codes])}
    save_file(found, run.out / "codes.safetensors")


def run_all(run: Run) -> None:
    """Raises RuntimeError when a stage failed. A checkpoint folder in the released layout is at ``out/voice``."""
    run.out.mkdir(parents=True, exist_ok=True)
    (run.out / CODES_FIXED).unlink(missing_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    context = multiprocessing.get_context("spawn")
    codec, talker = (context.Process(target=stage, args=(run,)) for stage in (train_codec, train_talker))
    with SynthesisPool(_synthesis(run)):
        if run.codec is None:
            codec.start()
            while codec.is_alive() and not (run.out / CODES_FIXED).exists():
                time.sleep(0.5)
        else:
            copy_codec(run.codec, run.out)
        talker.start()
        for stage in (codec, talker):
            if stage.pid is not None:
                stage.join()
    if codec.exitcode or talker.exitcode:
        raise RuntimeError(f"codec ended with {codec.exitcode}, talker with {talker.exitcode}")
    export(run.out, run.tokenizer, run.out / "voice", run.settings)


def _synthesis(run: Run) -> SynthesisSettings:
    settings = run.settings
    text = TextSettings(settings.seed, run.prose)
    return SynthesisSettings(
        run.speech, settings.synthesis_workers, ENDLESS, settings.teachers, text=text, rate_hz=settings.source_rate
    )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Make the embedded voice: synthesize, train, export.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--speech", type=Path, default=Path("/dev/shm/speech"))
    parser.add_argument("--tokenizer", type=Path, default=Path("engine/voices/embedded"))
    parser.add_argument("--prose", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--codec", type=Path, help="folder with a finished codec: trains the talker alone")
    parser.add_argument("--minutes", type=float, default=27.0)
    parser.add_argument("--workers", type=int, help="of synthesis; 0: other processes fill --speech")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--full-band", action="store_true")
    parser.add_argument("--toy", action="store_true", help="tiny sizes: to see that everything runs")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = choose_settings(toy=options.toy, full_band=options.full_band)
    if options.workers is not None:
        settings = replace(settings, synthesis_workers=options.workers)
    paths = options.speech, options.out, options.tokenizer, options.prose, options.resume
    deadline_s = time.time() + 60 * options.minutes
    run_all(Run(replace(settings, seed=options.seed), *paths, device, deadline_s, options.codec))


if __name__ == "__main__":
    main(sys.argv[1:])
