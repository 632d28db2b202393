"""Base of what reads forms in the text between the tags of another tokenizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from sessions.text.spans import EMPTY, SpannedText
from sessions.text.ssml.tokens import PlainTokenizer, TagTokenizer, TextToken, Token


class TextLayer(ABC):
    """Reads the text of ``inner``; without one all that arrives is text. A tag ends what is held."""

    def __init__(self, inner: TagTokenizer | None = None) -> None:
        self._inner = inner or PlainTokenizer()
        self._held = EMPTY

    @property
    def num_chars_held(self) -> int:
        return len(self._held.text) + self._inner.num_chars_held

    def push(self, text: str) -> Iterator[Token]:
        return self._read_all(self._inner.push(text))

    def flush(self) -> Iterator[Token]:
        """Return what the inner tokenizer holds; what may become a form is held on."""
        return self._read_all(self._inner.flush())

    def finish(self) -> Iterator[Token]:
        yield from self._read_all(self._inner.finish())
        yield from self._scan(is_end=True)

    def _read_all(self, tokens: Iterable[Token]) -> Iterator[Token]:
        for token in tokens:
            if isinstance(token, TextToken) and token.text:
                piece = SpannedText.from_raw(token.text, token.raw_start, token.raw_end)
                self._held = SpannedText.join([self._held, piece])
                yield from self._scan(is_end=False)
            else:
                yield from self._scan(is_end=True)
                yield token

    def _scan(self, is_end: bool) -> Iterator[Token]:
        held, at = self._held, 0
        while at < len(held.text):
            num_read, tokens = self._read(held, at, is_end)
            if not num_read:
                break
            at += num_read
            yield from tokens
        self._held = held.cut(at, len(held.text))

    @abstractmethod
    def _read(self, text: SpannedText, at: int, is_end: bool) -> tuple[int, Iterable[Token]]:
        """Return the characters read from ``at`` on, and their tokens; 0 waits for more."""
