from __future__ import annotations

import pytest

from realtime.speech_api.capabilities import CODES, NAMES, known_language

OFFICIAL = ("auto", "english", "chinese", "german")
SHORT = ("auto", "en", "de")


@pytest.mark.parametrize(
    ("given", "languages", "known"),
    [
        ("English", OFFICIAL, "english"),
        ("en", OFFICIAL, "english"),
        ("EN-us", OFFICIAL, "english"),
        (" zh-Hans-CN ", OFFICIAL, "chinese"),
        ("german", SHORT, "de"),
        ("de-AT", SHORT, "de"),
        ("Auto", SHORT, "auto"),
        ("auto", (), "auto"),
        ("fr", OFFICIAL, None),
        ("klingon", OFFICIAL, None),
        ("", OFFICIAL, None),
        ("-", OFFICIAL, None),
    ],
)
def test_a_language_by_any_name(given: str, languages: tuple[str, ...], known: str | None) -> None:
    assert known_language(given, languages) == known


def test_names_and_codes_are_each_other_s() -> None:
    assert {name: code for code, name in NAMES.items()} == CODES
    for code, name in NAMES.items():
        assert known_language(code, [name]) == name
        assert known_language(name, [code]) == code
