"""What the checkpoint supports of languages and instructions, as clients name them."""

from __future__ import annotations

from collections.abc import Iterable

from engine.api import EngineInfo

# By ISO 639-1.
NAMES = {
    "zh": "chinese",
    "en": "english",
    "ja": "japanese",
    "ko": "korean",
    "de": "german",
    "fr": "french",
    "ru": "russian",
    "pt": "portuguese",
    "es": "spanish",
    "it": "italian",
}
CODES = {name: code for code, name in NAMES.items()}


def known_language(given: str, languages: Iterable[str]) -> str | None:
    """The checkpoint's word for it: ``English``, ``en`` and ``en-US`` are one. ``None`` if it has none."""
    known = {language.lower(): language for language in ("auto", *languages)}
    wanted = given.strip().lower()
    code = wanted.partition("-")[0]
    for word in (wanted, code, NAMES.get(code), CODES.get(wanted)):
        if word is not None and word in known:
            return known[word]
    return None


LEFT_OUT = "this model takes no instructions, they are left out"


def supported_instructions(given: str, info: EngineInfo) -> tuple[str, str]:
    """Return what the model follows of the instructions, and a warning if that is nothing of what was given."""
    if given and not info.takes_instruct:
        return "", LEFT_OUT
    return given, ""
