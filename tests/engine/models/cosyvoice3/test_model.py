"""How requests end, what is refused and by which words, and who fails when a number is broken: one row, alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from engine.api import (
    ClonedVoice,
    FinishReason,
    InvalidRequest,
    RequestTooLong,
    SamplingParams,
    SpeechRequest,
    TextLayout,
)
from engine.config import EngineConfig
from engine.launch import create_engine
from engine.load import LoadedCheckpoint, load_engine
from engine.models.cosyvoice3.decode_stage import CosyDecodeStage
from engine.models.cosyvoice3.model import CosyVoice3
from engine.models.cosyvoice3.prompt import INSTRUCTS, known_sentence
from engine.models.cosyvoice3.settings import CosyVoice3Settings, TalkerSettings
from engine.validation import check_cloned, check_request
from tests.engine.engine_harness import EngineHarness
from tests.engine.models.cosyvoice3.voices import cloned

pytestmark = pytest.mark.usefixtures("quick_engines")

TEXT = "the quick brown fox jumps over the lazy dog"
SETTINGS: dict[str, Any] = dict(
    num_blocks=400, block_size=8, max_batch_size=4, max_running_requests=4, lazy_graph_capture=True
)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedCheckpoint:
    return load_engine(folder, EngineConfig(**SETTINGS), "cpu", "float32", is_embedded=False)


@pytest.fixture
def bench(loaded: LoadedCheckpoint) -> EngineHarness:
    return EngineHarness.from_checkpoint(loaded)


def speak(bench: EngineHarness, **fields: Any) -> int:
    usual = dict(text=TEXT, text_closed=True, sampling=SamplingParams(seed=5))
    return bench.submit(**(usual | fields))


def model_of(bench: EngineHarness) -> CosyVoice3:
    assert isinstance(bench.engine.model, CosyVoice3)
    return bench.engine.model


Script = Callable[[int], int]


def scripted(bench: EngineHarness, monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    """The n-th draw of the only row is ``script(n)``, if it is allowed."""
    drawn = [0]

    def logits(hidden: Tensor) -> Tensor:
        found = torch.zeros(len(hidden), 6761)
        found[:, script(drawn[0])] = 1000.0
        drawn[0] += 1
        return found

    monkeypatch.setattr(model_of(bench).talker, "logits", logits)


GREEDY = SamplingParams(seed=5, temperature=0.0, min_new_tokens=0)
EOS, FILL = 6562, 6564


@pytest.mark.parametrize("num_tokens", [0, 1, 27, 28, 29, 53])
def test_every_length_ends_once_with_all_its_samples(
    bench: EngineHarness, monkeypatch: pytest.MonkeyPatch, num_tokens: int
) -> None:
    scripted(bench, monkeypatch, lambda n: 100 + n if n < num_tokens else EOS)
    row = speak(bench, sampling=GREEDY)
    bench.run()
    bench.check_idle()
    heard = bench.heard[row]
    assert heard.reason is FinishReason.STOP
    assert heard.num_samples == 960 * num_tokens
    assert sum(chunk.last for chunk in heard.chunks) == 1
    assert all(len(chunk.pcm) for chunk in heard.chunks if not chunk.last)
    assert len(heard.pcm) == 960 * num_tokens


def test_head_that_ends_at_once_makes_the_minimum(bench: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(bench, monkeypatch, lambda n: EOS)
    row = speak(bench, sampling=SamplingParams(seed=5), text="hello world")
    num_text = len(model_of(bench).tokenizer.encode_text("hello world"))
    bench.run()
    assert bench.heard[row].end.num_frames == 2 * num_text  # type: ignore[union-attr]


def test_head_that_never_ends_stops_at_the_maximum(bench: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(bench, monkeypatch, lambda n: 100 + n % 1000)
    row = speak(bench, sampling=GREEDY, text="a")
    bench.run()
    heard = bench.heard[row]
    assert (heard.reason, heard.num_samples) == (FinishReason.LENGTH, 20 * 960)


def test_endless_silence_is_not_spoken_and_ends(bench: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(bench, monkeypatch, lambda n: (1, 2, 28)[n % 3])
    row = speak(bench, sampling=GREEDY, text="hello")
    bench.run()
    bench.check_idle()
    heard = bench.heard[row]
    assert (heard.reason, heard.num_samples) == (FinishReason.LENGTH, 5 * 960)
    assert heard.end.num_skipped_tokens >= 15  # type: ignore[union-attr]


def test_the_same_token_again_and_again_is_not_taken_for_one(
    bench: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(bench, monkeypatch, lambda n: 100 if n < 45 else EOS)
    row = speak(bench, sampling=GREEDY)
    bench.run()
    assert bench.heard[row].num_samples == 45 * 960


def test_text_request_token_makes_no_audio(bench: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two early wishes; with the last text known it speaks on to its end."""
    script = [100, 101, FILL, 102, FILL, 103, 104, EOS]
    scripted(bench, monkeypatch, lambda n: script[min(n, len(script) - 1)])
    text = f"{TEXT} over the"
    assert 10 < len(model_of(bench).tokenizer.encode_text(text)) < 15
    row = speak(bench, text=text, sampling=GREEDY, layout=TextLayout.STREAMING)
    bench.run()
    assert bench.heard[row].num_samples == 5 * 960


# -- what is refused ---------------------------------------------------------------------------------------------


def test_every_prompt_holds_the_end_of_its_instruction(bench: EngineHarness) -> None:
    end = model_of(bench).tokenizer.end_of_prompt
    for fields in ({}, {"voice": cloned()}, {"instruct": "sad"}, {"layout": TextLayout.STREAMING, "voice": cloned()}):
        row = speak(bench, max_frames=2, **fields)
        request = bench.request(row)
        bench.run()
        assert request.row.inputs.count(end) == 1


def told(bench: EngineHarness, row: int) -> tuple[str | None, str]:
    heard = bench.heard[row]
    assert heard.reason is FinishReason.ERROR
    assert heard.end is not None
    return heard.end.error.code, heard.end.error.message


def test_model_description_has_its_facts(loaded: LoadedCheckpoint) -> None:
    info = loaded.info
    assert (info.model, info.task, info.sample_rate, info.frame_samples) == ("cosyvoice3", "base", 24_000, 960)
    assert (info.embedding_size, info.num_codebooks, info.codebook_size, info.mel_bins) == (192, 1, 6561, 80)
    assert info.max_text_tokens == 200
    assert info.takes_instruct
    assert info.reads_phonemes
    assert info.can_clone
    assert not info.can_encode, "there are no ONNX files in this folder"


def test_more_than_200_text_tokens_are_refused_alone(bench: EngineHarness) -> None:
    other = speak(bench, max_frames=20)
    row = speak(bench, text="1 " * 300)
    live = speak(bench, text="", text_closed=False)
    for _ in range(3):
        bench.push_text(live, "12345678 " * 10)
        bench.step()
    bench.run()
    for refused in (row, live):
        code, message = told(bench, refused)
        assert code == RequestTooLong.code
        assert "the limit of one segment is 200" in message
    assert bench.heard[other].num_samples == 20 * 960


def test_unknown_instruction_error_lists_known_ones(bench: EngineHarness) -> None:
    code, message = told(bench, speak(bench, instruct="like a pirate"))
    assert code == InvalidRequest.code
    assert message.startswith("instruct is 'like a pirate', which the model does not know; known: cantonese, ")


@pytest.mark.parametrize(
    ("instruct", "sentence"),
    [
        ("", ""),
        ("cantonese", "请用广东话表达。"),
        ("Cantonese", "请用广东话表达。"),
        (" 请用广东话表达 ", "请用广东话表达。"),
        ("You are a helpful assistant. 请用广东话表达。<|endofprompt|>", "请用广东话表达。"),
        ("You are a helpful assistant.", ""),
        ("Please say a sentence as loudly as possible", INSTRUCTS["loud"]),
    ],
)
def test_an_instruction_is_known_by_its_name_and_by_its_sentence(instruct: str, sentence: str) -> None:
    assert known_sentence(instruct) == sentence


def test_26_instructions_are_known_and_others_optional() -> None:
    assert len(INSTRUCTS) == 26
    assert known_sentence("like a pirate", takes_any=True) == "like a pirate"


def test_text_without_anything_to_speak_is_refused(bench: EngineHarness) -> None:
    assert told(bench, speak(bench, text=" \n")) == (InvalidRequest.code, "text holds nothing that can be spoken")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(mel=b""), "voice.mel has 0 bytes; with these codes it must have 25600"),
        (dict(mel=b"\0" * 25_596), "voice.mel has 25596 bytes"),
        (dict(mel=np.full(6400, np.nan, np.float32).tobytes()), "voice.mel holds numbers that are not finite"),
        (dict(codes=b""), "voice.mel has 25600 bytes; with these codes it must have 0"),
        (dict(codes=np.full(40, 6561, np.int16).tobytes()), "voice.codes holds 6561; it must lie in 0..6560"),
        (dict(num_codebooks=16), "voice.codes has 16 codebooks; cosyvoice3 takes 1"),
        (dict(embedding=b"\0" * 4), "voice.embedding has 4 bytes; it must have 768"),
        (dict(transcript="a" * 3000), "voice.transcript has 3000 characters"),
    ],
)
def test_a_voice_that_does_not_fit_is_refused(loaded: LoadedCheckpoint, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said.replace(".", r"\.")):
        check_cloned(msgspec.structs.replace(cloned(), **change), loaded.info)


def test_a_setting_that_is_none_is_named_on_the_way_in(folder: Path) -> None:
    for wrong, said in (
        ({"talker": {"stop_mode": "often"}}, r"cosyvoice3\.talker\.stop_mode"),
        ({"flow": {"colour": "red"}}, "colour"),
        ({"talker": {"max_tokens": 0}}, "max_tokens is 0"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            create_engine(folder, process=False, cosyvoice3=wrong)


@pytest.mark.parametrize("voice", [cloned(), cloned(with_transcript=False), cloned(num_tokens=0)])
def test_voice_speaks_with_words_without_or_by_vector(
    bench: EngineHarness, loaded: LoadedCheckpoint, voice: ClonedVoice
) -> None:
    check_cloned(voice, loaded.info)
    row = speak(bench, voice=voice, max_frames=4)
    bench.run()
    assert bench.heard[row].num_samples == 4 * 960


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_text_tokens", 0),
        ("max_tokens", 0),
        ("max_consecutive_silent_tokens", -1),
        ("min_tokens_per_text_token", -0.1),
        ("max_tokens_per_text_token", 1.0),
    ],
)
def test_settings_that_cannot_be_are_named(field: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match=r"cosyvoice3\.talker\."):
        TalkerSettings(**{field: value})


def test_what_is_set_for_one_stage_reaches_it_and_no_other() -> None:
    options = {"cosyvoice3": {"talker": {"stop_mode": "set"}, "flow": {"graphs": False}}}
    config = msgspec.convert(options, EngineConfig)
    assert config.cosyvoice3.talker == TalkerSettings(stop_mode="set")
    assert config.cosyvoice3.flow.graphs is False
    assert config.cosyvoice3.vocoder == CosyVoice3Settings().vocoder
    assert config.graphs is None


def test_engine_counts_rows_with_fewer_blocks(bench: EngineHarness) -> None:
    assert isinstance(bench.engine.stage, CosyDecodeStage)
    assert bench.engine.stats().num_bounded == 0
    bench.engine.stage.memory.num_bounded = 2
    assert bench.engine.stats().num_bounded == 2


# -- who fails ---------------------------------------------------------------------------------------------------


def said_by(bench: EngineHarness, rows: Sequence[int]) -> list[Any]:
    bench.run()
    bench.check_idle()
    return [bench.heard[row].pcm for row in rows]


def test_a_talker_that_breaks_for_one_text_fails_that_row_alone(loaded: LoadedCheckpoint, bench: EngineHarness) -> None:
    [alone] = said_by(bench, [speak(bench, text="hello world", max_frames=20)])
    broken_id = model_of(bench).tokenizer.encode("Q")[0]
    table = model_of(bench).talker.table
    before = table[broken_id].clone()
    table[broken_id] = torch.nan
    try:
        rows = [speak(bench, text="Q"), speak(bench, text="hello world", max_frames=20)]
        said = said_by(bench, rows)
    finally:
        table[broken_id] = before
    assert told(bench, rows[0])[1] == "the talker's output is not finite"
    np.testing.assert_allclose(said[1], alone, atol=1e-4)


def test_a_flow_that_breaks_for_one_voice_fails_that_row_alone(bench: EngineHarness) -> None:
    [alone] = said_by(bench, [speak(bench, text="hello world", max_frames=30)])
    stage = bench.engine.stage
    assert isinstance(stage, CosyDecodeStage)
    loud = cloned(seed=9, with_transcript=False)
    broken = msgspec.structs.replace(loud, mel=np.full(6400, 3e38, np.float32).tobytes())
    rows = [speak(bench, voice=broken, max_frames=30), speak(bench, text="hello world", max_frames=30)]
    said = said_by(bench, rows)
    assert "finite" in told(bench, rows[0])[1]
    np.testing.assert_allclose(said[1], alone, atol=1e-3)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (dict(top_k=0), "top_k must be 1 to 128, is 0"),
        (dict(top_k=129), "top_k must be 1 to 128, is 129"),
        (dict(repetition_window=65), "repetition_window must be 1 to 64, is 65"),
        (dict(repetition_penalty=1.1), "repetition_penalty must be 1 to 1, is 1.1"),
        (dict(predictor_do_sample=False), "predictor_do_sample is given; it has no meaning to cosyvoice3"),
        (dict(predictor_top_k=50), "predictor_top_k is given; it has no meaning to cosyvoice3"),
    ],
)
def test_unsupported_option_is_refused_not_skipped(loaded: LoadedCheckpoint, fields: dict[str, Any], told: str) -> None:
    request = SpeechRequest(request_id="r", text=TEXT, voice=cloned(), sampling=SamplingParams(**fields))
    with pytest.raises(InvalidRequest, match=told) as caught:
        check_request(request, loaded.info, max_text_chars=100)
    assert caught.value.param in fields


def test_chunk_sizes_other_than_blocks_are_refused(loaded: LoadedCheckpoint) -> None:
    request = SpeechRequest(request_id="r", text=TEXT, voice=cloned(), chunk_frames=(1, 2))
    with pytest.raises(InvalidRequest, match="chunk_frames is given"):
        check_request(request, loaded.info, max_text_chars=100)


def test_default_values_are_accepted(loaded: LoadedCheckpoint) -> None:
    sampling = SamplingParams(top_k=128, repetition_window=64, repetition_penalty=1.0)
    request = SpeechRequest(request_id="r", text=TEXT, voice=cloned(), sampling=sampling)
    check_request(request, loaded.info, max_text_chars=100)


def test_the_least_temperature_draws_the_likeliest(bench: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores over so little are infinite in fp32."""
    scripted(bench, monkeypatch, lambda n: 100 + n if n < 30 else EOS)
    row = speak(bench, sampling=SamplingParams(seed=5, temperature=1e-38, min_new_tokens=0))
    bench.run()
    assert len(bench.heard[row].pcm) == 30 * 960
