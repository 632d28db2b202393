"""Ranges of what a caller may ask for. No torch."""

from __future__ import annotations

from engine.api import ClonedVoice, EngineInfo, SamplingParams, SpeechRequest
from engine.errors import InvalidRequest, RequestTooLong, UnknownLanguage, UnknownVoice

MAX_COUNT = 2**32 - 1
MAX_INSTRUCT_CHARS = 2_000
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_k": (0, 100_000),
    "top_p": (1e-6, 1.0),
    "repetition_penalty": (1.0, 2.0),
    "predictor_temperature": (0.0, 2.0),
    "predictor_top_k": (0, 100_000),
    "predictor_top_p": (1e-6, 1.0),
    "min_new_tokens": (0, 1000),
    "seed": (0, 2**64 - 1),
}


def check_sampling(sampling: SamplingParams) -> None:
    """Raises ``InvalidRequest`` naming field, limits and value."""
    for name, (low, high) in RANGES.items():
        value = getattr(sampling, name)
        if value is not None and not low <= value <= high:
            raise InvalidRequest(f"{name} is {value}; it must lie in {low:g}..{high:g}", name)


def check_request(request: SpeechRequest, info: EngineInfo, max_text_chars: int) -> None:
    """What can be refused without the model. Raises ``InvalidRequest`` or one of its kin."""
    check_sampling(request.sampling)
    names = {voice.name.lower() for voice in info.voices}
    if isinstance(request.voice, ClonedVoice):
        if not info.can_clone:
            raise InvalidRequest("voice is a cloned one; this checkpoint does not clone voices", "voice")
    elif request.voice is not None and request.voice.lower() not in names:
        raise UnknownVoice(f"voice is {request.voice!r}; known: {', '.join(sorted(names)) or 'none'}", "voice")
    if request.language.lower() not in info.languages:
        known = ", ".join(info.languages)
        raise UnknownLanguage(f"language is {request.language!r}; known: {known}", "language")
    if len(request.text) > max_text_chars:
        limit = f"text has {len(request.text)} characters; one request takes {max_text_chars}"
        raise RequestTooLong(limit, "text")
    if request.text_closed and not request.text.strip():
        raise InvalidRequest("text is empty; it must hold something to speak", "text")
    for name, low in (("max_frames", 1), ("lead_ms", 0), ("segment", 0)):
        value = getattr(request, name)
        if value is not None and value < low:
            raise InvalidRequest(f"{name} is {value}; it must be at least {low}", name)
        if value is not None and value > MAX_COUNT:
            raise InvalidRequest(f"{name} is {value}; it must be at most {MAX_COUNT}", name)
    if len(request.instruct) > MAX_INSTRUCT_CHARS:
        limit = f"instruct has {len(request.instruct)} characters; the limit is {MAX_INSTRUCT_CHARS}"
        raise RequestTooLong(limit, "instruct")
