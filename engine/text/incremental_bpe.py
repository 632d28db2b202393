"""Byte-pair encoding of a word that is still growing: ids come out as soon as no later byte can change them.

The encoding of every prefix of a word ends in one definite token, and what comes before that token is the encoding of
a shorter prefix (any run of neighbours in a byte-pair encoding is itself the encoding of its own text). The encodings
of all prefixes therefore form a tree. Whatever follows, the encoding of the longer word runs through a prefix that a
vocabulary entry can still grow from; where the paths to all these prefixes agree, the ids are final.

Words are written in byte-level characters, one for each UTF-8 byte.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tokenizers.models import BPE

# Shorter words wait for their end: nearly all words of alphabetic scripts do, and cost one library call.
FIRST_CHECK_BYTES = 12

MAX_CACHED_PAIRS = 65536


def _byte_characters() -> dict[int, str]:
    """The printable stand-in of every byte: itself where Latin-1 prints it, else the next free from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


BYTE_CHARACTERS = _byte_characters()


def byte_level(text: str) -> str:
    return text.encode().decode("latin-1").translate(BYTE_CHARACTERS)


class BpeVocab:
    """A vocabulary and its merges, with the questions an open word asks of them."""

    def __init__(self, vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> None:
        self.vocab = dict(vocab)
        self.model = BPE(vocab=self.vocab, merges=list(merges))
        self.fits = lru_cache(MAX_CACHED_PAIRS)(self._fits)
        self._sorted = sorted(self.vocab)
        self._lengths_by_last = _lengths_by_last(self.vocab)
        self._longest_by_first = _longest_by_first(self.vocab)
        self.longest = max(self._longest_by_first.values())

    def encode(self, word: str) -> list[int]:
        return [token.id for token in self.model.tokenize(word)]

    def _fits(self, before: str, token: str) -> bool:
        """Return whether ``before`` and ``token`` stay two tokens when they are neighbours."""
        expected = [before, token] if before else [token]
        return [part.value for part in self.model.tokenize(before + token)] == expected

    def lengths_ending_in(self, character: str) -> tuple[int, ...]:
        return self._lengths_by_last[character]

    def can_extend(self, text: str) -> bool:
        """Return whether some entry is ``text`` and more."""
        if len(text) >= self._longest_by_first[text[0]]:
            return False
        place = bisect_right(self._sorted, text)
        return place < len(self._sorted) and self._sorted[place].startswith(text)


def _lengths_by_last(vocab: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    lengths: dict[str, set[int]] = {}
    for token in vocab:
        lengths.setdefault(token[-1], set()).add(len(token))
    return {character: tuple(sorted(found)) for character, found in lengths.items()}


def _longest_by_first(vocab: Mapping[str, int]) -> dict[str, int]:
    longest: dict[str, int] = {}
    for token in vocab:
        longest[token[0]] = max(len(token), longest.get(token[0], 0))
    return longest


class IncrementalBpe:
    """One pre-token while its end is unknown. ``push`` returns final ids, ``close`` the rest."""

    def __init__(self, pairs: BpeVocab) -> None:
        self._pairs = pairs
        self._open = ""
        self._last_tokens = [""]
        self._next_look = FIRST_CHECK_BYTES

    def push(self, text: str) -> list[int]:
        self._open += text
        if len(self._open) < self._next_look:
            return []
        self._extend_tree()
        ids = self._release(self._common_prefix_end())
        self._next_look = len(self._open) + 1 + len(self._open) // 8
        return ids

    def finish(self, text: str = "") -> list[int]:
        self._open += text
        if self._last_tokens == [""]:
            ids, self._open = self._pairs.encode(self._open), ""
            return ids
        self._extend_tree()
        return self._release(len(self._open))

    def _extend_tree(self) -> None:
        for end in range(len(self._last_tokens), len(self._open) + 1):
            self._last_tokens.append(self._last_token(end))

    def _last_token(self, end: int) -> str:
        for length in self._pairs.lengths_ending_in(self._open[end - 1]):
            token = self._open[end - length : end] if length <= end else ""
            if token in self._pairs.vocab and self._pairs.fits(self._last_tokens[end - length], token):
                return token
        raise AssertionError("every prefix has an encoding, because every byte is an entry")

    def _common_prefix_end(self) -> int:
        """The furthest position that the encodings of all prefixes that can still grow pass through."""
        end = len(self._open)
        nearest = max(0, end - self._pairs.longest)
        live = [start for start in range(nearest, end) if self._pairs.can_extend(self._open[start:end])]
        live.append(end)
        while len(live) > 1:
            position = live.pop()
            parent = position - len(self._last_tokens[position])
            if live[bisect_left(live, parent) : bisect_right(live, parent)] == []:
                insort(live, parent)
        return live[0]

    def _release(self, end: int) -> list[int]:
        ids: list[int] = []
        position = end
        while position > 0:
            token = self._last_tokens[position]
            ids.append(self._pairs.vocab[token])
            position -= len(token)
        self._open, self._last_tokens = self._open[end:], self._last_tokens[end:]
        return ids[::-1]
