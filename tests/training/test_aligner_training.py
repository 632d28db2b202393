"""The training of the aligner: what it hears is what the product hears, and what it writes the product reads."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sessions.alignment.acoustic_model import AcousticModel
from sessions.alignment.aligner import ForcedAligner
from sessions.alignment.weights import AlignerWeights
from training.aligner import AlignerSettings, Spoken, align, disguise, first_guess, train
from training.flite import PHONEMES, SAMPLE_RATE_HZ, available
from training.shards import SpeechStore
from training.synthesis import SynthesisSettings, speak_shard

pytestmark = pytest.mark.skipif(not available(), reason="needs flite")

PLAIN = AlignerSettings(min_speed=1.0, max_speed=1.0, max_warp=0.0, max_colour=0.0, min_snr_db=100.0, max_snr_db=100.0)
QUICK = AlignerSettings(ear_width=16, letter_width=16, rounds=1, ear_epochs=1, letter_epochs=1, batch=64)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SpeechStore:
    folder = tmp_path_factory.mktemp("speech")
    speak_shard(SynthesisSettings(folder, 1, 6), 0)
    return SpeechStore(folder)


def test_training_features_equal_the_product_s(store: SpeechStore):
    heard = disguise(store[0], PLAIN, np.random.default_rng(1))
    inputs = []

    class Remembers:
        def scores(self, block: np.ndarray) -> np.ndarray:
            inputs.append(block)
            return block

    ear = AcousticModel(Remembers(), SAMPLE_RATE_HZ)  # type: ignore[arg-type]
    ear.push(store[0].speech.pcm.astype(np.float32) / 32768)
    ear.finish()
    theirs = heard.inputs.astype(np.float32)
    ours = np.concatenate(inputs)[: len(theirs)]
    assert np.median(np.abs(ours - theirs)) < 0.1  # another gain and a little noise
    assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.95


def test_letters_find_their_sounds_from_the_first_guess_on(store: SpeechStore):
    heard = disguise(store[0], PLAIN, np.random.default_rng(1))
    spoken = Spoken.of(heard)
    ends = align(spoken, first_guess(spoken.windows), np.full(len(PHONEMES), -np.log(len(PHONEMES)), np.float32))
    assert len(ends) == len(spoken.windows)
    assert list(ends) == sorted(ends)
    assert ends[-1] == len(spoken.sounds)
    assert heard.sounds[: ends[0]].max(initial=0) == 0  # the pause in front is a pause


def test_what_is_trained_can_be_used(store: SpeechStore, tmp_path):
    save_file(train(store, {0, 1}, QUICK), tmp_path / "weights.safetensors")
    weights = AlignerWeights.from_tensors(load_file(tmp_path / "weights.safetensors"))
    aligner, text = ForcedAligner(SAMPLE_RATE_HZ, weights), store.text(1)
    aligner.add_text(text)
    aligner.end_text()
    aligner.push(store.pcm(1).astype(np.float32) / 32768)
    aligner.finish()
    assert len(aligner.bounds) == len(text) + 1
