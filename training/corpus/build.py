"""Builds ``lexicon.txt.xz`` (kept with the project) and a prose file (not kept) from two Debian packages.

wamerican (SCOWL word lists) says which words exist; wordnet-base (WordNet 3.0) says which part of speech they are,
how often they were seen in tagged text, and gives definitions and example sentences.

    python -m training.corpus.build --words /usr/share/dict/american-english --wordnet /usr/share/wordnet \
        --lexicon training/corpus/lexicon.txt.xz --prose prose.txt.xz
"""

from __future__ import annotations

import argparse
import lzma
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from training.text_filter import is_speakable

PARTS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
SENSE_TYPES = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
VOWEL = re.compile("[aeiouy]", re.IGNORECASE)
EXAMPLE = re.compile(r'"([^"]{8,200})"')
MAX_GLOSS_CHARACTERS = 140


def read_words(path: Path) -> set[str]:
    words = path.read_text(encoding="utf-8").split()
    return {
        word for word in words if word.isascii() and word.isalpha() and VOWEL.search(word) and not word[1:].isupper()
    }


def read_counts(wordnet: Path) -> dict[str, Counter[str]]:
    """How often each lemma was tagged as each part of speech."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for line in (wordnet / "cntlist.rev").read_text().splitlines():
        key, _, count = line.split()
        lemma, _, sense = key.partition("%")
        counts[lemma][SENSE_TYPES[sense[0]]] += int(count)
    return counts


def read_lemmas(wordnet: Path, part: str) -> Iterator[str]:
    for line in (wordnet / f"index.{part}").read_text().splitlines():
        lemma = line.split(" ", 1)[0]
        if lemma.isalpha() and lemma.isascii():
            yield lemma


def read_irregular(wordnet: Path, part: str) -> dict[str, list[str]]:
    forms: dict[str, list[str]] = defaultdict(list)
    for line in (wordnet / f"{part}.exc").read_text().splitlines():
        form, *lemmas = line.split()
        for lemma in lemmas:
            forms[lemma].append(form)
    return forms


def regular_stem(lemma: str) -> list[str]:
    """Spellings that may stand before -ed and -ing."""
    stems = [lemma]
    if lemma.endswith("e"):
        stems.append(lemma[:-1])
    if re.search("[^aeiou][aeiou][bdgklmnprtvz]$", lemma):
        stems.append(lemma + lemma[-1])
    return stems


def third_or_plural(lemma: str) -> str:
    if re.search("[^aeiou]y$", lemma):
        return lemma[:-1] + "ies"
    return lemma + ("es" if re.search("(s|x|z|ch|sh)$", lemma) else "s")


def past(lemma: str) -> list[str]:
    if re.search("[^aeiou]y$", lemma):
        return [lemma[:-1] + "ied"]
    return [stem + "ed" for stem in reversed(regular_stem(lemma))]


def inflections(lemma: str, tag: str, irregular: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """(form, tag) of a lemma: p plural, s third person, d past, g -ing."""
    odd = irregular.get(lemma, [])
    if tag == "n":
        yield from ((form, "p") for form in odd or [third_or_plural(lemma)])
    if tag == "v":
        yield third_or_plural(lemma), "s"
        odd_past = [form for form in odd if not form.endswith(("ing", "s"))]
        yield from ((form, "d") for form in odd_past[:1] or past(lemma))
        yield from ((stem + "ing", "g") for stem in reversed(regular_stem(lemma)))


def build_lexicon(words: set[str], wordnet: Path) -> list[str]:
    counts = read_counts(wordnet)
    tags: dict[str, Counter[str]] = {word: Counter() for word in words}
    for part, tag in PARTS.items():
        irregular = read_irregular(wordnet, part)
        for lemma in read_lemmas(wordnet, part):
            seen = counts[lemma][tag]
            for form, form_tag in [(lemma, tag), *inflections(lemma, tag, irregular)]:
                if form in tags:
                    tags[form][form_tag] = max(tags[form][form_tag], seen + 1)
    for word in words:
        if word[0].isupper() and not tags[word]:
            tags[word]["N"] = 1
    return [
        f"{word} {' '.join(f'{tag}{count}' for tag, count in sorted(tags[word].items()))}" for word in sorted(words)
    ]


def read_prose(wordnet: Path) -> Iterator[str]:
    """Definitions and examples as sentences, only those of plain words."""
    for part in PARTS:
        for line in (wordnet / f"data.{part}").read_text().splitlines():
            gloss = line.partition("| ")[2]
            if not gloss:
                continue
            yield from (as_sentence(example) for example in EXAMPLE.findall(gloss))
            definition = re.sub(r"\([^)]*\)", "", EXAMPLE.sub("", gloss)).split(";")[0]
            if 20 <= len(definition) <= MAX_GLOSS_CHARACTERS:
                yield as_sentence(definition)


def as_sentence(text: str) -> str:
    text = re.sub(r"\s*--\s*", ", ", text).replace("`", "'")
    text = re.sub(r"\s+", " ", text).strip(" ,;:-'")
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path}: {len(lines)} lines, {path.stat().st_size} bytes")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Build the lexicon and the prose file.")
    parser.add_argument("--words", type=Path, required=True)
    parser.add_argument("--wordnet", type=Path, required=True)
    parser.add_argument("--lexicon", type=Path)
    parser.add_argument("--prose", type=Path)
    options = parser.parse_args(arguments)
    words = read_words(options.words)
    if options.lexicon:
        write_lines(options.lexicon, build_lexicon(words, options.wordnet))
    if options.prose:
        known = {word.lower() for word in words} | {"a", "i", "o"}
        sentences = {sentence for sentence in read_prose(options.wordnet) if is_plain(sentence, known)}
        write_lines(options.prose, sorted(sentences))


def is_plain(sentence: str, known: set[str]) -> bool:
    words = re.findall("[A-Za-z]+", sentence.replace("'s", "").replace("n't", "").replace("'", ""))
    return is_speakable(sentence) and sum(word.lower() in known for word in words) >= len(words) - 1 and len(words) > 1


if __name__ == "__main__":
    main(sys.argv[1:])
