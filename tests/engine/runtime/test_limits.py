"""The real model at its limits: frame caps, endless speech and odd texts, each told by name and ending that request."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from engine.api import FinishReason, SamplingParams, SpeechRequest, TextLayout
from engine.config import EngineConfig
from engine.errors import EngineOverloaded, RequestTooLong
from engine.load import load_engine
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.text.tokenizer import TextTokenizer
from engine.validation import check_request
from tests.engine.engine_harness import EngineHarness, RecordedRequest

MakeBench = Callable[..., EngineHarness]
FRAME = 1920


@pytest.fixture
def make_bench(tiny_folder: Path) -> MakeBench:
    def make(**settings: Any) -> EngineHarness:
        usual = dict(num_blocks=64, max_batch_size=4, max_running_requests=4, max_frames=60, lazy_graph_capture=True)
        plain = dict(cpu_optimizations=False)  # modules whose weights can be set
        config = EngineConfig(**(usual | plain | settings))
        return EngineHarness.from_checkpoint(load_engine(tiny_folder, config, "cpu", "float32", is_embedded=False))

    return make


def model_of(bench: EngineHarness) -> Qwen3TTS:
    model = bench.engine.model
    assert isinstance(model, Qwen3TTS)
    return model


def say(bench: EngineHarness, text: str = "hello world", **fields: Any) -> RecordedRequest:
    usual = dict(text=text, text_closed=True, sampling=SamplingParams(seed=1))
    epoch = bench.submit(**(usual | fields))
    bench.run()
    bench.check_idle()
    return bench.heard[epoch]


def never_ending(bench: EngineHarness) -> EngineHarness:
    model = model_of(bench)
    model.never[model.config.talker.control.eos] = True
    return bench


def num_tokens(bench: EngineHarness, text: str) -> int:
    return len(model_of(bench).tokenizer.encode(text))


# -- frame caps --------------------------------------------------------------------------------------------------


def test_the_cap_comes_from_the_length_of_the_text(make_bench: MakeBench) -> None:
    bench = never_ending(make_bench(min_frame_cap=5, frames_per_text_token=2))
    heard = say(bench, "hello world")
    assert heard.end
    assert heard.reason is FinishReason.LENGTH
    assert heard.end.num_frames == 5 + 2 * num_tokens(bench, "hello world")
    assert heard.num_samples == heard.end.num_frames * FRAME
    assert heard.chunks[-1].last


@pytest.mark.parametrize("max_frames", [1, 7, 20])
def test_the_cap_that_a_request_asks_for_goes_before_it(make_bench: MakeBench, max_frames: int) -> None:
    heard = say(never_ending(make_bench()), max_frames=max_frames)
    assert heard.end
    assert (heard.reason, heard.end.num_frames) == (FinishReason.LENGTH, max_frames)


def test_no_request_passes_the_hard_cap(make_bench: MakeBench) -> None:
    heard = say(never_ending(make_bench(max_frames=15)), max_frames=1000)
    assert heard.end
    assert (heard.reason, heard.end.num_frames) == (FinishReason.LENGTH, 15)


def test_speech_that_ends_by_itself_is_no_matter_of_caps(make_bench: MakeBench) -> None:
    bench = make_bench()
    model = model_of(bench)
    model.talker.codec_head.weight[model.config.talker.control.eos] = 0
    heard = next(h for seed in range(20) if (h := say(bench, sampling=SamplingParams(seed=seed))).reason == "stop")
    assert heard.end
    assert 2 <= heard.end.num_frames < 60


# -- endless speech ----------------------------------------------------------------------------------------------


def test_a_loop_of_one_code_is_cut(make_bench: MakeBench) -> None:
    bench = never_ending(make_bench(loop_limit_frames=12))
    talker = model_of(bench).talker
    talker.codec_head = torch.nn.Linear(talker.codec_head.in_features, talker.codec_head.out_features, bias=False)
    torch.nn.init.zeros_(talker.codec_head.weight)
    heard = say(bench, sampling=SamplingParams(temperature=0))
    assert heard.end
    assert (heard.reason, heard.end.num_frames) == (FinishReason.LOOP, 12)
    assert heard.num_samples == 12 * FRAME, "what was sampled is still heard"


def silent(bench: EngineHarness) -> EngineHarness:
    last = bench.engine.stage.codec.module.decoder[-1].conv  # type: ignore[attr-defined]
    last.weight.zero_()
    last.bias.zero_()
    return bench


def test_silence_after_the_text_is_spent_is_cut(make_bench: MakeBench) -> None:
    bench = silent(never_ending(make_bench(silence_limit_s=1.0)))
    heard = say(bench, layout=TextLayout.FULL)
    assert heard.reason is FinishReason.SILENCE
    assert 1.0 * 24_000 <= heard.num_samples <= 1.0 * 24_000 + 9 * FRAME, "no more than a decode call late"


def test_silence_while_text_is_left_is_a_pause(make_bench: MakeBench) -> None:
    bench = silent(never_ending(make_bench(silence_limit_s=0.3)))
    text = "a b c d e f g h i j k l m n o p"
    heard = say(bench, text, layout=TextLayout.STREAMING)
    assert heard.end
    assert heard.reason is FinishReason.SILENCE
    assert heard.end.num_frames >= num_tokens(bench, text)


def test_a_row_that_waits_for_text_is_not_silent(make_bench: MakeBench) -> None:
    bench = silent(never_ending(make_bench(silence_limit_s=0.1)))
    epoch = bench.submit(text="hello world how are you ", sampling=SamplingParams(seed=1))
    bench.run()
    assert bench.request(epoch).parked
    bench.cancel(epoch)


# -- texts -------------------------------------------------------------------------------------------------------

ODD_TEXTS = {
    "one letter": "a",
    "emoji alone": "😀👍🏽👨‍👩‍👧",
    "mixed scripts": "Hello 今天天气很好 Привет สวัสดี नमस्ते مرحبا 한국어",
    "control characters": "a\x00b\x01\x1b[31mc\x7f\u200b\u202ed\ufeff",
    "special-token strings": "<|im_start|>assistant\n<|im_end|><tts_pad><tts_text_bos><tts_text_eod><|endoftext|>",
    "white space around and between": "\n\n  hello \t\r\n world  \n",
    "combining marks": "e\u0301\u0323 a\u0308\u0301",
    "lone surrogate-like code points": "\ufffd\U0010fffd",
    "one long word": "a" * 60,
    "digits and punctuation": "12,345.67!?...---",
}


# Each text in one of the layouts, in turn, and in the other one among the slow tests.
@pytest.mark.parametrize(
    ("text", "layout"),
    [
        pytest.param(text, layout, id=f"{name}-{layout}", marks=() if (number + place) % 2 else pytest.mark.slow)
        for number, (name, text) in enumerate(ODD_TEXTS.items())
        for place, layout in enumerate((TextLayout.FULL, TextLayout.STREAMING))
    ],
)
def test_odd_texts_are_spoken_as_the_letters_they_are(make_bench: MakeBench, text: str, layout: TextLayout) -> None:
    """The engine takes any text with something visible in it; what to read an emoji as is the normaliser's business."""
    bench = make_bench(max_frames=6, num_blocks=80)
    heard = say(bench, text, layout=layout)
    assert heard.end
    assert heard.reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert heard.num_samples
    if layout is TextLayout.FULL:
        assert heard.end.num_text_tokens == num_tokens(bench, text.lstrip())


def test_special_token_strings_never_become_special_tokens(make_bench: MakeBench) -> None:
    bench = make_bench()
    ids = model_of(bench).tokenizer.encode(ODD_TEXTS["special-token strings"])
    special = model_of(bench).config.text
    assert not set(ids) & {special.im_start, special.im_end, special.tts_pad, special.tts_bos, special.tts_eos}


@pytest.mark.parametrize("text", ["", " ", "\n\t\u3000 "])
def test_text_without_anything_visible_ends_in_an_error(make_bench: MakeBench, text: str) -> None:
    heard = say(make_bench(), text)
    assert heard.end
    assert (heard.reason, heard.end.error.code) == (FinishReason.ERROR, "invalid_request")
    assert "nothing that can be spoken" in heard.end.error.message


def test_a_text_of_100_000_characters_is_refused_at_the_door(make_bench: MakeBench, tiny_folder: Path) -> None:
    info = load_engine(tiny_folder, EngineConfig(num_blocks=8), "cpu", "float32", is_embedded=False).info
    spec = SpeechRequest(request_id="r", text="hello " * 20_000, text_closed=True)
    with pytest.raises(RequestTooLong, match="text has 120000 characters; one request takes 20000"):
        check_request(spec, info, EngineConfig().max_text_chars)


def test_engine_stays_within_its_stated_capacity(make_bench: MakeBench) -> None:
    """Each of several gateways counts its own requests alone."""
    bench = make_bench(max_running_requests=2, max_queued_requests=1)
    taken = [bench.submit(text="", text_closed=False, lead_ms=2_000) for _ in range(3)]
    refused = bench.submit(text="hello", text_closed=True, lead_ms=2_000)
    bench.run()
    end = bench.heard[refused].end
    assert end
    assert (end.reason, end.error.code) == (FinishReason.ERROR, "overloaded")
    assert end.error.message == "3 requests are active; the limit is 3"
    assert bench.heard[refused].released
    assert not any(bench.heard[epoch].end for epoch in taken)
    bench.cancel(taken[0])
    bench.run()
    assert say_along(bench).reason is not FinishReason.ERROR, "there is room again"


def say_along(bench: EngineHarness) -> RecordedRequest:
    epoch = bench.submit(text="hello world", text_closed=True, sampling=SamplingParams(seed=1))
    bench.run()
    return bench.heard[epoch]


def test_speaking_reply_waits_where_a_new_one_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench(max_running_requests=1, max_queued_requests=0, max_frames=8)
    first, second, other = (bench.submit(text="Hello.", text_closed=True, segment=segment) for segment in (0, 1, 0))
    bench.run()
    assert [bench.heard[row].reason is FinishReason.ERROR for row in (first, second, other)] == [False, False, True]
    assert bench.heard[other].end.error.code == EngineOverloaded.code


@pytest.mark.parametrize("graphs", [False, True])
def test_above_the_ceiling_even_a_reply_that_speaks_is_refused(make_bench: MakeBench, graphs: bool) -> None:
    limits = dict(max_running_requests=1, max_queued_requests=1, max_queued_continuations=2)
    bench = make_bench(**limits, graphs=graphs, max_frames=8)
    taken = [bench.submit(text="Hello.", text_closed=True, segment=segment) for segment in (0, 1, 1, 2)]
    refused = bench.submit(text="Hello.", text_closed=True, segment=3)
    end = bench.heard[refused].end
    assert end
    assert (end.error.code, end.error.message) == (EngineOverloaded.code, "4 requests are active; the limit is 4")
    assert end.error.retry_after_ms
    bench.run()
    bench.check_idle()
    assert all(bench.heard[epoch].reason is not FinishReason.ERROR for epoch in taken)


def test_instruction_longer_than_the_cache_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=20)
    assert say(bench, instruct="Speak calmly.").reason is not FinishReason.ERROR
    end = say(bench, instruct="calmly " * 200).end
    assert end
    assert end.error.code == "request_too_long"
    assert end.error.message
    assert re.fullmatch(r"voice and instruct need \d{3,} positions; the cache holds 320", end.error.message)
    assert say(bench).reason is not FinishReason.ERROR, "nothing of it is left behind"


def test_text_that_grows_too_long_error_has_limit_and_value(make_bench: MakeBench) -> None:
    bench = make_bench(max_text_chars=50)
    epoch = bench.submit(text="a" * 30)
    bench.push_text(epoch, "b" * 20)
    assert bench.heard[epoch].end is None
    bench.push_text(epoch, "c")
    end = bench.heard[epoch].end
    assert end
    assert (end.error.code, end.error.message) == ("request_too_long", "text has 51 characters; one request takes 50")
    bench.run()
    bench.check_idle()


def test_text_larger_than_the_cache_is_refused_alone(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=8, block_size=16)
    short = bench.submit(text="hello", text_closed=True, sampling=SamplingParams(seed=1))
    long = bench.submit(text="x1" * 200, text_closed=True)
    end = bench.heard[long].end
    assert end
    assert end.error.code == "request_too_long"
    assert "the cache holds 128" in end.error.message
    bench.run()
    bench.check_idle()
    assert bench.heard[short].reason in (FinishReason.STOP, FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("fields", "code", "part"),
    [
        (dict(voice="nobody"), "unknown_voice", "'nobody'"),
        (dict(language="klingon"), "unknown_language", "'klingon'"),
    ],
)
def test_what_slips_past_the_door_ends_in_the_same_error(
    make_bench: MakeBench, fields: dict[str, Any], code: str, part: str
) -> None:
    heard = say(make_bench(), **fields)
    assert heard.end
    assert (heard.reason, heard.end.error.code) == (FinishReason.ERROR, code)
    assert part in heard.end.error.message


# -- what the end tells ------------------------------------------------------------------------------------------


def test_terminal_event_has_times_counts_and_seed(make_bench: MakeBench) -> None:
    bench = make_bench(max_running_requests=1)
    bench.step_s = 0.01
    first = bench.submit(
        voice="bo", text="hello world", text_closed=True, max_frames=10, sampling=SamplingParams(seed=5)
    )
    second = bench.submit(text="", max_frames=10)
    bench.run()
    bench.now_s += 5.0
    bench.push_text(second, "hello world ")
    bench.run()
    bench.end_input(second)
    bench.run()
    one, two = bench.heard[first].end, bench.heard[second].end
    assert one
    assert two
    assert (one.seed, one.queue_ms, one.num_text_tokens) == (5, 0.0, num_tokens(bench, "hello world"))
    assert one.first_audio_ms == pytest.approx(10.0, abs=1e-6)
    assert two.queue_ms == 0
    assert two.first_audio_ms is not None
    assert two.first_audio_ms < 100, "counted from the text, not from the submit"


def test_first_chunk_has_the_parts_of_its_time(make_bench: MakeBench) -> None:
    bench = make_bench(max_running_requests=1)
    bench.step_s = 0.01
    first, second = (bench.submit(text="hello world", text_closed=True, max_frames=4) for _ in range(2))
    bench.run()
    one, two = (bench.heard[epoch].chunks for epoch in (first, second))
    assert one[0].timings is not None
    assert two[0].timings is not None
    assert all(chunk.timings is None for chunk in (*one[1:], *two[1:]))
    assert one[0].timings.queue_ms == 0
    assert two[0].timings.queue_ms > 10
    end, second_end = bench.heard[first].end, bench.heard[second].end
    assert end is not None
    assert second_end is not None
    assert sum(msgspec.structs.astuple(one[0].timings)) == pytest.approx(end.first_audio_ms)
    assert second_end.queue_ms == pytest.approx(two[0].timings.queue_ms)
    assert min(msgspec.structs.astuple(two[0].timings)) >= 0


def test_times_of_a_request_without_text_begin_with_its_text(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.step_s = 0.01
    epoch = bench.submit(text="", max_frames=4)
    bench.run()
    bench.now_s += 5.0
    bench.push_text(epoch, "hello world ")
    bench.end_input(epoch)
    bench.run()
    timings = bench.heard[epoch].chunks[0].timings
    assert timings is not None
    assert timings.queue_ms == 0
    assert sum(msgspec.structs.astuple(timings)) < 100


def test_seed_repeats_speech_and_random_one_is_reported(make_bench: MakeBench) -> None:
    bench = make_bench(max_frames=8)
    free = say(bench, sampling=SamplingParams())
    assert free.end
    again = say(bench, sampling=SamplingParams(seed=free.end.seed))
    other = say(bench, sampling=SamplingParams(seed=free.end.seed + 1))
    torch.testing.assert_close(torch.from_numpy(again.pcm), torch.from_numpy(free.pcm), atol=2e-5, rtol=0)
    assert len(other.pcm) != len(free.pcm) or abs(other.pcm - free.pcm).max() > 0.01


def test_the_tokenizer_of_the_model_takes_any_text(tiny_folder: Path) -> None:
    tokenizer = TextTokenizer.from_folder(tiny_folder)
    for text in ODD_TEXTS.values():
        assert all(0 <= token < tokenizer.text_vocab_size for token in tokenizer.encode(text))
