"""The released files: every tensor by its name and shape, nothing run that is in them, and what is wrong told."""

from __future__ import annotations

import contextlib
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.api import CheckpointError
from engine.launch import inspect_checkpoint
from engine.models.cosyvoice3.config import CosyTalkerConfig, read_config
from engine.models.cosyvoice3.load import TIED_HEAD, load_flow, load_hift, load_model
from engine.models.cosyvoice3.settings import CosyVoice3Settings, TalkerSettings
from engine.models.cosyvoice3.talker import SpeechLM
from engine.weights.torch_pickle import read_state
from tests.fakes.cosyvoice3_checkpoint import write_cosyvoice3
from tests.fakes.cosyvoice3_tensors import talker_shapes
from tests.fakes.cosyvoice3_voices import saved_voice, write_saved_voices

CPU = torch.device("cpu")


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """Its own names for the same files: each may be replaced."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.copytree(path, tmp_path / path.name)
        else:
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


def replaced(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    state = torch.load(path, weights_only=True)
    edit(state)
    path.unlink()
    torch.save(state, path)


def load_talker(folder: Path, **settings: Any) -> Any:
    found = CosyVoice3Settings(talker=TalkerSettings(**settings))
    return load_model(folder, read_config(folder), found, CPU, torch.float32)


def test_the_talker_has_the_released_tensors_and_none_more() -> None:
    with torch.device("meta"):
        state = SpeechLM(CosyTalkerConfig()).state_dict()
    shapes = talker_shapes(CosyTalkerConfig())
    assert shapes.pop(TIED_HEAD) == (151_936, 896)
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == shapes
    assert sum(tensor.numel() for tensor in state.values()) == 506_148_480


def test_a_tuned_talker_is_taken_where_it_is_asked_for_or_alone(copied: Path, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no llm.rl.pt"):
        load_talker(copied, weights="llm.rl.pt")
    (copied / "llm.rl.pt").symlink_to(folder / "llm.pt")
    replaced(copied / "llm.rl.pt", lambda state: state["llm_decoder.weight"].neg_())
    base, tuned = load_talker(copied), load_talker(copied, weights="llm.rl.pt")
    assert torch.equal(base.talker.llm_decoder.weight, -tuned.talker.llm_decoder.weight)
    (copied / "llm.pt").unlink()
    assert torch.equal(load_talker(copied).talker.llm_decoder.weight, tuned.talker.llm_decoder.weight)
    (copied / "llm.rl.pt").unlink()
    with pytest.raises(CheckpointError, match=r"has no llm.pt and no llm.rl.pt"):
        inspect_checkpoint(copied)


@pytest.mark.parametrize("precision", ["bf16", "fp8", "int4"])
def test_precision_quantizes_the_layers_of_the_talker(folder: Path, precision: str) -> None:
    settings = CosyVoice3Settings()
    model = load_model(folder, read_config(folder), settings, CPU, torch.float32, precision=precision)
    talker = model.talker
    kinds = {type(module).__name__ for module in talker.backbone.layers.modules() if hasattr(module, "weight")}
    assert ("QuantizedLinear" in kinds) == (precision != "bf16")
    assert type(talker.llm_decoder) is torch.nn.Linear
    hidden = talker.backbone.layers[0].self_attn.qkv_proj(torch.ones(1, talker.config.transformer.hidden_size))
    assert torch.isfinite(hidden).all()


def test_both_spellings_of_a_weight_norm_are_one_vocoder(folder: Path, tmp_path: Path) -> None:
    config = read_config(folder)
    other = write_cosyvoice3(tmp_path, config, weight_norm="old")
    one, same = load_hift(folder, config.hift, CPU).state_dict(), load_hift(other, config.hift, CPU).state_dict()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, same[name])


def forget(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: state.pop(name)


def put(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda state: state.update({name: value})


@pytest.mark.parametrize(
    ("file", "edit", "told"),
    [
        ("llm.pt", forget("llm_decoder.weight"), "llm.pt: 1 tensors are missing, first llm_decoder.weight"),
        ("llm.pt", put("speech_embedding.weight", torch.zeros(6760, 32)), "speech_embedding.weight has shape"),
        ("llm.pt", put("epoch", 3), "'epoch' is int, expected a tensor"),
        ("llm.pt", put("epoch", torch.zeros(3)), "unknown tensor epoch"),
        ("llm.pt", put("llm_decoder.weight", torch.zeros(6761, 32, dtype=torch.int32)), "of type strided int32"),
        ("flow.pt", forget("input_embedding.weight"), "flow.pt: 1 tensors are missing, first input_embedding.weight"),
        ("flow.pt", put("spk_embed_affine_layer.bias", torch.zeros(81)), "spk_embed_affine_layer.bias has shape"),
        ("hift.pt", put("conv_pre.bias", torch.zeros(1).expand(2**40)), "conv_pre.bias has shape .*bytes; at most"),
        ("hift.pt", forget("conv_pre.bias"), "hift.pt: 1 tensors are missing, first conv_pre.bias"),
        ("hift.pt", forget("conv_pre.parametrizations.weight.original1"), "original0 stands without"),
    ],
)
def test_a_tensor_that_is_wrong_is_named(copied: Path, file: str, edit: Callable[[Any], Any], told: str) -> None:
    replaced(copied / file, edit)
    with pytest.raises(CheckpointError, match=told):
        inspect_checkpoint(copied)
    loads = {"llm.pt": load_talker, "flow.pt": flow_of, "hift.pt": hift_of}
    with pytest.raises(CheckpointError, match=told):
        loads[file](copied)


def flow_of(folder: Path) -> Any:
    return load_flow(folder, read_config(folder).flow, torch.float32, CPU)


def hift_of(folder: Path) -> Any:
    return load_hift(folder, read_config(folder).hift, CPU)


class Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    torch.save({"a": Runs(tmp_path / "ran")}, tmp_path / "llm.pt")
    torch.save({"anna": Runs(tmp_path / "ran")}, tmp_path / "spk2info.pt")
    with pytest.raises(CheckpointError, match=r"llm\.pt: cannot be read: "):
        read_state(tmp_path / "llm.pt", 2**20)
    assert not (tmp_path / "ran").exists()


def test_the_voices_beside_it_run_nothing_either(copied: Path) -> None:
    torch.save({"anna": Runs(copied / "ran")}, copied / "spk2info.pt")
    with pytest.raises(CheckpointError, match=r"spk2info\.pt: cannot be read: "):
        inspect_checkpoint(copied)
    assert not (copied / "ran").exists()


@given(damage=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4))
@example(damage=[(2, 0x61)])
@settings(max_examples=60, deadline=None)
def test_a_damaged_pickle_is_refused_like_any_other_damage(
    damage: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.pt"
    torch.save({"a": torch.zeros(3), "b": torch.ones(2, 2)}, path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: bytearray(archive.read(name)) for name in archive.namelist()}
    name = next(name for name in entries if name.endswith(".pkl"))
    for place, value in damage:
        entries[name][place % len(entries[name])] = value
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in entries.items():
            archive.writestr(entry, bytes(data))
    with contextlib.suppress(CheckpointError):
        read_state(path, 2**20)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "llm.pt"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(CheckpointError, match="cannot be read as PyTorch's zip format"):
        read_state(path, 2**20)
    torch.save({"a": torch.zeros(2**18)}, path)
    with pytest.raises(CheckpointError, match=r"has 10\d+ bytes; what the configuration asks for has 1000"):
        read_state(path, 1000)
    torch.save([torch.zeros(2)], path)
    with pytest.raises(CheckpointError, match="holds list, expected tensors by name"):
        read_state(path, 2**20)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match="cannot be read as PyTorch's zip format"):
        read_state(path, 2**20)


def test_a_file_that_would_grow_when_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "llm.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm/data.pkl", b"\0" * 2**20)
    with pytest.raises(CheckpointError, match="is compressed"):
        read_state(path, 2**20)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("llm/data.pkl", b"\0" * (17 * 2**20))
    with pytest.raises(CheckpointError, match=r"data.pkl' has 17825792 bytes, at most 16777216"):
        read_state(path, 2**30)


def test_voices_with_ambiguous_names_are_refused(copied: Path) -> None:
    write_saved_voices(copied, "anna", "Anna")
    with pytest.raises(CheckpointError, match="two voices share a name"):
        load_talker(copied)


def test_the_voices_beside_it_are_named_ones(copied: Path) -> None:
    write_saved_voices(copied, "Anna", "ben")
    model = load_talker(copied)
    assert [voice.name for voice in model.voices] == ["anna", "ben"]
    voice = model.named["anna"]
    assert len(voice.speech_ids) == 40
    assert voice.transcript_ids == (104, 101, 108), "the instruction in front of it is no part of what was said"
    assert voice.mel.shape == (80, 80)
    assert inspect_checkpoint(copied).voices == ("anna", "ben")


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("flow_prompt_speech_token", None, "flow_prompt_speech_token is NoneType, expected a tensor"),
        ("flow_prompt_speech_token", torch.full((1, 40), 7000), "flow_prompt_speech_token must lie in 0..6560"),
        ("flow_prompt_speech_token", torch.zeros(1, 0, dtype=torch.int32), "flow_prompt_speech_token has shape"),
        ("prompt_speech_feat", torch.zeros(1, 80, 40), "prompt_speech_feat has shape"),
        ("prompt_speech_feat", torch.zeros(1, 5, 0), "prompt_speech_feat has shape .*holds nothing"),
        ("prompt_speech_feat", torch.full((1, 80, 80), torch.nan), "not finite"),
        ("flow_embedding", torch.zeros(1, 191), "flow_embedding has shape"),
        ("flow_embedding", torch.zeros(1).expand(2**40), "flow_embedding has shape .*; at most"),
        ("flow_prompt_speech_token", torch.zeros(1, 40, dtype=torch.complex64), "flow_prompt_speech_token has shape"),
        ("prompt_text", torch.tensor([[200_000]]), "prompt_text holds 200000"),
        ("prompt_text", 3, "prompt_text is int"),
    ],
)
def test_a_saved_voice_that_does_not_fit_is_named(copied: Path, field: str, value: Any, told: str) -> None:
    torch.save({"anna": saved_voice() | {field: value}}, copied / "spk2info.pt")
    with pytest.raises(CheckpointError, match=f"anna.*{told}"):
        load_talker(copied)
