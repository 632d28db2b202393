"""Marked-up texts for Hypothesis and for the fuzz program: well formed, nested, broken."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from sessions.text.ssml.parser import MarkupContext

VOICES = ("low", "high")
LANGUAGES = {"en": "en", "en-US": "en", "de": "de"}
CONTEXT = MarkupContext("en", lambda name: name in VOICES, LANGUAGES.get)

WORDS = [
    "Hello ",
    "world. ",
    "It is 21 ",
    "R&D ",
    "a < b ",
    "<3 ",
    "日本。",
    "\n",
    "é🙂 ",
    "1,250 ",
    "x",
    " ",
    ">",
    '"',
    "'",
]
TAGS = [
    "<speak>", "</speak>", "<p>", "</p>", "<s>", "</s>", "<break/>", '<break time="300ms"/>',
    "<break strength='weak'/>",
    '<break time="1h"/>', '<mark name="m"/>', "<mark/>", '<prosody rate="fast">',
    '<prosody volume="-6dB" pitch="+2st">',
    "</prosody>", '<voice name="high">', '<voice name="nobody">', "</voice>", '<lang xml:lang="de">', "</lang>",
    '<say-as interpret-as="characters">', '<say-as interpret-as="date" format="mdy">', "<say-as>", "</say-as>",
    '<sub alias="some &amp; more">', "<spell>", "</spell>", '<speed ratio="1.5"/>', '<volume ratio="0"/>', "<emotion/>",
    "<sub>", "</sub>", "<emphasis>", "</emphasis>", '<audio src="http://x/y">',
    "</audio>", "<desc>", "</desc>", '<phoneme alphabet="ipa" ph="x">', "</phoneme>", "<unknown a='1'>", "</unknown>",
    "<!-- a comment -->", "<!--", "-->", '<?xml version="1.0"?>', "<![CDATA[<b> & c]]>", "<![CDATA[", "]]>",
    '<!DOCTYPE x [<!ENTITY a "b">]>', "<!DOCTYPE x [", "&amp;", "&lt;", "&#65;", "&#x1F642;", "&#0;", "&nope;", "&",
    "<", "</", "<b c", '<b c="', "<b c='d' ", "=", "/>", "<1>", "< b>", "</break>", f"<{'x' * 300}>", f"<b {'c' * 300}",
]  # fmt: skip
PIECES = [*WORDS, *TAGS]

documents = st.lists(st.sampled_from(PIECES), max_size=25).map("".join) | st.text("<>/&;!-[]?='\" abp\n", max_size=60)


def random_document(source: random.Random, max_pieces: int = 12) -> str:
    """A document, and now and then characters of it replaced."""
    text = "".join(source.choices(PIECES, k=source.randrange(max_pieces)))
    if text and source.random() < 0.5:
        at = source.randrange(len(text))
        text = text[:at] + source.choice("<>/&;!-[]?='\" a\0") + text[at + source.randrange(3) :]
    return text
