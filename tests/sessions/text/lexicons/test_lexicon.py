"""Words of a text replaced as it streams, by the longest entry of whole words, whatever its cut."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import InvalidRequest
from sessions.text.lexicons.lexicon import (
    MAX_ALIAS_CHARS,
    MAX_ENTRIES,
    MAX_SPACES,
    MAX_WRITTEN_CHARS,
    Lexicon,
    LexiconEntry,
)
from sessions.text.lexicons.reader import LexiconReader
from sessions.text.ssml.parser import SsmlParser
from sessions.text.ssml.tokens import PlainTokenizer, TextToken
from tests.sessions.text.ssml.documents import CONTEXT

ALIASES = {
    "NGINX": "engine x",
    "New York": "Big Apple",
    "New York City": "Gotham",
    "C++": "see plus plus",
    "AT&T": "A T and T",
    "a b c d": "alphabet",
    "東京": "Tokyo",
    "café": "coffee house",
}
LEXICON = Lexicon.from_entries(
    [
        *(LexiconEntry(text=text, alias=alias) for text, alias in ALIASES.items()),
        LexiconEntry(text="US", alias="U S", match_case=True),
    ]
)
WORDS = "NGINX nginx New York City US us C++ C + AT&T a b c d 東京 東 café cafe\u0301 , . 's x".split()
TEXTS = st.lists(
    st.sampled_from([*WORDS, " ", "  ", " " * (MAX_SPACES + 1), "\n", "x" * MAX_WRITTEN_CHARS]), max_size=30
).map("".join)


def read(pieces: Iterable[str], *lexicons: Lexicon, language: str = "en") -> list[TextToken]:
    reader = LexiconReader(SsmlParser(tokenizer=PlainTokenizer()), lexicons or [LEXICON], language)
    items = [item for piece in pieces for item in reader.push(piece)] + [*reader.finish()]
    assert reader.num_chars_held == 0
    return [item for item in items if isinstance(item, TextToken)]


def spoken(text: str, *lexicons: Lexicon, language: str = "en") -> str:
    return "".join(token.text for token in read([text], *lexicons, language=language))


def places(tokens: list[TextToken]) -> list[tuple[str, int, int]]:
    """Text that stands for itself by the character, and what was replaced as a whole."""
    out = []
    for token in tokens:
        if token.raw_end - token.raw_start == len(token.text):
            out += [(character, token.raw_start + index, -1) for index, character in enumerate(token.text)]
        else:
            out.append((token.text, token.raw_start, token.raw_end))
    return out


@given(TEXTS, st.lists(st.integers(0, 500), max_size=8))
def test_any_cut_gives_the_same_text_with_its_places(text: str, cuts: list[int]):
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    whole = places(read([text]))
    assert places(read([text[start:end] for start, end in pairwise(edges)])) == whole
    assert places(read(text)) == whole


@given(
    st.lists(st.sampled_from(["[", "T", "]", "[T", "[AH0]", "[K]", "AH", "[US]", "x", " "]), max_size=20).map("".join),
    st.lists(st.integers(0, 50), max_size=8),
)
def test_phonemes_are_not_looked_up_whatever_the_cut(text: str, cuts: list[int]):
    entries = {"T": "tesla", "k": "kilo", "[K]": "kay", "US": "U S", "[": "bracket", "x [T": "y", "x [": "z"}
    lexicon = Lexicon.from_entries([LexiconEntry(text=written, alias=alias) for written, alias in entries.items()])
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    said = []
    for pieces in ([text], [text[start:end] for start, end in pairwise(edges)], text):
        reader = LexiconReader(SsmlParser(tokenizer=PlainTokenizer()), [lexicon], "en", reads_phonemes=True)
        items = [item for piece in pieces for item in reader.push(piece)] + [*reader.finish()]
        said.append("".join(item.text for item in items if isinstance(item, TextToken)))
    assert said[1:] == said[:1] * 2
    for phoneme in ("[T]", "[AH0]", "[K]"):
        assert said[0].count(phoneme) == text.count(phoneme)


@given(TEXTS)
def test_text_outside_of_entries_is_itself(text: str):
    reached = 0
    for token in read([text]):
        assert token.raw_start == reached
        reached = token.raw_end
        assert token.text in {*ALIASES.values(), "U S"} or token.text == text[token.raw_start : token.raw_end]
    assert reached == len(text)


@given(TEXTS)
def test_what_is_held_is_bounded(text: str):
    reader = LexiconReader(SsmlParser(tokenizer=PlainTokenizer()), [LEXICON], "en")
    for character in text:
        list(reader.push(character))
        assert reader.num_chars_held <= (MAX_SPACES + 1) * MAX_WRITTEN_CHARS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nginx's NGINX, Nginx.", "engine x's engine x, engine x."),
        ("nginxes nginx_x nginx1", "nginxes nginx_x nginx1"),
        ("New York, New  York City and New\nYork", "Big Apple, Gotham and Big Apple"),
        ("New Yorkers in New Jersey", "New Yorkers in New Jersey"),
        ("C++ and c++11, C+", "see plus plus and see plus plus11, C+"),
        ("US us Us", "U S us Us"),
        ("AT&T", "A T and T"),
        ("a b c e, a b c d", "a b c e, alphabet"),
        ("東京都", "Tokyo都"),
        ("", ""),
    ],
)
def test_longest_entry_of_whole_words_is_spoken(text: str, said: str):
    assert spoken(text) == said


def test_first_lexicon_wins_where_two_match_as_much():
    first, second = (Lexicon.from_entries([LexiconEntry(text="x", alias=alias)]) for alias in ("one", "two"))
    longer = Lexicon.from_entries([LexiconEntry(text="x y", alias="three")])
    assert spoken("x x y", first, second, longer) == "one three"


def test_case_follows_the_language():
    turkish = Lexicon.from_entries([LexiconEntry(text="ışık", alias="light")], "tr")
    assert spoken("IŞIK Isik", turkish, language="tr-TR") == "light Isik"
    assert spoken("IŞIK", turkish, language="en") == "IŞIK"
    assert spoken("IŞIK", turkish, language="auto") == "light"


def test_lexicon_follows_the_language_of_the_markup():
    german = Lexicon.from_entries([LexiconEntry(text="Bug", alias="Fehler")], "german")
    reader = LexiconReader(SsmlParser(CONTEXT), [german], "en")
    items = [*reader.push('Bug <lang xml:lang="de">Bug</lang> Bug'), *reader.finish()]
    assert "".join(item.text for item in items if isinstance(item, TextToken)) == "Bug Fehler Bug"


def test_markup_ends_a_phrase_and_replaced_text_keeps_its_place():
    reader = LexiconReader(SsmlParser(CONTEXT), [LEXICON], "en")
    items = [*reader.push("New <break/>York <emphasis>AT&amp;T</emphasis>"), *reader.finish()]
    tokens = [(item.text, item.raw_start, item.raw_end) for item in items if isinstance(item, TextToken)]
    assert tokens[0] == ("New ", 0, 4)
    assert tokens[-1] == ("A T and T", 27, 35)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (LexiconEntry(text=" ", alias="x"), "text of entry 1 has 0 characters, 1 to 100 are allowed"),
        (LexiconEntry(text="x" * 101, alias="x"), "text of entry 1 has 101 characters"),
        (LexiconEntry(text="x", alias="x" * (MAX_ALIAS_CHARS + 1)), "alias of entry 1 has 201 characters"),
        (LexiconEntry(text="x", phoneme="x" * (MAX_ALIAS_CHARS + 1)), "phoneme of entry 1 has 201 characters"),
        (LexiconEntry(text="x", alias="y", phoneme="x"), "entry 1 has both alias and phoneme"),
    ],
)
def test_entry_beyond_a_limit_is_named(entry: LexiconEntry, message: str):
    with pytest.raises(InvalidRequest, match=message):
        Lexicon.from_entries([entry])


def test_lexicon_has_at_most_so_many_entries():
    entry = LexiconEntry(text="x", alias="y")
    assert Lexicon.from_entries([entry] * MAX_ENTRIES).num_entries == MAX_ENTRIES
    with pytest.raises(InvalidRequest, match="has 10001 entries, at most 10000 are allowed"):
        Lexicon.from_entries([entry] * (MAX_ENTRIES + 1))


def test_phonemes_are_spelled_in_letters_for_english_alone():
    entries = [LexiconEntry(text="gif", phoneme="dʒɪf"), LexiconEntry(text="snow", phoneme="☃")]
    lexicon = Lexicon.from_entries(entries, "en-US")
    assert (lexicon.folded, lexicon.num_entries) == ({"gif": ("jif", "[JH][IH1][F]")}, 1)
    assert Lexicon.from_entries(entries, "de").num_entries == 0


@pytest.mark.parametrize(("reads_phonemes", "expected"), [(False, "A jif."), (True, "A [JH][IH1][F].")])
def test_phonemes_are_as_given_for_models_that_read_them(reads_phonemes: bool, expected: str):
    lexicon = Lexicon.from_entries([LexiconEntry(text="gif", phoneme="dʒɪf")])
    stored = msgspec.json.decode(msgspec.json.encode(lexicon), type=Lexicon)
    reader = LexiconReader(SsmlParser(tokenizer=PlainTokenizer()), [stored], "en", reads_phonemes)
    items = [*reader.push("A GIF."), *reader.finish()]
    assert "".join(item.text for item in items if isinstance(item, TextToken)) == expected
