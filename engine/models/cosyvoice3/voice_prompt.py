"""Voices made ready for both stages, and kept: what was said in the recording as ids, how it sounded as mel."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.api import ClonedVoice
from engine.models.cosyvoice3.special_tokens import END_OF_PROMPT

# A prompt of 15 more than whole blocks leaves the flow's first block ten tokens short, so that sound can leave after 13
# (spec 4.8).
FLOW_REST, BLOCK_TOKENS = 15, 25
# Two seconds of a recording are never cut into.
MIN_TRIMMED_TOKENS = 50


@dataclass(frozen=True, slots=True, eq=False)
class VoicePrompt:
    """Equal keys are equal voices. ``tokens`` [P], ``mel`` [2P, bins] and ``embedding`` [S] are for the flow, on the
    CPU; ``speech_ids`` is all of the recording, for the talker."""

    key: bytes
    tokens: Tensor
    mel: Tensor
    embedding: Tensor
    transcript_ids: tuple[int, ...] = ()
    speech_ids: tuple[int, ...] = ()

    @property
    def has_transcript(self) -> bool:
        return bool(self.transcript_ids and self.speech_ids)


def make_prompt(
    key: bytes, codes: list[int], mel: Tensor, embedding: Tensor, transcript_ids: list[int], trims: bool
) -> VoicePrompt:
    """``trims``: leave the beginning of the recording from the flow, so that its first block is short."""
    kept = trimmed_tokens(len(codes)) if trims else len(codes)
    ratio = len(mel) // len(codes) if codes else 0
    return VoicePrompt(
        key=key + bytes([trims]),
        tokens=torch.tensor(codes[len(codes) - kept :], dtype=torch.int64),
        mel=mel[len(mel) - ratio * kept :].float().contiguous(),
        embedding=embedding.float(),
        transcript_ids=tuple(transcript_ids),
        speech_ids=tuple(codes),
    )


def trimmed_tokens(num_tokens: int) -> int:
    kept = num_tokens - (num_tokens - FLOW_REST) % BLOCK_TOKENS
    return kept if kept >= MIN_TRIMMED_TOKENS else num_tokens


def transcript_text(transcript: str) -> str:
    """What is said in a recording; the official code wants an instruction and its end in front of it."""
    return transcript.split(END_OF_PROMPT)[-1].strip()


class CosyVoiceCache:
    """The most recently used voices. ``encode`` turns a transcript to ids."""

    def __init__(self, mel_bins: int, encode: Callable[[str], list[int]], max_voices: int, trims: bool) -> None:
        self._mel_bins, self._encode, self._max_voices, self._trims = mel_bins, encode, max_voices, trims
        self._voices: OrderedDict[bytes, VoicePrompt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._voices)

    def get(self, voice: ClonedVoice) -> VoicePrompt:
        key = voice_key(voice)
        prompt = self._voices.get(key) or self._prepare(key, voice)
        self._voices[key] = prompt
        self._voices.move_to_end(key)
        while len(self._voices) > self._max_voices:
            self._voices.popitem(last=False)
        return prompt

    def _prepare(self, key: bytes, voice: ClonedVoice) -> VoicePrompt:
        codes = np.frombuffer(voice.codes, np.int16)
        mel = np.frombuffer(voice.mel, np.float32).reshape(-1, self._mel_bins)
        transcript = transcript_text(voice.transcript) if len(codes) else ""
        return make_prompt(
            key,
            codes.tolist(),
            torch.from_numpy(mel.copy()),
            torch.from_numpy(np.frombuffer(voice.embedding, np.float32).copy()),
            self._encode(transcript) if transcript else [],
            self._trims,
        )


def voice_key(voice: ClonedVoice) -> bytes:
    """Names a voice by what it holds."""
    digest = hashlib.blake2b(digest_size=16)
    transcript = voice.transcript.encode("utf-8", "surrogatepass") if voice.codes else b""
    for part in (voice.embedding, voice.codes, voice.mel, transcript):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()
