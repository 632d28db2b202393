"""Words and phrases that are spoken in another form.

An entry matches whole words, the longest one first, and is not matched again in what it gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from engine.api import InvalidRequest
from sessions.languages import CODES, is_english
from sessions.text.phonemes.alphabets import read_phonemes
from sessions.text.phonemes.respelling import SpelledPhonemes

MAX_ENTRIES = 10_000
MAX_WRITTEN_CHARS = 100
MAX_ALIAS_CHARS = 200
# A phrase ends in longer white space.
MAX_SPACES = 8

# A word, a letter of a script without spaces, white space, or a sign. Marks belong to their letter.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff"
_MARKS = "\u0300-\u036f"
_WORD_CHAR = rf"(?![{_UNSPACED}])[\w{_MARKS}]"
TOKEN = re.compile(rf"(?:{_WORD_CHAR})+|\s+|.", re.DOTALL)
_GROWS = re.compile(_WORD_CHAR)
_DOTTED_LANGUAGES = frozenset(["tr", "az"])
_DOTLESS = str.maketrans({"I": "ı", "İ": "i"})


class LexiconEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    # As written in a text.
    text: str
    # As spoken, in letters. Exactly one of this and ``phoneme`` is given.
    alias: str = ""
    # As spoken, in symbols of ``alphabet``.
    phoneme: str = ""
    alphabet: str = "ipa"
    # Whether capitals and small letters are told apart.
    match_case: bool = False


@dataclass(frozen=True, slots=True)
class LexiconMatch:
    """The tokens from the first up to ``end`` are spoken as ``spoken``."""

    end: int
    spoken: str | SpelledPhonemes

    def text_for(self, reads_phonemes: bool) -> str:
        return self.spoken if isinstance(self.spoken, str) else self.spoken.text_for(reads_phonemes)


class Lexicon(msgspec.Struct, frozen=True, kw_only=True):
    """Entries as they are looked up. Made by ``from_entries``; encoded, it is read in 3 ms for 10,000 entries."""

    # Code of the language of the text where the entries apply; empty: any.
    language: str = ""
    num_entries: int = 0
    # Spoken by written form, with one space between words; without case where the entry says so.
    exact: dict[str, str | SpelledPhonemes] = {}
    folded: dict[str, str | SpelledPhonemes] = {}
    # What a longer entry begins with.
    prefixes: set[str] = set()
    folded_prefixes: set[str] = set()

    @classmethod
    def from_entries(cls, entries: Iterable[LexiconEntry], language: str = "") -> Lexicon:
        """The first entry of a text counts. Phonemes that cannot be read are left out.

        Raises ``InvalidRequest``, which names entry, limit and value."""
        entries = list(entries)
        if len(entries) > MAX_ENTRIES:
            found = f"the lexicon has {len(entries)} entries"
            raise InvalidRequest(f"{found}, at most {MAX_ENTRIES} are allowed", "entries")
        code = code_of(language)
        forms = [(entry, _spoken_form(entry, number, code)) for number, entry in enumerate(entries, 1)]
        lexicon = cls(
            language=code,
            num_entries=sum(spoken is not None for _, spoken in forms),
            exact={},
            folded={},
            prefixes=set(),
            folded_prefixes=set(),
        )
        for entry, spoken in forms:
            if spoken is not None:
                lexicon._add(entry, spoken)
        return lexicon

    def fold(self, text: str) -> str:
        """Without case, by the rules of the language."""
        return (text.translate(_DOTLESS) if self.language in _DOTTED_LANGUAGES else text).casefold()

    def applies_to(self, language: str) -> bool:
        """Return whether text of this language is looked up; ``auto`` is any."""
        return not self.language or language == "auto" or code_of(language) == self.language

    def find(self, tokens: list[str], start: int, is_complete: bool) -> LexiconMatch | Literal[False] | None:
        """Return the longest entry that begins at a token, or ``None``. ``False``: what follows the last token decides.

        If not ``is_complete``, the last token may go on, and more may follow."""
        exact = folded = ""
        found: LexiconMatch | None = None
        for index in range(start, len(tokens)):
            token = tokens[index]
            if len(token) > (MAX_SPACES if token.isspace() else MAX_WRITTEN_CHARS):
                return found
            token = " " if token.isspace() else token
            if not is_complete and index == len(tokens) - 1 and _GROWS.match(token):
                return False
            exact += token
            folded += self.fold(token)
            spoken = self.exact.get(exact) or self.folded.get(folded)
            if spoken is not None:
                found = LexiconMatch(index + 1, spoken)
            if exact not in self.prefixes and folded not in self.folded_prefixes:
                return found
        return found if is_complete else False

    def _add(self, entry: LexiconEntry, spoken: str | SpelledPhonemes) -> None:
        written = " ".join(entry.text.split())
        forms, prefixes = (self.exact, self.prefixes) if entry.match_case else (self.folded, self.folded_prefixes)
        tokens = TOKEN.findall(written) if entry.match_case else [self.fold(token) for token in TOKEN.findall(written)]
        forms.setdefault("".join(tokens), spoken)
        for end in range(1, len(tokens)):
            prefixes.add("".join(tokens[:end]))


def _spoken_form(entry: LexiconEntry, number: int, language: str) -> str | SpelledPhonemes | None:
    """Return the alias or the phonemes; ``None`` for phonemes that cannot be read. Raises ``InvalidRequest``."""
    kind = "alias" if entry.alias or not entry.phoneme else "phoneme"
    if entry.alias and entry.phoneme:
        raise InvalidRequest(f"entry {number} has both alias and phoneme", "entries.phoneme")
    for field, limit in (("text", MAX_WRITTEN_CHARS), (kind, MAX_ALIAS_CHARS)):
        value: str = getattr(entry, field)
        if not (value.strip() and len(value) <= limit):
            found = f"{field} of entry {number} has {len(value.strip()) and len(value)} characters"
            raise InvalidRequest(f"{found}, 1 to {limit} are allowed", f"entries.{field}")
    if kind == "alias":
        return entry.alias
    phonemes = read_phonemes(entry.phoneme, entry.alphabet) if is_english(language or "auto") else None
    return None if phonemes is None else SpelledPhonemes.from_phonemes(phonemes)


def code_of(language: str) -> str:
    """``en`` for ``en-US``, ``English`` and ``en``."""
    name = language.strip().lower()
    return CODES.get(name, name.partition("-")[0])
