"""Makes the voice's tokenizer: byte-level BPE in Qwen2's files, with pieces made for learning letters to sounds.

Merges are learned on the letters of lower-case words, so a word breaks at the same places wherever it stands. Each
merge that can begin a word has a twin with a capital, ranked right behind it; merges of the space with a first piece
come last. So "word", " word", "Word" and " Word" differ in their first piece alone.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from training.text import TextSettings, TextSource

LETTERS = "abcdefghijklmnopqrstuvwxyz"
# Byte-level BPE's character for a space.
SPACE = "Ġ"
# One token each, as the prompt's template needs.
WHOLE_WORDS = ("assistant", "user")
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)
PRE_TOKEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Merge = tuple[str, str]


@dataclass(frozen=True)
class TokenizerSettings:
    # Texts to learn from.
    num_sentences: int = 40_000
    # Pieces of letters: at 700, about 0.4 tokens a character, half as fast as the streaming layout takes them.
    num_merges: int = 700
    max_piece_letters: int = 5
    # A first piece met this often gets a capital twin, or a twin with a space.
    min_first_pieces: int = 40
    # Rows of the text table; the files must fit.
    text_vocab_size: int = 2_048


@dataclass(frozen=True)
class TokenizerFiles:
    vocab: dict[str, int]
    merges: list[Merge]
    special_ids: dict[str, int]

    def write(self, folder: Path) -> None:
        """``vocab.json``, ``merges.txt``, ``tokenizer_config.json`` as Qwen2 checkpoints hold them."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "vocab.json").write_text(json.dumps(self.vocab, ensure_ascii=False, indent=0) + "\n")
        lines = ["#version: 0.2", *(f"{left} {right}" for left, right in self.merges)]
        (folder / "merges.txt").write_text("\n".join(lines) + "\n")
        added = {
            str(token_id): {
                "content": content, "special": True, "normalized": False,
                "lstrip": False, "rstrip": False, "single_word": False,
            }
            for content, token_id in self.special_ids.items()
        }  # fmt: skip
        config = {
            "tokenizer_class": "Qwen2Tokenizer",
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "errors": "replace",
            "model_max_length": 4096,
            "pad_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "unk_token": None,
            "bos_token": None,
            "added_tokens_decoder": added,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def train_tokenizer(sentences: Iterable[str], settings: TokenizerSettings = TokenizerSettings()) -> TokenizerFiles:
    words = Counter(word for text in sentences for word in re.findall("[A-Za-z]+", text))
    lower = Counter[str]()
    for word, count in words.items():
        lower[word.lower()] += count
    merges = _letter_merges(lower, settings)
    pieces = _encoder(merges)
    firsts, capital_firsts = Counter[str](), Counter[str]()
    for word, count in words.items():
        first = pieces(word.lower())[0]
        (capital_firsts if word[0].isupper() else firsts)[first] += count
    frequent = {piece for piece, count in capital_firsts.items() if count >= settings.min_first_pieces}
    merges = _with_capitals(merges, frequent)
    spaced = [piece for piece, count in firsts.most_common() if count >= settings.min_first_pieces and len(piece) > 1]
    capitals = [piece.capitalize() for piece, _ in capital_firsts.most_common() if piece in frequent and len(piece) > 1]
    merges += [(SPACE, piece) for piece in (*LETTERS, *LETTERS.upper(), *spaced, *capitals)]
    for word in WHOLE_WORDS:
        merges += _whole_word_merges(_encoder(merges)(word))
    return _files(merges, settings)


def _letter_merges(words: Counter[str], settings: TokenizerSettings) -> list[Merge]:
    """Square roots of the counts, so that the frequent words of the grammars do not become pieces of their own."""
    trainer = trainers.BpeTrainer(
        vocab_size=len(LETTERS) + settings.num_merges,
        initial_alphabet=list(LETTERS),
        limit_alphabet=len(LETTERS),
        max_token_length=settings.max_piece_letters,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    repeated = (" ".join([word] * max(1, round(count**0.5))) for word, count in sorted(words.items()))
    tokenizer.train_from_iterator(repeated, trainer)
    return [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]


def _encoder(merges: list[Merge]) -> Callable[[str], list[str]]:
    """A function from a word's characters to its pieces."""
    characters = sorted({character for merge in merges for piece in merge for character in piece} | set(LETTERS))
    vocab = {token: number for number, token in enumerate([*characters, *dict.fromkeys(map("".join, merges))])}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    return lambda word: tokenizer.encode(word).tokens


def _with_capitals(merges: list[Merge], firsts: set[str]) -> list[Merge]:
    """Behind each merge that leads to a piece of ``firsts``, the same with a capital."""
    needed = set(firsts)
    for left, right in reversed(merges):
        if left + right in needed:
            needed.add(left)
    twinned: list[Merge] = []
    for left, right in merges:
        twinned.append((left, right))
        if left + right in needed:
            twinned.append((left.capitalize(), right))
    return twinned


def _whole_word_merges(pieces: list[str]) -> list[Merge]:
    merges = []
    while len(pieces) > 1:
        merges.append((pieces[0], pieces[1]))
        pieces = [pieces[0] + pieces[1], *pieces[2:]]
    return merges


def _files(merges: list[Merge], settings: TokenizerSettings) -> TokenizerFiles:
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *dict.fromkeys(left + right for left, right in merges)]
    vocab = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    special_ids = {content: len(vocab) + number for number, content in enumerate(SPECIAL_TOKENS)}
    total = len(vocab) + len(special_ids)
    if total > settings.text_vocab_size:
        raise ValueError(f"text_vocab_size: {total} tokens do not fit into {settings.text_vocab_size} rows")
    return TokenizerFiles(vocab, merges, special_ids)


def load_tokenizer(folder: Path, dropout: float | None = None) -> Tokenizer:
    """The files as a fast tokenizer for training; ids equal the engine's.

    ``dropout`` skips each merge with that chance (0.1 is usual), so that training meets words in many cuts.
    """
    model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"), dropout=dropout)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PRE_TOKEN_PATTERN), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def read_ids(folder: Path, text_vocab_size: int = TokenizerSettings.text_vocab_size) -> dict[str, int]:
    """The ids that frame a prompt, by the names of ``training.layout.TextIds``."""
    vocab = json.loads((folder / "vocab.json").read_text())
    added = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    special = {entry["content"]: int(token_id) for token_id, entry in added.items()}
    return {
        "vocab_size": text_vocab_size,
        "im_start": special["<|im_start|>"],
        "im_end": special["<|im_end|>"],
        "assistant": vocab["assistant"],
        "newline": vocab["Ċ"],
        "tts_pad": special["<tts_pad>"],
        "tts_bos": special["<tts_text_bos>"],
        "tts_eos": special["<tts_text_eod>"],
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Make the tokenizer files.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prose", type=Path)
    options = parser.parse_args(arguments)
    settings = TokenizerSettings()
    source = TextSource(TextSettings(options.seed, options.prose))
    files = train_tokenizer((source.sentence(number) for number in range(settings.num_sentences)), settings)
    files.write(options.folder)
    tokenizer = load_tokenizer(options.folder)
    fresh = [source.sentence(number) for number in range(10**6, 10**6 + 2000)]
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(fresh))
    print(
        f"{len(files.vocab)} tokens, {len(files.merges)} merges, {tokens / sum(map(len, fresh)):.3f} tokens a character"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
