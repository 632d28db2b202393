"""Lexicon files: PLS and JSON, without DTDs, within limits."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import InvalidRequest
from sessions.text.lexicons.files import MAX_FILE_BYTES, ParsedLexicon, parse_lexicon, to_pls
from sessions.text.lexicons.lexicon import LexiconEntry

PLS = """<?xml version="1.0" encoding="UTF-8"?>
<lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon" alphabet="ipa" xml:lang="en-US">
  <lexeme><grapheme>W3C</grapheme><grapheme>WWWC</grapheme><alias>World Wide Web Consortium</alias></lexeme>
  <lexeme><grapheme>AT&amp;T</grapheme><alias> A T and T </alias><alias>other</alias></lexeme>
  <lexeme><grapheme>tomato</grapheme><phoneme>təˈmeɪtoʊ</phoneme></lexeme>
</lexicon>
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_pls_gives_entries_that_match_case(encoding: str):
    parsed = parse_lexicon(PLS.replace("UTF-8", encoding.removesuffix("-sig")).encode(encoding))
    assert parsed.language == "en-US"
    assert parsed.entries == [
        LexiconEntry(text="W3C", alias="World Wide Web Consortium", match_case=True),
        LexiconEntry(text="WWWC", alias="World Wide Web Consortium", match_case=True),
        LexiconEntry(text="AT&T", alias="A T and T", match_case=True),
        LexiconEntry(text="tomato", phoneme="təˈmeɪtoʊ", match_case=True),
    ]


def test_written_pls_is_read_again():
    parsed = parse_lexicon(PLS.encode())
    assert parse_lexicon(to_pls(parsed.entries, "en")) == ParsedLexicon("en", parsed.entries)


def test_json_gives_entries_or_an_object():
    entry = {"text": "NGINX", "alias": "engine x", "match_case": True}
    assert parse_lexicon(json.dumps({"entries": [entry]}).encode()).entries == [LexiconEntry(**entry)]
    parsed = parse_lexicon(b'{"language": "de", "entries": {"A": "b"}}')
    assert (parsed.language, parsed.entries) == ("de", [LexiconEntry(text="A", alias="b")])


def test_toml_gives_what_json_gives():
    data = b'language = "en"\n[[entries]]\ntext = "gif"\nphoneme = "d\xca\x92\xc9\xaaf"\nmatch_case = true\n'
    entry = LexiconEntry(text="gif", phoneme="dʒɪf", match_case=True)
    assert parse_lexicon(data) == ParsedLexicon("en", [entry])
    assert parse_lexicon(b'[entries]\nNGINX = "engine x"').entries == [LexiconEntry(text="NGINX", alias="engine x")]


BOMB = '<!DOCTYPE lexicon [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><lexicon>&b;</lexicon>'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (BOMB, "has a DTD, which is not accepted"),
        ('<!DOCTYPE lexicon SYSTEM "file:///etc/passwd"><lexicon/>', "has a DTD"),
        ("<lexicon><lexeme></lexicon>", "not well-formed XML: mismatched tag"),
        ("<speak/>", "the root of the XML is not lexicon"),
        ("<lexicon>&nope;</lexicon>", "not well-formed XML"),
        ("<lexicon>" + "<a>" * 300_000, "not well-formed XML"),
        ("<lexicon " + " ".join(f'a{n}="{n}"' for n in range(70_000)) + ">", "not well-formed XML"),
        ("not a lexicon", "neither PLS nor TOML"),
        ('{"entries": 1}', "neither PLS nor JSON"),
        ('{"entries": {}, "more": 1}', "more"),
        ("[" * 100_000, "neither PLS nor TOML"),
        ('{"entries": ' + "[" * 100_000, "neither PLS nor JSON"),
        ("x" * (MAX_FILE_BYTES + 1), "at most 1048576 bytes, this one has 1048577"),
    ],
)
def test_file_that_cannot_be_read_is_refused(data: str, message: str):
    with pytest.raises(InvalidRequest, match=message):
        parse_lexicon(data.encode())


@given(st.binary(max_size=200) | st.text("<>lexicongrapheme/&; \"'=x!", max_size=80).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes):
    with suppress(InvalidRequest):
        parse_lexicon(data).build()
