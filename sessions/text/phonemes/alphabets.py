"""Phonetic alphabets of English, read as phonemes of CMU's dictionary: ``K AE1 T``, with stress behind vowels."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping

DEFAULT_ALPHABET = "ipa"
# Phonemes of a pronunciation.
MAX_PHONEMES = 60
VOWELS = frozenset("AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW".split())
CONSONANTS = frozenset("B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH".split())

# American and British symbols without length marks, each as its phonemes. The longest one counts.
_IPA = {
    "ɑ": "AA", "a": "AA", "ɒ": "AA", "æ": "AE", "ʌ": "AH", "ɐ": "AH", "ə": "AH0", "ɔ": "AO", "aʊ": "AW", "aw": "AW",
    "aɪ": "AY", "aj": "AY", "ɛ": "EH", "e": "EH", "ɜ": "ER", "ɝ": "ER", "ɜr": "ER", "ɜɹ": "ER", "ɚ": "ER0",
    "ər": "ER0", "əɹ": "ER0", "eɪ": "EY", "ej": "EY", "ɪ": "IH", "ɨ": "IH", "i": "IY", "oʊ": "OW", "əʊ": "OW",
    "ow": "OW", "o": "OW", "ɔɪ": "OY", "oɪ": "OY", "ɔj": "OY", "ʊ": "UH", "u": "UW", "ʉ": "UW", "ɪə": "IH R",
    "eə": "EH R", "ɛə": "EH R", "ʊə": "UH R", "y": "UW", "ø": "ER", "œ": "ER", "b": "B", "tʃ": "CH", "ʧ": "CH",
    "d": "D", "ð": "DH", "f": "F", "ɡ": "G", "g": "G", "h": "HH", "ɦ": "HH", "dʒ": "JH", "ʤ": "JH", "k": "K", "x": "K",
    "l": "L", "ɫ": "L", "m": "M", "n": "N", "ɲ": "N Y", "ŋ": "NG", "p": "P", "r": "R", "ɹ": "R", "ɻ": "R", "ʁ": "R",
    "s": "S", "ʃ": "SH", "t": "T", "ɾ": "D", "θ": "TH", "v": "V", "ʋ": "V", "w": "W", "ʍ": "W", "j": "Y", "z": "Z",
    "ʒ": "ZH", "ʔ": "",
}  # fmt: skip
# https://docs.rime.ai/platform/rime-phonetic-alphabet
_RIME = {
    "@": "AE", "a": "AA", "A": "AH", "W": "AW", "x": "AH", "Y": "AY", "E": "EH", "R": "ER", "e": "EY", "I": "IH",
    "i": "IY", "o": "OW", "O": "OY", "U": "UH", "u": "UW", "c": "AO", "b": "B", "C": "CH", "d": "D", "D": "DH",
    "f": "F", "g": "G", "h": "HH", "J": "JH", "k": "K", "l": "L", "m": "M", "n": "N", "G": "NG", "p": "P", "r": "R",
    "s": "S", "S": "SH", "t": "T", "T": "TH", "v": "V", "w": "W", "y": "Y", "z": "Z", "Z": "ZH",
}  # fmt: skip
_STRESSES = {"ˈ": "1", "'": "1", "ˌ": "2", ",": "2"}
_SEPARATORS = frozenset(" .-|‿·ːˑ")
# Under a consonant that is a syllable.
_SYLLABIC = "\u0329"
_ARPABET = re.compile(r"(?P<name>[A-Z]{1,2})(?P<stress>[012]?)")
_MAX_SYMBOL_CHARS = 2


def read_phonemes(written: str, alphabet: str) -> list[str] | None:
    """Return the phonemes; ``None`` if the alphabet is unknown or the text is not of it."""
    reader = _READERS.get(alphabet.strip().lower())
    phonemes = None if reader is None else reader(written.strip())
    return _stressed(phonemes) if phonemes and len(phonemes) <= MAX_PHONEMES else None


def _read_ipa(written: str) -> list[str] | None:
    letters = unicodedata.normalize("NFD", written.strip("/[]"))
    marks = [mark for mark in letters if unicodedata.category(mark) in ("Mn", "Lm") and mark not in "ˈˌːˑ" + _SYLLABIC]
    letters = "".join(letter for letter in letters if letter not in marks)
    return _read_symbols(letters, _IPA)


def _read_rime(written: str) -> list[str] | None:
    """Stress is a digit before its vowel."""
    return _read_symbols(written.strip("{}"), _RIME, {"0": "0", "1": "1", "2": "2"})


def _read_symbols(
    letters: str, symbols: Mapping[str, str], stresses: Mapping[str, str] = _STRESSES
) -> list[str] | None:
    phonemes: list[str] = []
    stress, at = "", 0
    while at < len(letters):
        if letters[at] in stresses:
            stress, at = stresses[letters[at]], at + 1
        elif letters[at] == _SYLLABIC and phonemes:
            phonemes.insert(-1, "AH0")
            at += 1
        elif letters[at] in _SEPARATORS:
            at += 1
        else:
            size = next((n for n in range(_MAX_SYMBOL_CHARS, 0, -1) if letters[at : at + n] in symbols), 0)
            if not size:
                return None
            for phoneme in symbols[letters[at : at + size]].split():
                is_stressed = phoneme[:2] in VOWELS and stress
                phonemes.append(phoneme[:2] + stress if is_stressed else phoneme)
                stress = "" if is_stressed else stress
            at += size
    return phonemes


def _read_arpabet(written: str) -> list[str] | None:
    phonemes = []
    for token in written.upper().split():
        match = _ARPABET.fullmatch(token)
        known = VOWELS if match is not None and match["stress"] else VOWELS | CONSONANTS
        if match is None or match["name"] not in known:
            return None
        phonemes.append(token)
    return phonemes


def _stressed(phonemes: list[str]) -> list[str]:
    """Give each vowel its stress: without any mark, the first full vowel has it."""
    vowels = [index for index, phoneme in enumerate(phonemes) if phoneme[:2] in VOWELS]
    if vowels and not any(phonemes[index][2:] in ("1", "2") for index in vowels):
        full = next((index for index in vowels if not phonemes[index][2:]), vowels[0])
        phonemes[full] = phonemes[full][:2] + "1"
    return [_with_stress(phoneme) for phoneme in phonemes]


def _with_stress(phoneme: str) -> str:
    return phoneme + "0" if phoneme in VOWELS else phoneme


_READERS: dict[str, Callable[[str], list[str] | None]] = {
    "ipa": _read_ipa,
    "cmu-arpabet": _read_arpabet,
    "cmu": _read_arpabet,
    "x-arpabet": _read_arpabet,
    "rime": _read_rime,
}
