"""Refining changes how codes sound, never which codes there are; and streaming sounds as one pass does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from training.adversarial_finetune import DECODER_FILE, AdversarialTrainer, load_finished, main
from training.codec import Codec, save_codec
from training.export import replace_decoder
from training.flite import Speech as Utterance
from training.settings import FRAME_SAMPLES, TOY
from training.shards import ShardWriter
from training.speech import Speech


@pytest.fixture
def speech_folder(tmp_path: Path) -> Path:
    """Eight seconds of noise for speech."""
    folder = tmp_path / "speech"
    pcm = (np.random.default_rng(5).standard_normal(16_000 * 8) * 3000).astype(np.int16)
    ends = np.array([len(pcm) // 2, len(pcm)], np.int32)
    with ShardWriter(folder, 0) as writer:
        writer.append(0, 0, "Noise.", Utterance(pcm, np.array([3, 0], np.uint8), ends))
    return folder


@pytest.fixture
def voice(tmp_path: Path) -> Path:
    """A toy checkpoint, as far as refining reads it: its decoder. The encoder lies beside it."""
    torch.manual_seed(6)
    codec = Codec(TOY.sizes)
    with torch.no_grad():
        parts = codec.quantizer.parts(codec.encoder(torch.randn(2, FRAME_SAMPLES * 30) / 5))
    codec.quantizer.fit([part.flatten(0, 1) for part in parts], rounds=2)
    save_codec(codec, tmp_path)
    folder = tmp_path / "voice"
    (folder / "speech_tokenizer").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    state = load_file(tmp_path / "decoder.safetensors")
    named = {f"decoder.{name}": value for name, value in state.items()}
    save_file(named, folder / "speech_tokenizer" / "model.safetensors")
    return folder


def finished(encoder: Path, voice: Path) -> Codec:
    codec = Codec(TOY.sizes)
    load_finished(codec, encoder, voice)
    return codec.eval()


def test_refining_keeps_the_codes_and_changes_the_sound(tmp_path: Path, voice: Path, speech_folder: Path) -> None:
    encoder, out = tmp_path / "encoder.safetensors", tmp_path / "out"
    places = ["--speech", str(speech_folder), "--encoder", str(encoder), "--voice", str(voice)]
    main([str(out), *places, "--minutes", "0.01", "--adversarial-learning-rate", "0.1", "--toy"])
    before, after = finished(encoder, voice), finished(encoder, out / "voice")
    audio = torch.randn(1, FRAME_SAMPLES * 6, generator=torch.Generator().manual_seed(7)) / 5
    codes = before.encode(audio)
    assert len(codes.unique()) > 3
    assert torch.equal(after.encode(audio), codes)
    assert (after.decoder(codes) - before.decoder(codes)).abs().max() > 1e-4
    assert (out / "voice" / "config.json").exists()


@pytest.mark.parametrize(("begun_share", "scored_frames"), [(0.0, 3), (1.0, 6)])
def test_frames_are_scored_with_a_past_or_from_the_beginning(
    tmp_path: Path, speech_folder: Path, begun_share: float, scored_frames: int
) -> None:
    speech = Speech(speech_folder, 0.01, "cpu")
    cfg = replace(TOY.codec, adversarial_crop_frames=8, past_frames=3, future_frames=2, begun_share=begun_share)
    pieces = AdversarialTrainer(Codec(TOY.sizes).eval(), speech, cfg, tmp_path)._pieces()
    assert pieces.speech.shape == pieces.audio.shape == (cfg.adversarial_batch, scored_frames * FRAME_SAMPLES)
    assert torch.equal(pieces.speech, pieces.former)
    assert pieces.voices.shape == (cfg.adversarial_batch, scored_frames)


def test_a_decoder_is_replaced_and_all_else_copied(tmp_path: Path, voice: Path) -> None:
    other = {"weight": torch.ones(3)}
    save_file(other, tmp_path / DECODER_FILE)
    replace_decoder(voice, tmp_path / DECODER_FILE, tmp_path / "new")
    assert list(load_file(tmp_path / "new" / "speech_tokenizer" / "model.safetensors")) == ["decoder.weight"]
    assert (tmp_path / "new" / "config.json").read_text() == "{}"


@pytest.mark.parametrize("chunk_frames", [1, 2, 5, 20])
def test_chunks_decode_to_the_same_speech(voice: Path, tmp_path: Path, chunk_frames: int) -> None:
    pytest.importorskip("benchmarks.codec_chunking", reason="the dependency group training is not installed")
    from benchmarks.codec_chunking import decode_in_chunks

    decoder = finished(tmp_path / "encoder.safetensors", voice).decoder
    codes = torch.randint(TOY.sizes.codebook, (1, TOY.sizes.code_groups, 11))
    with torch.inference_mode():
        torch.testing.assert_close(decode_in_chunks(decoder, codes, chunk_frames), decoder(codes)[0])
