"""Any text as English words that a voice trained on words alone can say.

The output holds letters (A to Z, both cases), single spaces, and the marks ``. , ? ! ; : ' -``; docs/text.md tells
what becomes of what. It works on blocks (sessions/text/blocks.py), so any cutting of the input gives the same output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sessions.text.binding import wants_more
from sessions.text.blocks import Block, BlockLimits, BlockSplitter, LineBreak
from sessions.text.joiner import Joiner
from sessions.text.markup import LineKind, closes_fence, line_kind
from sessions.text.saying import say
from sessions.text.spans import EMPTY, SpannedText


@dataclass(frozen=True, slots=True)
class NormalizerSettings:
    say_code_blocks: bool = False
    """Whether what stands between ``` lines is said."""
    blocks: BlockLimits = field(default_factory=BlockLimits)


def normalize(text: str, settings: NormalizerSettings | None = None) -> str:
    normalizer = IncrementalNormalizer(settings)
    return SpannedText.join([normalizer.push(text), normalizer.close()]).text


class IncrementalNormalizer:
    """One text in pieces. ``push`` and ``close`` return what is ready, with the raw characters it stands for."""

    def __init__(self, settings: NormalizerSettings | None = None) -> None:
        settings = settings or NormalizerSettings()
        self._blocks = BlockSplitter(wants_more, settings.blocks)
        self._reader = _LineReader(settings.say_code_blocks)
        self._joiner = Joiner()

    @property
    def anything_speakable(self) -> bool:
        """Whether any word has come out so far."""
        return self._joiner.started

    @property
    def num_chars_held(self) -> int:
        """Raw characters that wait for what comes after them."""
        return self._blocks.num_chars_held

    def push(self, text: str) -> SpannedText:
        return self._say(self._blocks.push(text))

    def flush(self) -> SpannedText:
        """All that is held back. What comes afterwards begins a new word."""
        return self._say(self._blocks.flush())

    def close(self) -> SpannedText:
        return self.flush()

    def _say(self, parts: Iterable[Block | LineBreak]) -> SpannedText:
        return SpannedText.join([self._say_part(part) for part in parts])

    def _say_part(self, part: Block | LineBreak) -> SpannedText:
        if isinstance(part, LineBreak):
            if not self._reader.end_line():
                return EMPTY
            return SpannedText.of(self._joiner.stop(), part.raw_start, part.raw_start)
        spoken = self._joiner.join(self._reader.read(part), glued=part.glued)
        words = spoken.removeprefix(" ")
        space = SpannedText.of(spoken[: len(spoken) - len(words)], part.raw_start - 1)
        return SpannedText.join([space, SpannedText.of(words, part.raw_start, part.raw_end)])


class _LineReader:
    """Knows what kind of line it is in, and the word before."""

    def __init__(self, say_code_blocks: bool) -> None:
        self._say_code_blocks = say_code_blocks
        self._kind: LineKind | None = None
        self._in_fence = False
        self._previous_word = ""

    def read(self, block: Block) -> str:
        text = block.text
        if self._kind is None:
            self._kind, text = line_kind(text)
            if self._kind is LineKind.FENCE:
                self._in_fence = not self._in_fence
        elif self._kind is LineKind.FENCE and closes_fence(text):
            self._in_fence = False
        if self._kind in (LineKind.FENCE, LineKind.RULE) or (self._in_fence and not self._say_code_blocks):
            return ""
        spoken = say(text, self._previous_word)
        self._previous_word = text.rpartition(" ")[2]
        return spoken

    def end_line(self) -> bool:
        """Whether the line, or with an empty line the paragraph, ends a sentence."""
        kind, self._kind = self._kind, None
        return kind is None or kind.ends_in_stop
