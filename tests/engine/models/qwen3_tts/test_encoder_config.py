"""The configuration of what listens, and values that are not built here: told by file, key and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CheckpointError
from engine.models.qwen3_tts.config import read_config
from engine.models.qwen3_tts.encoder_config import MIMI, MIMI_FIXED, SPEAKER_ENCODER
from tests.fakes.checkpoints import TINY, write_settings, write_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Settings without weights."""
    write_settings(tmp_path, TINY, write_tokenizer(tmp_path), "base")
    return tmp_path


def edit(path: Path, section: str, **changes: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    where = content[section] if section else content
    where |= changes
    for key in [key for key, value in where.items() if value is None]:
        del where[key]
    path.write_text(json.dumps(content), encoding="utf-8")


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_config(folder)
    return str(caught.value)


@pytest.mark.parametrize(
    ("section", "changes", "parts"),
    [
        ("", {"speaker_encoder_config": None}, ["config.json", "speaker_encoder_config"]),
        ("speaker_encoder_config", {"enc_dim": None}, ["enc_dim"]),
        ("speaker_encoder_config", {"enc_dim": 47}, ["speaker vector", "[47, 48]"]),
        ("speaker_encoder_config", {"sample_rate": 16_000}, ["sample rate", "16000"]),
        ("speaker_encoder_config", {"enc_channels": [16, 16]}, ["do not fit"]),
        ("speaker_encoder_config", {"enc_res2net_scale": 7}, ["7 parts"]),
        ("speaker_encoder_config", {"enc_kernel_sizes": [5, 3, 3, 3, 0]}, ["enc_kernel_sizes", "positive"]),
        ("", {"tts_model_type": "sing"}, ["tts_model_type", "'sing'", "'base'"]),
        ("", {"tokenizer_type": "other"}, ["tokenizer_type", "'other'"]),
        ("talker_config", {"hidden_act": "gelu"}, ["talker_config", "hidden_act", "'gelu'", "'silu'"]),
        ("talker_config", {"attention_bias": True}, ["attention_bias", "True"]),
        ("talker_config", {"use_sliding_window": True}, ["use_sliding_window"]),
        ("talker_config", {"rope_scaling": {"rope_type": "yarn"}}, ["rope_scaling", "'yarn'"]),
    ],
)
def test_what_is_wrong_in_the_main_file_is_named(
    folder: Path, section: str, changes: dict[str, Any], parts: list[str]
) -> None:
    edit(folder / "config.json", section, **changes)
    assert [part for part in parts if part not in refusal(folder)] == []


@pytest.mark.parametrize(
    ("section", "changes", "parts"),
    [
        ("", {"encoder_config": None}, ["encoder_config"]),
        ("", {"encoder_valid_num_quantizers": 3}, ["number of codebooks", "3"]),
        ("", {"encoder_valid_num_quantizers": 9}, ["encoder_valid_num_quantizers", "9", "6 books"]),
        ("", {"encode_downsample_rate": 960}, ["1920", "960"]),
        ("encoder_config", {"upsampling_ratios": [8, 6, 5, 5]}, ["rates multiply to 2400"]),
        ("encoder_config", {"codebook_size": 65}, ["codebook size", "65"]),
        ("encoder_config", {"hidden_size": "wide"}, ["hidden_size", "'wide'"]),
        *(("encoder_config", {key: "other"}, [key, "'other'", repr(MIMI[key])]) for key in MIMI_FIXED),
    ],
)
def test_what_is_wrong_in_the_codecs_file_is_named(
    folder: Path, section: str, changes: dict[str, Any], parts: list[str]
) -> None:
    edit(folder / "speech_tokenizer" / "config.json", section, **changes)
    assert [part for part in parts if part not in refusal(folder)] == []


def test_missing_fields_default_to_the_published_parts(folder: Path) -> None:
    """Released folders name the size of the speaker encoder alone, and may leave out what equals the codec's own."""
    edit(folder / "config.json", "speaker_encoder_config", **dict.fromkeys(SPEAKER_ENCODER))
    edit(folder / "speech_tokenizer" / "config.json", "encoder_config", **(dict.fromkeys(MIMI) | {"codebook_size": 64}))
    encoders = read_config(folder).encoders
    assert encoders is not None
    assert encoders.speaker.channels == (512, 512, 512, 512, 1536)
    assert (encoders.codec.hidden_size, encoders.codec.num_layers, encoders.codec.rates) == (512, 8, (8, 6, 5, 4))


@pytest.mark.parametrize("task", ["custom_voice", "voice_design"])
def test_other_tasks_need_no_encoders(task: str, tmp_path: Path) -> None:
    write_settings(tmp_path, TINY, write_tokenizer(tmp_path), task)
    edit(tmp_path / "speech_tokenizer" / "config.json", "", encoder_config=None)
    assert read_config(tmp_path).encoders is None
