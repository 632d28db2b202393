from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.api import SAMPLING_RANGES as RANGES
from engine.api import ClonedVoice, EngineInfo, ReferenceAudio, SamplingParams, SpeechRequest, VoiceInfo
from engine.errors import InvalidRequest, RequestTooLong, UnknownLanguage, UnknownVoice
from engine.validation import MAX_COUNT, check_request, check_sample

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
        INFO.check_options(SamplingParams(**{name: value}), ())
    low, high = RANGES[name]
    message = str(caught.value)
    assert caught.value.param == name
    assert name in message
    assert str(value) in message
    assert f"{low} to {high}" in message


@pytest.mark.parametrize(("name", "limits"), RANGES.items())
def test_the_limits_themselves_are_fine(name: str, limits: tuple[float, float]) -> None:
    for value in limits:
        INFO.check_options(SamplingParams(**{name: value}), ())


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
        (dict(sampling=SamplingParams(top_p=0.0)), InvalidRequest, ["top_p", "0.0", "1e-06 to 1"]),
    ],
)
def test_bad_field_error_names_limit_and_value(
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


CLONING = EngineInfo(
    "base model", 24_000, 1_920, (), ("auto",), 1000, False, task="base", can_clone=True, can_encode=True
)
CLONING = msgspec.structs.replace(CLONING, embedding_size=4, num_codebooks=2, codebook_size=64, max_sample_s=2.0)


def cloned(
    numbers: int = 4, codes: list[int] | None = None, transcript: str = "said", fill: float = 0.5, books: int = 2
) -> ClonedVoice:
    embedding, codes = np.full(numbers, fill, np.float32), np.array(codes or [], np.int16)
    return ClonedVoice(embedding=embedding.tobytes(), codes=codes.tobytes(), num_codebooks=books, transcript=transcript)


@pytest.mark.parametrize(
    ("voice", "param", "parts"),
    [
        (cloned(3), "voice.embedding", ["12 bytes", "16", "4 numbers"]),
        (cloned(5), "voice.embedding", ["20 bytes", "16"]),
        (cloned(fill=math.nan), "voice.embedding", ["not finite"]),
        (cloned(fill=math.inf), "voice.embedding", ["not finite"]),
        (cloned(codes=[1, 2, 3]), "voice.codes", ["6 bytes", "a frame has 4"]),
        (cloned(codes=[1, 64]), "voice.codes", ["64", "0..63"]),
        (cloned(codes=[1, -1]), "voice.codes", ["-1", "0..63"]),
        (cloned(codes=[1, 2, 3, 4], books=4), "voice.codes", ["4 codebooks", "base model takes 2"]),
        (cloned(codes=[1, 2] * 26), "voice.codes", ["26 frames", "25", "2 s"]),
        (cloned(codes=[1, 2], transcript=" "), "voice.transcript", ["empty", "in context"]),
        (cloned(codes=[1, 2], transcript="x" * 2001), "voice.transcript", ["2001", "2000"]),
        (None, "voice", ["voice is missing", "base model"]),
        ("ada", "voice", ["ada", "known: none"]),
    ],
)
def test_misfit_cloned_voice_error_names_field(voice: object, param: str, parts: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_request(request(voice=voice), CLONING, max_text_chars=100)
    assert caught.value.param == param
    assert [part for part in parts if part not in str(caught.value)] == []


@pytest.mark.parametrize("voice", [cloned(), cloned(codes=[0, 63] * 25), cloned(transcript="")])
def test_a_cloned_voice_that_fits_passes(voice: ClonedVoice) -> None:
    check_request(request(voice=voice), CLONING, max_text_chars=100)


def test_checkpoint_with_speakers_refuses_clone_and_instruction() -> None:
    for fields, param in ((dict(voice=cloned()), "voice"), (dict(instruct="Softly."), "instruct")):
        with pytest.raises(InvalidRequest, match=r"does not (clone voices|take instructions)") as caught:
            check_request(request(**fields), INFO, max_text_chars=100)
        assert caught.value.param == param


@pytest.mark.parametrize(("chunks", "part"), [((3,), "holds 3"), ((1, 0), "holds 0"), ((1,) * 17, "17 entries")])
def test_a_chunk_schedule_is_made_of_few_sizes(chunks: tuple[int, ...], part: str) -> None:
    with pytest.raises(InvalidRequest, match=part) as caught:
        check_request(request(chunk_frames=chunks), INFO, max_text_chars=100)
    assert caught.value.param == "chunk_frames"


def pcm(seconds: float = 1.5, level: float = 0.5, **bad: float) -> bytes:
    samples = np.full(round(seconds * 24_000), level, np.float32)
    for value in bad.values():
        samples[7] = value
    return samples.tobytes()


@pytest.mark.parametrize(
    ("sound", "parts"),
    [
        (b"", ["0.00 s", "1 to 2 s"]),
        (pcm(0.99), ["0.99 s", "1 to 2 s"]),
        (pcm(2.01), ["2.01 s", "1 to 2 s"]),
        (pcm()[:-1], ["bytes", "float32"]),
        (pcm(bad=math.nan), ["not finite"]),
        (pcm(bad=-math.inf), ["not finite"]),
        (pcm(bad=-30_000.0), ["30000", "-1..1"]),
        (pcm(level=0.0), ["silent"]),
    ],
)
def test_a_recording_that_is_none_is_refused(sound: bytes, parts: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_sample(ReferenceAudio(pcm=sound), CLONING)
    assert caught.value.param == "audio"
    assert [part for part in parts if part not in str(caught.value)] == []


def test_a_recording_that_is_one_passes_where_there_are_encoders() -> None:
    assert len(check_sample(ReferenceAudio(pcm=pcm(), transcript="words"), CLONING)) == 36_000
    with pytest.raises(InvalidRequest, match="transcript is empty"):
        check_sample(ReferenceAudio(pcm=pcm(), transcript=" "), CLONING)
    with pytest.raises(InvalidRequest, match="cannot listen"):
        check_sample(ReferenceAudio(pcm=pcm()), INFO)
