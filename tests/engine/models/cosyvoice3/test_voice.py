"""Voices: features of recordings, the encoder networks, and prompts prepared from them."""

from __future__ import annotations

import logging
import math
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as law
from hypothesis import strategies as st
from torch import Tensor

from engine.api import InvalidRequest, ReferenceAudio
from engine.errors import CheckpointError, EngineError
from engine.layers.mel_filters import mel_filters
from engine.memory.lru_cache import voice_key
from engine.models.base import TokenQueue
from engine.models.cosyvoice3.load import load_encoder
from engine.models.cosyvoice3.prompt import CosySequence, RasParams
from engine.models.cosyvoice3.voice import (
    BLOCK_TOKENS,
    FBANK_BINS,
    FLOW_REST,
    MIN_TRIMMED_TOKENS,
    CosyVoiceCache,
    CosyVoiceEncoder,
    flow_mel,
    kaldi_filters,
    resample,
    speaker_fbank,
    trimmed_tokens,
    whisper_mel,
)
from tests.engine.models.cosyvoice3.voices import cloned
from tests.fakes import tiny_onnx
from tests.fakes.cosyvoice3_dims import TINY


def noise(num_samples: int, seed: int = 0) -> Tensor:
    return 0.1 * torch.randn(num_samples, generator=torch.Generator().manual_seed(seed))


def slow_fbank(pcm: Tensor) -> Tensor:
    """Frame by frame, bin by bin, in double precision."""
    samples = pcm.double().numpy()
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85

    def mel(hz: float) -> float:
        return 1127.0 * math.log(1.0 + hz / 700.0)

    edges = [mel(20.0) + place * (mel(8000.0) - mel(20.0)) / 81 for place in range(82)]
    rows = []
    for start in range(0, len(samples) - 399, 160):
        frame = samples[start : start + 400] - samples[start : start + 400].mean()
        frame = np.array([frame[n] - 0.97 * frame[max(n - 1, 0)] for n in range(400)]) * window
        power = np.abs(np.fft.fft(frame, 512)) ** 2
        row = []
        for left, center, right in zip(edges, edges[1:], edges[2:], strict=False):
            energy = 0.0
            for place in range(256):
                found = mel(place * 16000 / 512)
                if left < found < right:
                    rises = found <= center
                    weight = (found - left) / (center - left) if rises else (right - found) / (right - center)
                    energy += weight * power[place]
            row.append(math.log(max(energy, float(np.finfo(np.float32).eps))))
        rows.append(row)
    found = np.array(rows)
    return torch.from_numpy(found - found.mean(0)).float()


def test_the_speaker_networks_filter_banks_are_kaldis() -> None:
    pcm = noise(1500)
    torch.testing.assert_close(speaker_fbank(pcm), slow_fbank(pcm), atol=2e-3, rtol=1e-3)
    assert kaldi_filters().shape == (FBANK_BINS, 256)


@pytest.mark.parametrize("num_samples", [400, 559, 560, 16_000])
def test_only_whole_frames_count(num_samples: int) -> None:
    assert speaker_fbank(noise(num_samples)).shape == (1 + (num_samples - 400) // 160, 80)


@pytest.mark.parametrize("num_samples", [24_000, 24_479, 24_480])
def test_the_flows_mel_has_a_frame_for_each_480_samples(num_samples: int) -> None:
    assert flow_mel(noise(num_samples), 80).shape == (num_samples // 480, 80)


def test_the_flows_mel_of_one_frame_by_hand() -> None:
    pcm = noise(24_000)
    padded = torch.cat((pcm[1:721].flip(0), pcm, pcm[-721:-1].flip(0)))
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * torch.arange(1920) / 1920)
    frame = padded[480 * 7 : 480 * 7 + 1920] * window
    magnitude = (torch.fft.rfft(frame).abs() ** 2 + 1e-9).sqrt()
    expected = (mel_filters(80, 24_000, 1920) @ magnitude).clamp(min=1e-5).log()
    torch.testing.assert_close(flow_mel(pcm, 80)[7], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("num_samples", [16_000, 16_159, 16_160])
def test_whispers_mel(num_samples: int) -> None:
    mel = whisper_mel(noise(num_samples))
    assert mel.shape == (128, num_samples // 160)
    assert mel.max() - mel.min() <= 2.0 + 1e-6, "quiet bins are lifted to 8 decades below the loudest"


def test_silence_is_finite_everywhere() -> None:
    pcm = torch.zeros(24_000)
    for features in (flow_mel(pcm, 80), whisper_mel(pcm), speaker_fbank(pcm)):
        assert features.isfinite().all()


@given(hz=st.integers(50, 6_000), num_samples=st.integers(2_000, 6_000))
@law(max_examples=20)
def test_a_tone_is_the_same_tone_at_16_khz(hz: int, num_samples: int) -> None:
    out = resample(torch.sin(2 * math.pi * hz * torch.arange(num_samples) / 24_000), 24_000, 16_000)
    assert len(out) == math.ceil(num_samples * 2 / 3)
    expected = torch.sin(2 * math.pi * hz * torch.arange(len(out)) / 16_000)
    torch.testing.assert_close(out[50:-50], expected[50:-50], atol=0.02, rtol=0)


def test_what_16_khz_cannot_carry_is_gone() -> None:
    out = resample(torch.sin(2 * math.pi * 10_000 * torch.arange(6_000) / 24_000), 24_000, 16_000)
    assert out[100:-100].abs().max() < 0.02


def test_the_same_rate_is_left_alone() -> None:
    pcm = noise(100)
    assert resample(pcm, 16_000, 16_000) is pcm


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders")
    tiny_onnx.write_encoders(folder)
    return folder


def sample(seconds: float, transcript: str = "", level: float = 0.1) -> ReferenceAudio:
    pcm = level * np.random.default_rng(3).standard_normal(int(24_000 * seconds))
    return ReferenceAudio(pcm=pcm.astype(np.float32).tobytes(), transcript=transcript)


@pytest.mark.parametrize("seconds", [1.0, 1.01, 2.5])
def test_recording_gives_ids_mel_frames_and_a_vector(encoders: Path, seconds: float) -> None:
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


def test_recordings_map_to_voices_by_content(encoders: Path) -> None:
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
def test_missing_file_error_says_what_works_without(
    encoders: Path, tmp_path: Path, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(encoders, tmp_path, dirs_exist_ok=True)
    (tmp_path / missing).unlink()
    with caplog.at_level(logging.WARNING):
        assert load_encoder(tmp_path, TINY) is None
    assert f"no {missing}: recordings cannot be listened to; named voices" in caplog.text


def shelf(max_voices: int = 2, trims: bool = True) -> CosyVoiceCache:
    return CosyVoiceCache(80, lambda text: [len(word) for word in text.split()], max_voices, trims)


def test_a_voice_is_made_ready_once_and_so_many_are_kept() -> None:
    kept = shelf()
    first = kept.get(cloned(seed=1))
    assert kept.get(cloned(seed=1)) is first
    for seed in (2, 1, 3):
        kept.get(cloned(seed=seed))
    assert len(kept) == 2
    assert kept.get(cloned(seed=1)) is first, "it was used after the one that had to go"
    assert shelf(max_voices=0).get(cloned()).tokens.shape == (40,)


def test_equal_keys_are_equal_voices() -> None:
    voice = cloned()
    others = [
        msgspec.structs.replace(voice, transcript="hello"),
        msgspec.structs.replace(voice, codes=voice.codes[::-1]),
        msgspec.structs.replace(voice, mel=voice.mel[::-1]),
        msgspec.structs.replace(voice, embedding=voice.embedding[::-1]),
    ]
    assert len({voice_key(one) for one in (voice, cloned(), *others)}) == 5
    assert shelf(trims=True).get(voice).key != shelf(trims=False).get(voice).key, "what the flow hears differs"


@given(num_tokens=st.integers(0, 800))
def test_a_trimmed_recording_leaves_the_first_block_ten_tokens(num_tokens: int) -> None:
    kept = trimmed_tokens(num_tokens)
    assert num_tokens - BLOCK_TOKENS < kept <= num_tokens
    if kept < num_tokens:
        assert kept % BLOCK_TOKENS == FLOW_REST
        assert kept >= MIN_TRIMMED_TOKENS


def test_beginning_is_cut_and_talker_gets_all() -> None:
    voice = cloned(num_tokens=75)
    codes, mel = np.frombuffer(voice.codes, np.int16), np.frombuffer(voice.mel, np.float32).reshape(-1, 80)
    prompt = shelf().get(voice)
    assert prompt.speech_ids == tuple(codes.tolist())
    assert prompt.tokens.tolist() == codes[10:].tolist()
    assert torch.equal(prompt.mel, torch.from_numpy(mel[20:].copy()))
    whole = shelf(trims=False).get(voice)
    assert whole.tokens.tolist() == codes.tolist()
    assert len(whole.mel) == 150


@pytest.mark.parametrize("num_tokens", [0, 40])
def test_words_go_only_with_their_recording(num_tokens: int) -> None:
    assert shelf().get(cloned(num_tokens=num_tokens)).has_transcript is bool(num_tokens)


def test_instruction_before_transcript_is_not_transcript() -> None:
    """The official code wants one there, and who comes from it brings one along."""
    wrapped = msgspec.structs.replace(cloned(), transcript="You are a helpful assistant.<|endofprompt|>hello you")
    assert shelf().get(wrapped).transcript_ids == (5, 3)


def test_a_row_remembers_the_last_ids_in_order() -> None:
    row = CosySequence(text=TokenQueue(), ras=RasParams(window=3))
    for token in range(7):
        row.record_token(token)
    assert row.history == [4, 5, 6]
    assert row.sample_key.frame == 7
