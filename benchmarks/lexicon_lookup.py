"""Measure what a lexicon costs per word: the look-up alone, and reading text in deltas with and without the lexicon.

    python -m benchmarks.lexicon_lookup [--entries 10000] [--rounds 5] [--limit-us 5]

Half of the entries are phrases, and one word in eight of the text begins or is an entry. The minimum of the rounds is
reported, in processor time. Exits with 1 if a look-up takes longer than the limit. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sessions.text.lexicons.lexicon import MAX_ENTRIES, TOKEN, Lexicon, LexiconEntry
from sessions.text.lexicons.reader import LexiconReader
from sessions.text.ssml.items import MarkupParser
from sessions.text.ssml.parser import SsmlParser
from sessions.text.ssml.tokens import PlainTokenizer

SENTENCES = Path(__file__).with_name("voice_sentences.txt")
NUM_WORDS = 20_000
DELTA_CHARS = 64
# Every eighth word of the text is one of the lexicon's.
SPACING = 8


def build_lexicon(num_entries: int) -> Lexicon:
    written = (f"word{number}" if number % 2 else f"phrase{number} of three" for number in range(num_entries))
    return Lexicon.from_entries([LexiconEntry(text=text, alias="spoken") for text in written])


def build_text(num_entries: int) -> str:
    words = itertools.cycle(SENTENCES.read_text(encoding="utf-8").split())
    known = itertools.cycle(f"word{number}" if number % 2 else f"phrase{number} of" for number in range(num_entries))
    return " ".join(next(known) if index % SPACING == 0 else next(words) for index in range(NUM_WORDS))


def look_up(lexicon: Lexicon, tokens: list[str]) -> int:
    """Look up each word and mark, as a reader does that has what follows; returns the number of words."""
    num_words = 0
    for index, token in enumerate(tokens):
        num_words += token[0].isalnum()
        if not token.isspace():
            lexicon.find(tokens[index : index + 6], 0, is_complete=False)
    return num_words


def read(parser: MarkupParser, text: str) -> None:
    for start in range(0, len(text), DELTA_CHARS):
        for _ in parser.push(text[start : start + DELTA_CHARS]):
            pass
    for _ in parser.finish():
        pass


def least_us(num_rounds: int, work: Callable[[], object], num_words: int) -> float:
    times = []
    for _ in range(num_rounds):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return 1e6 * min(times) / num_words


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=MAX_ENTRIES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit-us", type=float, default=5.0)
    args = parser.parse_args()
    lexicon, text = build_lexicon(args.entries), build_text(args.entries)
    tokens: list[str] = TOKEN.findall(text)
    num_words = look_up(lexicon, tokens)
    figures = {
        "look-up": least_us(args.rounds, lambda: look_up(lexicon, tokens), num_words),
        "read with it": least_us(
            args.rounds, lambda: read(LexiconReader(create_parser(), [lexicon], "en"), text), num_words
        ),
        "read without": least_us(args.rounds, lambda: read(create_parser(), text), num_words),
    }
    for name, value_us in figures.items():
        print(f"{name:14} {value_us:6.2f} us a word")
    print(json.dumps({"entries": args.entries, "words": num_words} | figures))
    return int(figures["look-up"] > args.limit_us)


def create_parser() -> SsmlParser:
    return SsmlParser(tokenizer=PlainTokenizer())


if __name__ == "__main__":
    sys.exit(main())
