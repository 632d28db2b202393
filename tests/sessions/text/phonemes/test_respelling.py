"""Phonetic alphabets are read as phonemes, and these are spelled in letters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.text.phonemes.alphabets import CONSONANTS, MAX_PHONEMES, VOWELS, read_phonemes
from sessions.text.phonemes.respelling import respell


@pytest.mark.parametrize(
    ("written", "alphabet", "phonemes"),
    [
        ("təˈmeɪtoʊ", "ipa", "T AH0 M EY1 T OW0"),
        ("/təˈmeɪ.t͡ʃiː/", "IPA", "T AH0 M EY1 CH IY0"),
        ("ˈbʌtn̩", "ipa", "B AH1 T AH0 N"),
        ("kæt", "ipa", "K AE1 T"),
        ("t ah0 m ey1", "cmu-arpabet", "T AH0 M EY1"),
        ("k1Ast0xm", "rime", "K AH1 S T AH0 M"),
        ("{g1orby0ul2Ets}", "rime", "G OW1 R B Y UW0 L EH2 T S"),
    ],
)
def test_alphabet_is_read(written: str, alphabet: str, phonemes: str):
    assert read_phonemes(written, alphabet) == phonemes.split()


@pytest.mark.parametrize(
    ("written", "alphabet"),
    [("", "ipa"), ("☃", "ipa"), ("XX", "cmu"), ("K1", "cmu"), ("!", "rime"), ("kat", "x-sampa"), ("a" * 61, "ipa")],
)
def test_what_is_not_of_the_alphabet_is_not_read(written: str, alphabet: str):
    assert read_phonemes(written, alphabet) is None


@pytest.mark.parametrize(
    ("phonemes", "letters"),
    [
        ("T AH0 M EY1 T OW2", "tuh-may-toh"),
        ("K R IY1 T", "kreet"),
        ("EH1 N JH IH0 N", "en-jin"),
        ("M Y UW1 Z", "mewz"),
        ("K W IH1 K L IY0", "quik-lee"),
        ("S T R EH1 NG K TH S", "strengkths"),
        ("D IH0 V AY1 D IH0 NG", "divv-ai-ding"),
        ("K AH0 M ER1 SH AH0 L", "cuh-mur-shul"),
        ("S K AY1", "skigh"),
        ("S T", "st"),
    ],
)
def test_phonemes_are_spelled_by_syllables(phonemes: str, letters: str):
    assert respell(phonemes.split()) == letters


@given(st.lists(st.sampled_from(sorted(VOWELS | CONSONANTS)), min_size=1, max_size=MAX_PHONEMES))
def test_any_phonemes_become_letters(phonemes: list[str]):
    letters = respell(phonemes).replace("-", "")
    assert letters.isascii()
    assert letters.isalpha()


@given(st.text(max_size=80), st.sampled_from(["ipa", "cmu", "rime", "nope"]))
def test_any_text_is_read_or_not(written: str, alphabet: str):
    phonemes = read_phonemes(written, alphabet)
    assert phonemes is None or len(phonemes) <= MAX_PHONEMES
    assert {phoneme.rstrip("012") for phoneme in phonemes or ()} <= VOWELS | CONSONANTS
