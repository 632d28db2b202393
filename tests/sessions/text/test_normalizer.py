from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.text.normalizer import IncrementalNormalizer, normalize
from sessions.text.spans import SpannedText
from tests.sessions.text.cuts import cut, places

OUTPUT = re.compile(r"(?:[A-Za-z]+(?:['-][A-Za-z]+)*[.,?!;:]?(?: (?=[A-Za-z])|$))*")

fragments = st.sampled_from(
    """
    a I the word Word WORD API NASA Mr. Dr. St. U.S. etc. e.g. J. May Jan. March 5 5. 3, 2024 10:30 a.m. pm $ $5 €3.50
    % 12% km 1/2 3-4 - – — -- + = ... … ( ) [ ] ](u) [x]( <b> </b> <a <!-- --> ` ``` ** * _ __ # - 1. | |---| & &amp; @
    a@b.co www.x.org https://x.y/z 555-1234 +1 007 1st 2x 4K B12 '90s II Henry 😀 👍🏽 今天 é \u0301 ½ ² ° °C ; : ! ? "
    ' ’s
    """.split()
)
spaces = st.sampled_from([" ", " ", " ", "\n", "\n\n", "", "\t", "  "])
texts = st.one_of(
    st.lists(st.tuples(fragments, spaces), max_size=25).map(lambda parts: "".join(a + b for a, b in parts)),
    st.text(max_size=80),
)


@settings(max_examples=500)
@given(text=texts, at=places)
def test_any_cutting_is_the_whole_text(text: str, at: list[int]) -> None:
    normalizer = IncrementalNormalizer()
    pieces = [normalizer.push(part) for part in cut(text, at)]
    assert SpannedText.join([*pieces, normalizer.close()]).text == normalize(text)


@settings(max_examples=500)
@given(text=texts)
def test_output_holds_words_and_marks_alone(text: str) -> None:
    assert OUTPUT.fullmatch(normalize(text))
