"""Recordings to voices through ONNX files that have the released shape, and what is told of files that do not."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.api import InvalidRequest, ReferenceAudio
from engine.errors import CheckpointError, EngineError
from engine.models.cosyvoice3.load import load_encoder
from engine.models.cosyvoice3.voice import CosyVoiceEncoder
from tests.fakes import tiny_onnx
from tests.fakes.cosyvoice3_dims import TINY


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders")
    tiny_onnx.write_encoders(folder)
    return folder


def sample(seconds: float, transcript: str = "", level: float = 0.1) -> ReferenceAudio:
    pcm = level * np.random.default_rng(3).standard_normal(int(24_000 * seconds))
    return ReferenceAudio(pcm=pcm.astype(np.float32).tobytes(), transcript=transcript)


@pytest.mark.parametrize("seconds", [1.0, 1.01, 2.5])
def test_a_recording_becomes_ids_with_two_mel_frames_each_and_a_vector(encoders: Path, seconds: float) -> None:
    voice = CosyVoiceEncoder(encoders, TINY)(sample(seconds, "hello"))
    num_tokens = len(voice.codes) // 2
    assert num_tokens == int(25 * seconds)
    assert len(voice.mel) == 4 * 80 * 2 * num_tokens
    assert len(voice.embedding) == 4 * 192
    assert voice.transcript == "hello"
    codes = np.frombuffer(voice.codes, np.int16)
    assert codes.min() >= 0
    assert codes.max() < 6561
    assert np.isfinite(np.frombuffer(voice.mel, np.float32)).all()


def test_another_recording_is_another_voice_and_the_same_one_the_same(encoders: Path) -> None:
    encode = CosyVoiceEncoder(encoders, TINY)
    first, quieter = encode(sample(1.0)), encode(sample(1.0, level=0.01))
    assert first == encode(sample(1.0))
    assert first.embedding != quieter.embedding
    assert first.codes != quieter.codes


def test_a_recording_without_a_whole_token_is_refused(encoders: Path) -> None:
    with pytest.raises(InvalidRequest, match="audio is too short"):
        CosyVoiceEncoder(encoders, TINY).aligned(np.zeros(3), torch.zeros(1, 80))


def test_what_the_networks_give_is_checked(encoders: Path, tmp_path: Path) -> None:
    shutil.copytree(encoders, tmp_path, dirs_exist_ok=True)
    tiny_onnx.write_speaker_network(tmp_path / "campplus.onnx", embedding_size=16)
    with pytest.raises(EngineError, match=r"campplus.onnx gave 16 numbers, not 192"):
        CosyVoiceEncoder(tmp_path, TINY)(sample(1.0))
    tiny_onnx.write_speech_tokenizer(tmp_path / "speech_tokenizer_v3.onnx", num_codes=100_000)
    loud = CosyVoiceEncoder(tmp_path, TINY)
    loud.config = TINY.__class__(flow=TINY.flow.__class__(vocab_size=3))
    with pytest.raises(EngineError, match=r"speech_tokenizer_v3.onnx gave \d+\.\.\d+; codes lie in 0..2"):
        loud(sample(1.0))
    tiny_onnx.write_speaker_network(tmp_path / "campplus.onnx", bins=40)
    with pytest.raises(EngineError, match=r"campplus\.onnx failed"):
        CosyVoiceEncoder(tmp_path, TINY).embedding(torch.zeros(16_000))


def test_a_file_that_is_no_network_is_named(encoders: Path, tmp_path: Path) -> None:
    shutil.copytree(encoders, tmp_path, dirs_exist_ok=True)
    (tmp_path / "campplus.onnx").write_bytes(b"not a network")
    with pytest.raises(CheckpointError, match=r"campplus.onnx: cannot be read as ONNX"):
        CosyVoiceEncoder(tmp_path, TINY)
    tiny_onnx.write_speech_tokenizer(tmp_path / "campplus.onnx")
    with pytest.raises(CheckpointError, match=r"campplus.onnx: takes 2 inputs, expected 1"):
        CosyVoiceEncoder(tmp_path, TINY)


@pytest.mark.parametrize("missing", ["campplus.onnx", "speech_tokenizer_v3.onnx"])
def test_of_a_missing_file_it_is_told_what_works_without(
    encoders: Path, tmp_path: Path, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(encoders, tmp_path, dirs_exist_ok=True)
    (tmp_path / missing).unlink()
    with caplog.at_level(logging.WARNING):
        assert load_encoder(tmp_path, TINY) is None
    assert f"no {missing}: recordings cannot be listened to; named voices" in caplog.text
