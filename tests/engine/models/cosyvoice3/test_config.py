"""Sizes are read from the released YAML, and settings are checked."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CheckpointError, InvalidRequest
from engine.models.cosyvoice3.config import CLASS, CosyVoice3Config, read_config, read_yaml
from engine.models.cosyvoice3.settings import FlowSettings
from tests.fakes.cosyvoice3_checkpoint import settings_text, text_config
from tests.fakes.cosyvoice3_dims import TINY


def write_config(folder: Path, config: CosyVoice3Config) -> Path:
    (folder / "CosyVoice-BlankEN").mkdir(parents=True)
    (folder / "cosyvoice3.yaml").write_text(settings_text(config), encoding="utf-8")
    (folder / "CosyVoice-BlankEN" / "config.json").write_text(json.dumps(text_config(config.talker)))
    return folder


@pytest.mark.parametrize("config", [CosyVoice3Config(), TINY], ids=["released", "tiny"])
def test_what_is_written_is_read(tmp_path: Path, config: CosyVoice3Config) -> None:
    assert read_config(write_config(tmp_path / "m", config)) == config


def test_a_token_is_40_ms() -> None:
    config = CosyVoice3Config()
    assert (config.sample_rate, config.frame_samples, config.hift.frame_samples) == (24_000, 960, 480)


def test_tags_become_data_and_nothing_is_called(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "a: !apply:os.system ['touch ran']\nb: !new:os.path.Foo\n  c: !ref <d> * <e>\nd: 25\ne: 2\nf: 1e-6\n"
    )
    assert read_yaml(path) == {"a": ["touch ran"], "b": {CLASS: "new:os.path.Foo", "c": 50}, "d": 25, "e": 2, "f": 1e-6}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: !!python/object/apply:os.system [ls]", "cannot be read as YAML"),
        ("a: !ref <b>\nb: !ref <a>", "refers to itself"),
        ("a: !ref <nowhere>", "<nowhere> is nowhere defined"),
        ("- a", "holds list"),
        ("a: &a [1]\nb: *a", "aliases are not read"),
        ("a: [", "cannot be read as YAML"),
        ("a: " + "9" * 4000 + "\nb: !ref " + " * ".join(["<a>"] * 100_000), "makes more than 9223372036854775808"),
        ("a: " + "[" * 3000 + "]" * 3000, "cannot be read as YAML"),
        ("a: '" + "x" * 2**20 + "'", "has 1048581 bytes"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(CheckpointError, match=told):
        read_yaml(tmp_path / "x.yaml")


Edit = Callable[[str], str]


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda s: s.replace("speech_token_size: 6561", "speech_token_size: -1"), "'speech_token_size' is -1"),
        (lambda s: s.replace("sample_rate: 24000", "sample_rate: 22050"), "'token_frame_rate' makes"),
        (lambda s: s.replace("CosyVoice3LM", "Qwen2LM"), "made into 'new:cosyvoice.llm.llm.Qwen2LM'"),
        (lambda s: s.replace("mix_ratio: [5, 15]", "mix_ratio: [5]"), "'mix_ratio' is"),
        (lambda s: s.replace("solver: 'euler'", "solver: 'rk4'"), "'solver' is 'rk4'"),
        (lambda s: s.replace("    vocab_size: 6561", "    vocab_size: 4096"), "'flow.vocab_size' makes 4096"),
        (lambda s: s.replace("[16, 11, 7]", "[16, 0, 7]"), "'upsample_kernel_sizes' is"),
        (lambda s: s.replace("top_k: 25", "top_k: many"), "'top_k' is 'many'"),
        (lambda s: s.replace("top_k: 25", "top_k: 129"), "'top_k' is 129; it must be positive and at most 128"),
        (lambda s: s.replace("win_size: 10", "win_size: 65"), "'win_size' is 65; it must be positive and at most 64"),
    ],
)
def test_a_value_that_cannot_be_is_named(tmp_path: Path, edit: Edit, told: str) -> None:
    folder = write_config(tmp_path / "m", TINY)
    path = folder / "cosyvoice3.yaml"
    changed = edit(path.read_text())
    assert changed != path.read_text()
    path.write_text(changed)
    with pytest.raises(CheckpointError, match=told):
        read_config(folder)


def test_a_backbone_of_another_kind(folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "m"
    shutil.copytree(folder / "CosyVoice-BlankEN", copied / "CosyVoice-BlankEN")
    shutil.copy(folder / "cosyvoice3.yaml", copied)
    path = copied / "CosyVoice-BlankEN" / "config.json"
    path.write_text(path.read_text().replace('"qwen2"', '"llama"'))
    with pytest.raises(CheckpointError, match="'model_type' is 'llama'"):
        read_config(copied)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_mb", 0),
        ("memory_mb", -5),
        ("memory_utilization", 0.0),
        ("memory_utilization", 1.0),
        ("memory_utilization", math.nan),
        ("context_blocks", 0),
        ("reserved_blocks", 1),
        ("chunk_blocks", ()),
        ("chunk_blocks", (1, 0)),
        ("chunk_blocks", (1, 1_000_000)),
        ("batching_slack_s", -0.1),
        ("batching_slack_s", math.nan),
        ("ode_steps_per_engine_step", 0),
        ("max_blocks_per_step", 0),
    ],
)
def test_invalid_value_error_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=rf"cosyvoice3\.flow\.{name} is "):
        FlowSettings(**{name: value})
