"""Feed random markup to the parser: ``python -m tests.sessions.text.ssml.fuzz 1000000``."""

from __future__ import annotations

import random
import sys
import time

from sessions.text.ssml.parser import SsmlParser
from tests.sessions.text.ssml.documents import CONTEXT, random_document


def main(num_documents: int) -> None:
    source, start_s, num_chars = random.Random(1), time.perf_counter(), 0
    for _ in range(num_documents):
        document, parser = random_document(source), SsmlParser(CONTEXT)
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
