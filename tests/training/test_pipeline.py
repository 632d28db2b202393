"""The whole making of a voice, tiny: what it exports, the engine loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine.models.qwen3_tts.config import read_config
from engine.models.qwen3_tts.load import load_codec, load_talker
from tests.fakes.checkpoints import write_tokenizer
from training import export as export_module
from training import pipeline
from training.checkpoints import Average
from training.flite import available
from training.layout import TextIds
from training.pipeline import Run, main, train_codec, train_talker, voice_config
from training.schedule import until, warm_cosine
from training.settings import TOY
from training.tokenizer import read_ids

CPU = torch.device("cpu")


@pytest.mark.skipif(not available(), reason="flite's libraries are not installed")
@pytest.mark.timeout(240)
def test_a_toy_voice_from_text_to_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "ENDLESS", 12)  # enough for the toy; more would be spoken until the end
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    write_tokenizer(tokenizer)
    out, speech = tmp_path / "out", tmp_path / "speech"
    main([str(out), "--speech", str(speech), "--tokenizer", str(tokenizer), "--minutes", "0.02", "--toy"])
    resumed = Run(TOY, speech, tmp_path / "resumed", tokenizer, None, out, "cpu", deadline_s=0.0)
    resumed.out.mkdir()
    train_codec(resumed)
    train_talker(resumed)
    assert (resumed.out / "talker.safetensors").exists()
    config = read_config(out / "voice")
    talker = load_talker(out / "voice", config, torch.float32, CPU)
    codec = load_codec(out / "voice", config, torch.float32, CPU)
    assert torch.isfinite(codec(torch.randint(8, (1, 3, 4)))).all()
    assert all(torch.isfinite(value).all() for value in talker.state_dict().values())


def test_config_files_match_the_trained_model(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    ids = TextIds(**read_ids(tmp_path, TOY.sizes.text_vocab))
    (tmp_path / "speech_tokenizer").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(export_module.model_file(TOY, ids)))
    (tmp_path / "speech_tokenizer/config.json").write_text(json.dumps(export_module.codec_file(TOY.sizes)))
    assert read_config(tmp_path) == voice_config(TOY, ids)


def test_large_weights_go_into_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import load_file, save_file

    monkeypatch.setattr(export_module, "MAX_SHARD_BYTES", 100)
    save_file({f"t{i}": torch.full((10,), float(i)) for i in range(5)}, tmp_path / "source.safetensors")
    (tmp_path / "out").mkdir()
    export_module._write_weights(tmp_path / "source.safetensors", "talker.", tmp_path / "out")
    places = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(places.values())) > 1
    for i in range(5):
        name = f"talker.t{i}"
        assert load_file(tmp_path / "out" / places[name])[name].tolist() == [float(i)] * 10


def test_stages_end_on_the_clock_and_do_one_step_at_least() -> None:
    assert list(until(0.0)) == [0.0]
    progress = list(until(0.02))
    assert progress == sorted(progress)
    assert all(0 <= p < 1 for p in progress)


def test_rate_warms_up_and_sinks() -> None:
    assert warm_cosine(0.0, 0, 100) == pytest.approx(0.01)
    assert warm_cosine(0.0, 99, 100) == pytest.approx(1.0)
    assert warm_cosine(1.0, 10_000, 100) == pytest.approx(0.02)


def test_average_follows_quickly_and_shares_no_storage() -> None:
    module = torch.nn.Linear(2, 2)
    average = Average(module, 0.999)
    with torch.no_grad():
        module.weight.fill_(1.0)
    for step in range(50):
        average.follow(module, step)
    torch.testing.assert_close(average.module.weight, module.weight, atol=0.01, rtol=0)
    assert average.module.weight.data_ptr() != module.weight.data_ptr()
