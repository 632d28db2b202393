"""Any text as English words that a voice trained on words alone can say.

The output holds letters (A to Z, both cases), single spaces, and the marks ``. , ? ! ; : ' -``; docs/design/text.md
lists what becomes of what. Blocks (sessions/text/block_splitter.py) make the output independent of how the input is
cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sessions.text.block_splitter import BlockEvent, BlockLimits, BlockSplitter, BlockStart, TextBlock
from sessions.text.lookahead import needs_next_word
from sessions.text.markup import LineKind, closes_fence, line_kind
from sessions.text.spans import SpannedText
from sessions.text.verbalizer import verbalize
from sessions.text.word_joiner import WordJoiner


@dataclass(frozen=True, slots=True)
class NormalizerSettings:
    # Whether what stands between ``` lines is said.
    speak_code_blocks: bool = False
    blocks: BlockLimits = field(default_factory=BlockLimits)


def normalize(text: str, settings: NormalizerSettings | None = None) -> str:
    normalizer = IncrementalNormalizer(settings)
    return SpannedText.join([normalizer.push(text), normalizer.finish()]).text.rstrip(" ")


class IncrementalNormalizer:
    """Normalize a text that comes in pieces. ``push`` and ``close`` return finished text with its raw characters."""

    def __init__(self, settings: NormalizerSettings | None = None) -> None:
        settings = settings or NormalizerSettings()
        self._blocks = BlockSplitter(needs_next_word, settings.blocks)
        self._reader = _LineReader(settings.speak_code_blocks)
        self._joiner = WordJoiner()
        self._raw_end = 0

    @property
    def num_chars_held(self) -> int:
        """Raw characters that wait for what comes after them."""
        return self._blocks.num_chars_held

    def push(self, text: str) -> SpannedText:
        return self._verbalize(self._blocks.push(text))

    def push_last(self, text: str) -> SpannedText:
        """Append text that ends here, and return it with all that was held back."""
        return SpannedText.join([self.push(text), self.flush()])

    def flush(self) -> SpannedText:
        """Return all text that is held back. Later text begins a new word."""
        return self._verbalize(self._blocks.flush())

    def finish(self) -> SpannedText:
        return self.flush()

    def _verbalize(self, parts: Iterable[BlockEvent]) -> SpannedText:
        return SpannedText.join([self._verbalize_part(part) for part in parts])

    def _verbalize_part(self, part: BlockEvent) -> SpannedText:
        if isinstance(part, TextBlock):
            return self._verbalize_block(part)
        if isinstance(part, BlockStart):
            is_word = part.character.isascii() and part.character.isalpha() and not self._reader.silent
            return self._spanned_space(self._joiner.space() if is_word else "", part.raw_start)
        return SpannedText.from_raw(
            self._joiner.end_sentence() if self._reader.end_line() else "", part.raw_start, part.raw_start
        )

    def _verbalize_block(self, block: TextBlock) -> SpannedText:
        spoken = self._joiner.join(self._reader.read(block), glued=block.no_space_before)
        words = spoken.removeprefix(" ")
        space = self._spanned_space(spoken[: len(spoken) - len(words)], block.raw_start)
        self._raw_end = block.raw_end
        return SpannedText.join([space, SpannedText.from_raw(words, block.raw_start, block.raw_end)])

    def _spanned_space(self, space: str, raw_start: int) -> SpannedText:
        return SpannedText.from_raw(space, max(self._raw_end, raw_start - 1), raw_start)


class _LineReader:
    """Knows what kind of line it is in, and the word before."""

    def __init__(self, say_code_blocks: bool) -> None:
        self._say_code_blocks = say_code_blocks
        self._kind: LineKind | None = None
        self._in_fence = False
        self._previous_word = ""

    @property
    def silent(self) -> bool:
        """True while the line has no speakable text."""
        return self._kind is LineKind.FENCE or (self._in_fence and not self._say_code_blocks)

    def read(self, block: TextBlock) -> str:
        text = block.text
        if self._kind is None:
            self._kind, text = line_kind(text)
            if self._kind is LineKind.FENCE:
                self._in_fence = not self._in_fence
        elif self._kind is LineKind.FENCE and closes_fence(text):
            self._in_fence = False
        if self.silent:
            return ""
        spoken = verbalize(text, self._previous_word)
        self._previous_word = text.rpartition(" ")[2]
        return spoken

    def end_line(self) -> bool:
        """Return whether the line, or with an empty line the paragraph, ends a sentence."""
        kind, self._kind = self._kind, None
        return kind is None or kind.ends_in_stop
