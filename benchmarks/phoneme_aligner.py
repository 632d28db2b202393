"""Align the phonemes of a known text with speech, by the second recognizer (training/phoneme_recognizer.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

from training.asr_judge import to_16k
from training.flite import PHONEME_IDS, SPEECH_LEVEL, Word
from training.phoneme_recognizer import FRAME_LABELS, Listener, features
from training.speech import LABEL_HZ, LABEL_SAMPLES

SILENCE = PHONEME_IDS["pau"]
FRAME_S = FRAME_LABELS / LABEL_HZ
IMPOSSIBLE = -1e30

Floats = npt.NDArray[np.float32]


class PhonemeAligner:
    def __init__(self, weights: Path) -> None:
        self._listener = Listener().eval()
        self._listener.load_state_dict({name: value.float() for name, value in load_file(weights).items()})

    def __call__(self, words: Sequence[Word], pcm: Floats, rate_hz: int) -> list[tuple[float, float]]:
        """Start and end in seconds of each phoneme of the words."""
        states, is_sound = _states(words)
        starts = _entries(self._scores(pcm, rate_hz)[:, states], is_sound)
        ends = np.append(starts[1:], starts[-1] + 1)
        times = [(start * FRAME_S, end * FRAME_S) for start, end in zip(starts, ends, strict=True)]
        return [time for time, sounds in zip(times, is_sound, strict=True) if sounds]

    @torch.inference_mode()
    def _scores(self, pcm: Floats, rate_hz: int) -> Floats:
        """Log-probabilities [frames, phonemes]."""
        signal = to_16k(pcm, rate_hz)
        step = LABEL_SAMPLES * FRAME_LABELS
        audio = torch.from_numpy(signal)[None, : len(signal) // step * step]
        audio = audio * (SPEECH_LEVEL / audio.square().mean().sqrt().clamp_min(1e-4))
        scores: Floats = self._listener(features(audio, torch.ones(1))).log_softmax(1)[0].T.numpy()
        return scores


def _states(words: Sequence[Word]) -> tuple[list[int], list[bool]]:
    """Phonemes in order, with silence before, between and after words, and a mask of the phonemes."""
    states = [SILENCE]
    for word in words:
        states += [*word.phonemes, SILENCE]
    return states, [state != SILENCE for state in states]


def _entries(scores: Floats, is_sound: Sequence[bool]) -> npt.NDArray[np.int64]:
    """First frame of each state on the most likely path; silences may be skipped."""
    num_frames, num_states = scores.shape
    may_pass = np.array([False, False, *(not sounds for sounds in is_sound[1:-1])])
    total = np.full(num_states, IMPOSSIBLE)
    total[0], total[1] = scores[0, 0], scores[0, 1]
    steps = np.zeros((num_frames, num_states), np.int64)
    for frame in range(1, num_frames):
        ways = np.full((3, num_states), IMPOSSIBLE)
        ways[0] = total
        ways[1, 1:] = total[:-1]
        ways[2, 2:] = np.where(may_pass[2:], total[:-2], IMPOSSIBLE)
        steps[frame] = ways.argmax(0)
        total = ways.max(0) + scores[frame]
    state = num_states - 1 if total[-1] >= total[-2] else num_states - 2
    entries = np.full(num_states, num_frames, np.int64)
    for frame in range(num_frames - 1, -1, -1):
        entries[state] = frame
        state -= int(steps[frame, state])
    for place in range(num_states - 2, -1, -1):
        entries[place] = min(entries[place], entries[place + 1])
    return entries
