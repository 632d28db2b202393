"""Verbalizes addresses: telephone numbers, e-mail addresses, URLs, file names."""

from __future__ import annotations

import re

from sessions.text.numbers import digits, grouped_digits

_URL = re.compile(r"(?:https?://|ftp://|www\.)[^\s<>\"]+", re.IGNORECASE)
_EMAIL = re.compile(r"(?:mailto:)?([A-Za-z0-9][\w.+-]{0,80})@([A-Za-z0-9][A-Za-z0-9-]{0,60}(?:\.[A-Za-z0-9-]{1,60})+)")
_DOMAIN = re.compile(
    r"(?<![\w@./-])(?:[A-Za-z][A-Za-z0-9-]{0,60}\.){1,4}(?:[a-z]{2,10}|[A-Z]{2,5})(?![\w@])(?:/[\w/-]*)?"
)
_DOT_NAME = re.compile(r"(?<![\w.])\.(?=[A-Za-z])")
_SUFFIX = re.compile(r"(?<=\.)[A-Za-z]{2,4}$")
_SPELLED_SUFFIXES = frozenset("edu exe".split())
_CLOSERS = ".,;:!?)]}'\"*_"
_MAX_PATH_PARTS = 3
_PLAIN_PART = re.compile(r"[A-Za-z]{1,20}(?:[-_][A-Za-z]{1,20}){0,4}|\d{1,4}")

_PHONE = re.compile(
    r"(?<![\w.,])"
    r"(?:\+\d{1,3}(?:[ .-]?\(?\d{1,4}\)?){2,5}"
    r"|(?:1[ .-])?\(\d{3}\) ?\d{3}[ .-]\d{4}"
    r"|(?:1[ .-])?\d{3}[ .-]\d{3}[ .-]\d{4}"
    r"|\d{3}-\d{4}"
    r"|\d{4}(?:[ -]\d{4}){2,3}"
    r"|\d{2,12}(?:-\d{2,12}){2,6}"
    r"|\d{1,6}(?:-\d{1,7}){3,6}"
    r"|0\d{2,4}(?:[ -]\d{3,4}){1,3}"
    r"|0\d{6,14}|\d{10,30})"
    r"(?![\w%-]|[.,]\d)"
)


def verbalize_links(text: str) -> str:
    """URLs, e-mail addresses, hosts and file names."""
    text = _URL.sub(_url, text)
    text = _EMAIL.sub(lambda match: f" {_name(match[1])} at {_name(match[2])} ", text)
    text = _DOMAIN.sub(_domain, text)
    return _DOT_NAME.sub("dot ", text)


def verbalize_phone_numbers(text: str) -> str:
    """Telephone and card numbers and other long runs of digits, digit by digit with a pause between groups."""
    return _PHONE.sub(_phone, text)


def _url(match: re.Match[str]) -> str:
    """The host, and the path if it is short and made of words; never the query."""
    address = match[0].rstrip(_CLOSERS)
    closing = match[0][len(address) :]
    bare = re.sub(r"^(?:[a-z]+://)?(?:[^/@\s]*@)?(?:www\.)?", "", address, flags=re.IGNORECASE)
    host, _, path = re.split(r"[?#]", bare, maxsplit=1)[0].partition("/")
    return f" {_name(host)}{_path(path)}{closing} "


def _path(path: str) -> str:
    parts = [part for part in path.split("/") if part]
    if len(parts) > _MAX_PATH_PARTS or not all(_PLAIN_PART.fullmatch(part) for part in parts):
        return ""
    return "".join(f" slash {_name(part)}" for part in parts)


def _domain(match: re.Match[str]) -> str:
    host, _, path = match[0].partition("/")
    left, _, right = host.rpartition(".")
    if left[-1:].islower() and right[:1].isupper() and right[1:].islower():
        return match[0]
    return f" {_name(host)}{_path(path)} "


def _name(written: str) -> str:
    """ "john dot doe" for "john.doe"; digits and capitals are left for later rules."""
    written = _SUFFIX.sub(_suffix, written)
    written = re.sub(r"\.", " dot ", written)
    written = re.sub(r"_", " underscore ", written)
    written = re.sub(r"-", " dash ", written)
    written = re.sub(r"\+", " plus ", written)
    written = re.sub(r":", " colon ", written)
    return re.sub(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])", " ", written)


def _suffix(match: re.Match[str]) -> str:
    """ "com" is a word, "py" and "html" are letters."""
    suffix = match[0].lower()
    is_word = len(suffix) > 2 and any(letter in "aeiou" for letter in suffix) and suffix not in _SPELLED_SUFFIXES
    return suffix if is_word else " ".join(suffix.upper())


def _phone(match: re.Match[str]) -> str:
    groups = re.findall(r"\d+", match[0])
    spoken = ", ".join(digits(group) for group in groups) if len(groups) > 1 else grouped_digits(groups[0])
    return f" plus {spoken}" if match[0].startswith("+") else spoken
