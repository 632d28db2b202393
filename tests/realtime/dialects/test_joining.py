from __future__ import annotations

import pytest

from realtime.protocol.dialects.parsing import with_sentence_space


@pytest.mark.parametrize(
    ("before", "text", "told"),
    [
        ("How are you?", "It is nice.", " It is nice."),
        ("Stop.", "then go on", " then go on"),
        ('He said "no."', "She left.", " She left."),
        ("Wait…", "What?", " What?"),
        ("How are you? ", "It is nice.", "It is nice."),
        ("How are you?", " It is nice.", " It is nice."),
        ("Hello,", "there.", "there."),
        ("3.", "14", "14"),
        ("example.", "com", "com"),
        ("Wait.", "..", ".."),
        ("Wait.", ". . so", ". . so"),
        ("", "Hello.", "Hello."),
        ("Hello.", "", ""),
        ("」", "次", "次"),
    ],
)
def test_sentences_get_a_space_and_tokens_do_not(before: str, text: str, told: str) -> None:
    assert with_sentence_space(before, text) == told
