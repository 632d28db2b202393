import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from training import flite
from training.flite import PHONEME_IDS, SAMPLE_RATE_HZ, SPEECH_LEVEL, Speech, TeacherSettings, synthesize
from training.shards import INDEX_RECORD, LABEL_RECORD, ShardWriter, SpeechStore, frame_phonemes
from training.synthesis import SynthesisPool, SynthesisSettings, speak_shard
from training.text import TextSettings, TextSource

needs_flite = pytest.mark.skipif(not flite.available(), reason="flite (libflite1) is not installed")


def some_speech(length: int) -> Speech:
    pcm = np.arange(length, dtype=np.int16)
    return Speech(pcm, np.array([0, 5, 0], np.uint8), np.array([length // 4, length // 2, length], np.int32))


def test_a_store_reads_while_the_shard_grows(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, 3) as writer:
        writer.append(30, 0, "First.", some_speech(400))
        store = SpeechStore(tmp_path)
        assert len(store) == 1
        writer.append(31, 1, "Second, é.", some_speech(900))
        assert len(store) == 1
        assert store.refresh() == 2
    second = store[1]
    assert (second.number, second.voice, second.text) == (31, 1, "Second, é.")
    np.testing.assert_array_equal(second.speech.pcm, some_speech(900).pcm)
    np.testing.assert_array_equal(second.speech.end_samples, [225, 450, 900])
    assert store.text(0) == "First."


def test_half_a_record_is_not_yet_an_utterance(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, 0) as writer:
        writer.append(0, 0, "One.", some_speech(400))
    index = tmp_path / "00.index"
    whole = index.read_bytes()
    index.write_bytes(whole + whole[: INDEX_RECORD.itemsize // 2])
    assert len(SpeechStore(tmp_path)) == 1


def test_positions_stay_when_other_shards_grow(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, 0) as first, ShardWriter(tmp_path, 1) as second:
        second.append(1, 1, "Later shard, first word.", some_speech(500))
        store = SpeechStore(tmp_path)
        first.append(0, 0, "Earlier shard, second word.", some_speech(600))
        store.refresh()
    assert [store.text(0), store.text(1)] == ["Later shard, first word.", "Earlier shard, second word."]


@pytest.mark.parametrize("offset", [0, 333, 1279])
def test_frame_phonemes_equal_the_slow_way(offset: int) -> None:
    labels = np.array([(1000, 0), (2600, 7), (2700, 8), (6000, 9), (7000, 0)], LABEL_RECORD)
    slow = []
    for frame in range(8):
        middle = (frame + 0.5) * 1280 - offset
        slow.append(next((phoneme for end, phoneme in labels.tolist() if middle < end), 0))
    assert frame_phonemes(labels, offset, 8, 1280).tolist() == slow


@needs_flite
@pytest.mark.parametrize("voice", ["slt", "rms"])
def test_speech_lies_between_its_silences(voice: str) -> None:
    settings = TeacherSettings(lead_s=0.2, tail_s=0.3)
    speech = synthesize("Sure, one moment.", voice, settings)
    signal = speech.pcm / 32768
    spoken = signal[speech.end_samples[0] : speech.end_samples[-2]]
    assert speech.end_samples[0] == round(0.2 * SAMPLE_RATE_HZ)
    assert len(signal) - speech.end_samples[-2] == round(0.3 * SAMPLE_RATE_HZ)
    assert np.sqrt(np.mean(spoken**2)) == pytest.approx(SPEECH_LEVEL, rel=0.2)
    assert np.abs(signal[: round(0.12 * SAMPLE_RATE_HZ)]).max() < 0.01


@needs_flite
def test_phonemes_are_those_of_the_words() -> None:
    speech = synthesize("Cat.", "slt")
    assert speech.phonemes.tolist() == [PHONEME_IDS[name] for name in ("pau", "k", "ae", "t", "pau")]
    assert (np.diff(speech.end_samples) > 0).all()
    assert speech.end_samples[-1] == len(speech.pcm)


@needs_flite
def test_the_same_text_is_spoken_the_same() -> None:
    first, again = synthesize("Once more.", "rms"), synthesize("Once more.", "rms")
    np.testing.assert_array_equal(first.pcm, again.pcm)


@needs_flite
def test_text_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to speak in 3 characters"):
        synthesize("...", "slt")


@needs_flite
def test_shards_together_hold_every_sentence(tmp_path: Path) -> None:
    settings = SynthesisSettings(tmp_path, 2, 6, text=TextSettings(seed=5))
    for shard in range(2):
        speak_shard(settings, shard)
    store, source = SpeechStore(tmp_path), TextSource(TextSettings(seed=5))
    spoken = {utterance.number: utterance for utterance in (store[position] for position in range(len(store)))}
    assert {number: one.text for number, one in spoken.items()} == {n: source.sentence(n) for n in range(6)}
    assert all(one.voice == number % 2 for number, one in spoken.items())
    np.testing.assert_array_equal(spoken[3].speech.pcm, synthesize(source.sentence(3), "rms").pcm)


@needs_flite
def test_a_pool_ends_when_its_context_does(tmp_path: Path) -> None:
    settings = SynthesisSettings(tmp_path, 1, 10**6)
    with SynthesisPool(settings) as pool:
        assert pool.running
    assert not pool.running


ABANDON = """
import os, sys
from pathlib import Path
from training.synthesis import SynthesisPool, SynthesisSettings
if __name__ == "__main__":
    pool = SynthesisPool(SynthesisSettings(Path(sys.argv[1]), 1, 10**6)).__enter__()
    while not list(Path(sys.argv[1]).glob("*.index")): pass
    print(pool._processes[0].pid, flush=True)
    os._exit(1)
"""


@needs_flite
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "abandon.py").write_text(ABANDON)
    command = [sys.executable, str(tmp_path / "abandon.py"), str(tmp_path)]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""}
    worker = int(subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50).stdout)
    if psutil.pid_exists(worker):
        psutil.Process(worker).wait(timeout=20)
