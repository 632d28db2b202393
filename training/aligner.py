"""Trains the aligner of ``sessions/alignment`` on the teachers' speech, whose phonemes and their times are known.

Two small networks: the ear learns which phoneme sounds in each step, from speech at changed speeds, colours and noises;
the letters learn which phonemes a letter stands for and how long, by aligning texts to phonemes again and again.

    python -m training.synthesis speech --utterances 5000 --voices slt,rms,awb,kal16 --seed 909
    python -m training.aligner speech sessions/alignment/weights.safetensors
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from sessions.alignment.acoustic_model import CONTEXT_FRAMES, FRAMES_PER_STEP, NUM_BANDS, STEP_MS, BandEnergies
from sessions.alignment.aligner import EDGE
from sessions.alignment.letter_model import (
    CHARACTERS,
    CONTEXT_CHARS,
    MAX_STEPS,
    AlignmentUnits,
    context_window,
    is_coarticulated,
)
from sessions.alignment.viterbi import ViterbiPath as Way
from sessions.alignment.weights import AlignerWeights
from training.checkpoints import say
from training.flite import PHONEMES, SAMPLE_RATE_HZ
from training.schedule import warm_cosine
from training.shards import SpeechStore, Utterance, frame_phonemes

Floats = npt.NDArray[np.float32]
# Windows of letters to what they sound like.
Guess = Callable[[npt.NDArray[np.int64]], AlignmentUnits]

NUM_SOUNDS = len(PHONEMES)
PLACES = 2 * CONTEXT_CHARS + 1
STEP_HZ = 1000 / STEP_MS
# Where the letters begin from.
SPELLINGS = dict(
    a="ae ey aa ax ah ao eh", b="b", c="k s ch", d="d", e="eh iy ax ih er", f="f", g="g jh ng", h="hh sh th dh",
    i="ih ay iy ax", j="jh", k="k", l="l", m="m", n="n ng", o="ow aa ao ax uw aw oy ah", p="p f", q="k", r="r er",
    s="s z sh zh", t="t sh ch th dh", u="ah uw y uh w ax er", v="v", w="w", x="k s z", y="y iy ay ih", z="z",
)  # fmt: skip


@dataclass(frozen=True)
class AlignerSettings:
    ear_width: int = 96
    letter_width: int = 96
    # Of aligning and learning anew.
    rounds: int = 5
    ear_epochs: int = 12
    letter_epochs: int = 10
    # The letters learn from so many, which is enough and takes long.
    max_texts: int = 2000
    batch: int = 2048
    learning_rate: float = 2e-3
    min_speed: float = 0.8
    max_speed: float = 1.25
    max_warp: float = 0.12
    # Random tilt and bumps of the spectrum, in units of the ear's input (12 nepers).
    max_colour: float = 0.1
    min_snr_db: float = 12.0
    max_snr_db: float = 50.0
    seed: int = 5


@dataclass(frozen=True)
class Heard:
    """One utterance as the ear gets it."""

    # [steps, (2 * CONTEXT_FRAMES + FRAMES_PER_STEP) * NUM_BANDS].
    inputs: npt.NDArray[np.float16]
    # [steps]: the phoneme in the middle of each.
    sounds: npt.NDArray[np.uint8]
    text: str


def disguise(utterance: Utterance, settings: AlignerSettings, random: np.random.Generator) -> Heard:
    """The utterance as another speaker elsewhere would give it."""
    speed = random.uniform(settings.min_speed, settings.max_speed)
    pcm = utterance.speech.pcm.astype(np.float32) / 32768
    pcm = np.interp(np.arange(0, len(pcm), speed), np.arange(len(pcm)), pcm).astype(np.float32)
    pcm = pcm * 10 ** (random.uniform(-8, 6) / 20)
    snr_db = random.uniform(settings.min_snr_db, settings.max_snr_db)
    pcm = pcm + random.standard_normal(len(pcm), np.float32) * pcm.std() * 10 ** (-snr_db / 20)
    warp = 1 + random.uniform(-settings.max_warp, settings.max_warp)
    num_steps = -(-len(pcm) * STEP_HZ // SAMPLE_RATE_HZ)
    frames = _frames(pcm, int(num_steps) * FRAMES_PER_STEP, warp)
    frames = frames + _colour(settings.max_colour, random)
    labels = frame_phonemes(_labels(utterance), 0, int(num_steps), SAMPLE_RATE_HZ * speed / STEP_HZ)
    return Heard(_with_context(frames), labels, utterance.text)


def _labels(utterance: Utterance) -> npt.NDArray[np.void]:
    speech = utterance.speech
    return np.rec.fromarrays([speech.end_samples, speech.phonemes], names="end_sample,phoneme")


def _frames(pcm: Floats, num_frames: int, warp: float) -> Floats:
    energies = BandEnergies(SAMPLE_RATE_HZ, warp)
    blocks = [*energies.push(pcm), *energies.push(np.zeros(SAMPLE_RATE_HZ // 4, np.float32))]
    return np.concatenate(blocks)[:num_frames]


def _colour(most: float, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """A smooth curve over the bands."""
    return np.interp(np.linspace(0, 1, NUM_BANDS), np.linspace(0, 1, 5), random.uniform(-most, most, 5))


def _with_context(frames: Floats) -> npt.NDArray[np.float16]:
    padded = np.pad(frames, ((CONTEXT_FRAMES, CONTEXT_FRAMES), (0, 0)), constant_values=-0.5)
    views = np.lib.stride_tricks.sliding_window_view(padded, FRAMES_PER_STEP + 2 * CONTEXT_FRAMES, axis=0)
    views = views[::FRAMES_PER_STEP]
    return views.transpose(0, 2, 1).reshape(len(views), -1).astype(np.float16)


def train_ear(heard: list[Heard], settings: AlignerSettings) -> tuple[dict[str, Floats], float]:
    """Its tensors, and the share of held-back steps that it hears right."""
    inputs = torch.from_numpy(np.concatenate([one.inputs for one in heard]))
    sounds = torch.from_numpy(np.concatenate([one.sounds for one in heard]))
    num_kept = sum(len(one.sounds) for one in heard[len(heard) // 20 :])
    held_back = slice(0, len(sounds) - num_kept)
    width = settings.ear_width
    model = nn.Sequential(
        nn.Linear(inputs.shape[1], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, NUM_SOUNDS)
    )
    for batch in _batches(model, num_kept, settings.ear_epochs, settings):
        batch = batch + held_back.stop
        loss = F.cross_entropy(model(inputs[batch].float()), sounds[batch].long(), label_smoothing=0.05)
        loss.backward()
    with torch.inference_mode():
        right = (model(inputs[held_back].float()).argmax(1) == sounds[held_back]).float().mean().item()
    prior = np.bincount(sounds.numpy(), minlength=NUM_SOUNDS) / len(sounds)
    tensors = {
        f"ear.{number}.{name}": value for number in range(3) for name, value in _layer(model[2 * number]).items()
    }
    return {**tensors, "ear.log_prior": np.log(prior + 1e-4)}, right


def _layer(layer: nn.Module) -> dict[str, Floats]:
    return {"weight": layer.weight.detach().T.contiguous().numpy(), "bias": layer.bias.detach().numpy()}


def _batches(model: nn.Module, size: int, epochs: int, settings: AlignerSettings) -> Iterator[Tensor]:
    """Rows to learn from; after each the optimizer takes its step."""
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate, weight_decay=0.01)
    num_batches = epochs * max(1, size // settings.batch)
    for number in range(num_batches):
        optimizer.param_groups[0]["lr"] = settings.learning_rate * warm_cosine(number / num_batches, number, 100)
        optimizer.zero_grad()
        yield torch.randint(size, (settings.batch,))
        optimizer.step()


class LetterNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(0.3 * torch.randn(PLACES, len(CHARACTERS), width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.sounds = nn.Linear(width, NUM_SOUNDS)
        self.durations = nn.Linear(width, MAX_STEPS + 1)

    def forward(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        hidden = (self.embedding[torch.arange(PLACES), windows].sum(1) + self.bias).relu()
        return self.sounds(hidden), self.durations(hidden)

    def tensors(self) -> dict[str, Floats]:
        heads = {f"letters.{name}": getattr(self, name) for name in ("sounds", "durations")}
        layers = {f"{key}.{name}": value for key, head in heads.items() for name, value in _layer(head).items()}
        own = {f"letters.{name}": getattr(self, name).detach().numpy() for name in ("embedding", "bias")}
        return {**own, **layers}


@dataclass(frozen=True)
class Spoken:
    """A text with the true sound of each step."""

    # [characters + 2, PLACES]: with the pause before and after.
    windows: npt.NDArray[np.int64]
    sounds: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, heard: Heard) -> Spoken:
        runs = [EDGE, *split_runs(heard.text), EDGE]
        return cls(np.concatenate([context_window(run) for run in runs]), heard.sounds)


def split_runs(text: str) -> list[str]:
    """Words, and each other character alone: a run's sound does not depend on what is around it."""
    runs: list[str] = []
    for joined, characters in groupby(text, is_coarticulated):
        run = "".join(characters)
        runs += [run] if joined else run
    return runs


def first_guess(windows: npt.NDArray[np.int64]) -> AlignmentUnits:
    """Letters by ``SPELLINGS``, marks as pauses."""
    sounds = np.full((len(windows), NUM_SOUNDS), 0.3 / NUM_SOUNDS, np.float32)
    durations = np.full((len(windows), MAX_STEPS + 1), np.log(0.5 / MAX_STEPS), np.float32)
    for row, number in enumerate(windows[:, CONTEXT_CHARS]):
        likely = SPELLINGS.get(CHARACTERS[number], "pau").split()
        for rank, name in enumerate(likely):
            sounds[row, PHONEMES.index(name)] += 0.7 / (rank + 1)
        durations[row, 0] = np.log(0.25 if likely != ["pau"] else 0.7)
    return AlignmentUnits(sounds / sounds.sum(1, keepdims=True), durations)


def align(spoken: Spoken, units: AlignmentUnits, log_prior: Floats) -> npt.NDArray[np.int64]:
    """The step at which each unit ends; empty where no way leads through."""
    way = Way(NUM_SOUNDS)
    way.add(units)
    certain = np.full((NUM_SOUNDS, NUM_SOUNDS), np.log(0.05 / NUM_SOUNDS), np.float32)
    np.fill_diagonal(certain, np.log(0.95))
    for sound in spoken.sounds:
        way.push(certain[sound] - log_prior)
    traced = way.trace(way.num_units)
    return np.array([end for _, end in reversed(traced)] if len(traced) == way.num_units else [], np.int64)


def train_letters(spoken: list[Spoken], log_prior: Floats, settings: AlignerSettings) -> dict[str, Floats]:
    model = LetterNet(settings.letter_width)
    for turn in range(settings.rounds):
        guess = first_guess if turn == 0 else _guess_of(model)
        windows, histograms, durations, lost = _counts(spoken, guess, log_prior)
        for batch in _batches(model, len(windows), settings.letter_epochs, settings):
            sounds, lasting = model(windows[batch])
            loss = -(histograms[batch] * sounds.log_softmax(1)).sum(1).mean()
            (loss + F.cross_entropy(lasting, durations[batch], label_smoothing=0.1)).backward()
        say(
            "letters",
            round=turn,
            loss=round(loss.item(), 3),
            lost=lost,
            silent=round((durations == 0).float().mean().item(), 3),
        )
    return model.tensors()


def _guess_of(model: LetterNet) -> Guess:
    def guess(windows: npt.NDArray[np.int64]) -> AlignmentUnits:
        with torch.inference_mode():
            sounds, durations = model(torch.from_numpy(windows))
        return AlignmentUnits(sounds.softmax(1).numpy(), durations.log_softmax(1).clamp_min(-9).numpy())

    return guess


def _counts(spoken: list[Spoken], guess: Guess, log_prior: Floats) -> tuple[Tensor, Tensor, Tensor, int]:
    """Of each character: its window, steps of each sound, steps in all. And how many texts did not fit."""
    windows, histograms, durations, lost = [], [], [], 0
    for one in spoken:
        ends = align(one, guess(one.windows), log_prior)
        if not ends.size:
            lost += 1
            continue
        starts = np.append(0, ends[:-1])
        steps = np.repeat(np.arange(len(ends)), ends - starts)
        counts = np.zeros((len(ends), NUM_SOUNDS), np.float32)
        np.add.at(counts, (steps, one.sounds[: len(steps)]), 1)
        windows.append(one.windows)
        histograms.append(counts)
        durations.append(np.minimum(ends - starts, MAX_STEPS))
    return (
        torch.from_numpy(np.concatenate(windows)),
        torch.from_numpy(np.concatenate(histograms)),
        torch.from_numpy(np.concatenate(durations)),
        lost,
    )


def train(store: SpeechStore, voices: set[int], settings: AlignerSettings) -> dict[str, Floats]:
    random = np.random.default_rng(settings.seed)
    torch.manual_seed(settings.seed)
    chosen = [position for position in range(len(store)) if int(store.records[position]["voice"]) in voices]
    heard = [disguise(store[position], settings, random) for position in chosen]
    say("ear", utterances=len(heard), steps=sum(len(one.sounds) for one in heard))
    ear, right = train_ear(heard, settings)
    say("ear", right=round(right, 3))
    letters = train_letters([Spoken.of(one) for one in heard[: settings.max_texts]], ear["ear.log_prior"], settings)
    tensors = {**ear, **letters}
    AlignerWeights.from_tensors(tensors)
    return {name: value.astype(np.float16) for name, value in tensors.items()}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Train the aligner.")
    parser.add_argument("speech", type=Path, help="a folder that training.synthesis wrote")
    parser.add_argument("weights", type=Path)
    parser.add_argument("--voices", default="0,1,2,3", help="which of its voices to learn from")
    options = parser.parse_args(arguments)
    voices = {int(voice) for voice in options.voices.split(",")}
    save_file(train(SpeechStore(options.speech), voices, AlignerSettings()), options.weights)


if __name__ == "__main__":
    main(sys.argv[1:])
