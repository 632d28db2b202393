import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.grammar import Grammar, parse_line
from training.held_out import HeldOut, read_sentences, words_of
from training.lexicon import CORPUS, SLOT_TAGS
from training.numerals import MONTHS, ONES, SCALES, TENS, Numerals, cardinal, ordinal, year
from training.text import KIND_WEIGHTS, TextSettings, TextSource, finish
from training.text_filter import is_speakable


@pytest.fixture(scope="module")
def source() -> TextSource:
    return TextSource(TextSettings(seed=7))


@pytest.fixture(scope="module")
def sentences(source: TextSource) -> list[str]:
    return [source.sentence(number) for number in range(3000)]


def value_of(words: str) -> int:
    """The slow way back from words to a number."""
    total = part = 0
    for word in words.replace("-", " ").replace(" and ", " ").split():
        if word in ONES:
            part += ONES.index(word)
        elif word in TENS:
            part += 10 * (TENS.index(word) + 2)
        elif word == "hundred":
            part *= 100
        else:
            total += part * {name: size for size, name in SCALES}[word]
            part = 0
    return total + part


@given(st.integers(0, 10**15 - 1), st.sampled_from("- "), st.sampled_from((" ", " and ")))
def test_cardinals_keep_their_value(value: int, joint: str, conjunction: str) -> None:
    assert value_of(cardinal(value, joint, conjunction)) == value


def test_ordinals_and_years_as_they_are_read() -> None:
    assert [ordinal(value) for value in (1, 2, 12, 20, 33, 100)] == (
        ["first", "second", "twelfth", "twentieth", "thirty-third", "one hundredth"]
    )
    assert [year(value) for value in (1984, 2007, 1906, 1900, 2026)] == (
        ["nineteen eighty-four", "two thousand seven", "nineteen oh six", "nineteen hundred", "twenty twenty-six"]
    )


@pytest.mark.parametrize(
    "slot", ["number", "decimal", "percent", "date", "time", "money", "digits", "letters", "code", "year", "ordinal"]
)
def test_every_numeral_is_words_alone(slot: str) -> None:
    for seed in range(200):
        words = getattr(Numerals(Random(seed)), slot)()
        assert re.fullmatch(r"[A-Za-z' ,-]+", words), words


def test_months_are_twelve() -> None:
    assert len(set(MONTHS)) == 12


def test_a_sentence_depends_on_seed_and_number_alone(sentences: list[str]) -> None:
    other = TextSource(TextSettings(seed=7))
    assert [other.sentence(number) for number in (2999, 17, 0)] == [sentences[2999], sentences[17], sentences[0]]
    assert TextSource(TextSettings(seed=8)).sentence(0) != sentences[0]


def test_sentences_are_speakable_distinct_and_of_all_lengths(sentences: list[str]) -> None:
    assert all(map(is_speakable, sentences))
    assert len(set(sentences)) > 0.95 * len(sentences)
    lengths = [len(text) for text in sentences]
    assert sum(length < 30 for length in lengths) > 0.15 * len(lengths)
    assert sum(length > 110 for length in lengths) > 0.15 * len(lengths)


def test_sentences_hold_many_words(sentences: list[str]) -> None:
    assert len({word for text in sentences for word in words_of(text)}) > 10_000


@pytest.mark.parametrize("kind", [kind for kind in KIND_WEIGHTS if kind != "prose"])
def test_every_kind_makes_speakable_text(source: TextSource, kind: str) -> None:
    assert all(is_speakable(source.make(kind, Random(seed))) for seed in range(100))


def test_a_prose_file_is_drawn_from(tmp_path) -> None:
    import lzma

    path = tmp_path / "prose.txt.xz"
    path.write_bytes(lzma.compress(b"Quixotic zebras.\nJovial walruses."))
    source = TextSource(TextSettings(prose=path))
    assert any("zebras" in source.sentence(number) for number in range(100))


def test_every_slot_of_the_grammars_can_be_filled() -> None:
    grammar = Grammar(CORPUS.glob("*.txt"))
    numerals = {name for name in dir(Numerals) if not name.startswith("_")}
    assert grammar.slots() - grammar.names - numerals <= set(SLOT_TAGS)


@pytest.mark.parametrize("broken", ["a (b|c", "a | b", "a)"])
def test_a_broken_grammar_line_is_refused(broken: str) -> None:
    with pytest.raises(ValueError, match="grammar"):
        parse_line(broken)


def test_capitals_and_articles() -> None:
    assert finish("a owl saw a unicorn. an hour on a union site") == "An owl saw a unicorn. An hour on a union site"


@pytest.mark.parametrize("text", ["Yes.", "It's twenty-one, I think; is it?", "the dogs' bowl", "A B C"])
def test_speakable(text: str) -> None:
    assert is_speakable(text)


@pytest.mark.parametrize("text", ["No", "9 lives", "a  b", "naive\u0301", "x" * 301, " lead", "a ,b", "why?!", '"No."'])
def test_not_speakable(text: str) -> None:
    assert not is_speakable(text)


def test_held_out_sentences_and_their_like_never_come(sentences: list[str]) -> None:
    held_out = HeldOut(read_sentences())
    assert not any(held_out.too_near(text) for text in sentences)


def test_the_held_out_check_can_fail() -> None:
    held_out = HeldOut(["Could you hold for a second?", "Seven."])
    assert held_out.too_near("could you hold for a second")
    assert held_out.too_near("Well, could you hold for a while?")
    assert held_out.too_near("SEVEN!")
    assert not held_out.too_near("Seven days.")
    assert not held_out.too_near("Could you hold it?")


def test_a_generator_near_a_held_out_sentence_draws_again(monkeypatch: pytest.MonkeyPatch) -> None:
    source = TextSource(TextSettings(seed=7))
    first = source.sentence(5)
    monkeypatch.setattr(source, "_held_out", HeldOut([first]))
    assert source.sentence(5) != first


def test_the_benchmark_has_200_sentences_of_every_length() -> None:
    sentences = read_sentences()
    assert len(set(sentences)) == 200
    assert all(map(is_speakable, sentences))
    assert min(map(len, sentences)) < 10
    assert max(map(len, sentences)) > 250
