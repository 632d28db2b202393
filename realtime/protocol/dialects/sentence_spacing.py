"""Where a space is missing between two pieces of a client's text: some clients send sentence after sentence bare."""

from __future__ import annotations

ENDS = ".!?…"
CLOSERS = "\"'”’)]»"


def with_sentence_space(before: str, text: str) -> str:
    """``text`` as it continues ``before``: with a space in front where one sentence ends and another begins.

    Tokens are left as they are (``3.`` ``14``, ``example.`` ``com``): what follows must look like a sentence, with a
    capital or with words.
    """
    ends = before.rstrip(CLOSERS)[-1:]
    if not ends or ends not in ENDS or not text or text[0].isspace():
        return text
    begins = text[0].isupper() or (text[0] not in ENDS and any(character.isspace() for character in text.strip()))
    return f" {text}" if begins else text
