"""``spk2info.pt`` as the released code writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def saved_voice(num_tokens: int = 40, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 6561, (1, num_tokens), generator=generator, dtype=torch.int32)
    mel = torch.randn(1, 2 * num_tokens, 80, generator=generator)
    embedding = torch.randn(1, 192, generator=generator)
    text = torch.tensor([[2610, 525, 151646, 104, 101, 108]])
    return {
        "prompt_text": text,
        "prompt_text_len": torch.tensor([text.shape[1]]),
        "llm_prompt_speech_token": tokens,
        "llm_prompt_speech_token_len": torch.tensor([num_tokens]),
        "flow_prompt_speech_token": tokens,
        "flow_prompt_speech_token_len": torch.tensor([num_tokens]),
        "prompt_speech_feat": mel,
        "prompt_speech_feat_len": torch.tensor([2 * num_tokens]),
        "llm_embedding": embedding,
        "flow_embedding": embedding,
    }


def write_saved_voices(folder: Path, *names: str) -> None:
    torch.save({name: saved_voice(seed=place) for place, name in enumerate(names)}, folder / "spk2info.pt")
