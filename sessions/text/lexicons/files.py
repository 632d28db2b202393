"""Lexicons as files: W3C PLS 1.0, JSON and TOML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, SubElement, tostring
from xml.parsers import expat

import msgspec

from engine.api import InvalidRequest
from sessions.text.lexicons.lexicon import Lexicon, LexiconEntry
from sessions.text.phonemes.alphabets import DEFAULT_ALPHABET

MAX_FILE_BYTES = 1_048_576
_NAMESPACE = "http://www.w3.org/2005/01/pronunciation-lexicon"


class LexiconFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON or TOML file. ``entries`` may be an object of texts and aliases, too."""

    entries: list[LexiconEntry] | dict[str, str]
    language: str = ""


@dataclass(frozen=True, slots=True)
class ParsedLexicon:
    language: str
    entries: list[LexiconEntry]

    def build(self) -> Lexicon:
        """Raises ``InvalidRequest``."""
        return Lexicon.from_entries(self.entries, self.language)


def parse_lexicon(data: bytes) -> ParsedLexicon:
    """Read a file of either form. Raises ``InvalidRequest``."""
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequest(f"a lexicon has at most {MAX_FILE_BYTES} bytes, this one has {len(data)}", "lexicon")
    is_xml = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"<" or data[:2] in (b"\xff\xfe", b"\xfe\xff")
    return _PlsReader().read(data) if is_xml else _parse_fields(data)


def _parse_fields(data: bytes) -> ParsedLexicon:
    is_json = data.lstrip()[:1] == b"{"
    try:
        file = (msgspec.json if is_json else msgspec.toml).decode(data, type=LexiconFile)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        found = f"the lexicon is neither PLS nor {'JSON' if is_json else 'TOML'} of a lexicon: {error}"
        raise InvalidRequest(found, "lexicon") from None
    entries = file.entries
    if isinstance(entries, Mapping):
        entries = [LexiconEntry(text=text, alias=alias) for text, alias in entries.items()]
    return ParsedLexicon(file.language, entries)


@dataclass(slots=True)
class _Lexeme:
    graphemes: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    phonemes: list[str] = field(default_factory=list)
    alphabet: str = ""

    @property
    def entries(self) -> list[LexiconEntry]:
        """One for each grapheme. Of pronunciations the first alias counts, else the first phonetic one."""
        if self.aliases:
            return [LexiconEntry(text=text, alias=self.aliases[0], match_case=True) for text in self.graphemes]
        if not self.phonemes:
            return []
        phonetic = {"phoneme": self.phonemes[0], "alphabet": self.alphabet}
        return [LexiconEntry(text=text, match_case=True, **phonetic) for text in self.graphemes]


class _PlsReader:
    """Graphemes match their case, as PLS asks for. There are no DTDs, and so no entities but those of XML."""

    def __init__(self) -> None:
        self._entries: list[LexiconEntry] = []
        self._language = ""
        self._alphabet = DEFAULT_ALPHABET
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
        return ParsedLexicon(self._language, self._entries)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(" ")[2]
        if not self._path and name != "lexicon":
            raise InvalidRequest("the root of the XML is not lexicon", "lexicon")
        if not self._path:
            self._language = attributes.get("http://www.w3.org/XML/1998/namespace lang", "")
            self._alphabet = attributes.get("alphabet", self._alphabet)
        self._path.append(name)
        if name == "lexeme":
            self._lexeme = _Lexeme()
        elif name == "phoneme":
            self._lexeme.alphabet = self._lexeme.alphabet or attributes.get("alphabet", self._alphabet)
        self._text.clear()

    def _end(self, _: str) -> None:
        name, text = self._path.pop(), "".join(self._text).strip()
        self._text.clear()
        if name == "grapheme":
            self._lexeme.graphemes.append(text)
        elif name == "alias":
            self._lexeme.aliases.append(text)
        elif name == "phoneme":
            self._lexeme.phonemes.append(text)
        elif name == "lexeme":
            self._entries += self._lexeme.entries


def _refuse_dtd(*_: object) -> None:
    raise InvalidRequest("the lexicon has a DTD, which is not accepted", "lexicon")


def to_pls(entries: Iterable[LexiconEntry], language: str) -> bytes:
    """Write entries as PLS. Whether case matters is lost, as PLS has no word for it."""
    root = Element("lexicon", {"version": "1.0", "xmlns": _NAMESPACE, "alphabet": DEFAULT_ALPHABET})
    root.set("xml:lang", language or "und")
    for entry in entries:
        lexeme = SubElement(root, "lexeme")
        SubElement(lexeme, "grapheme").text = entry.text
        if entry.alias:
            SubElement(lexeme, "alias").text = entry.alias
        else:
            SubElement(lexeme, "phoneme", {"alphabet": entry.alphabet}).text = entry.phoneme
    document: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return document
