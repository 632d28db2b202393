"""The exact decode stage on a small real codec: whoever shares its calls, a stream sounds as decoded in one piece."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from engine.api import SamplingParams
from engine.config import EngineConfig
from engine.launch import EMBEDDED_VOICE
from engine.load import load_engine
from engine.models.base import DecodedAudio, Pcm, VoiceReference
from engine.models.qwen3_tts.codec_decoder import CodecDecoder
from engine.models.qwen3_tts.config import read_config
from engine.models.qwen3_tts.load import load_codec
from engine.models.qwen3_tts.prompt import QwenSequence
from engine.runtime import codec_runners
from engine.runtime.codec_runners import make_eager_stage
from tests.audio.seam_report import seam_report
from tests.engine.engine_harness import EngineHarness
from tests.engine.stage_laws import DecodeStageLaws
from tests.fakes.checkpoints import TINY, write_checkpoint

# Of samples in [-1, 1]; rows of a call share products whose sums run in another order for another number of rows.
TOLERANCE = 2e-5
NUM_SLOTS = 3
codes = st.lists(st.integers(0, TINY["codes"] - 1), min_size=TINY["books"], max_size=TINY["books"])
REFERENCES = [
    VoiceReference(key, [[(7 * i + length) % TINY["codes"]] * TINY["books"] for i in range(length)])
    for key, length in (("short", 2), ("long", 7), ("longer", 9))
]


def offline(codec: CodecDecoder, frames: Sequence[Sequence[int]]) -> Pcm:
    if not frames:
        return np.zeros(0, np.float32)
    pcm: Pcm = codec(torch.tensor([frames]).transpose(1, 2))[0].numpy()
    return pcm


class ExactDecodeLaws(DecodeStageLaws):
    codec: CodecDecoder

    @initialize(gather_slack_s=st.sampled_from([0.0, 0.4]))
    def begin(self, gather_slack_s: float) -> None:
        self.begin_with(make_eager_stage(self.codec, NUM_SLOTS, gather_slack_s, max_cached_references=2))
        self.references: dict[int, list[Sequence[int]]] = {}

    @rule(reference=st.sampled_from([None, *REFERENCES]))
    def reserve(self, reference: VoiceReference | None) -> None:
        num_taken = len(self.fed) + self.num_quarantined
        slot = self.join()
        assert (slot is None) == (num_taken == NUM_SLOTS)
        if slot is not None:
            self.references[slot] = list(reference.frames) if reference else []
        if slot is not None and reference is not None:
            self.stage.prime(slot, reference)

    @precondition(lambda self: set(self.fed) - self.final)
    @rule(data=st.data(), frames=st.lists(codes, min_size=1, max_size=10))
    def feed(self, data: st.DataObject, frames: list[list[int]]) -> None:
        self.feed_open_slot(data, frames)

    @rule(
        slack_s=st.dictionaries(st.integers(1, NUM_SLOTS), st.sampled_from([0.0, 1.0, math.inf])),
        wanted=st.dictionaries(st.integers(1, NUM_SLOTS), st.sampled_from([1, 2, 4, 8])),
    )
    def step(self, slack_s: dict[int, float], wanted: dict[int, int]) -> None:
        chunks = self.stage.step(slack_s, wanted)
        for chunk in chunks:
            if slack_s.get(chunk.slot) == math.inf and chunk.slot in wanted and chunk.slot not in self.final:
                assert len(chunk.pcm) == wanted[chunk.slot] * self.stage.frame_samples
        self.take(chunks)

    def compare(self, slot: int) -> None:
        heard = np.concatenate([np.zeros(0, np.float32), *(chunk.pcm for chunk in self.heard[slot])])
        before = self.references[slot]
        whole = offline(self.codec, [*before, *self.fed[slot]])
        expected = whole[len(before) * self.stage.frame_samples :][: len(heard)]
        np.testing.assert_allclose(heard, expected, atol=TOLERANCE, rtol=0)

    @invariant()
    def references_are_bounded(self) -> None:
        if hasattr(self, "stage"):
            assert len(self.stage.codec.references) <= 2
            has_frames = any(self.stage.num_pending(slot) for slot in self.fed)
            assert self.stage.busy == (has_frames or self.stage.codec.is_priming)


def test_streams_that_come_and_go_sound_as_decoded_in_one_piece(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    monkeypatch.setattr(codec_runners, "SLICE_FRAMES", 4)
    folder = write_checkpoint(tmp_path_factory.mktemp("codec"))
    ExactDecodeLaws.codec = load_codec(folder, read_config(folder), torch.float32, torch.device("cpu"))
    run_state_machine_as_test(ExactDecodeLaws, settings=settings(max_examples=40, stateful_step_count=25))


def frames_of(num_frames: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    frames: list[list[int]] = torch.randint(0, TINY["codes"], (num_frames, TINY["books"]), generator=generator).tolist()
    return frames


@pytest.mark.parametrize("num_streams", [1, 3])
def test_stream_state_carries_over_calls(codec: CodecDecoder, num_streams: int) -> None:
    stage = make_eager_stage(codec, 3, 0.0)
    streams = {slot: frames_of(15, seed) for seed in range(num_streams) if (slot := stage.reserve()) is not None}
    heard: dict[int, list[Pcm]] = {slot: [] for slot in streams}
    for start, end in ((0, 1), (1, 3), (3, 12), (12, 15)):
        for slot, frames in streams.items():
            for frame in frames[start:end]:
                stage.feed(slot, frame)
        while stage.busy:
            for chunk in stage.step({}):
                heard[chunk.slot].append(chunk.pcm)
    for slot, frames in streams.items():
        np.testing.assert_allclose(np.concatenate(heard[slot]), offline(codec, frames), atol=TOLERANCE, rtol=0)


def test_a_slot_that_was_used_starts_from_silence_again(codec: CodecDecoder) -> None:
    stage, frames = make_eager_stage(codec, 1, 0.0), frames_of(3)
    said = []
    for _ in range(2):
        slot = stage.reserve()
        assert slot is not None
        for frame in frames:
            stage.feed(slot, frame)
        stage.finalize(slot)
        said.append(np.concatenate([chunk.pcm for _ in range(3) for chunk in stage.step({})]))
        stage.release(slot)
        stage.release_quarantined()
    np.testing.assert_array_equal(said[0], said[1])


@pytest.mark.parametrize("code", [-1, TINY["codes"], 2150])
def test_a_code_outside_the_codebook_never_reaches_the_codec(codec: CodecDecoder, code: int) -> None:
    stage = make_eager_stage(codec, 1, 0.0)
    slot = stage.reserve()
    assert slot is not None
    with pytest.raises(ValueError, match=f"code {code} is outside the codebook of {TINY['codes']}"):
        stage.feed(slot, [0, code, 0, 0])
    assert stage.num_pending(slot) == 0


class BrittleCodec:
    """The codec, but it raises for frames of nothing but ones, and gives NaN for frames of nothing but twos."""

    def __init__(self, codec: CodecDecoder) -> None:
        self.codec, self.config, self.new_state = codec, codec.config, codec.new_state

    def __call__(self, codes: torch.Tensor, state: object) -> torch.Tensor:
        if (codes == 1).all(1).any():
            raise RuntimeError("a fault in the codec")
        pcm = self.codec(codes, state)
        pcm[(codes == 2).all(1).any(1)] = torch.nan
        return pcm


@pytest.mark.parametrize(("code", "message"), [(1, "a fault in the codec"), (2, "not finite")])
def test_row_that_breaks_the_decoder_fails_alone(codec: CodecDecoder, code: int, message: str) -> None:
    stage = make_eager_stage(BrittleCodec(codec), 3, 0.0)
    streams = {slot: frames_of(2, seed) for seed in range(3) if (slot := stage.reserve()) is not None}
    broken = sorted(streams)[1]
    streams[broken][1] = [code] * TINY["books"]
    for slot, frames in streams.items():
        for frame in frames:
            stage.feed(slot, frame)
    for chunk in stage.step({}):
        if chunk.slot == broken:
            assert chunk.error
            assert message in chunk.error
        else:
            assert chunk.error is None
            np.testing.assert_allclose(chunk.pcm, offline(codec, streams[chunk.slot]), atol=TOLERANCE, rtol=0)


def test_a_recording_that_cannot_be_decoded_fails_its_slot_alone(codec: CodecDecoder) -> None:
    stage = make_eager_stage(codec, 2, 0.0)
    bad, good = stage.reserve(), stage.reserve()
    assert bad is not None
    assert good is not None
    stage.prime(bad, VoiceReference("bad", [[9_999] * TINY["books"]]))
    stage.feed(bad, [1] * TINY["books"])
    stage.feed(good, [1] * TINY["books"])
    chunks = {chunk.slot: chunk for chunk in stage.step({})}
    assert chunks[bad].error
    assert chunks[good].error is None
    assert not stage.codec.is_priming


def test_a_recording_is_decoded_once_and_kept(codec: CodecDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, heard = make_eager_stage(codec, 3, 0.0), []
    hear = stage.codec.advance
    monkeypatch.setattr(
        stage.codec, "advance", lambda slots, frames: (heard.append(len(frames[0])), hear(slots, frames))
    )
    for _ in range(3):
        slot = stage.reserve()
        assert slot is not None
        stage.prime(slot, REFERENCES[1])
        while stage.busy:
            stage.step({})
    assert heard == [7]


def test_replays_take_turns_and_delay_no_other_slot(codec: CodecDecoder) -> None:
    """A live slot decodes a frame in each round; of the others two do, until all sound as decoded in one piece."""
    stage = make_eager_stage(codec, 5, 0.0)
    slots = [stage.reserve() for _ in range(5)]
    replays, live = {slot: frames_of(20, slot) for slot in slots[1:]}, slots[0]
    for slot, frames in replays.items():
        assert stage.resume(slot, None, frames, 0) == 0
        stage.finalize(slot)
    heard: dict[int, list[Pcm]] = {slot: [] for slot in slots}
    for code in range(12):
        stage.feed(live, [code] * TINY["books"])
        chunks = stage.step({}, {})
        assert [chunk.slot for chunk in chunks].count(live) == 1
        assert len(chunks) <= 1 + codec_runners.MAX_REPLAYS
        for chunk in chunks:
            heard[chunk.slot].append(chunk.pcm)
    for slot, frames in replays.items():
        np.testing.assert_allclose(np.concatenate(heard[slot]), offline(codec, frames), atol=TOLERANCE)
        stage.release(slot)
    assert not stage.codec.replays


def test_slot_released_in_mid_recording_leaves_nothing(codec: CodecDecoder) -> None:
    stage = make_eager_stage(codec, 1, 0.0)
    slot = stage.reserve()
    assert slot is not None
    stage.prime(slot, VoiceReference("endless", [[1] * TINY["books"]] * 100))
    stage.step({})
    stage.release(slot)
    stage.release_quarantined()
    assert not stage.busy
    assert (stage.slots.num_free, len(stage.codec.references)) == (1, 0)


def test_warming_up_leaves_no_trace(codec: CodecDecoder) -> None:
    stage = make_eager_stage(codec, NUM_SLOTS, 0.0)
    stage.codec.warm_up(60.0)
    assert stage.slots.num_free == NUM_SLOTS
    assert not stage.busy
    assert not stage.codec.state.values[1:].any()
    slot = stage.reserve()
    assert slot is not None
    frames = [[i] * TINY["books"] for i in range(3)]
    for frame in frames:
        stage.feed(slot, frame)
    heard = np.concatenate([out.pcm for _ in range(3) for out in stage.step({})])
    np.testing.assert_allclose(heard, offline(codec, frames), atol=TOLERANCE)


# -- on speech ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def voice() -> CodecDecoder:
    return load_codec(EMBEDDED_VOICE, read_config(EMBEDDED_VOICE), torch.float32, torch.device("cpu"))


@pytest.fixture(scope="module")
def spoken_frames() -> list[list[int]]:
    """What the embedded voice says, as codes."""
    loaded = load_engine(EMBEDDED_VOICE, EngineConfig(kv_memory_mb=32, lazy_graph_capture=True), "cpu", "float32", True)
    bench = EngineHarness.from_checkpoint(loaded)
    text = "the quick brown fox jumps over the lazy dog and runs away into the forest"
    row = bench.request(bench.submit(text=text, text_closed=True, sampling=SamplingParams(seed=4))).row
    bench.run()
    assert isinstance(row, QwenSequence)
    assert len(row.codes) >= 30
    return row.codes


def decode(codec: CodecDecoder, frames: list[list[int]], piece: int) -> Pcm:
    """Feed ``frames`` in pieces, a round after each, then finalize and drain."""
    stage, chunks = make_eager_stage(codec, 1, 0.0), list[DecodedAudio]()
    slot = stage.reserve()
    assert slot is not None
    for start in range(0, len(frames), piece):
        for codes in frames[start : start + piece]:
            stage.feed(slot, codes)
        chunks += stage.step({slot: 0.0})
    stage.finalize(slot)
    while stage.num_pending(slot):
        assert stage.busy
        chunks += stage.step({slot: 0.0})
    assert not stage.busy
    return np.concatenate([chunk.pcm for chunk in chunks])


@pytest.mark.parametrize("piece", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_speech_in_pieces_has_no_seams(voice: CodecDecoder, spoken_frames: list[list[int]], piece: int) -> None:
    starts = range(0, len(spoken_frames), piece)
    seams, rate = [start * voice.config.frame_samples for start in starts[1:]], voice.config.sample_rate
    assert seam_report(decode(voice, spoken_frames, piece), seams, rate).passes
    apart = np.concatenate([offline(voice, spoken_frames[start : start + piece]) for start in starts])
    assert not seam_report(apart, seams, rate).passes, "pieces decoded alone have seams"


def test_speech_of_the_embedded_voice_begins_without_a_tick(
    voice: CodecDecoder, spoken_frames: list[list[int]]
) -> None:
    speech = decode(voice, spoken_frames, 1)
    assert np.abs(speech[: voice.config.sample_rate // 50]).max() < 0.002
    assert np.abs(speech).max() > 0.1
