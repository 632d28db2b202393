"""Reduces festival's dictionary in place to words of the training text and of the held-out sentences."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from training.held_out import SENTENCES
from training.lexicon import CORPUS, default_lexicon

# Letters and endings that numbers and names are spelled with.
SHORT_LETTERS = 2


def reduce(path: Path) -> None:
    texts = [SENTENCES, *CORPUS.glob("*.txt")]
    words = {word.lower() for word in default_lexicon().words}
    words |= {word for text in texts for word in re.findall("[a-z']+", text.read_text().lower())}
    words |= {word.split("'")[0] for word in words}
    header, *entries = path.read_text().splitlines()
    kept = [entry for entry in entries if _is_kept(entry.split('"')[1], words)]
    path.write_text("\n".join([header, *kept]) + "\n")


def _is_kept(word: str, words: set[str]) -> bool:
    return len(word) <= SHORT_LETTERS or word in words or word.split("'")[0] in words


if __name__ == "__main__":
    reduce(Path(sys.argv[1]))
