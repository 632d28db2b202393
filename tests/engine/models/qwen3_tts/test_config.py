"""Configuration files: every wrong one is told by file, key and value."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api import SAMPLING_RANGES
from engine.config import EngineConfig
from engine.errors import CheckpointError
from engine.load import inspect_model, load_family
from engine.models.qwen3_tts.config import read_config

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_folder, tmp_path / "model")
    return tmp_path / "model"


def edit(path: Path, change: Change) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


SIZES_OF_NO_FILE: list[Change] = [
    lambda c: c["talker_config"].update(hidden_size=2**20, text_hidden_size=2**20, intermediate_size=2**20),
    lambda c: c["talker_config"].update(text_hidden_size=96),
]


@pytest.mark.parametrize("change", SIZES_OF_NO_FILE)
def test_size_mismatch_is_reported_before_allocation(folder: Path, change: Change) -> None:
    edit(folder / "config.json", change)
    with pytest.raises(CheckpointError, match="has shape") as told:
        inspect_model(folder)
    assert torch.empty(0).device.type == "cpu", f"the device of shapes is left behind {told.value}"
    with pytest.raises(CheckpointError, match=r"has shape|make no model"):
        load_family(folder, EngineConfig(), torch.device("cpu"), torch.float32)


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_config(folder)
    assert caught.value.code == "bad_checkpoint"
    return str(caught.value)


def keys_of(section: str = "") -> list[str]:
    """Keys of the main file that must be there."""
    needed = {
        "": "model_type tts_model_type im_start_token_id im_end_token_id assistant_token_id "
        "tts_pad_token_id tts_bos_token_id tts_eos_token_id talker_config",
        "talker_config": "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
        "head_dim rms_norm_eps rope_theta text_hidden_size text_vocab_size vocab_size num_code_groups "
        "max_position_embeddings codec_pad_id codec_bos_id codec_eos_token_id codec_think_id codec_nothink_id "
        "codec_think_bos_id codec_think_eos_id codec_language_id spk_id code_predictor_config",
    }
    return needed[section].split()


@pytest.mark.parametrize("key", keys_of())
def test_a_missing_key_is_named(folder: Path, key: str) -> None:
    edit(folder / "config.json", lambda c: c.pop(key))
    message = refusal(folder)
    assert "config.json" in message
    assert repr(key) in message


@pytest.mark.parametrize("key", keys_of("talker_config"))
def test_a_missing_key_of_the_talker_is_named(folder: Path, key: str) -> None:
    edit(folder / "config.json", lambda c: c["talker_config"].pop(key))
    assert f"config.json: talker_config has no key {key!r}" in refusal(folder)


CODEC_KEYS = (
    "hidden_size num_hidden_layers codebook_size codebook_dim num_quantizers latent_dim decoder_dim "
    "upsample_rates upsampling_ratios"
).split()


@pytest.mark.parametrize("key", CODEC_KEYS)
def test_a_missing_key_of_the_codec_is_named(folder: Path, key: str) -> None:
    edit(folder / "speech_tokenizer" / "config.json", lambda c: c["decoder_config"].pop(key))
    assert f"speech_tokenizer/config.json: decoder_config has no key {key!r}" in refusal(folder)


WRONG_VALUES: list[tuple[Change, list[str]]] = [
    (lambda c: c.update(model_type="llama"), ["model_type", "'llama'", "'qwen3_tts'"]),
    (lambda c: c.update(tts_pad_token_id="many"), ["tts_pad_token_id", "'many'"]),
    (lambda c: c.update(tts_pad_token_id=10**9), ["tts_pad", "1000000000"]),
    (lambda c: c.update(talker_config=[]), ["talker_config", "[]"]),
    (lambda c: c["talker_config"].update(hidden_size=0), ["hidden_size", "0", "positive"]),
    (lambda c: c["talker_config"].update(hidden_size=True), ["hidden_size", "True"]),
    (lambda c: c["talker_config"].update(hidden_size=1.5), ["hidden_size", "1.5"]),
    (lambda c: c["talker_config"].update(num_key_value_heads=3), ["4 heads", "3 key-value heads"]),
    (lambda c: c["talker_config"].update(codec_eos_token_id=99999), ["'eos'", "99999"]),
    (lambda c: c["talker_config"].update(spk_id={"ada": "high"}), ["spk_id", "'ada'", "'high'"]),
    (lambda c: c["talker_config"].update(spk_id={"ada": 10**6}), ["speaker 'ada'", "1000000"]),
    (lambda c: c["talker_config"].update(codec_language_id={"english": -4}), ["language 'english'", "-4"]),
    (lambda c: c["talker_config"].update(spk_is_dialect={"ada": "martian"}), ["'martian'", "'ada'"]),
    (
        lambda c: c["talker_config"].update(codec_language_id={"english": "a"}),
        ["codec_language_id", "'english'", "'a'"],
    ),
    (lambda c: c["talker_config"].update(spk_id={"ada": True}), ["spk_id", "'ada'", "True"]),
    (lambda c: c["talker_config"].update(spk_is_dialect=["ada"]), ["spk_is_dialect", "['ada']"]),
    (lambda c: c["talker_config"].update(spk_is_dialect={"ada": 3}), ["spk_is_dialect", "'ada'", "3"]),
    (lambda c: c["talker_config"].update(rms_norm_eps=float("nan")), ["rms_norm_eps", "nan"]),
    (lambda c: c["talker_config"].update(rope_theta=10**400), ["rope_theta", "1000"]),
    (lambda c: c["talker_config"].update(rope_theta=-1.0), ["rope_theta", "-1.0"]),
    (lambda c: c["talker_config"].update(num_hidden_layers=10**7), ["num_hidden_layers", "10000000", "256"]),
    (lambda c: c["talker_config"].update(text_hidden_size=2**40), ["text_hidden_size", str(2**40), str(2**20)]),
    (lambda c: c["talker_config"].update(vocab_size=1200), ["codebook size", "176", "64"]),
    (lambda c: c["talker_config"].update(num_code_groups=5), ["num_code_groups", "5", "4"]),
    (lambda c: c["talker_config"]["code_predictor_config"].update(vocab_size=65), ["codebook size", "65", "64"]),
    (
        lambda c: c["talker_config"]["code_predictor_config"].pop("hidden_size"),
        ["code_predictor_config", "hidden_size"],
    ),
]


@pytest.mark.parametrize(("change", "parts"), WRONG_VALUES, ids=[" ".join(parts) for _, parts in WRONG_VALUES])
def test_wrong_value_is_reported(folder: Path, change: Change, parts: list[str]) -> None:
    edit(folder / "config.json", change)
    message = refusal(folder)
    assert [part for part in parts if part not in message] == []


WRONG_CODEC_VALUES: list[tuple[Change, list[str]]] = [
    (lambda c: c.update(model_type="mimi"), ["speech_tokenizer", "'mimi'"]),
    (lambda c: c.update(decode_upsample_rate=1000), ["1920", "1000"]),
    (lambda c: c["decoder_config"].update(upsample_rates=[8, 5, 4, "x"]), ["upsample_rates", "'x'"]),
    (lambda c: c["decoder_config"].update(upsample_rates=[]), ["upsample_rates", "[]"]),
    (lambda c: c["decoder_config"].update(upsample_rates=[1] * 10**5), ["upsample_rates", "..."]),
    (lambda c: c["decoder_config"].update(codebook_size=128), ["codebook size", "128", "64"]),
    (lambda c: c["decoder_config"].update(num_quantizers=8), ["num_code_groups", "8", "4"]),
]


@pytest.mark.parametrize(
    ("change", "parts"), WRONG_CODEC_VALUES, ids=[" ".join(parts) for _, parts in WRONG_CODEC_VALUES]
)
def test_wrong_codec_value_is_reported(folder: Path, change: Change, parts: list[str]) -> None:
    edit(folder / "speech_tokenizer" / "config.json", change)
    message = refusal(folder)
    assert [part for part in parts if part not in message] == []


GENERATION = [
    ({"temperature": "hot"}, ["temperature", "'hot'"]),
    ({"temperature": -1.0}, ["temperature", "-1", "0..2"]),
    ({"top_p": -0.1}, ["top_p", "-0.1", "0..1"]),
    ({"subtalker_top_k": -5}, ["subtalker_top_k", "-5"]),
    ({"repetition_penalty": 0}, ["repetition_penalty", "0", "0.01..2"]),
]


@pytest.mark.parametrize(("values", "parts"), GENERATION)
def test_invalid_sampling_default_is_reported(folder: Path, values: dict[str, Any], parts: list[str]) -> None:
    (folder / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")
    message = refusal(folder)
    assert [part for part in [*parts, "generation_config.json"] if part not in message] == []


def test_sampling_defaults_are_the_files_where_it_has_them(folder: Path) -> None:
    values = {"temperature": 0.7, "subtalker_top_k": 20, "max_new_tokens": 100, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")
    found = read_config(folder).generation
    assert (found.temperature, found.predictor_top_k, found.max_new_tokens) == (0.7, 20, 100)
    assert (found.top_k, found.repetition_penalty) == (50, 1.05)


NULL_GENERATION = [
    ("top_k", "top_k", 0),
    ("top_p", "top_p", 1.0),
    ("temperature", "temperature", 1.0),
    ("repetition_penalty", "repetition_penalty", 1.0),
    ("do_sample", "do_sample", False),
    ("subtalker_top_k", "predictor_top_k", 0),
    ("max_new_tokens", "max_new_tokens", 8192),
]


@pytest.mark.parametrize(("key", "name", "expected"), NULL_GENERATION)
def test_null_sampling_default_switches_the_step_off(folder: Path, key: str, name: str, expected: object) -> None:
    (folder / "generation_config.json").write_text(json.dumps({key: None}), encoding="utf-8")
    assert getattr(read_config(folder).generation, name) == expected


def test_zero_top_p_and_low_penalty_of_a_checkpoint_load(folder: Path) -> None:
    values = {"top_p": 0, "subtalker_top_p": 0.0, "repetition_penalty": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")
    found = read_config(folder).generation
    least = SAMPLING_RANGES["top_p"][0]
    assert (found.top_p, found.predictor_top_p, found.repetition_penalty) == (least, least, 0.9)


def test_missing_model_size_follows_from_the_shapes(folder: Path) -> None:
    edit(folder / "config.json", lambda c: c.pop("tts_model_size"))
    assert read_config(folder).size == "0b6"


def test_missing_decoder_defaults_are_the_official_ones(folder: Path) -> None:
    def leave_out(content: dict[str, Any]) -> None:
        decoder = content["decoder_config"]
        for key in ("head_dim", "sliding_window"):
            decoder.pop(key)

    edit(folder / "speech_tokenizer" / "config.json", leave_out)
    codec = read_config(folder).codec
    heads = codec.transformer.num_attention_heads
    assert (codec.transformer.head_dim, codec.sliding_window) == (codec.transformer.hidden_size // heads, 72)


def use_rope_parameters(section: dict[str, Any], **extra: object) -> None:
    """Write the rope base as transformers 5 does."""
    theta = section.pop("rope_theta")
    section.pop("rope_scaling", None)
    section["rope_parameters"] = {"rope_type": "default", "rope_theta": theta, **extra}


def test_rope_parameters_replace_rope_theta(folder: Path) -> None:
    before = read_config(folder)
    edit(folder / "config.json", lambda c: use_rope_parameters(c["talker_config"], mrope_section=[2, 1, 1]))
    edit(folder / "config.json", lambda c: use_rope_parameters(c["talker_config"]["code_predictor_config"]))
    edit(folder / "speech_tokenizer" / "config.json", lambda c: use_rope_parameters(c["decoder_config"]))
    assert read_config(folder) == before


def test_rope_parameters_that_scale_or_disagree_are_refused(folder: Path) -> None:
    edit(folder / "config.json", lambda c: use_rope_parameters(c["talker_config"], rope_type="yarn"))
    assert "'yarn'" in refusal(folder)
    edit(folder / "config.json", lambda c: c["talker_config"]["rope_parameters"].update(rope_type="default"))
    edit(folder / "config.json", lambda c: c["talker_config"].update(rope_theta=5.0))
    assert "'rope_theta' is 5.0" in refusal(folder)


def test_sizes_come_from_the_file(folder: Path) -> None:
    config = read_config(folder)
    assert config.talker.transformer.hidden_size == 48
    assert config.talker.num_codes == config.codec.codebook_size == 64
    assert config.codec.frame_samples == 1920
    assert not config.talker.code_predictor.projected


def test_names_are_known_in_any_case_and_ids_may_be_wrapped(folder: Path) -> None:
    config = read_config(folder)
    assert set(config.talker.speakers) == {"ada", "bo", "dylan"}
    assert config.talker.dialects == {"dylan": "beijing_dialect"}


@pytest.mark.parametrize("name", ["config.json", "speech_tokenizer/config.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", "nonsense", '{"a": '])
def test_a_file_that_is_no_json_object_is_named(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    assert "config.json" in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "speech_tokenizer/config.json"])
def test_a_file_that_is_not_there_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert "config.json" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"model_type": "llama"}', "'llama'; known: qwen3_tts"),
        ("{}", "None; known: qwen3_tts"),
        ("[1]", "config.json is list; it must be an object"),
    ],
)
def test_folder_of_another_family_is_recognized(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        load_family(tmp_path, EngineConfig(), torch.device("cpu"), torch.float32)
