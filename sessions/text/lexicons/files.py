"""Lexicons as files: W3C PLS 1.0, and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

import msgspec

from engine.api import InvalidRequest
from sessions.text.lexicons.lexicon import Lexicon, LexiconEntry

MAX_FILE_BYTES = 1_048_576


class LexiconFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON file. ``entries`` may be an object of texts and aliases, too."""

    entries: list[LexiconEntry] | dict[str, str]
    language: str = ""


@dataclass(frozen=True, slots=True)
class ParsedLexicon:
    language: str
    entries: list[LexiconEntry]
    # Entries that have a phonetic form alone, which no model here reads.
    num_without_alias: int = 0

    def build(self) -> Lexicon:
        """Raises ``InvalidRequest``."""
        return Lexicon.from_entries(self.entries, self.language)


def parse_lexicon(data: bytes) -> ParsedLexicon:
    """Read a file of either form. Raises ``InvalidRequest``."""
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequest(f"a lexicon has at most {MAX_FILE_BYTES} bytes, this one has {len(data)}", "lexicon")
    is_xml = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"<" or data[:2] in (b"\xff\xfe", b"\xfe\xff")
    return _PlsReader().read(data) if is_xml else _parse_json(data)


def _parse_json(data: bytes) -> ParsedLexicon:
    try:
        file = msgspec.json.decode(data, type=LexiconFile)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(f"the lexicon is neither PLS nor JSON of a lexicon: {error}", "lexicon") from None
    entries = file.entries
    if isinstance(entries, Mapping):
        entries = [LexiconEntry(text=text, alias=alias) for text, alias in entries.items()]
    return ParsedLexicon(file.language, entries)


@dataclass(slots=True)
class _Lexeme:
    graphemes: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)


class _PlsReader:
    """Graphemes match their case, as PLS asks for. There are no DTDs, and so no entities but those of XML."""

    def __init__(self) -> None:
        self._entries: list[LexiconEntry] = []
        self._num_without_alias = 0
        self._language = ""
        self._path: list[str] = []
        self._lexeme = _Lexeme()
        self._text: list[str] = []

    def read(self, data: bytes) -> ParsedLexicon:
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        parser.StartDoctypeDeclHandler = _refuse_dtd
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        try:
            parser.Parse(data, True)
        except expat.ExpatError as error:
            raise InvalidRequest(f"the lexicon is not well-formed XML: {error}", "lexicon") from None
        return ParsedLexicon(self._language, self._entries, self._num_without_alias)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(" ")[2]
        if not self._path and name != "lexicon":
            raise InvalidRequest("the root of the XML is not lexicon", "lexicon")
        if not self._path:
            self._language = attributes.get("http://www.w3.org/XML/1998/namespace lang", "")
        self._path.append(name)
        if name == "lexeme":
            self._lexeme = _Lexeme()
        self._text.clear()

    def _end(self, _: str) -> None:
        name, text = self._path.pop(), "".join(self._text).strip()
        self._text.clear()
        if name == "grapheme":
            self._lexeme.graphemes.append(text)
        elif name == "alias":
            self._lexeme.aliases.append(text)
        elif name == "lexeme" and self._lexeme.aliases:
            alias = self._lexeme.aliases[0]
            written = self._lexeme.graphemes
            self._entries += [LexiconEntry(text=text, alias=alias, match_case=True) for text in written]
        elif name == "lexeme":
            self._num_without_alias += 1


def _refuse_dtd(*_: object) -> None:
    raise InvalidRequest("the lexicon has a DTD, which is not accepted", "lexicon")
