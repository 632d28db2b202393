"""Markdown and HTML inside a block of text taken off; what kind of line a first word begins."""

from __future__ import annotations

import html
import re
from enum import StrEnum


class LineKind(StrEnum):
    PROSE = "prose"
    HEADING = "heading"
    ITEM = "item"
    TABLE = "table"
    FENCE = "fence"

    @property
    def ends_in_stop(self) -> bool:
        """True if the end of the line ends a sentence."""
        return self in (LineKind.HEADING, LineKind.ITEM, LineKind.TABLE)


_HEADING = re.compile(r"#{1,6}(?=\s|$)")
_BULLET = re.compile(r"[-*+•◦▪‣](?=\s|$)")
_CHECKBOX = re.compile(r"^\[[ xX]?\]?(?=\s|$)")
_NUMBERED = re.compile(r"(\d{1,3})[.)](?=\s|$)")
_RULE = re.compile(r"(?:[-*_=~]\s?){3,}$")
_FENCE = re.compile(r"`{3,}|~{3,}")
_QUOTE = re.compile(r"(?:>\s?)+")

_LINK_END = re.compile(r"\](?:\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s[^)]*)?\)|\[[^\]]*\])")
_CITATION = re.compile(r"\[[xX ]?\](?!\()|\[\^?\d{1,3}(?:[,–-] ?\d{1,3})*\](?!\()|【[^】]*】")
_AUTOLINK = re.compile(r"<((?:https?://|mailto:)[^<>\s]+)>")
_COMMENT = re.compile(r"<!--.*?(?:-->|$)", re.DOTALL)
_BREAK_TAG = re.compile(r"</?(?:br|p|div|li|h[1-6]|tr|hr|ul|ol)\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_ENTITY = re.compile(r"&(?:[A-Za-z]{2,31}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});")
_STARS = re.compile(r"(?<!\d)\*+|\*+(?!\d)|\*{2,}")
_UNDERSCORES = re.compile(r"(?<![A-Za-z0-9])_+|_+(?![A-Za-z0-9])")
_TILDES = re.compile(r"~~+|`+")
_PRODUCT = re.compile(r"(?<=\d) ?\* ?(?=\d)")
_ABOUT = re.compile(r"(?<!~)~(?=[$€£]?\d)")
_ESCAPED = re.compile(r"\\([\\`*_{}\[\]()#+\-.!|>~$])")

_OPEN_TAG = re.compile(r"<(?:[A-Za-z/][^<>]*|!(?:-(?:-(?:(?!-->).)*)?)?)$", re.DOTALL)
_OPEN_LINK_TARGET = re.compile(r"\]\([^)]*$")


def is_open(text: str) -> bool:
    """Return whether a tag or the target of a link is still open."""
    return bool(_OPEN_TAG.search(text) or _OPEN_LINK_TARGET.search(text))


def closes_fence(text: str) -> bool:
    return text.endswith(("```", "~~~"))


def line_kind(text: str) -> tuple[LineKind, str]:
    """The kind of line that begins with this text, and the text without what marks it as such."""
    text = _QUOTE.sub("", text, count=1) if text.startswith(">") else text
    if (fence := _FENCE.match(text)) and not closes_fence(text[fence.end() :]):
        return LineKind.FENCE, ""
    if _RULE.match(text):
        return LineKind.PROSE, ""
    if text.startswith("|"):
        return LineKind.TABLE, text
    if match := _HEADING.match(text):
        return LineKind.HEADING, text[match.end() :]
    if match := _BULLET.match(text):
        return LineKind.ITEM, _CHECKBOX.sub("", text[match.end() :].lstrip())
    if match := _NUMBERED.match(text):
        return LineKind.ITEM, f"{match[1]} ¦{text[match.end() :]}"
    return LineKind.PROSE, text


def strip_markup(text: str) -> str:
    """Marks of emphasis, links, images, citations, tags and entities; what they enclose stays."""
    text = _AUTOLINK.sub(r" \1 ", _COMMENT.sub(" ", text))
    text = _TAG.sub(_tag, _BREAK_TAG.sub(" ¦ ", text))
    text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    text = _CITATION.sub("", text)
    text = _LINK_END.sub("", text)
    text = _ESCAPED.sub(r"\1", text)
    text = _PRODUCT.sub(" × ", text)
    text = _TILDES.sub("", _ABOUT.sub("about ", text))
    return _UNDERSCORES.sub("", _STARS.sub("", text))


def _tag(match: re.Match[str]) -> str:
    inline = re.match(
        r"</?(?:b|i|u|s|em|strong|span|a|code|mark|small|sub|sup|font|del|ins|kbd)\b", match[0], re.IGNORECASE
    )
    return "" if inline else " "
