"""Names of languages: ISO 639-1 codes, and the words of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

# Names by ISO 639-1 code.
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


def is_english(language: str) -> bool:
    """Return whether a language is English, or ``auto``."""
    return CODES.get(language.lower(), language.lower().partition("-")[0]) in ("en", "auto")
