"""The vocoder: exact in one pass, in pieces and over static buffers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from engine.errors import CheckpointError
from engine.models.cosyvoice3.config import HiftConfig
from engine.models.cosyvoice3.hift import WITHHELD_FRAMES, Hift
from engine.models.cosyvoice3.hift_source import F0Predictor, HarmonicSource, official_generator
from engine.models.cosyvoice3.load import adapt_hift
from engine.models.cosyvoice3.vocoder_stage import MAX_CALL_FRAMES, HiftBatch, HiftGraphs, common_lengths
from tests.fakes.cosyvoice3_checkpoint import WEIGHT_NORMS, hift_tensors, with_weight_norm
from tests.fakes.cosyvoice3_dims import TINY
from tests.fakes.cosyvoice3_reference import pcm_of_mel, pitch_of_mel
from tests.fakes.cosyvoice3_tensors import hift_shapes

MAX_FRAMES = 40
# Sums that are cut elsewhere round elsewhere; PCM goes up to one, and phase adds up.
SAME = 5e-5
MINUTE_FRAMES = 3000
SMALLEST = HiftConfig(base_channels=8, f0_channels=4)


def make(config: HiftConfig, noise_seconds: int = 4) -> Hift:
    hift = Hift(config)
    hift.m_source = HarmonicSource(config, noise_seconds)
    hift.load_state_dict(hift_tensors(config, seed=5))
    hift.fuse()
    return hift.requires_grad_(False)


@cache
def tiny() -> Hift:
    return make(TINY.hift)


@cache
def utterance(num_frames: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A mel [F, bins] and its PCM in one pass."""
    mel = torch.randn(num_frames, 80, generator=torch.Generator().manual_seed(seed))
    return mel, pcm_of_mel(tiny(), mel.t()[None])[0]


def spoken(rows: HiftBatch, slot: int, pieces: Sequence[Tensor]) -> Tensor:
    """All pieces, one push each; the law of lengths is held after each."""
    rows.open(slot)
    out, num_frames = torch.zeros(0), 0
    for place, piece in enumerate(pieces):
        is_last = place == len(pieces) - 1
        out = torch.cat((out, *rows.push([slot], [piece], [is_last])))
        num_frames += len(piece)
        assert len(out) == 480 * (num_frames if is_last else max(0, num_frames - WITHHELD_FRAMES))
    rows.close(slot)
    return out


def close(found: Tensor, expected: Tensor, tolerance: float = SAME) -> None:
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)


def cut(mel: Tensor, places: Sequence[int]) -> list[Tensor]:
    return list(torch.tensor_split(mel, sorted(places)))


def places_in(num_frames: int, max_size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, num_frames), max_size=max_size)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_way_of_cutting_the_mel_sounds_as_one_pass(data: st.DataObject) -> None:
    mel, pcm = utterance(data.draw(st.integers(1, MAX_FRAMES)))
    close(spoken(HiftBatch(tiny(), 1), 0, cut(mel, data.draw(places_in(len(mel), 6)))), pcm)


def test_frame_by_frame_and_in_calls_of_the_largest_size() -> None:
    rows = HiftBatch(tiny(), 1)
    mel, pcm = utterance(MAX_FRAMES)
    close(spoken(rows, 0, list(mel.split(1))), pcm)
    mel, pcm = utterance(2 * MAX_CALL_FRAMES + 13)
    close(spoken(rows, 0, [mel]), pcm)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_rows_of_different_progress_share_calls_exactly(data: st.DataObject) -> None:
    """Rounds of pushes; who takes part in a round, and with how much, is drawn."""
    rows, waiting = HiftBatch(tiny(), 3), dict[int, list[Tensor]]()
    heard: dict[int, list[Tensor]] = {slot: [] for slot in range(3)}
    lengths = [data.draw(st.integers(1, MAX_FRAMES)) for _ in range(3)]
    for slot, length in enumerate(lengths):
        rows.open(slot)
        waiting[slot] = cut(utterance(length, slot)[0], data.draw(places_in(length, 3)))
    while waiting:
        slots = data.draw(st.lists(st.sampled_from(sorted(waiting)), min_size=1, unique=True))
        pieces = [waiting[slot].pop(0) for slot in slots]
        pushed = rows.push(slots, pieces, [not waiting[slot] for slot in slots])
        for slot, pcm in zip(slots, pushed, strict=True):
            heard[slot].append(pcm)
        waiting = {slot: pieces for slot, pieces in waiting.items() if pieces}
    for slot, length in enumerate(lengths):
        close(torch.cat(heard[slot]), utterance(length, slot)[1])


def test_nan_row_fails_alone_and_its_slot_is_cleared() -> None:
    rows = HiftBatch(tiny(), 2)
    mel, pcm = utterance(30)
    for slot in range(2):
        rows.open(slot)
    bad = mel.clone()
    bad[12] = torch.nan
    out = rows.push([0, 1], [bad, mel], [True, True])
    assert not out[0].isfinite().all()
    close(out[1], pcm)
    rows.close(0)
    close(spoken(rows, 0, [mel[:11], mel[11:]]), pcm)


def test_a_row_for_which_a_call_raises_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = HiftBatch(tiny(), 3)
    mel, pcm = utterance(30)
    for slot in range(3):
        rows.open(slot)
    decode, calls = rows.decode, []

    def faulty(slots: Sequence[int], *more: Any) -> Tensor:
        calls.append(list(slots))
        if 1 in slots:
            raise RuntimeError("a fault in the vocoder")
        return decode(slots, *more)

    monkeypatch.setattr(rows, "decode", faulty)
    first, bad, last = rows.push_each([0, 1, 2], [mel, mel, mel], [True] * 3)
    assert str(bad) == "a fault in the vocoder"
    assert calls == [[0, 1, 2], [0], [1], [2]]
    for out in (first, last):
        assert isinstance(out, Tensor)
        close(out, pcm)


def test_no_frames_make_no_sound_and_nothing_comes_after_the_end() -> None:
    rows = HiftBatch(tiny(), 1)
    rows.open(0)
    none = torch.zeros(0, 80)
    assert [len(pcm) for pcm in rows.push([0], [none], [False])] == [0]
    assert [len(pcm) for pcm in rows.push([0], [none], [True])] == [0]
    with pytest.raises(ValueError, match="slot 0 had its last frames before"):
        rows.push([0], [none], [True])


@pytest.mark.parametrize("minutes", [0.5, pytest.param(10, marks=pytest.mark.slow)])
def test_minutes_keep_one_size_of_state_and_end_as_one_pass_does(minutes: float) -> None:
    """The noise begins again on the way; the end is held against one pass over all of it."""
    hift = make(SMALLEST, noise_seconds=7)
    rows = HiftBatch(hift, 1)
    mel = torch.randn(int(minutes * MINUTE_FRAMES), 80, generator=torch.Generator().manual_seed(3))
    rows.open(0)
    size = rows.state.values.shape, rows.state.phase.shape
    for piece in mel[:-50].split(MAX_CALL_FRAMES):
        rows.push([0], [piece], [False])
    assert size == (rows.state.values.shape, rows.state.phase.shape)
    assert rows.utterances[0].early is None
    assert rows.state.phase.abs().max() < 1
    (end,) = rows.push([0], [mel[-50:]], [True])
    whole = pcm_of_mel(hift, mel.t()[None])[0]
    close(end, whole[-len(end) :], 1e-4)


def test_later_frames_do_not_change_what_is_out() -> None:
    """The farthest that a frame's samples look ahead, by pitch, network and neighbouring spectra: five frames."""
    mel, pcm = utterance(MAX_FRAMES)
    other = mel.clone()
    other[25] += 1
    changed = (pcm_of_mel(tiny(), other.t()[None])[0] - pcm).abs() > 1e-7
    first = int(changed.nonzero()[0])
    assert 480 * 20 <= first < 480 * 22


def test_pitch_of_a_window_equals_the_whole_in_float64() -> None:
    predictor = F0Predictor(TINY.hift)
    names = {name: tensor for name, tensor in hift_tensors(TINY.hift, 5).items() if name.startswith("f0_predictor.")}
    predictor.load_state_dict({name.removeprefix("f0_predictor."): tensor for name, tensor in names.items()})
    mel = torch.randn(1, 80, 30)
    whole = pitch_of_mel(predictor.double(), mel)
    for first in (0, 3, 12):
        noise_before = torch.cat((torch.full((1, 80, 8), 9.0), mel), -1)
        found = predictor.window(noise_before[..., first : first + 8 + 6 + 3], torch.tensor([first]))
        close(found, whole[:, first : first + 6], 1e-4)


def test_a_wrong_phase_is_heard() -> None:
    """Phase carried in float32 turns away within seconds; carried as it is here it does not."""
    source = HarmonicSource(TINY.hift, 1)
    source.load_state_dict({"l_linear.weight": torch.ones(1, 9), "l_linear.bias": torch.zeros(1)})
    source.fuse()
    f0 = 100 + 50 * torch.rand(1, 500, generator=torch.Generator().manual_seed(1))
    start = torch.zeros(1, 9, dtype=torch.float64)
    whole, _ = source(f0, start, torch.tensor([0]))
    _, behind = source(f0[:, :400], start, torch.tensor([0]))
    rest, _ = source(f0[:, 400:], behind[:, -1], torch.tensor([400]))
    close(rest, whole[:, 400:], 1e-7)
    single = (f0[..., None] * torch.arange(1, 10) * (480 / 24000)).cumsum(1)
    rough = (0.1 * torch.sin(2 * torch.pi * single)).sum(-1)
    exact = (f0.double()[..., None] * torch.arange(1, 10) * (480 / 24000)).cumsum(1)
    exact = (0.1 * torch.sin(2 * torch.pi * exact)).sum(-1)
    assert (rough - exact).abs().max() > 1e-3
    assert whole.std(-1).max() < 0.03, "within a frame only the noise changes"


def test_the_noise_is_the_one_that_the_official_code_draws() -> None:
    """The numbers of a generator after the flow's noise and the first weights of what is built meanwhile."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.randn(1, 80, 15000)
        nn.Embedding(6561, 80), nn.Linear(192, 80), nn.Conv1d(80, 512, 4)
        for _ in range(4):
            nn.Conv1d(512, 512, 3)
        nn.Linear(512, 1)
        initial, noise = torch.rand(1, 9), torch.rand(50, 9)
    assert torch.equal(torch.rand(50, 9, generator=official_generator()), noise)
    assert [round(value, 6) for value in (initial[0, 1].item(), *noise[0, :2].tolist())] == [
        0.170989,
        0.922826,
        0.477448,
    ]


@pytest.mark.parametrize("spelling", WEIGHT_NORMS)
@pytest.mark.parametrize("prefix", ["", "generator."])
def test_weight_norms_of_both_spellings_are_folded(spelling: str, prefix: str) -> None:
    plain = hift_tensors(TINY.hift, 5)
    stored = {prefix + name: tensor for name, tensor in with_weight_norm(plain, TINY.hift, spelling, 6).items()}
    found = adapt_hift(stored)
    assert found.keys() == plain.keys() == Hift(TINY.hift).state_dict().keys()
    for name, tensor in plain.items():
        close(found[name].float(), tensor, 1e-6)


def test_a_weight_norm_that_does_not_fit_is_named() -> None:
    stored = with_weight_norm(hift_tensors(TINY.hift, 5), TINY.hift, "new", 6)
    name = "conv_pre.parametrizations.weight.original0"
    with pytest.raises(CheckpointError, match=r"conv_pre\.weight is a gain \[3\] and a direction \[32, 80, 5\]"):
        adapt_hift(stored | {name: torch.ones(3)})
    del stored["conv_pre.parametrizations.weight.original1"]
    with pytest.raises(CheckpointError, match=r"conv_pre.*original0 stands without conv_pre.*original1"):
        adapt_hift(stored)


def test_a_look_ahead_that_would_withhold_more_is_refused() -> None:
    with pytest.raises(ValueError, match="conv_pre_look_right is 5; built here: 4"):
        Hift(HiftConfig(look_right_frames=5))


def test_names_and_shapes_are_those_of_the_released_file() -> None:
    with torch.device("meta"):
        state = Hift(HiftConfig()).state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == hift_shapes(HiftConfig())


CONFIG = HiftConfig(base_channels=8, f0_channels=4)
LENGTHS = common_lengths(10, 0)


@pytest.fixture(scope="module")
def hift() -> Hift:
    made = Hift(CONFIG)
    made.m_source = HarmonicSource(CONFIG, 4)
    made.load_state_dict(hift_tensors(CONFIG, seed=5))
    made.fuse()
    return made.requires_grad_(False)


def test_usual_lengths_are_of_blocks_and_of_first_blocks() -> None:
    assert common_lengths(50, 30) == (50, 100, 43, 13)


def test_static_buffers_keep_no_state_between_rows(hift: Hift) -> None:
    """Rows of usual lengths and of others, more of them in one push than in the next."""
    plain, static = HiftBatch(hift, 4), HiftGraphs(hift, 4, LENGTHS)
    mels = torch.randn(3, 47, 80, generator=torch.Generator().manual_seed(1))
    for rows in (plain, static):
        for slot in (1, 2, 3):
            rows.open(slot)
    for start, end, slots in ((0, 10, [1, 2, 3]), (10, 20, [3, 1]), (20, 40, [1]), (40, 47, [1])):
        pieces = [mels[slot - 1, start:end] for slot in slots]
        final = [end == 47] * len(slots)
        found, wanted = static.push(slots, pieces, final), plain.push(slots, pieces, final)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, atol=5e-5, rtol=0)
    assert static.state.values[0].isfinite().all()
