"""Feed random documents to all that reads markup: ``python -m tests.sessions.text.ssml.fuzz 1000000 [--seed 1]``.

Documents hold tags, tags in brackets and other inline forms, and lines of speakers; each is read with some of these
switched on, with or without a lexicon. Lexicons are read from random PLS, JSON and TOML, with aliases and phonemes. A
document is read as a whole and in pieces; every tenth also passes the normalizer and the segmenter. What is spoken must
be the same, with places in the document that ascend; what is held must be bounded. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from engine.api import InvalidRequest
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.config import InlineForm
from sessions.text.lexicons.files import parse_lexicon
from sessions.text.lexicons.lexicon import MAX_SPACES, MAX_WRITTEN_CHARS, Lexicon
from sessions.text.lexicons.reader import LexiconReader
from sessions.text.ssml.inline import MAX_FORM_CHARS, InlineForms
from sessions.text.ssml.items import MarkupItem, MarkupParser
from sessions.text.ssml.parser import MAX_SAY_AS_CHARS, SsmlParser
from sessions.text.ssml.speaker_lines import MAX_LABEL_CHARS, SpeakerLines
from sessions.text.ssml.tokens import (
    MAX_TAG_CHARS,
    HiddenToken,
    MarkupTokenizer,
    MarkupWarning,
    PlainTokenizer,
    TagTokenizer,
    TextToken,
)
from sessions.text_items import TextSegment
from sessions.text_track import TextTrack
from sessions.timeline import ResponseTimeline
from tests.sessions.text.ssml.documents import CONTEXT, random_document

SPEAKERS = {"x": "low", "Hello": "high"}
EMOTIONS = frozenset(["sad", "very calm"])
FORMS = [
    "\nx: ", "\nHello: ", "\nTom: ", "[sad]", "[very calm]", "[laughs]", "[long pause]", "[", "]", "<500>", "<5",
    "<5.5>", "{k1At}", "{", "\\{pause:1s\\}", '\\{"word": "tomato", "pronounce": "kæt"\\}', "\\{", "\\}",
    "world New York Hello world ",
]  # fmt: skip
LEXICONS = [
    b'{"language": "en", "entries": {"Hello": "hi", "Hello world": "greetings", "x": "\\u00e9", "R&D": "research"}}',
    '{"entries": [{"text": "world", "phoneme": "wɜːld"}, {"text": "It is", "alias": "its"}]}'.encode(),
    'language = "de"\n[entries]\nHello = "Hallo"\n"日本" = "Japan"\n'.encode(),
    '<lexicon version="1.0" alphabet="ipa" xml:lang="en-US"><lexeme><grapheme>world</grapheme><grapheme>21</grapheme>'
    "<phoneme>wɜːld</phoneme></lexeme><lexeme><grapheme>x</grapheme><alias>Hello</alias></lexeme></lexicon>".encode(),
    b'<?xml version="1.0"?><!DOCTYPE lexicon [<!ENTITY a "b">]><lexicon><lexeme/></lexicon>',
]  # fmt: skip
# Documents that are read with one lexicon.
DOCUMENTS_PER_LEXICON = 20
# One document in so many passes the normalizer and the segmenter.
TRACK_EVERY = 10
MAX_HELD_CHARS = (
    MAX_TAG_CHARS + MAX_SAY_AS_CHARS + MAX_FORM_CHARS + MAX_LABEL_CHARS + (MAX_SPACES + 1) * MAX_WRITTEN_CHARS
)


def random_lexicon(source: random.Random) -> Lexicon | None:
    """Build a lexicon of a random file; ``None`` if it is refused."""
    data = bytearray(source.choice(LEXICONS))
    for _ in range(source.randrange(4)):
        at = source.randrange(len(data))
        data[at : at + source.randrange(3)] = source.choice([b"<", b">", b'"', b"&", b"{", b"\xff", b"x", b"", b"\n"])
    try:
        return parse_lexicon(bytes(data)).build()
    except InvalidRequest:
        return None


def random_text(source: random.Random) -> str:
    parts = [random_document(source, 5) + source.choice(FORMS) for _ in range(source.randrange(4))]
    return "".join(parts) + random_document(source)


def create_parser(switches: int, lexicon: Lexicon | None) -> MarkupParser:
    """Create what reads markup, inline forms, speakers and phonemes, each if its bit is set."""
    tokenizer: TagTokenizer = MarkupTokenizer() if switches & 1 else PlainTokenizer()
    if switches & 2:
        tokenizer = InlineForms(tuple(InlineForm), tokenizer)
    if switches & 4:
        tokenizer = SpeakerLines(tokenizer, SPEAKERS)
    reads_phonemes = bool(switches & 8)
    context = replace(CONTEXT, speakers=SPEAKERS, takes_emotion=EMOTIONS.__contains__, reads_phonemes=reads_phonemes)
    parser = SsmlParser(context, tokenizer)
    return parser if lexicon is None else LexiconReader(parser, [lexicon], "en", reads_phonemes)


def read(parser: MarkupParser, pieces: Iterable[str]) -> list[MarkupItem]:
    items: list[MarkupItem] = []
    for piece in pieces:
        items += parser.push(piece)
        assert parser.num_chars_held <= MAX_HELD_CHARS
    items += parser.finish()
    assert parser.num_chars_held == 0
    return items


def summarize(items: Iterable[MarkupItem], num_chars: int) -> list[object]:
    """Return what is spoken with its places, text that stands for itself by the character; then the warnings."""
    out: list[object] = []
    warnings: list[object] = []
    reached = 0
    for item in items:
        match item:
            case TextToken(text, start, end):
                assert reached <= start <= end <= num_chars
                reached = end
                is_verbatim = end - start == len(text)
                out += zip(text, range(start, end), strict=True) if is_verbatim else [item]
            case MarkupWarning():
                warnings.append(item)
            case HiddenToken():
                pass
            case _:
                out.append(item)
    return out + warnings


def segment(parser: MarkupParser, pieces: Iterable[str]) -> list[object]:
    """Return the normalized segments with their style, and what is between them."""
    track = TextTrack(ResponseTimeline(24_000, UniformAligner), normalize=True, parser=parser)
    found: list[object] = []
    for piece in pieces:
        track.push(piece, 0.0)
        _read_on(track, found)
    track.end()
    _read_on(track, found)
    assert track.exhausted
    return [
        (item.text.rstrip(), item.style, tuple(item.spoken.words._places)[: len(item.text.rstrip())])
        if isinstance(item, TextSegment)
        else item
        for item in found
    ]


def _read_on(track: TextTrack, found: list[object]) -> None:
    while track.wants_text:
        track.read(500)
        while track.waiting and (not isinstance(track.waiting[0], TextSegment) or track.waiting[0].speakable):
            found.append(track.pop())


def check_document(
    document: str, pieces: Sequence[str], switches: int, lexicon: Lexicon | None, is_segmented: bool
) -> None:
    """Raises ``AssertionError`` if the document is read otherwise in pieces."""
    whole, cut = (read(create_parser(switches, lexicon), parts) for parts in ([document], pieces))
    assert summarize(cut, len(document)) == summarize(whole, len(document))
    if is_segmented:
        whole_track, cut_track = (segment(create_parser(switches, lexicon), parts) for parts in ([document], pieces))
        assert cut_track == whole_track


def check_documents(num_documents: int, seed: int) -> dict[str, float]:
    """Raises what reading raises, with the document and its number."""
    source, start_s, num_chars, num_lexicons = random.Random(seed), time.process_time(), 0, 0
    lexicon: Lexicon | None = None
    for number in range(num_documents):
        if number % DOCUMENTS_PER_LEXICON == 0:
            lexicon = random_lexicon(source)
            num_lexicons += lexicon is not None
        document = random_text(source)
        cuts = [source.randrange(len(document) + 1) for _ in range(source.randrange(1, 4))]
        pieces = [document[start:end] for start, end in pairwise([0, *sorted(cuts), len(document)])]
        switches, named, is_segmented = source.randrange(16), lexicon if number % 3 else None, number % TRACK_EVERY == 0
        try:
            check_document(document, pieces, switches, named, is_segmented)
        except Exception as error:
            error.add_note(f"document {number} of seed {seed}, switches {switches}: {pieces!r}")
            raise
        num_chars += len(document)
    cpu_s = time.process_time() - start_s
    return {"documents": num_documents, "characters": num_chars, "lexicons": num_lexicons, "cpu_s": round(cpu_s, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=int)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(json.dumps(check_documents(arguments.documents, arguments.seed)))


if __name__ == "__main__":
    main()
