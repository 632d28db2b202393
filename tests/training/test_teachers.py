"""Teachers at 24 kHz: the same frame around the speech for each, and one with a full band."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training import ablate, festival, graphed_codec, teachers
from training.flite import PHONEME_IDS, TeacherSettings
from training.settings import SAMPLE_RATE
from training.synthesis import SynthesisSettings, speak_shard
from training.text import TextSettings

needs_teachers = pytest.mark.skipif(not teachers.available(), reason="flite or festival's voice is not installed")


def energy_share_above(pcm: np.ndarray, hz: float) -> float:
    power = np.abs(np.fft.rfft(pcm.astype(np.float64))) ** 2
    return float(power[np.fft.rfftfreq(len(pcm), 1 / SAMPLE_RATE) > hz].sum() / power.sum())


@needs_teachers
@pytest.mark.parametrize(("teacher", "full_band"), [("slt-hts", True), ("rms", False)])
def test_teacher_frames_speech_and_keeps_its_band(teacher: str, full_band: bool) -> None:
    speech = teachers.synthesize("She sells fresh fish.", teacher, TeacherSettings(lead_s=0.05, tail_s=0.1))
    assert speech.end_samples[0] == 0.05 * SAMPLE_RATE
    assert len(speech.pcm) - speech.end_samples[-2] == 0.1 * SAMPLE_RATE
    assert (np.diff(speech.end_samples) > 0).all()
    assert PHONEME_IDS["sh"] in speech.phonemes
    assert (energy_share_above(speech.pcm, 8_500) > 1e-4) == full_band


@needs_teachers
def test_text_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to speak in 3 characters"):
        teachers.synthesize("...", "rms")


@pytest.mark.skipif(not festival.available(), reason="festival's voice is not installed")
def test_festival_error_is_reported_not_awaited() -> None:
    process = festival.Festival()
    try:
        process._send("(voice_reset_to_nothing)")
        process._send('(set! utt.synth (lambda (spoken) (error "no voice")))')
        with pytest.raises(FileNotFoundError):
            process.speak("Hello.")
    finally:
        process.close()


def test_unknown_phoneme_is_named() -> None:
    assert festival.flite_name("axr") == "er"
    with pytest.raises(KeyError, match="'qq'"):
        festival.flite_name("qq")


def toy_speech(folder: Path) -> tuple[list[str], int]:
    """Write speech to train on and one sentence to copy; returns the options that name them, and its length."""
    speech, evaluation = folder / "speech", folder / "evaluation.npz"
    settings = SynthesisSettings(speech, 1, 3, ("slt-hts", "rms"), text=TextSettings(seed=4), rate_hz=SAMPLE_RATE)
    speak_shard(settings, 0)
    pcm = teachers.synthesize("One moment.", "rms").pcm
    np.savez(evaluation, one=pcm)
    return ["--speech", str(speech), "--evaluation", str(evaluation), "--minutes", "0.005", "--toy"], len(pcm)


@needs_teachers
@pytest.mark.timeout(120)
@pytest.mark.parametrize("variant", ["base", "no_bits"])
def test_toy_ablation_copies_its_sentences(tmp_path: Path, variant: str) -> None:
    options, length = toy_speech(tmp_path)
    ablate.main([str(tmp_path / "out"), "--variant", variant, "--critics-share", "0.3", "--batch", "2", *options])
    assert len(np.load(tmp_path / "out/copies.npz")["one"]) == length
    assert (tmp_path / "out/decoder.safetensors").exists()


@needs_teachers
@pytest.mark.timeout(120)
def test_toy_graphed_codec_passes_all_stages_and_resumes(tmp_path: Path) -> None:
    options, length = toy_speech(tmp_path)
    graphed_codec.main([str(out := tmp_path / "out"), *options])
    assert [len(np.load(out / f"{stage.name}.npz")["one"]) for stage in graphed_codec.STAGES] == [length] * 4
    graphed_codec.main([str(more := tmp_path / "more"), *options, "--resume", str(out)])
    assert sorted(one.stem for one in more.glob("*.npz")) == ["critics", "decoder"]
