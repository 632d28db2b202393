"""Teachers at 24 kHz: the same frame around the speech for each, and one with a full band."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.fakes.checkpoints import write_tokenizer
from training import festival, graphed_codec, pipeline, teachers
from training.flite import PHONEME_IDS, TeacherSettings
from training.settings import SAMPLE_RATE

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


@needs_teachers
@pytest.mark.timeout(240)
def test_toy_source_filter_voice_trains_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("pesq", reason="the dependency group training is not installed")
    tokenizer, speech, out = tmp_path / "tokenizer", tmp_path / "speech", tmp_path / "out"
    tokenizer.mkdir()
    write_tokenizer(tokenizer)
    options = ["--speech", str(speech), "--tokenizer", str(tokenizer), "--minutes", "0.02", "--toy", "--full-band"]
    pipeline.main([str(out), *options])
    copies = np.load(out / "quantize.npz")
    assert {name.rstrip("0123456789") for name in copies} == {"clara", "edwin"}
    assert all(np.abs(pcm).max() > 0 for pcm in copies.values())
    graphed_codec.main(
        [str(more := tmp_path / "more"), "--speech", str(speech), "--minutes", "0", "--toy", "--resume", str(out)]
    )
    before = load_file(out / "decoder.safetensors")["controls.weight"]
    assert (load_file(more / "decoder.safetensors")["controls.weight"] != before).any()
    pipeline.main([str(last := tmp_path / "last"), *options, "--codec", str(out), "--resume", str(out)])
    assert (last / "decoder.safetensors").read_bytes() == (out / "decoder.safetensors").read_bytes()
    assert (last / "talker.safetensors").exists()
