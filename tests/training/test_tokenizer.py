import json
from functools import cache
from pathlib import Path
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.text.tokenizer import TextTokenizer
from training.text import TextSettings, TextSource
from training.tokenizer import SPECIAL_TOKENS, TokenizerSettings, load_tokenizer, read_ids, train_tokenizer

EMBEDDED = Path(__file__).parents[2] / "engine" / "voices" / "embedded"


@cache
def texts() -> list[str]:
    source = TextSource(TextSettings(seed=11))
    return [source.sentence(number) for number in range(1500)]


@pytest.fixture(scope="module")
def embedded() -> Tokenizer:
    return load_tokenizer(EMBEDDED)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    settings = TokenizerSettings(num_merges=120, min_first_pieces=10, text_vocab_size=1024)
    train_tokenizer(texts(), settings).write(folder)
    return folder


def test_training_gives_the_same_files_again(trained: Path, tmp_path: Path) -> None:
    settings = TokenizerSettings(num_merges=120, min_first_pieces=10, text_vocab_size=1024)
    train_tokenizer(texts(), settings).write(tmp_path)
    assert (tmp_path / "merges.txt").read_text() == (trained / "merges.txt").read_text()


def test_too_small_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"text_vocab_size: \d+ tokens do not fit into 300 rows"):
        train_tokenizer(texts()[:50], TokenizerSettings(num_merges=100, text_vocab_size=300))


@given(st.text())
def test_any_text_goes_there_and_back(text: str) -> None:
    tokenizer = load_tokenizer(EMBEDDED)
    assert tokenizer.decode(tokenizer.encode(text).ids) == normalize("NFC", text)


def test_template_words_are_one_token_each(embedded: Tokenizer) -> None:
    ids = read_ids(EMBEDDED)
    assert embedded.encode("assistant\n").ids == [ids["assistant"], ids["newline"]]
    assert len(embedded.encode("user").ids) == 1


@pytest.mark.parametrize("word", ["appointment", "the", "unbelievable", "monday", "orchestra"])
def test_a_word_breaks_alike_wherever_it_stands(embedded: Tokenizer, word: str) -> None:
    plain, *rest = embedded.encode(word).tokens
    for form, first in (
        (f" {word}", "Ġ" + plain),
        (word.title(), plain.title()),
        (f" {word.title()}", "Ġ" + plain.title()),
    ):
        assert embedded.encode(form).tokens == [first, *rest]


def test_the_text_runs_ahead_of_the_speech(embedded: Tokenizer) -> None:
    """The streaming layout takes 12.5 tokens a second, speech about 14 characters."""
    tokens = sum(len(encoding.ids) for encoding in embedded.encode_batch(texts()))
    assert 14 * tokens / sum(map(len, texts())) < 0.5 * 12.5


def test_dropped_merges_cut_words_anew_and_keep_the_text() -> None:
    varied = load_tokenizer(EMBEDDED, dropout=0.3)
    cuts = {tuple(varied.encode("An unbelievable orchestra").ids) for _ in range(20)}
    assert len(cuts) > 1
    assert {varied.decode(list(cut)) for cut in cuts} == {"An unbelievable orchestra"}


def test_special_tokens_follow_the_vocabulary_and_fit() -> None:
    vocab = json.loads((EMBEDDED / "vocab.json").read_text())
    added = json.loads((EMBEDDED / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    assert [entry["content"] for entry in added.values()] == list(SPECIAL_TOKENS)
    assert [int(token_id) for token_id in added] == list(range(len(vocab), len(vocab) + len(SPECIAL_TOKENS)))
    assert len(vocab) + len(added) <= TokenizerSettings().text_vocab_size


def test_ids_equal_those_of_the_engine(tmp_path: Path, embedded: Tokenizer) -> None:
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((EMBEDDED / name).read_bytes())
    ids = read_ids(EMBEDDED)
    config = {f"{name}_token_id": token_id for name, token_id in ids.items()}
    config["talker_config"] = {"text_vocab_size": ids["vocab_size"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = TextTokenizer.from_folder(tmp_path)
    for text in [*texts()[:300], "naïve 日本 🙂\n\n a  b", "assistant's"]:
        assert engine.encode(text) == embedded.encode(text).ids
