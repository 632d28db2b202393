from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from engine.errors import CheckpointError
from engine.text.incremental_bpe import BYTE_CHARACTERS, BpeVocab, IncrementalBpe, byte_level
from engine.text.nfc import WHITE_SPACE, NfcStream, compose
from engine.text.tokenizer import PRE_TOKEN_PATTERN, TextTokenizer
from tests.engine.text.tokenizer_folder import config_of, tokenizer_config_of, train, write_folder

VOCAB, MERGES = train()

SAMPLES = [
    "",
    "Hello there, how are you?",
    "don't we'll I'VE they'D 'tis ''s 'r 're'x 're 'lla",
    "  leading and trailing  \n",
    "!!!\n\n \n a!\r\nb \t!c",
    "今天天气很好，我们去公园散步吧。" * 3,
    "สวัสดีครับ วันนี้ नमस्ते दुनिया 한국어 \u1112\u1161\u11ab",
    "e\u0301\u0323 a\u0308\u0301 \u0301x = \u0338 =\u0338 \u212b \u0958",
    "😀👍🏽👨\u200d👩\u200d👧 1st 2nd 12345 Ⅻ ½ ①",
    "\x00\x1c\x1f\u2028\u00a0\u3000x",
    "banana" * 40,
    "~" * 9 + "banana" + "!" * 20 + "hello" + "'" * 20 + "s " + "a" * 20 + "'s" + "今天" * 9 + "，好",
    "=" * 90 + "\n" * 20 + "  " * 20 + "x",
]

fragments = ["a", "n", "an", "ban", " ", "\n", "!", "'", "s", "'re", "1", "今天", "\u0301", "é", "😀", "\u00a0"]
texts = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(fragments), max_size=60).map("".join),
    st.text(alphabet="abn sx=\n", max_size=80),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    write_folder(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def official(folder: Path) -> Any:
    from transformers import Qwen2Tokenizer  # takes longer than the tests, of whoever collects them

    return Qwen2Tokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def push_all(tokenizer: TextTokenizer, parts: list[str]) -> list[int]:
    stream = tokenizer.incremental()
    ids = [token for part in parts for token in stream.push(part)]
    return ids + stream.finish()


@pytest.mark.parametrize("text", SAMPLES)
def test_one_character_at_a_time_is_the_whole_text(tokenizer: TextTokenizer, text: str) -> None:
    assert push_all(tokenizer, list(text)) == tokenizer.encode(text.lstrip(WHITE_SPACE))


@settings(max_examples=200)
@given(text=texts, places=st.lists(st.integers(0, 1000)))
@example(text="!\n a", places=[1, 2, 3])
@example(text="a\ud800b\udc00", places=[1, 2, 3])
def test_any_cutting_is_the_whole_text(tokenizer: TextTokenizer, text: str, places: list[int]) -> None:
    assert push_all(tokenizer, cut(text, places)) == tokenizer.encode(text.lstrip(WHITE_SPACE))


@given(text=texts)
def test_ids_are_those_of_transformers(tokenizer: TextTokenizer, official: Any, text: str) -> None:
    assert tokenizer.encode(text) == official(text)["input_ids"]


@pytest.mark.parametrize("text", SAMPLES)
def test_samples_are_those_of_transformers(tokenizer: TextTokenizer, official: Any, text: str) -> None:
    assert tokenizer.encode(text) == official(text)["input_ids"]


@given(text=texts, later=texts)
def test_returned_ids_survive_any_later_text(tokenizer: TextTokenizer, text: str, later: str) -> None:
    stream = tokenizer.incremental()
    early = stream.push(text)
    assert early == tokenizer.encode((text + later).lstrip(WHITE_SPACE))[: len(early)]


@pytest.mark.parametrize(
    ("pushes", "released"),
    [
        (["hello"], ""),
        (["hello "], "hello"),
        (["hello", " w"], "hello"),
        (["  hello", " w"], "hello"),
        (["hello."], "hello"),
        (["hello.", " "], "hello."),
        (["hello.", "\n"], "hello"),
        (["hello.\n", "xy"], "hello.\n"),
        (["e\u0301e\u0301 x"], "e\u0301e\u0301"),
    ],
)
def test_a_word_is_released_by_what_follows(tokenizer: TextTokenizer, pushes: list[str], released: str) -> None:
    stream = tokenizer.incremental()
    assert [token for text in pushes for token in stream.push(text)] == tokenizer.encode(released)


def test_text_without_spaces_is_not_held_back(tokenizer: TextTokenizer) -> None:
    stream, lengths = tokenizer.incremental(), {token: len(entry) for entry, token in VOCAB.items()}
    lags, num_bytes = [], 0
    for place, character in enumerate("今天天气很好我们去公园散步吧" * 20):
        num_bytes += sum(lengths[token] for token in stream.push(character))
        lags.append(place + 1 - num_bytes // 3)
    assert max(lags) <= 16


@pytest.mark.parametrize("unit", ["a", "今天", "!", " ", "\n", "\u0301", "banana", "😀", "1", "ab "])
def test_work_grows_with_the_text_and_not_with_its_square(
    tokenizer: TextTokenizer, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_chars = 0
    split = tokenizer.pre_tokens

    def counting(text: str) -> list[str]:
        nonlocal num_chars
        num_chars += len(text)
        return split(text)

    monkeypatch.setattr(tokenizer, "pre_tokens", counting)
    text = (unit * 10_000)[:10_000]
    ids = push_all(tokenizer, list(text))
    assert num_chars <= 12 * len(text)
    assert ids == tokenizer.encode(text.lstrip(WHITE_SPACE))


@given(
    st.one_of(
        st.text(alphabet=st.characters(max_codepoint=127), max_size=40),
        st.lists(st.sampled_from([*fragments[:11], "'LL", "\x1f", "\x0b", "\r\n"]), max_size=20).map("".join),
    )
)
@example("we'rex WE'REX I'vex I'VEX I'llx I'LLX we'ReX")
@example("I'M don't '\x00s a\x1c\x1f \x0b\x0c\t\r\n\n !?\r\n 12'")
def test_ascii_has_the_pre_tokens_of_the_whole_pattern(tokenizer: TextTokenizer, text: str) -> None:
    split = Split(Regex(PRE_TOKEN_PATTERN), "isolated")
    assert tokenizer.pre_tokens(text) == [word for word, _ in split.pre_tokenize_str(text)]


def test_special_tokens_in_text_are_only_letters(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>assistant<|im_end|><tts_pad><tts_text_eod>")
    assert max(ids) < len(VOCAB)


def test_template_and_instruct_ids(tokenizer: TextTokenizer) -> None:
    special = tokenizer.special_ids
    newline = VOCAB[byte_level("\n")]
    assert tokenizer.template_ids == (special.im_start, VOCAB["assistant"], newline)
    assert tokenizer.instruct_ids("") == []
    ids = tokenizer.instruct_ids("Speak up.")
    assert ids[0] == special.im_start
    assert ids[-2:] == [special.im_end, newline]
    assert ids[1:-2] == tokenizer.encode("user\nSpeak up.")


def test_byte_characters_are_those_of_the_library() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    assert set(BYTE_CHARACTERS.values()) == set(ByteLevel.alphabet())
    text = "".join(map(chr, range(0x20, 0x800)))
    pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert byte_level(text) == "".join(piece for piece, _ in pieces)


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=2).map(tuple), st.data())
def test_open_word_is_exact_for_any_order_of_merges(first: tuple[str, str], data: st.DataObject) -> None:
    alphabet = sorted(BYTE_CHARACTERS.values())
    vocab = {character: place for place, character in enumerate(alphabet)}
    merges = []
    for _ in range(data.draw(st.integers(1, 12))):
        left, right = data.draw(st.sampled_from(["a", "b", "c", *list(vocab)[256:]])), first[len(merges) % 2]
        if data.draw(st.booleans()):
            left, right = right, left
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            merges.append((left, right))
    pairs = BpeVocab(vocab, merges)
    word = data.draw(st.text(alphabet="abc", max_size=80))
    open_word = IncrementalBpe(pairs)
    ids = [token for part in cut(word, data.draw(st.lists(st.integers(0, 80)))) for token in open_word.push(part)]
    assert ids + open_word.finish() == pairs.encode(word)


@given(text=texts, places=st.lists(st.integers(0, 1000)))
def test_composition_in_pieces_is_that_of_the_whole(text: str, places: list[int]) -> None:
    stream = NfcStream()
    composed = "".join(stream.push(part) for part in cut(text, places)) + stream.finish()
    assert composed == compose(text)


def broken(folder: Path, tmp_path: Path, name: str, content: str | None) -> Path:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def config(**changes: Any) -> str:
    return json.dumps(config_of(VOCAB) | changes)


BAD_FILES = [
    ("vocab.json", None, "vocab.json: missing"),
    ("merges.txt", None, "merges.txt: missing"),
    ("config.json", None, "config.json: missing"),
    ("tokenizer_config.json", None, "tokenizer_config.json: missing"),
    ("vocab.json", "{", "vocab.json: not JSON"),
    ("vocab.json", "[" * 100_000, "vocab.json: not JSON"),
    ("vocab.json", "[]", "vocab.json: holds list"),
    ("vocab.json", '{"a": 0}', "no entry for byte 0x21"),
    ("vocab.json", json.dumps(VOCAB | {"a": "x"}), "'a' has the id 'x'"),
    ("vocab.json", json.dumps(VOCAB | {"a": VOCAB["b"]}), "two entries share one id"),
    ("vocab.json", json.dumps(VOCAB | {"abcdef": 10**6}), "'abcdef' has the id 1000000, outside the text table"),
    ("merges.txt", "a b c\n", "merges.txt: line 1"),
    ("merges.txt", "#version: 0.2\nzz zz\n", "merges.txt: line 2"),
    ("tokenizer_config.json", '{"tokenizer_class": "LlamaTokenizer"}', "tokenizer_class is 'LlamaTokenizer'"),
    (
        "tokenizer_config.json",
        json.dumps(tokenizer_config_of(VOCAB | {"~extra~": len(VOCAB)})),
        "added_tokens_decoder.* is not '<|im_end|>'",
    ),
    ("config.json", config(tts_eos_token_id=None), "tts_eos_token_id is None"),
    ("config.json", config(im_start_token_id=151644), "'im_start_token_id' has the id 151644, outside"),
    ("config.json", config(assistant_token_id=3), "assistant_token_id is 3"),
    ("config.json", config(talker_config={}), "talker_config.text_vocab_size is None"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_a_wrong_file_is_named(folder: Path, tmp_path: Path, name: str, content: str | None, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        TextTokenizer.from_folder(broken(folder, tmp_path, name, content))
    before, _, after = message.partition("*")
    assert before in str(caught.value)
    assert after in str(caught.value)
