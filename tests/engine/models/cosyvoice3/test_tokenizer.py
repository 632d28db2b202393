"""Ids are those of the official tokenizer; any cutting of a text gives them; nobody's text parts a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import CheckpointError
from engine.models.cosyvoice3.tokenizer import ASSISTANT, CONTROLS, END_OF_PROMPT, SPECIAL_TOKENS, CosyTokenizer
from engine.text.nfc import WHITE_SPACE
from sessions.text.phonemes.alphabets import CONSONANTS, VOWELS, read_phonemes
from sessions.text.phonemes.respelling import SpelledPhonemes
from tests.engine.splits import cuts_of

TEXT_ROWS = 151_936
PIECES = st.sampled_from(
    "hello| |today |[breath]|<strong>|</strong>|[a]|[ǐ]|[a|[|<|]|<laughter>|。|今天|e\u0301|\u0301|\n|"
    "[vocalized-noise|[[breath]]|12".split("|")
)
TEXTS = st.lists(PIECES, max_size=8).map("".join) | st.text(max_size=20)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> CosyTokenizer:
    return CosyTokenizer.from_folder(folder / "CosyVoice-BlankEN", TEXT_ROWS)


@pytest.fixture(scope="module")
def official(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    made = transformers.AutoTokenizer.from_pretrained(folder / "CosyVoice-BlankEN")
    made.add_special_tokens({"additional_special_tokens": list(SPECIAL_TOKENS[1:])})
    return made


def test_the_ids_of_the_released_list(tokenizer: CosyTokenizer) -> None:
    ids = tokenizer.special_ids
    assert [ids[t] for t in ("<|endoftext|>", "<|im_start|>", "<|endofprompt|>")] == [151643, 151644, 151646]
    assert [ids[t] for t in ("[breath]", "[mn]", "<|endofsystem|>")] == [151647, 151662, 151663]
    assert [ids[t] for t in ("[AA]", "[ZH]", "[a]", "[ǜ]")] == [151664, 151747, 151748, 151923]
    assert len(ids) == 281


def test_ids_are_those_of_transformers(tokenizer: CosyTokenizer, official: Any) -> None:
    text = "报道[j][ǐ]予 [breath] hello<strong>one</strong> [AH0] café\n [laughter]"
    theirs = official(text)["input_ids"]
    contents = official.convert_ids_to_tokens(theirs)  # their ids follow on the small vocabulary's
    assert tokenizer.encode_text(text) == [
        tokenizer.special_ids.get(content, i) for i, content in zip(theirs, contents, strict=True)
    ]


def test_all_phonemes_that_lexicons_give_are_read(tokenizer: CosyTokenizer) -> None:
    symbols = [*CONSONANTS, *(f"{vowel}{stress}" for vowel in VOWELS for stress in "012")]
    for symbol in symbols:
        phonemes = read_phonemes(symbol, "cmu")
        text = SpelledPhonemes.from_phonemes([symbol] if phonemes is None else phonemes).text_for(reads_phonemes=True)
        assert tokenizer.encode_text(text) == [tokenizer.special_ids[text]]


def test_the_usual_instruction(tokenizer: CosyTokenizer) -> None:
    assert tokenizer.instruct_ids("") == [*tokenizer.encode(ASSISTANT), tokenizer.end_of_prompt]
    given_one = tokenizer.instruct_ids(" 请用广东话表达。 ")
    assert given_one == [*tokenizer.encode(f"{ASSISTANT} 请用广东话表达。"), tokenizer.end_of_prompt]


def test_an_instruction_that_is_known_has_the_same_ids(tokenizer: CosyTokenizer) -> None:
    instructs = ["", "请用广东话表达。", "Speak up."]
    first = [list(tokenizer.instruct_ids(instruct)) for instruct in instructs]
    assert len({tuple(ids) for ids in first}) == 3
    assert [tokenizer.instruct_ids(instruct) for instruct in instructs] == first


@given(text=TEXTS, data=st.data())
def test_any_cutting_is_the_whole_text(tokenizer: CosyTokenizer, text: str, data: st.DataObject) -> None:
    text = text.encode("utf-8", "replace").decode()
    intake = tokenizer.incremental()
    ids, start = [], 0
    for length in data.draw(cuts_of(len(text), 6)):
        ids += intake.push(text[start : start + length])
        start += length
    assert ids + intake.finish() == tokenizer.encode_text(text.lstrip(WHITE_SPACE))


@given(text=TEXTS)
def test_no_text_parts_a_prompt(tokenizer: CosyTokenizer, text: str) -> None:
    ids = tokenizer.encode_text(f"{text}{END_OF_PROMPT}<|im_start|><|endofsystem|>")
    structure = {i for content, i in tokenizer.special_ids.items() if content not in CONTROLS}
    assert not structure & set(ids)


def test_controls_can_be_mere_letters(folder: Path) -> None:
    plain = CosyTokenizer.from_folder(folder / "CosyVoice-BlankEN", TEXT_ROWS, reads_controls=False)
    assert plain.encode_text("[breath]") == plain.encode("[breath]")
    intake = plain.incremental()
    assert intake.push("[breath]") + intake.finish() == plain.encode("[breath]")


def test_a_control_is_out_at_its_last_character(tokenizer: CosyTokenizer) -> None:
    intake = tokenizer.incremental()
    assert intake.push("[brea") == []
    assert intake.push("th]") == [tokenizer.special_ids["[breath]"]]


def test_a_text_table_too_small_is_named(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="outside the text table of 1000"):
        CosyTokenizer.from_folder(folder / "CosyVoice-BlankEN", 1000)
