"""The quantiser in training and the decoder at inference are one: what is trained is what will be heard."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.checkpoints import load, save_in_bytes
from training.codec import Codec, load_codec, save_codec
from training.quantizer import fit_chain, nearest, phone_targets, quantise
from training.settings import FRAME_SAMPLES, TOY


@pytest.fixture
def codec() -> Codec:
    torch.manual_seed(3)
    codec = Codec(TOY.sizes)
    audio = torch.randn(2, FRAME_SAMPLES * 30) / 5
    with torch.no_grad():
        parts = [part.flatten(0, 1) for part in codec.quantizer.parts(codec.encoder(audio))]
    codec.quantizer.fit(parts, rounds=2)
    return codec


def audio_of(frames: int) -> torch.Tensor:
    return torch.randn(2, FRAME_SAMPLES * frames, generator=torch.Generator().manual_seed(4)) / 5


def test_training_latent_equals_the_engines(codec: Codec) -> None:
    found = codec.quantizer(codec.encoder(audio_of(5)))
    assert found.codes.shape == (2, TOY.sizes.code_groups, 5)
    torch.testing.assert_close(found.latent, codec.decoder.dequantize(found.codes))


def test_gradients_pass_straight_through_to_the_encoder(codec: Codec) -> None:
    found = codec.quantizer(codec.encoder(audio_of(3)))
    codec.decoder.decode_latent(found.latent).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in codec.encoder.parameters())


def test_each_book_leaves_less_variance(codec: Codec) -> None:
    latents = torch.randn(400, TOY.sizes.codebook_dim // 2)
    left = fit_chain(codec.decoder.quantizer.rvq_rest, latents, rounds=5)
    assert 1 > left[0] > left[1] > 0


def test_nearest_is_nearest_and_books_follow_what_chose_them(codec: Codec) -> None:
    chain = codec.decoder.quantizer.rvq_first
    book = chain.vq.layers[0]._codebook
    vectors = torch.randn(50, TOY.sizes.codebook_dim // 2)
    distances = torch.cdist(vectors, book.table())
    assert torch.equal(nearest(book, vectors), distances.argmin(1))
    before = (vectors - quantise(chain, vectors, None)[0]).square().mean()
    for _ in range(200):
        quantise(chain, vectors, 0.9)
    assert (vectors - quantise(chain, vectors, None)[0]).square().mean() < before


def test_saved_codec_gives_the_same_speech(codec: Codec, tmp_path: Path) -> None:
    save_codec(codec, tmp_path)
    other = Codec(TOY.sizes)
    load_codec(other, tmp_path)
    codes = torch.randint(TOY.sizes.codebook, (1, TOY.sizes.code_groups, 4))
    torch.testing.assert_close(other.decoder(codes), codec.decoder(codes), atol=2e-3, rtol=0)


def test_encoder_in_bytes_is_close_and_half_as_large(codec: Codec, tmp_path: Path) -> None:
    save_codec(codec, tmp_path)
    save_in_bytes(codec.encoder, tmp_path / "bytes.safetensors")
    other = Codec(TOY.sizes)
    load(other.encoder, tmp_path / "bytes.safetensors")
    for name, weight in codec.encoder.state_dict().items():
        torch.testing.assert_close(
            other.encoder.state_dict()[name], weight, atol=weight.abs().max().item() / 100, rtol=0
        )
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("bytes", "encoder")]
    assert sizes[0] < 0.8 * sizes[1]


def test_phone_targets_are_the_labels_of_each_frame() -> None:
    labels = torch.arange(32)[None]
    assert phone_targets(labels).tolist() == [[[1, 3, 5, 7], [9, 11, 13, 15], [17, 19, 21, 23], [25, 27, 29, 31]]]
