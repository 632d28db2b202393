"""The comparison of precisions: its counts, its requests, and its layer boundaries on small random weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks import precision_divergence, precision_quality
from benchmarks.precision_quality import Replies, compare, engine_settings, expected_lengths, round_weights
from benchmarks.precision_words import read_judged, summarize
from engine.api import FinishReason
from engine.config import EngineConfig
from engine.runtime.admission import QueueLimits, RequestCounts, burst_share
from engine.weights.quantize import quantize

TEXTS = ["A text."] * 40 + ["A text that is twice and thrice as long."] * 40


def make_replies(lengths: list[int]) -> Replies:
    random = np.random.default_rng(0)
    frames = [random.integers(0, 512, (length, 8), dtype=np.int16) for length in lengths]
    return Replies(frames, [str(FinishReason.STOP)] * len(lengths))


@pytest.fixture
def usual() -> Replies:
    return make_replies([20] * 40 + [60] * 40)


def test_equal_replies_have_no_runaway(usual):
    row = compare(usual, usual, expected_lengths(TEXTS, usual))
    assert (row["runaways"], row["above_1.3_expected"], row["mean_length_ratio"]) == (0, 0, 1)
    assert (row["equal_code0_of_first_frames"], row["median_equal_frames"]) == (1, 40)


def test_long_and_cut_replies_are_runaways(usual):
    frames, reasons = list(usual.frames), list(usual.reasons)
    frames[0], frames[1], reasons[2] = np.tile(frames[0], (3, 1)), np.tile(frames[1], (3, 1))[:30], "length"
    row = compare(Replies(frames, reasons), usual, expected_lengths(TEXTS, usual))
    assert row["runaways"] == 2
    assert (row["above_1.3_expected"], row["above_2_expected"], row["longest_frames"]) == (2, 1, 60)
    assert row["reasons"] == {"stop": 79, "length": 1}


def test_first_differing_frame_is_found(usual):
    other = [frames.copy() for frames in usual.frames]
    for frames in other:
        frames[5, 3] ^= 1
        frames[7, 0] ^= 1
    row = compare(Replies(other, usual.reasons), usual, expected_lengths(TEXTS, usual))
    assert (row["median_equal_frames"], row["equal_code0_of_first_frames"]) == (5, 0.9)


def test_replies_are_read_as_they_were_written(tmp_path, usual):
    frames = [*usual.frames, np.zeros((0, 8), np.int16)]
    Replies(frames, [*usual.reasons, "overloaded"]).save(tmp_path / "bf16.npz")
    read = Replies.load(tmp_path / "bf16.npz")
    assert read.reasons[-1] == "overloaded"
    assert all(np.array_equal(one, other) for one, other in zip(read.frames, frames, strict=True))


@pytest.mark.parametrize("batch", [1, 4, 512])
def test_engine_refuses_no_request_of_one_client(batch):
    config, counts = EngineConfig(**engine_settings(batch)), RequestCounts()
    for number in range(max(1, int(precision_quality.AHEAD * batch))):
        request = precision_quality.make_request(number, "a text")
        QueueLimits.from_config(config).check(counts, request)
        counts.add(request)
    assert burst_share(config.max_running_requests) >= batch


def test_rounded_weights_are_those_of_the_layers(tmp_path):
    torch.manual_seed(0)
    (tmp_path / "voice").mkdir()
    names = ("talker.model.layers.0.mlp.up_proj.weight", "talker.codec_head.weight")
    tensors = {name: torch.randn(8, 16).bfloat16() for name in names} | {"a.layers.0.norm.weight": torch.randn(8)}
    save_file(tensors, tmp_path / "voice" / "model-1.safetensors")
    found = load_file(round_weights(tmp_path / "voice", tmp_path / "copy") / "model-1.safetensors")
    layer, head = names
    assert torch.equal(found[layer], quantize(tensors[layer]).dequantize(torch.bfloat16))
    assert not torch.equal(found[layer], tensors[layer])
    assert torch.equal(found[head], tensors[head])
    assert torch.equal(found["a.layers.0.norm.weight"], tensors["a.layers.0.norm.weight"])


def test_summary_compares_texts_that_all_precisions_have(tmp_path):
    rows = [
        {"number": number, "precision": name, "phones": 10, "phone_errors": number % 2 + (name == "fp8"), "words": 4}
        | {"missing": 0, "repeated": 0, "mos_overall": 3.0 - 0.5 * (name == "fp8"), "mos_p808": 3.5}
        for number in range(10)
        for name in ("bf16", "fp8")
    ]
    (tmp_path / "judged.jsonl").write_text("\n".join(map(json.dumps, rows[:-1])))
    usual, fp8 = summarize(read_judged(tmp_path / "judged.jsonl"), ["bf16", "fp8"])
    assert usual["num_texts"] == fp8["num_texts"] == 9
    assert usual["phones_wrong"] == {"value": pytest.approx(4.444), "more": 0, "error": 0}
    assert fp8["phones_wrong"] == {"value": pytest.approx(14.444), "more": 10, "error": 0}
    assert (fp8["mos_overall"]["more"], fp8["mos_p808"]["more"]) == (-0.5, 0)
    assert "words_wrong_bigram" not in fp8


def test_fp8_states_differ_more_than_bf16_ones(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["precision_divergence", "--shape", "tiny", "--device", "cpu"])
    monkeypatch.setattr(precision_divergence, "NUM_RANDOM", 2)
    monkeypatch.setattr(precision_divergence, "RANDOM_LENGTH", 24)
    precision_divergence.main()
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    bf16, bf16_weights, weights, plain_cache, *activations, int4 = rows
    assert [row["rows"] for row in (weights, plain_cache, *activations)] == [2, 64, 64, 512]
    assert [row["cache"] for row in rows] == ["bf16", "fp8", "fp8", "bf16", "fp8", "fp8", "bf16"]
    assert bf16["states"][-1] < bf16_weights["states"][-1] < weights["states"][-1]
    assert plain_cache["states"][-1] < activations[0]["states"][-1]
    assert int4["precision"] == "int4"
    assert bf16["states"][-1] < int4["states"][-1] < 0.5
    assert 0 < bf16["states"][0] < bf16["states"][-1] < 0.02
    for row in activations:
        assert 2 * bf16["states"][-1] < weights["states"][-1] < row["states"][-1] < 0.2
        assert bf16["code0"]["mean"] < weights["code0"]["mean"] < row["code0"]["mean"]
    assert all(row["others"]["mean"] > 0 for row in (bf16, weights, *activations))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_precisions_are_compared_on_the_embedded_voice(tmp_path: Path, monkeypatch, capsys):
    texts = tmp_path / "texts.txt"
    lines = ["Good morning to all.", "It is late, and the rain is cold.", "Where have you been?", "Maybe.", "I see it."]
    texts.write_text("\n".join(lines * 2))
    options = f"--texts {texts} --precision bf16,rounded --batch 4 --device cpu --dtype bfloat16".split()
    monkeypatch.setattr(sys, "argv", ["precision_quality", "speak", str(tmp_path), *options])
    precision_quality.main()
    report = json.loads(capsys.readouterr().out.splitlines()[-1])["precisions"]
    assert report["bf16"]["reasons"] == report["rounded"]["reasons"] == {"stop": 10}
    assert report["rounded"]["runaways"] == 0
    assert 0.8 < report["rounded"]["mean_length_ratio"] < 1.25
