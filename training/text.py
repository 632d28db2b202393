"""Training sentences without end: sentence ``number`` depends on the settings and the number alone.

The kinds: what agents say, everyday prose, travel and weather, news, numbers, real prose (definitions and examples,
when a prose file is given), word salad in which rare words are as likely as common ones, short and long utterances.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from training.grammar import Grammar
from training.held_out import HeldOut, read_sentences
from training.lexicon import CORPUS, SLOT_TAGS, default_lexicon
from training.numerals import Numerals
from training.text_filter import MAX_CHARACTERS, is_speakable

KIND_WEIGHTS = {
    "reply": 16,
    "everyday": 11,
    "travel": 6,
    "news": 12,
    "numbers": 11,
    "prose": 20,
    "salad": 16,
    "short": 10,
    "long": 16,
}
MAX_ATTEMPTS = 50
FUNCTION_WORDS = (
    "the a of to and in that is was for it with as his on be at by had not are but from or have they which one you "
    "were her all she there would their we him been has when who will more no if out so said what up its about into "
    "than them can only other new some could time these two may then do first any my now such like our over man me "
    "even most after also did many before must through back years where much your way well down should because each "
    "just those people"
).split()


@dataclass(frozen=True)
class TextSettings:
    seed: int = 0
    # A file that ``training/corpus/build.py --prose`` wrote; without one the other kinds take its share.
    prose: Path | None = None


class TextSource:
    """The stream of sentences for ``settings``; any part of it can be made anywhere, in any order."""

    def __init__(self, settings: TextSettings = TextSettings()) -> None:
        self._seed = settings.seed
        self._lexicon = default_lexicon()
        self._grammar = Grammar(CORPUS / name for name in ("slots.txt", "talk.txt", "news.txt"))
        self._held_out = HeldOut(read_sentences())
        self._prose = _read_prose(settings.prose) if settings.prose else []
        self._kinds = [kind for kind in KIND_WEIGHTS if kind != "prose" or self._prose]
        self._weights = [KIND_WEIGHTS[kind] for kind in self._kinds]
        self._makers: dict[str, Callable[[Random], str]] = {
            "prose": lambda random: random.choice(self._prose),
            "salad": self._salad,
            "short": self._short,
            "long": self._long,
        }

    def sentence(self, number: int) -> str:
        """Sentence ``number``: 3 to 300 characters that ``is_speakable`` accepts, far from every held-out one."""
        for attempt in range(MAX_ATTEMPTS):
            random = Random(f"{self._seed} {number} {attempt}")
            kind = random.choices(self._kinds, self._weights)[0]
            text = self._roughen(self.make(kind, random), random)
            if is_speakable(text) and not self._held_out.too_near(text):
                return text
        raise RuntimeError(f"text: no usable sentence {number} in {MAX_ATTEMPTS} attempts")

    def make(self, kind: str, random: Random) -> str:
        """One sentence of ``kind``; it may be too long or held out."""
        maker = self._makers.get(kind)
        if maker:
            return maker(random)
        numerals = Numerals(random)

        def fill(slot: str) -> str:
            return self._lexicon.draw(slot, random) if slot in SLOT_TAGS else str(getattr(numerals, slot)())

        return finish(self._grammar.expand(f"kind.{kind}", random, fill))

    def _salad(self, random: Random) -> str:
        words: list[str] = []
        for _ in range(random.randint(2, 14)):
            if words and random.random() < 0.3:
                words.append(random.choice(FUNCTION_WORDS))
            words.append(self._lexicon.any_word(random) + ("," if random.random() < 0.12 else ""))
        words[-1] = words[-1].rstrip(",")
        return finish(" ".join(words) + random.choice(".....?!"))

    def _short(self, random: Random) -> str:
        numerals = Numerals(random)
        lexicon = self._lexicon
        text = random.choice(
            (
                lambda: lexicon.any_word(random),
                lambda: lexicon.any_word(random),
                lambda: f"{lexicon.draw('adjective', random)} {lexicon.draw('noun', random)}",
                lambda: f"the {lexicon.draw('noun', random)} of {lexicon.draw('nouns', random)}",
                lambda: f"{lexicon.draw('verb', random)} {random.choice(('it', 'them', 'me', 'now', 'here', 'us'))}",
                lambda: f"{lexicon.draw('proper', random)} {lexicon.draw('proper', random)}",
                lambda: f"{lexicon.any_word(random)}, {lexicon.any_word(random)}",
                numerals.letters,
                numerals.number,
                numerals.code,
            )
        )()
        return finish(text + random.choice("....?!"))

    def _long(self, random: Random) -> str:
        target, kinds = random.randint(100, MAX_CHARACTERS), [kind for kind in self._kinds if kind != "long"]
        text = self.make(random.choice(kinds), random)
        for _ in range(20):
            more = f"{text} {self.make(random.choice(kinds), random)}"
            if len(more) <= target:
                text = more
        return text

    @staticmethod
    def _roughen(text: str, random: Random) -> str:
        """Now and then what a cut-up stream looks like: no capital, no final mark, or a comma at the end."""
        draw = random.random()
        if draw < 0.06 and text[1:2].islower():
            text = text[0].lower() + text[1:]
        if 0.03 < draw < 0.1:
            text = text.rstrip(".?!") + random.choice(("", "", ","))
        return text


def finish(text: str) -> str:
    """Capitals where sentences begin, and "an" where it belongs."""
    text = re.sub(r"(?:^|(?<=[.?!] ))[a-z]", lambda match: match[0].upper(), text)
    return re.sub(r"\b([Aa]) (?=([a-z]+))", lambda match: match[1] + ("n " if _takes_an(match[2]) else " "), text)


def _takes_an(word: str) -> bool:
    if re.match("hour|honest|hono|heir", word):
        return True
    return word[0] in "aeiou" and not re.match("uni(?!n|m)|u[st][eiu]|ura|eu|ewe|one|once|ub", word)


def _read_prose(path: Path) -> list[str]:
    return lzma.decompress(path.read_bytes()).decode().splitlines()
