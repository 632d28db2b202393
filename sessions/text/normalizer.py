"""Any text as English words that a voice trained on words alone can say.

The output holds letters (A to Z, both cases), single spaces, and the marks ``. , ? ! ; : ' -``; docs/text.md tells
what becomes of what. It works on blocks (sessions/text/blocks.py), so any cutting of the input gives the same output.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sessions.text.addresses import say_addresses
from sessions.text.blocks import Block, BlockLimits, BlockSplitter, LineBreak
from sessions.text.lexicon import (
    ABBREVIATIONS,
    CLOSING_ABBREVIATIONS,
    CURRENCY_CODES,
    CURRENCY_SIGNS,
    LATIN_LETTERS,
    MONTH_ABBREVIATIONS,
    MONTHS,
    NUMBERED_ABBREVIATIONS,
    SYMBOLS,
    WEEKDAYS,
)
from sessions.text.markup import LineKind, is_open, line_kind, strip_markup
from sessions.text.moments import say_moments
from sessions.text.quantities import say_numbers, say_quantities
from sessions.text.spans import EMPTY, SpannedText
from sessions.text.words import say_abbreviations, say_names

OUTPUT_MARKS = ".,?!;:"
"""Each stands behind a word and before a space or the end; beside them only letters, ``'`` and ``-`` come out."""


@dataclass(frozen=True, slots=True)
class NormalizerSettings:
    say_code_blocks: bool = False
    """Whether what stands between ``` lines is said."""
    blocks: BlockLimits = field(default_factory=BlockLimits)


def normalize(text: str, settings: NormalizerSettings | None = None) -> str:
    normalizer = IncrementalNormalizer(settings)
    return SpannedText.join([normalizer.push(text), normalizer.close()]).text


class IncrementalNormalizer:
    """One text in pieces. ``push`` and ``close`` return what is ready, with the raw characters it stands for."""

    def __init__(self, settings: NormalizerSettings | None = None) -> None:
        settings = settings or NormalizerSettings()
        self._blocks = BlockSplitter(wants_more, settings.blocks)
        self._reader = _LineReader(settings.say_code_blocks)
        self._joiner = _Joiner()

    @property
    def anything_speakable(self) -> bool:
        """Whether any word has come out so far."""
        return self._joiner.started

    def push(self, text: str) -> SpannedText:
        return self._say(self._blocks.push(text))

    def close(self) -> SpannedText:
        return self._say(self._blocks.close())

    def _say(self, parts: Iterable[Block | LineBreak]) -> SpannedText:
        return SpannedText.join([self._say_part(part) for part in parts])

    def _say_part(self, part: Block | LineBreak) -> SpannedText:
        if isinstance(part, LineBreak):
            if not self._reader.end_line():
                return EMPTY
            return SpannedText.of(self._joiner.stop(), part.raw_start, part.raw_start + 1)
        spoken = self._joiner.join(self._reader.read(part), glued=part.glued)
        return SpannedText.of(spoken, part.raw_start, part.raw_end)


class _LineReader:
    """Knows what kind of line it is in, and the word before."""

    def __init__(self, say_code_blocks: bool) -> None:
        self._say_code_blocks = say_code_blocks
        self._kind: LineKind | None = None
        self._in_fence = False
        self._previous_word = ""

    def read(self, block: Block) -> str:
        text = block.text
        if self._kind is None:
            self._kind, text = line_kind(text)
            if self._kind is LineKind.FENCE:
                self._in_fence = not self._in_fence
        if self._kind in (LineKind.FENCE, LineKind.RULE) or (self._in_fence and not self._say_code_blocks):
            return ""
        spoken = say(text, self._previous_word)
        self._previous_word = text.rpartition(" ")[2]
        return spoken

    def end_line(self) -> bool:
        """Whether the line, or with an empty line the paragraph, ends a sentence."""
        kind, self._kind = self._kind, None
        return kind is None or kind.ends_in_stop


class _Joiner:
    """Puts words and marks in a row: one space between words, one mark behind a word."""

    _TOKEN = re.compile(r"(?P<word>[A-Za-z]+(?:['-][A-Za-z]+)*)|(?P<marks>[.,;:!?](?:[\s\"')\]}]*[.,;:!?])*)")
    _BY_STRENGTH = "?!.:;,"

    def __init__(self) -> None:
        self.started = False
        self._after_mark = False

    def join(self, text: str, *, glued: bool) -> str:
        pieces = []
        for token in self._TOKEN.finditer(text):
            if token["word"]:
                pieces.append(token["word"] if glued or not self.started else f" {token['word']}")
                self.started, self._after_mark = True, False
            else:
                pieces.append(self._mark(token["marks"]))
            glued = False
        return "".join(pieces)

    def stop(self) -> str:
        return self._mark(".")

    def _mark(self, run: str) -> str:
        if not self.started or self._after_mark:
            return ""
        self._after_mark = True
        return next(mark for mark in self._BY_STRENGTH if mark in run)


_PLAIN = re.compile(r"(?:[A-Z]?[a-z]+|I)(?:'[a-z]+)?[,.;:!?]?")
_KNOWN = {
    **ABBREVIATIONS,
    **CLOSING_ABBREVIATIONS,
    **MONTH_ABBREVIATIONS,
    "ok": "",
    "Ok": "",
    "lol": "",
    "btw": "",
    "aka": "",
}
_QUOTES = str.maketrans(
    {
        "‘": "'",
        "’": "'",
        "‛": "'",
        "ʼ": "'",
        "“": '"',
        "”": '"',
        "„": '"',
        "«": '"',
        "»": '"',
        "‑": "-",
        "‐": "-",
        "\xad": "",
    }
)
_SYMBOL = re.compile("|".join(re.escape(sign) for sign in SYMBOLS if sign not in "@&+=<>%") + r"|[@&+=<>%]")
_LATIN = re.compile("|".join(LATIN_LETTERS))
_BRACKETS = re.compile(r"[()\[\]{}]")
_OPENING = re.compile(r"(?<!\S)[([{](?=\S)")
_CLOSING = re.compile(r"(?<=\S)[)\]}](?!\w)")
_DASHES = re.compile(r"--+|(?<!\S)-+(?!\S)")
_SLASH = re.compile(r"(?<!\w)/(?=\w)")
_INNER_MARK = re.compile(r"(?<=[A-Za-z])([.?!,;:])(?=[A-Za-z])")


def say(text: str, previous_word: str) -> str:
    """One block in words and marks; whatever else is left over has no sound."""
    if _PLAIN.fullmatch(text) and text not in _KNOWN and text.rstrip(",;:!?") not in _KNOWN:
        return text
    text = strip_markup(_plain_digits(text.translate(_QUOTES)))
    text = say_addresses(text)
    text = say_moments(text)
    text = say_quantities(text)
    text = say_abbreviations(text, previous_word)
    text = say_symbols(_fold(text))
    text = say_names(text, previous_word)
    return say_numbers(text)


def say_symbols(text: str) -> str:
    text = _SYMBOL.sub(lambda match: SYMBOLS[match[0]], text)
    text = _DASHES.sub(", ", text)
    text = _CLOSING.sub(" , ", _OPENING.sub(" , ", text))
    text = _SLASH.sub(" slash ", _BRACKETS.sub(" ", text))
    return _INNER_MARK.sub(r"\1 ", text)


def _plain_digits(text: str) -> str:
    """Digits of every script as 0 to 9."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(character, character)) for character in text)


def _fold(text: str) -> str:
    """Letters with marks, wide forms and the like as plain Latin letters, as far as there are any."""
    if text.isascii():
        return text
    text = _SYMBOL.sub(lambda match: SYMBOLS[match[0]], _LATIN.sub(lambda match: LATIN_LETTERS[match[0]], text))
    return "".join(
        character for character in unicodedata.normalize("NFKD", text) if not unicodedata.combining(character)
    )


_HAS_DIGIT = re.compile(r"[\d½⅓⅔¼¾]")
_ENDS_CLAUSE = re.compile(r"[.,;:!?](?:[)\]}\"'”’*_]*)$")
_OPERATOR = re.compile(r"[-–—+×x*/=<>~&%^]")
_MONTH_DAY = re.compile(rf"(?:{'|'.join(MONTHS)}|(?:{'|'.join(MONTH_ABBREVIATIONS)})\.?) \d{{1,2}}(?:st|nd|rd|th)?,")
_NEEDS_NEXT = frozenset(
    [*MONTHS, *MONTH_ABBREVIATIONS, *(f"{month}." for month in MONTH_ABBREVIATIONS)]
    + [*CLOSING_ABBREVIATIONS, *NUMBERED_ABBREVIATIONS, *CURRENCY_SIGNS, *CURRENCY_CODES]
    + [f"{day}{mark}" for day in WEEKDAYS for mark in (",", ".,", "")]
    + ["Dr.", "St.", "#", "a.m.", "p.m.", "A.M.", "P.M.", "am.", "pm.", "+", "-", "~", "sq"]
)
_INITIALS = re.compile(r"[\"'(*_]*(?:[A-HJ-Z]\.|(?:[A-Za-z]\.){2,})$")
_ELLIPSIS = re.compile(r"(?:\.\.|…)[)\]}\"'”’*_]*$")


def wants_more(words: Sequence[str]) -> bool:
    """Whether how the last of these words is said may depend on the next one."""
    last = words[-1]
    text = " ".join(words)
    if is_open(text) or last in _NEEDS_NEXT or _INITIALS.match(last) or _ELLIPSIS.search(last):
        return True
    if _HAS_DIGIT.search(last):
        return not _ENDS_CLAUSE.search(last) or bool(_MONTH_DAY.fullmatch(" ".join(words[-2:])))
    return bool(_HAS_DIGIT.search(text)) and bool(_OPERATOR.fullmatch(last))
