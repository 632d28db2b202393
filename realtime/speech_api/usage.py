"""What a reply cost, in the words of OpenAI and vLLM-Omni."""

from __future__ import annotations

from typing import Any

from sessions.events import ResponseFinished


def usage(done: ResponseFinished, num_reference_frames: int) -> dict[str, Any]:
    input_tokens = done.num_text_tokens + num_reference_frames
    return {
        "input_tokens": input_tokens,
        "output_tokens": done.num_frames,
        "total_tokens": input_tokens + done.num_frames,
        "input_token_details": {"text_tokens": done.num_text_tokens, "audio_tokens": num_reference_frames},
    }


def usage_headers(done: ResponseFinished, num_reference_frames: int) -> dict[str, str]:
    told = usage(done, num_reference_frames)
    headers = {f"X-Voicewire-{name.replace('_', '-').title()}": str(told[name]) for name in COUNTS}
    return headers | {"X-Voicewire-Audio-Ms": str(round(done.audio_ms))}


COUNTS = ("input_tokens", "output_tokens", "total_tokens")
