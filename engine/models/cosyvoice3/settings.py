"""What can be set of each stage of CosyVoice3, by name, with unit and range. No torch."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.errors import InvalidRequest


class TalkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    weights: Literal["llm.pt", "llm.rl.pt"] | None = None
    """Which of the talker's files to load; ``None`` takes the first of them that is there."""
    stop_mode: Literal["merge", "set"] = "merge"
    """``merge``: the control ids stand together as one candidate of their summed likelihood, and only it stops.
    ``set``: each is a candidate of its own, and any of them stops, as in the official code."""
    min_tokens_per_text_token: float = 2.0
    max_tokens_per_text_token: float = 20.0
    max_tokens: int = 2_048
    """Speech tokens of one request, whatever its text."""
    max_text_tokens: int = 200
    """In one segment; the model was trained on no more."""
    max_silent_tokens: int | None = 5
    """Of more silent tokens in a row the rest is not spoken; ``None`` speaks all."""
    any_instruct: bool = False
    """Take instructions that the model was not trained on."""
    text_controls: bool = True
    """Read ``[breath]``, ``<strong>``, phonemes and pinyin in the text as what they name."""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_text_tokens"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"cosyvoice3.talker.{name} is {getattr(self, name)}; at least 1", name)
        if not 0 <= self.min_tokens_per_text_token <= self.max_tokens_per_text_token:
            raise InvalidRequest(
                f"cosyvoice3.talker.min_tokens_per_text_token is {self.min_tokens_per_text_token}; it must lie in "
                f"0..max_tokens_per_text_token, {self.max_tokens_per_text_token}",
                "min_tokens_per_text_token",
            )
        if self.max_silent_tokens is not None and self.max_silent_tokens < 0:
            raise InvalidRequest(
                f"cosyvoice3.talker.max_silent_tokens is {self.max_silent_tokens}; at least 0", "max_silent_tokens"
            )


class FlowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of tokens to mel."""


class VocoderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of mel to samples."""


class CosyVoice3Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One group a stage: what is set for one does not reach another."""

    talker: TalkerSettings = TalkerSettings()
    flow: FlowSettings = FlowSettings()
    vocoder: VocoderSettings = VocoderSettings()
