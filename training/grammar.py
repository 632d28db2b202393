"""Sentence grammars as text: ``[name]`` opens a list of alternatives, ``{name}`` draws from one, ``(a|b)`` chooses.

A line is one alternative; a line that begins with ``*`` holds several, parted by commas. An empty line between two
alternatives is the empty alternative.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random


@dataclass(frozen=True)
class Slot:
    name: str


# Words, a slot, or a choice.
Part = str | Slot | tuple["Line", ...]
Line = tuple[Part, ...]
# Gives the words of a slot that no rule describes.
Fill = Callable[[str], str]

TOKEN = re.compile(r"\{(\w+)\}|([(|)])|([^{(|)]+)")


def parse_line(text: str) -> Line:
    line: list[Part] = []
    outer: list[tuple[list[Part], list[Line]]] = []  # what stands before each open parenthesis, and its alternatives
    for slot, mark, words in TOKEN.findall(text):
        if slot or words:
            line.append(Slot(slot) if slot else words)
        elif mark == "(":
            outer.append((line, []))
            line = []
        elif not outer:
            raise ValueError(f"grammar: {mark!r} outside parentheses in {text!r}")
        elif mark == "|":
            outer[-1][1].append(tuple(line))
            line = []
        else:
            before, alternatives = outer.pop()
            line = [*before, (*alternatives, tuple(line))]
    if outer:
        raise ValueError(f"grammar: a parenthesis is left open in {text!r}")
    return tuple(line)


def read_alternatives(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(name of the list, alternative) for every alternative of a grammar file."""
    name, blank = "", 0
    for text in lines:
        if text.startswith("["):
            name, blank = text.strip("[]"), 0
        elif not text:
            blank += 1
        elif not text.startswith("#"):
            yield from ((name, "") for _ in range(blank))
            yield from ((name, one) for one in (text[2:].split(", ") if text.startswith("* ") else [text]))
            blank = 0


class Grammar:
    def __init__(self, paths: Iterable[Path]) -> None:
        self._rules: dict[str, list[Line]] = {}
        for path in paths:
            for name, text in read_alternatives(path.read_text().splitlines()):
                self._rules.setdefault(name, []).append(parse_line(text))

    @property
    def names(self) -> set[str]:
        return set(self._rules)

    def slots(self) -> set[str]:
        """Every slot that some line draws from."""
        return {name for lines in self._rules.values() for line in lines for name in _slots(line)}

    def expand(self, name: str, random: Random, fill: Fill) -> str:
        parts: list[str] = []
        self._expand_slot(name, random, fill, parts)
        return "".join(parts)

    def _expand_slot(self, name: str, random: Random, fill: Fill, parts: list[str]) -> None:
        lines = self._rules.get(name)
        if lines is None:
            parts.append(fill(name))
        else:
            self._expand_line(random.choice(lines), random, fill, parts)

    def _expand_line(self, line: Line, random: Random, fill: Fill, parts: list[str]) -> None:
        for part in line:
            if isinstance(part, str):
                parts.append(part)
            elif isinstance(part, Slot):
                self._expand_slot(part.name, random, fill, parts)
            else:
                self._expand_line(random.choice(part), random, fill, parts)


def _slots(line: Line) -> Iterator[str]:
    for part in line:
        if isinstance(part, Slot):
            yield part.name
        elif isinstance(part, tuple):
            for alternative in part:
                yield from _slots(alternative)
