"""Measure whether words spelled from phonemes are spoken as these phonemes, by a recognizer of phonemes.

Words of the training lexicon, with flite's pronunciation in IPA, pass the respelling and are spoken by the embedded
voice, each in the same sentence. The recognizer picks the likeliest of ten pronunciations: that of the word, and of the
nine other words whose number of phonemes is nearest. Beside it stands how often flite's rules read the respelling as
asked; with --written, also the same words as they are written.

    python -m benchmarks.phonemes [--words 200] [--voice clara] [--written] [--limit 0.9]

Exits with 1 below the limit. The last line is JSON. Needs Debian's libflite1 and torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

from benchmarks.speech_sources import TEACHERS, EngineSource, Setting, Task
from sessions.audio.resampler import Resampler
from sessions.text.phonemes.alphabets import read_phonemes
from sessions.text.phonemes.respelling import respell
from training.flite import PHONEME_IDS, PHONEMES, SAMPLE_RATE_HZ, SPEECH_LEVEL, spoken_words
from training.lexicon import Lexicon
from training.phoneme_recognizer import FRAME_LABELS, Listener, features
from training.speech import LABEL_SAMPLES

SEED = 7
NUM_CANDIDATES = 10
MIN_CHARS, MAX_CHARS = 4, 11
BEFORE, AFTER = "please say the word ", " once more."
# Frames of 20 ms that a phoneme lasts at least.
MIN_FRAMES = 2
SYMBOLS = (
    "aa=ɑː ae=æ ah=ʌ ao=ɔː aw=aʊ ax=ə ay=aɪ b=b ch=tʃ d=d dh=ð eh=ɛ er=ɝ ey=eɪ f=f g=ɡ hh=h ih=ɪ iy=iː jh=dʒ k=k l=l "
    "m=m n=n ng=ŋ ow=oʊ oy=ɔɪ p=p r=ɹ s=s sh=ʃ t=t th=θ uh=ʊ uw=uː v=v w=w y=j z=z zh=ʒ"
)
IPA = dict(symbol.split("=") for symbol in SYMBOLS.split())
SILENCE = PHONEME_IDS["pau"]
# flite tells them apart where English does not.
SAME = {PHONEME_IDS["ax"]: PHONEME_IDS["ah"]}

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SpokenWord:
    word: str
    phones: list[int]

    @property
    def ipa(self) -> str:
        return "".join(IPA[PHONEMES[phone]] for phone in self.phones)


def pronounce(text: str) -> list[int]:
    return [phone for word in spoken_words(text) for phone in word.phonemes]


def merged(phones: Sequence[int]) -> list[int]:
    return [SAME.get(phone, phone) for phone in phones]


def choose_words(number: int) -> list[SpokenWord]:
    words = [word for word in Lexicon().words if word.isascii() and word.isalpha() and word.islower()]
    words = [word for word in words if MIN_CHARS <= len(word) <= MAX_CHARS]
    return [SpokenWord(word, pronounce(word)) for word in Random(SEED).sample(words, number)]


def spell(word: SpokenWord) -> str:
    phonemes = read_phonemes(word.ipa, "ipa")
    assert phonemes is not None, word
    return respell(phonemes)


class LikelihoodJudge:
    """Scores a known pronunciation, as the frames of the recognizer allow it."""

    def __init__(self, weights: Path) -> None:
        self._listener = Listener().eval()
        self._listener.load_state_dict({name: value.float() for name, value in load_file(weights).items()})

    @torch.inference_mode()
    def scores(self, signal: Floats) -> Floats:
        """16 kHz speech -> log-probabilities [frames, phonemes]."""
        step = LABEL_SAMPLES * FRAME_LABELS
        audio = torch.from_numpy(signal)[None, : len(signal) // step * step]
        audio = audio * (SPEECH_LEVEL / audio.square().mean().sqrt().clamp_min(1e-4))
        found: Floats = self._listener(features(audio, torch.ones(1))).log_softmax(1)[0].T.numpy()
        for phone, same in SAME.items():
            found[:, same] = np.logaddexp(found[:, phone], found[:, same])
        return found


def likelihood(scores: Floats, phones: Sequence[int]) -> float:
    """Of the best path through the phonemes, each of ``MIN_FRAMES`` or more, with silence before and behind them."""
    states = [SILENCE, *np.repeat(merged(phones), MIN_FRAMES), SILENCE]
    # The last state of a phoneme may go on.
    stays = np.zeros(len(states))
    stays[1:-1] = np.where(np.arange(1, len(states) - 1) % MIN_FRAMES == 0, 0, -np.inf)
    total = np.full(len(states), -np.inf)
    total[0] = scores[0, SILENCE]
    for frame in scores[1:]:
        moved = total + stays
        moved[1:] = np.maximum(moved[1:], total[:-1])
        total = moved + frame[states]
    return float(total[-1])


def picks_right(word: SpokenWord, words: Sequence[SpokenWord], scores: Floats) -> bool:
    others = sorted(
        (other for other in words if merged(other.phones) != merged(word.phones)),
        key=lambda other: abs(len(other.phones) - len(word.phones)),
    )
    before, after = pronounce(BEFORE), pronounce(AFTER)
    own, *wrong = (likelihood(scores, [*before, *one.phones, *after]) for one in [word, *others[: NUM_CANDIDATES - 1]])
    return own > max(wrong)


def find_wrong(words: Sequence[SpokenWord], texts: Sequence[str], voice: str, judge: LikelihoodJudge) -> dict[str, str]:
    """Return the words that were not picked, with their spelling."""
    engine = EngineSource(None)
    tasks = [Task(number, f"{BEFORE}{text}{AFTER}".capitalize()) for number, text in enumerate(texts)]
    wrong: dict[str, str] = {}
    for word, text, pcm in zip(words, texts, engine(tasks, Setting(voice, "full", 12)), strict=True):
        resampler = Resampler(engine.rate_hz, SAMPLE_RATE_HZ)
        signal = np.concatenate([resampler.push(np.asarray(pcm, np.float32)), resampler.flush()])
        if not picks_right(word, words, judge.scores(signal)):
            wrong[word.word] = text
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--voice", choices=sorted(TEACHERS), default="clara")
    parser.add_argument("--written", action="store_true")
    parser.add_argument("--limit", type=float, default=0.9)
    parser.add_argument("--listener", type=Path, default=Path("training/state/listener.safetensors"))
    arguments = parser.parse_args()
    words, judge = choose_words(arguments.words), LikelihoodJudge(arguments.listener)
    spelled = [spell(word) for word in words]
    as_asked = [merged(pronounce(text)) == merged(word.phones) for word, text in zip(words, spelled, strict=True)]
    wrong = find_wrong(words, spelled, arguments.voice, judge)
    right = 1 - len(wrong) / len(words)
    result = {
        "words": len(words),
        "voice": arguments.voice,
        "read_by_flite_as_asked": sum(as_asked) / len(words),
        "respelled": right,
        "wrong": wrong,
    }
    if arguments.written:
        written = find_wrong(words, [word.word for word in words], arguments.voice, judge)
        result["written"] = 1 - len(written) / len(words)
    print(json.dumps(result))
    return int(right < arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
