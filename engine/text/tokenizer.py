"""Text to ids: the Qwen2 byte-level BPE of a checkpoint folder, whole and incremental.

Released folders hold ``vocab.json``, ``merges.txt`` and ``tokenizer_config.json``, and no ``tokenizer.json``. Special
tokens are known by id only: text is encoded without them, so that ``<|im_start|>`` in a user's text is just letters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from engine.text.incremental_bpe import BpeVocab, IncrementalBpe, byte_level
from engine.text.nfc import WHITE_SPACE, NfcStream, compose
from engine.text.tokenizer_files import TokenizerFiles

# Qwen2's pre-tokenizer, where digits stand alone and words carry the one character before them.
PRE_TOKEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# The same for text of ASCII alone: ``re`` takes a sixth of the time of the tokenizers library in a loop.
# White space is spelled out, for ``\s`` of ``re`` holds the control characters 0x1c to 0x1f, too.
_ASCII_PRE_TOKENS = re.compile(
    r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
    r"|[^\r\na-zA-Z0-9]?[a-zA-Z]+"
    r"|[0-9]"
    r"| ?[^\t\n\v\f\r a-zA-Z0-9]+[\r\n]*"
    r"|[\t\n\v\f\r ]*[\r\n]+|[\t\n\v\f\r ]+(?![^\t\n\v\f\r ])|[\t\n\v\f\r ]+"
)

# An open pre-token up to this length is looked at whole; of a longer one the last two characters decide.
MAX_CONTEXT_CHARS = 8
# Words whose ids are remembered, and their maximum length.
MAX_CACHED_WORDS, MAX_CACHED_CHARS = 16_384, 16


class IncrementalEncoder(Protocol):
    """The text of one request, in pieces, to ids that no later text can change."""

    def push(self, text: str) -> list[int]: ...
    def finish(self) -> list[int]:
        """The remaining ids; nothing is pushed afterwards."""
        ...


class BytePairTokenizer:
    """Encodes any text by a vocabulary and its merges; knows no special tokens."""

    def __init__(self, vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> None:
        self._pairs = BpeVocab(vocab, merges)
        self._split = Split(Regex(PRE_TOKEN_PATTERN), "isolated")
        self._encode_short_word = lru_cache(MAX_CACHED_WORDS)(self._encode_word)

    def encode(self, text: str) -> list[int]:
        return self.encode_words(self.pre_tokens(compose(text)))

    def encode_words(self, words: Sequence[str]) -> list[int]:
        """Ids of whole pre-tokens."""
        ids: list[int] = []
        for word in words:
            ids += self._encode_short_word(word) if len(word) <= MAX_CACHED_CHARS else self._encode_word(word)
        return ids

    def _encode_word(self, word: str) -> list[int]:
        return self._pairs.encode(byte_level(word))

    def pre_tokens(self, text: str) -> list[str]:
        if text.isascii():
            return _ASCII_PRE_TOKENS.findall(text)
        return [word for word, _ in self._split.pre_tokenize_str(text)]

    def incremental(self) -> IncrementalEncoder:
        return IncrementalTokenizer(self)

    def incremental_word(self) -> IncrementalBpe:
        return IncrementalBpe(self._pairs)


class TextTokenizer(BytePairTokenizer):
    """Encodes text to ids below ``text_vocab_size``; any string is accepted."""

    def __init__(self, files: TokenizerFiles) -> None:
        super().__init__(files.vocab, files.merges)
        self.special_ids = files.special_ids
        self.text_vocab_size = files.text_vocab_size
        (newline,) = self.encode("\n")
        # The three role rows in front of every prompt.
        self.template_ids = (self.special_ids.im_start, self.special_ids.assistant, newline)

    @classmethod
    def from_folder(cls, folder: str | Path) -> TextTokenizer:
        """Read a checkpoint folder; raises ``CheckpointError`` naming the file and the key that is wrong."""
        return cls(TokenizerFiles.read(Path(folder)))

    def instruct_ids(self, instruct: str) -> list[int]:
        """The user turn that carries an instruction; nothing for an empty one."""
        if not instruct:
            return []
        turn = self.encode(f"user\n{instruct}")
        return [self.special_ids.im_start, *turn, self.special_ids.im_end, *self.encode("\n")]

    def incremental(self) -> IncrementalTokenizer:
        return IncrementalTokenizer(self)


class IncrementalTokenizer:
    """One text in pieces. However it is cut, all returned ids in a row are ``encode`` of the text in one piece,
    white space at its start left out unless ``keeps_start``.
    """

    def __init__(self, tokenizer: BytePairTokenizer, keeps_start: bool = False) -> None:
        self._tokenizer = tokenizer
        self._nfc = NfcStream()
        self._begun = keeps_start
        self._context = ""
        self._word = tokenizer.incremental_word()
        self._spaces: list[str] = []

    def push(self, text: str) -> list[int]:
        """Returns the ids that no later text can change."""
        return self._consume(self._nfc.push(text))

    def finish(self) -> list[int]:
        """Returns the remaining ids; nothing may be pushed afterwards."""
        ids = self._consume(self._nfc.finish())
        return ids + self._close_words(self._tokenizer.pre_tokens(self._context + "".join(self._spaces)))

    def _consume(self, text: str) -> list[int]:
        if not self._begun:
            text = text.lstrip(WHITE_SPACE)
            self._begun = bool(text)
        visible = text.rstrip(WHITE_SPACE)
        ids = self._consume_visible(visible) if visible else []
        spaces = text[len(visible) :]
        if spaces and not self._spaces:
            ids += self._end_word_before(spaces[0])
        if spaces:
            self._spaces.append(spaces)
        return ids

    def _consume_visible(self, text: str) -> list[int]:
        """Text that ends in a visible character: all its pre-tokens but the last are final."""
        words = self._tokenizer.pre_tokens(self._context + "".join(self._spaces) + text)
        self._spaces.clear()
        return self._close_words(words[:-1]) + self._extend_word(words[-1])

    def _close_words(self, words: Sequence[str]) -> list[int]:
        return [*self._close_word(words[0]), *self._tokenizer.encode_words(words[1:])] if words else []

    def _extend_word(self, seen: str) -> list[int]:
        """``seen`` begins with the context of the open word and goes on with what has come to it."""
        ids = self._word.push(byte_level(seen[len(self._context) :]))
        self._context = seen if len(seen) <= MAX_CONTEXT_CHARS else seen[-2:]
        return ids

    def _close_word(self, seen: str) -> list[int]:
        ids = self._word.finish(byte_level(seen[len(self._context) :]))
        self._word, self._context = self._tokenizer.incremental_word(), ""
        return ids

    def _end_word_before(self, space: str) -> list[int]:
        """White space ends a word, but a line break still belongs to the punctuation before it."""
        if self._context and self._tokenizer.pre_tokens(self._context + space)[0] == self._context:
            return self._close_word(self._context)
        return []
