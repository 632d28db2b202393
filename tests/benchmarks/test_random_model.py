"""Random weights of the released shapes: prompts have about the length of released ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.random_model import write_files
from engine.text.tokenizer import TextTokenizer
from realtime.bench.plan import CORPUS, read_corpus
from training.held_out import read_sentences


@pytest.mark.parametrize(("texts", "expected"), [(read_corpus(CORPUS), 4.0), (read_sentences(), 3.8)])
def test_tokens_of_benchmark_texts_have_stated_length(tmp_path: Path, texts: list[str], expected: float) -> None:
    config = write_files(tmp_path, "1.7b")
    tokenizer = TextTokenizer.from_folder(tmp_path)
    num_tokens = sum(len(tokenizer.encode(text)) for text in texts)
    assert sum(map(len, texts)) / num_tokens == pytest.approx(expected, abs=0.2)
    assert tokenizer.text_vocab_size == config.talker.text_vocab_size == 151_936


def test_tokenizer_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_files(tmp_path / name, "0.6b")
    for file in ("vocab.json", "merges.txt"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
