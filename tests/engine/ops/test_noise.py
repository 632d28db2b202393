from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.ops.noise import PhiloxNoise, SampleKey, expand_keys, philox
from tests.fakes.official_sampling import GeneratorNoise

ONES = 0xFFFFFFFF
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
seeds = st.integers(0, 2**64 - 1)
keys = st.builds(SampleKey, seed=seeds, segment=st.integers(0, 2**32 - 1), frame=st.integers(0, 5000))


def philox_by_hand(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Philox4x32-10 of the SC'11 paper, in Python's own integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def philox_words(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    c0, c1, c2, c3 = (np.array([word], np.uint64) for word in counter)
    seed = np.array([key[0] | key[1] << 32], np.uint64)
    even, odd = philox(np.stack((c0, c2)), np.stack((c1, c3)), expand_keys(seed))
    return tuple(int(word[0]) for word in (even[0], odd[0], even[1], odd[1]))


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], answer: tuple[int, ...]
) -> None:
    assert philox_by_hand(counter, key) == answer
    assert philox_words(counter, key) == answer


@given(st.tuples(*[st.integers(0, ONES)] * 4), st.tuples(*[st.integers(0, ONES)] * 2))
def test_philox_in_arrays_is_philox_by_hand(counter: tuple[int, ...], key: tuple[int, int]) -> None:
    assert philox_words(counter, key) == philox_by_hand(counter, key)


@given(keys, st.integers(0, 15), st.lists(st.integers(0, 3071), min_size=1, max_size=5))
def test_a_variate_is_the_logarithm_of_one_philox_word(key: SampleKey, codebook: int, ids: list[int]) -> None:
    """Counter (id, segment and codebook, frame, rest of them), key the seed: a format that must never change."""
    place = key.segment << 8 | codebook
    found = PhiloxNoise().exponential([key], codebook, torch.tensor([ids]))[0]
    for index, value in zip(ids, found.tolist(), strict=True):
        counter = (index, place % 2**32, key.frame, place >> 32)
        word = philox_by_hand(counter, (key.seed % 2**32, key.seed >> 32))[0]
        assert value == pytest.approx(-np.log((word + 0.5) / 2**32), rel=1e-6)


@given(st.lists(keys, min_size=1, max_size=6), st.integers(0, 15), st.data())
def test_what_a_row_draws_does_not_depend_on_its_neighbours(
    rows: list[SampleKey], codebook: int, data: st.DataObject
) -> None:
    ids = torch.tensor([data.draw(st.lists(st.integers(0, 2047), min_size=4, max_size=4)) for _ in rows])
    together = PhiloxNoise().exponential(rows, codebook, ids)
    for row, key in enumerate(rows):
        alone = PhiloxNoise().exponential([key], codebook, ids[row : row + 1])
        assert torch.equal(together[row], alone[0])


@given(keys, st.integers(0, 15))
def test_every_part_of_the_key_matters(key: SampleKey, codebook: int) -> None:
    ids = torch.arange(4)[None]

    def variates(changed: SampleKey, book: int = codebook) -> torch.Tensor:
        return PhiloxNoise().exponential([changed], book, ids)

    usual = variates(key)
    assert len(set(usual[0].tolist())) == 4
    others = [key._replace(seed=key.seed ^ 1), key._replace(seed=key.seed ^ 1 << 40), key._replace(frame=key.frame + 1)]
    others.append(key._replace(segment=key.segment ^ 1))
    others.append(key._replace(segment=key.segment ^ 1 << 30))
    assert not any(torch.equal(usual, variates(other)) for other in others)
    assert not torch.equal(usual, variates(key, codebook ^ 1))


def test_variates_are_exponential_finite_and_positive() -> None:
    keys = [SampleKey(seed, 0, frame) for seed in range(20) for frame in range(10)]
    values = PhiloxNoise().exponential(keys, 0, torch.arange(100).expand(200, -1)).flatten()
    assert torch.isfinite(values).all()
    assert (values > 0).all()
    steps = torch.linspace(0.05, 4, 40)
    share_above = (values[:, None] > steps).float().mean(0)
    assert (share_above - (-steps).exp()).abs().max() < 0.014  # of 20,000 draws: four standard errors


def test_the_generator_is_read_as_multinomial_reads_it() -> None:
    """argmax(p / q) with its variates picks what ``torch.multinomial`` picks, draw after draw."""
    probabilities = torch.rand(30, 3072, generator=torch.Generator().manual_seed(5)).softmax(-1)
    ours, theirs = torch.Generator().manual_seed(9), torch.Generator().manual_seed(9)
    noise = GeneratorNoise(ours)
    for row in probabilities.split(1):
        variates = noise.exponential([SampleKey(0, 0, 0)], 0, torch.arange(3072)[None])
        assert (row / variates).argmax(-1).item() == torch.multinomial(row, 1, generator=theirs).item()
    assert torch.equal(ours.get_state(), theirs.get_state())
