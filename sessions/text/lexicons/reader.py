"""Replace words of a text by their lexicon forms as it streams."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from sessions.text.lexicons.lexicon import MAX_WRITTEN_CHARS, TOKEN, Lexicon, LexiconMatch
from sessions.text.phonemes.respelling import INLINE_PHONEMES, PHONEME_STARTS
from sessions.text.spans import EMPTY, SpannedText
from sessions.text.ssml.items import MarkupItem, MarkupParser, StyleItem
from sessions.text.ssml.tokens import HiddenToken, MarkupWarning, TextToken, text_tokens

_PHONEME_NAMES = "|".join(sorted(phoneme.strip("[]") for phoneme in INLINE_PHONEMES))
_TOKEN_OR_PHONEME = re.compile(rf"\[(?:{_PHONEME_NAMES})\]|{TOKEN.pattern}", re.DOTALL)
_MAX_START_CHARS = max(map(len, PHONEME_STARTS))


class LexiconReader:
    """Looks up the text of a parser. Breaks, marks and changes of style end a phrase."""

    def __init__(
        self, parser: MarkupParser, lexicons: Sequence[Lexicon], language: str, reads_phonemes: bool = False
    ) -> None:
        self._parser = parser
        self._lexicons = lexicons
        self._language = language
        # Whether the model does, in brackets: they are not looked up.
        self._reads_phonemes = reads_phonemes
        self._active = [lexicon for lexicon in lexicons if lexicon.applies_to(language)]
        self._held = EMPTY
        # In a word that is too long to be looked up.
        self._in_long_word = False

    @property
    def num_chars_held(self) -> int:
        return len(self._held.text) + self._parser.num_chars_held

    def push(self, text: str) -> Iterator[MarkupItem]:
        return self._replace_all(self._parser.push(text))

    def flush(self) -> Iterator[MarkupItem]:
        yield from self._replace_all(self._parser.flush())
        yield from self._replace(is_complete=True)

    def finish(self) -> Iterator[MarkupItem]:
        yield from self._replace_all(self._parser.finish())
        yield from self._replace(is_complete=True)

    def change_speaker(self, speaker: str, voice: str | None) -> Iterator[MarkupItem]:
        return self._replace_all(self._parser.change_speaker(speaker, voice))

    def _replace_all(self, items: Iterable[MarkupItem]) -> Iterator[MarkupItem]:
        for item in items:
            if isinstance(item, TextToken):
                token = SpannedText.from_raw(item.text, item.raw_start, item.raw_end)
                self._held = SpannedText.join([self._held, token])
                yield from self._replace(is_complete=False)
                continue
            if not isinstance(item, MarkupWarning | HiddenToken):
                yield from self._replace(is_complete=True)
            if isinstance(item, StyleItem):
                language = item.style.language or self._language
                self._active = [lexicon for lexicon in self._lexicons if lexicon.applies_to(language)]
            yield item

    def _replace(self, is_complete: bool) -> Iterator[TextToken]:
        """Return what is decided of the held text."""
        tokens = self._tokens(is_complete)
        ranges: list[tuple[int, int]] = []
        aliases: list[str | None] = []
        index = place = 0
        while index < len(tokens):
            match = self._find(tokens, index, is_complete)
            if match is False:
                break
            end = match.end if isinstance(match, LexiconMatch) else index + 1
            alias = match.text_for(self._reads_phonemes) if isinstance(match, LexiconMatch) else None
            start, place = place, place + sum(map(len, tokens[index:end]))
            index = end
            if alias is None and aliases and aliases[-1] is None:
                ranges[-1] = (ranges[-1][0], place)
            else:
                ranges.append((start, place))
                aliases.append(alias)
        *pieces, self._held = self._held.cut_all([*ranges, (place, len(self._held.text))])
        for piece, alias in zip(pieces, aliases, strict=True):
            yield from text_tokens(piece) if alias is None else [TextToken(alias, piece.raw_start, piece.raw_end)]

    def _tokens(self, is_complete: bool) -> list[str]:
        """Return words, white space, signs and phonemes; what may become a phoneme waits."""
        text = self._held.text
        if not self._reads_phonemes:
            return TOKEN.findall(text)
        last = text.rfind("[", -_MAX_START_CHARS)
        end = last if not is_complete and text[last:] in PHONEME_STARTS else len(text)
        return _TOKEN_OR_PHONEME.findall(text, 0, end)

    def _find(self, tokens: list[str], index: int, is_complete: bool) -> LexiconMatch | Literal[False] | None:
        best: LexiconMatch | None = None
        token = tokens[index]
        is_word = token[0].isalnum() or token[0] == "_"
        if self._in_long_word and is_word:
            return None
        self._in_long_word = is_word and len(token) > MAX_WRITTEN_CHARS
        if self._in_long_word or token.isspace() or (self._reads_phonemes and token in INLINE_PHONEMES):
            return None
        for lexicon in self._active:
            match = lexicon.find(tokens, index, is_complete)
            if match is False:
                return False
            if isinstance(match, LexiconMatch) and (best is None or match.end > best.end):
                best = match
        return best
