from __future__ import annotations

import math
from typing import Any

import pytest

from engine.api import SAMPLING_RANGES as RANGES
from engine.api import EngineInfo, SamplingParams, SpeechRequest, VoiceInfo
from engine.errors import InvalidRequest, RequestTooLong, UnknownLanguage, UnknownVoice
from engine.validation import MAX_COUNT, check_request, check_sampling

INFO = EngineInfo("m", 24000, 1920, (VoiceInfo("Ada", ("auto",)),), ("auto", "english"), 1000, False)
OUTSIDE = [
    (name, value)
    for name, (low, high) in RANGES.items()
    for value in (low - 1, high * 1.5 + 1, math.nan, math.inf, -math.inf)
]


def request(**fields: Any) -> SpeechRequest:
    return SpeechRequest(request_id="r", **fields)


@pytest.mark.parametrize(("name", "value"), OUTSIDE)
def test_a_sampling_value_out_of_range_is_named_with_its_limits(name: str, value: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_sampling(SamplingParams(**{name: value}))
    low, high = RANGES[name]
    message = str(caught.value)
    assert caught.value.param == name
    assert name in message
    assert str(value) in message
    assert f"{low:g}..{high:g}" in message


@pytest.mark.parametrize(("name", "limits"), RANGES.items())
def test_the_limits_themselves_are_fine(name: str, limits: tuple[float, float]) -> None:
    for value in limits:
        check_sampling(SamplingParams(**{name: value}))


def test_every_sampling_field_has_a_range() -> None:
    switches = {"do_sample", "predictor_do_sample"}
    assert set(RANGES) | switches == set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize(
    ("fields", "error", "parts"),
    [
        (dict(voice="nobody"), UnknownVoice, ["voice", "nobody", "ada"]),
        (dict(language="klingon"), UnknownLanguage, ["language", "klingon", "auto, english"]),
        (dict(text="x" * 101), RequestTooLong, ["text", "101", "100"]),
        (dict(text_closed=True), InvalidRequest, ["text is empty"]),
        (dict(text=" \n\t　", text_closed=True), InvalidRequest, ["text is empty"]),
        (dict(max_frames=0), InvalidRequest, ["max_frames", "0", "at least 1"]),
        (dict(lead_ms=-1), InvalidRequest, ["lead_ms", "-1", "at least 0"]),
        (dict(segment=-1), InvalidRequest, ["segment", "-1", "at least 0"]),
        (dict(segment=MAX_COUNT + 1), InvalidRequest, ["segment", str(MAX_COUNT + 1), str(MAX_COUNT)]),
        (dict(sampling=SamplingParams(top_p=0.0)), InvalidRequest, ["top_p", "0.0", "1e-06..1"]),
    ],
)
def test_a_bad_field_is_told_with_its_limit_and_value(
    fields: dict[str, Any], error: type[InvalidRequest], parts: list[str]
) -> None:
    with pytest.raises(error) as caught:
        check_request(request(**fields), INFO, max_text_chars=100)
    assert [part for part in parts if part not in str(caught.value)] == []
    assert caught.value.param in (next(iter(fields)), "text", "top_p")


@pytest.mark.parametrize(
    "fields",
    [
        dict(voice="ADA", language="English"),
        dict(text="x" * 100, text_closed=True),
        dict(text="", text_closed=False),
        dict(max_frames=1, lead_ms=0, segment=MAX_COUNT),
        dict(text="😀", text_closed=True),
    ],
)
def test_what_is_within_its_limits_passes(fields: dict[str, Any]) -> None:
    check_request(request(**fields), INFO, max_text_chars=100)
