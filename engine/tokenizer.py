"""Text to ids: the Qwen2 byte-level BPE of a checkpoint folder, whole and incremental.

Released folders hold ``vocab.json``, ``merges.txt`` and ``tokenizer_config.json``, and no ``tokenizer.json``. Special
tokens are known by id only: text is encoded without them, so that ``<|im_start|>`` in a user's text is just letters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from engine.errors import CheckpointError
from engine.nfc import WHITE_SPACE, NfcStream, compose
from engine.open_word import BYTE_CHARACTERS, BytePairs, OpenWord, byte_level

PRE_TOKEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's pre-tokenizer, where digits stand alone and words carry the one character before them."""

MAX_CONTEXT_CHARS = 8
"""An open pre-token up to this length is looked at whole; of a longer one the last two characters decide."""

_TOKENIZER_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
_SPECIAL_CONTENT = {
    "im_start_token_id": "<|im_start|>",
    "im_end_token_id": "<|im_end|>",
    "tts_pad_token_id": "<tts_pad>",
    "tts_bos_token_id": "<tts_text_bos>",
    "tts_eos_token_id": "<tts_text_eod>",
}
_ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids that the prompt uses and text never yields; from ``config.json``."""

    im_start: int
    im_end: int
    assistant: int
    tts_pad: int
    tts_bos: int
    tts_eos: int


class TextTokenizer:
    """Encodes text to ids below ``text_vocab_size``; any string is accepted."""

    def __init__(self, pairs: BytePairs, special_ids: SpecialIds, text_vocab_size: int) -> None:
        self._pairs = pairs
        self._split = Split(Regex(PRE_TOKEN_PATTERN), "isolated")
        self.special_ids = special_ids
        self.text_vocab_size = text_vocab_size
        (newline,) = self.encode("\n")
        self.template_ids = (special_ids.im_start, special_ids.assistant, newline)
        """The three role rows in front of every prompt."""

    @classmethod
    def from_folder(cls, folder: str | Path) -> TextTokenizer:
        """Read a checkpoint folder; raises ``CheckpointError`` naming the file and the key that is wrong."""
        return _read_folder(Path(folder))

    def encode(self, text: str) -> list[int]:
        return [token for word in self.pre_tokens(compose(text)) for token in self._pairs.encode(byte_level(word))]

    def pre_tokens(self, text: str) -> list[str]:
        return [word for word, _ in self._split.pre_tokenize_str(text)]

    def instruct_ids(self, instruct: str) -> list[int]:
        """The user turn that carries an instruction; nothing for an empty one."""
        if not instruct:
            return []
        turn = self.encode(f"user\n{instruct}")
        return [self.special_ids.im_start, *turn, self.special_ids.im_end, *self.encode("\n")]

    def incremental(self) -> IncrementalTokenizer:
        return IncrementalTokenizer(self)

    def open_word(self) -> OpenWord:
        return OpenWord(self._pairs)


class IncrementalTokenizer:
    """One text in pieces. However it is cut, all returned ids in a row are ``encode`` of the text in one piece,
    white space at its start left out.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._nfc = NfcStream()
        self._begun = False
        self._context = ""
        self._word = tokenizer.open_word()
        self._spaces: list[str] = []
        self._num_composed_closed = 0
        self._num_composed_final = 0
        self.num_chars_final = 0
        """Raw characters, white space at the start included, that the ids returned so far cover."""

    def push(self, text: str) -> list[int]:
        """Returns the ids that no later text can change."""
        return self._take(self._nfc.push(text))

    def close(self) -> list[int]:
        """Returns the remaining ids; nothing may be pushed afterwards."""
        ids = self._take(self._nfc.close())
        ids += self._close_words(self._tokenizer.pre_tokens(self._context + "".join(self._spaces)))
        self._count_final()
        return ids

    def _take(self, text: str) -> list[int]:
        if not self._begun:
            text = self._strip_start(text)
        visible = text.rstrip(WHITE_SPACE)
        ids = self._take_visible(visible) if visible else []
        spaces = text[len(visible) :]
        if spaces and not self._spaces:
            ids += self._end_word_before(spaces[0])
        if spaces:
            self._spaces.append(spaces)
        self._count_final()
        return ids

    def _strip_start(self, text: str) -> str:
        stripped = text.lstrip(WHITE_SPACE)
        self._begun = bool(stripped)
        self._num_composed_closed += len(text) - len(stripped)
        return stripped

    def _take_visible(self, text: str) -> list[int]:
        """Text that ends in a visible character: all its pre-tokens but the last are final."""
        words = self._tokenizer.pre_tokens(self._context + "".join(self._spaces) + text)
        self._spaces.clear()
        return self._close_words(words[:-1]) + self._extend_word(words[-1])

    def _close_words(self, words: Sequence[str]) -> list[int]:
        return [token for word in words for token in self._close_word(word)]

    def _extend_word(self, seen: str) -> list[int]:
        """``seen`` begins with the context of the open word and goes on with what has come to it."""
        ids = self._word.push(byte_level(seen[len(self._context) :]))
        self._context = seen if len(seen) <= MAX_CONTEXT_CHARS else seen[-2:]
        return ids

    def _close_word(self, seen: str) -> list[int]:
        ids = self._word.close(byte_level(seen[len(self._context) :]))
        self._num_composed_closed += self._word.num_chars_final
        self._word, self._context = self._tokenizer.open_word(), ""
        return ids

    def _end_word_before(self, space: str) -> list[int]:
        """White space ends a word, but a line break still belongs to the punctuation before it."""
        if self._context and self._tokenizer.pre_tokens(self._context + space)[0] == self._context:
            return self._close_word(self._context)
        return []

    def _count_final(self) -> None:
        num_final = self._num_composed_closed + self._word.num_chars_final
        self.num_chars_final = self._nfc.use(num_final - self._num_composed_final)
        self._num_composed_final = num_final


def _read_folder(folder: Path) -> TextTokenizer:
    config = _read_json(folder / "config.json")
    vocab = _read_vocab(folder / "vocab.json")
    merges = _read_merges(folder / "merges.txt", vocab)
    text_vocab_size = _text_vocab_size(folder / "config.json", config)
    _check_ids("vocab.json", vocab, text_vocab_size)
    special_ids = _special_ids(config, vocab, text_vocab_size)
    _check_tokenizer_config(_read_json(folder / "tokenizer_config.json"), config)
    return TextTokenizer(BytePairs(vocab, merges), special_ids, text_vocab_size)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"{path.name}: missing in {path.parent}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path.name}: cannot be read: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path.name}: holds {type(content).__name__}, expected an object")
    return content


def _read_vocab(path: Path) -> dict[str, int]:
    vocab = _read_json(path)
    if bad := next((token for token, value in vocab.items() if type(value) is not int or not token), None):
        raise CheckpointError(f"vocab.json: {bad!r} has the id {vocab[bad]!r}, expected a whole number")
    if missing := [byte for byte, character in BYTE_CHARACTERS.items() if character not in vocab]:
        raise CheckpointError(f"vocab.json: no entry for byte 0x{missing[0]:02x}; not a byte-level vocabulary")
    if len(set(vocab.values())) != len(vocab):
        raise CheckpointError("vocab.json: two entries share one id")
    return vocab


def _read_merges(path: Path, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        parts = line.rstrip("\r").split(" ")
        if len(parts) != 2 or not all(token in vocab for token in (*parts, "".join(parts))):
            raise CheckpointError(f"merges.txt: line {number} does not join two entries of vocab.json to a third")
        merges.append((parts[0], parts[1]))
    return merges


def _text_vocab_size(path: Path, config: Mapping[str, Any]) -> int:
    talker = config.get("talker_config")
    size = talker.get("text_vocab_size") if isinstance(talker, dict) else None
    if type(size) is not int or size < 1:
        raise CheckpointError(f"{path.name}: talker_config.text_vocab_size is {size!r}, expected a whole number")
    return size


def _check_ids(name: str, ids: Mapping[str, int], text_vocab_size: int) -> None:
    for key, value in ids.items():
        if not 0 <= value < text_vocab_size:
            raise CheckpointError(f"{name}: {key!r} has the id {value}, outside the text table of {text_vocab_size}")


def _special_ids(config: Mapping[str, Any], vocab: Mapping[str, int], text_vocab_size: int) -> SpecialIds:
    keys = [*_SPECIAL_CONTENT, "assistant_token_id"]
    ids: dict[str, Any] = {key: config.get(key) for key in keys}
    if bad := next((key for key in keys if type(ids[key]) is not int), None):
        raise CheckpointError(f"config.json: {bad} is {ids[bad]!r}, expected a whole number")
    _check_ids("config.json", ids, text_vocab_size)
    if vocab.get(_ASSISTANT) != ids["assistant_token_id"]:
        raise CheckpointError(
            f"config.json: assistant_token_id is {ids['assistant_token_id']}, "
            f"but vocab.json gives {vocab.get(_ASSISTANT)} to {_ASSISTANT!r}"
        )
    return SpecialIds(**{key.removesuffix("_token_id"): ids[key] for key in keys})


def _check_tokenizer_config(tokenizer_config: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    found = tokenizer_config.get("tokenizer_class", _TOKENIZER_CLASSES[0])
    if found not in _TOKENIZER_CLASSES:
        raise CheckpointError(f"tokenizer_config.json: tokenizer_class is {found!r}, expected {_TOKENIZER_CLASSES[0]}")
    added = tokenizer_config.get("added_tokens_decoder", {})
    for key, content in _SPECIAL_CONTENT.items():
        entry = added.get(str(config[key]), {"content": content}) if isinstance(added, dict) else None
        if not isinstance(entry, dict) or entry.get("content") != content:
            raise CheckpointError(
                f"tokenizer_config.json: added_tokens_decoder.{config[key]} is not {content!r}, "
                f"which config.json's {key} expects"
            )
