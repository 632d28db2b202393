"""Feed random markup to the parser: ``python -m tests.sessions.text.ssml.fuzz 1000000``.

Every other document is also read for labels of speakers and for all inline forms.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import replace

from sessions.text.ssml.inline import InlineForm, InlineForms
from sessions.text.ssml.parser import SsmlParser
from sessions.text.ssml.speaker_lines import SpeakerLines
from sessions.text.ssml.tokens import MarkupTokenizer
from tests.sessions.text.ssml.documents import CONTEXT, random_document

SPEAKERS = {"x": "low", "Hello": "high"}
FORMS = ["\nx: ", "\nHello: ", "\nTom: ", "[sad]", "[laughs]", "[", "<500>", "{k1At}", "\\{pause:1s\\}", "\\{"]


def create_parser(reads_all: bool) -> SsmlParser:
    if not reads_all:
        return SsmlParser(CONTEXT)
    forms = InlineForms(tuple(InlineForm), MarkupTokenizer())
    return SsmlParser(replace(CONTEXT, speakers=SPEAKERS), SpeakerLines(forms, SPEAKERS))


def main(num_documents: int) -> None:
    source, start_s, num_chars = random.Random(1), time.perf_counter(), 0
    for number in range(num_documents):
        reads_all = number % 2 == 1
        parser = create_parser(reads_all)
        document = "".join(random_document(source, 6) + source.choice(FORMS) for _ in range(3 * reads_all))
        document += random_document(source)
        at = source.randrange(len(document) + 1)
        num_items = sum(1 for piece in (document[:at], document[at:]) for _ in parser.push(piece))
        num_chars += len(document)
        assert num_items + sum(1 for _ in parser.finish()) <= 2 * len(document) + 1
    elapsed_s = time.perf_counter() - start_s
    print(
        f"{num_documents} documents, {num_chars} characters, {1e6 * elapsed_s / max(num_chars, 1):.2f} us a character"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
