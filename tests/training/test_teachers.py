"""Teachers at 24 kHz: the same frame around the speech for each, and one with a full band."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.fakes.checkpoints import write_tokenizer
from training import festival, graphed_codec, hts_engine, pipeline, restore, teachers
from training.codec import Codec, load_codec
from training.export import export
from training.flite import PHONEME_IDS, TeacherSettings
from training.pitch import track_pitch
from training.settings import FULL_BAND, SAMPLE_RATE

needs_teachers = pytest.mark.skipif(not teachers.available(), reason="flite or festival's voice is not installed")


def energy_share_above(pcm: np.ndarray, hz: float) -> float:
    power = np.abs(np.fft.rfft(pcm.astype(np.float64))) ** 2
    return float(power[np.fft.rfftfreq(len(pcm), 1 / SAMPLE_RATE) > hz].sum() / power.sum())


@needs_teachers
@pytest.mark.parametrize(("teacher", "full_band"), [("slt-hts", True), ("slt-hts-low", True), ("rms", False)])
def test_teacher_frames_speech_and_keeps_its_band(teacher: str, full_band: bool) -> None:
    speech = teachers.synthesize("She sells fresh fish.", teacher, TeacherSettings(lead_s=0.05, tail_s=0.1))
    assert speech.end_samples[0] == 0.05 * SAMPLE_RATE
    assert len(speech.pcm) - speech.end_samples[-2] == 0.1 * SAMPLE_RATE
    assert (np.diff(speech.end_samples) > 0).all()
    assert PHONEME_IDS["sh"] in speech.phonemes
    assert (energy_share_above(speech.pcm, 8_500) > 1e-4) == full_band


@needs_teachers
def test_lower_teacher_speaks_the_same_phonemes_lower() -> None:
    pairs = [teachers.synthesize("Where were you all morning?", name) for name in ("slt-hts", "slt-hts-low")]
    assert pairs[0].phonemes.tolist() == pairs[1].phonemes.tolist()
    assert pairs[0].end_samples.tolist() == pairs[1].end_samples.tolist()
    pitches = [track_pitch(torch.from_numpy(speech.pcm / 32_768).float()[None]) for speech in pairs]
    high, low = (pitch.hz[pitch.voiced].median().item() for pitch in pitches)
    assert 12 * math.log2(low / high) == pytest.approx(-7, abs=0.5)


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
            process.read("Hello.")
    finally:
        process.close()


@pytest.mark.skipif(not hts_engine.available(), reason="the HTS engine is not installed")
def test_what_is_no_hts_voice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "voice").write_bytes(b"none")
    with pytest.raises(ValueError, match="is no HTS voice"):
        hts_engine.HtsEngine(tmp_path / "voice", hts_engine.Speaker())


@needs_teachers
def test_labels_that_cannot_be_read_are_refused() -> None:
    engine = hts_engine.HtsEngine(festival.VOICE_FILE, hts_engine.Speaker())
    with pytest.raises(ValueError, match="labels: 0 of them"):
        engine.speak([])


def test_unknown_phoneme_is_named() -> None:
    assert festival.flite_name("axr") == "er"
    with pytest.raises(KeyError, match="'qq'"):
        festival.flite_name("qq")


CODE_CHOICE = "quantizer.rvq_rest.input_proj.weight"


def changed(after: Path, before: Path, file: str, name: str) -> bool:
    pair = [load_file(folder / f"{file}.safetensors")[name] for folder in (after, before)]
    return bool((pair[0] != pair[1]).any())


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
    for part in graphed_codec.PARTS:
        more = ["--speech", str(speech), "--minutes", "0", "--toy", "--resume", str(out), "--train", part]
        graphed_codec.main([str(tmp_path / part), *more])
        assert changed(tmp_path / part, out, "encoder", "layers.0.weight") == (part != "decoder")
        assert changed(tmp_path / part, out, "decoder", "controls.weight") == (part != "encoder")
        assert changed(tmp_path / part, out, "decoder", CODE_CHOICE) == (part == "all")
    resumed = ["--codec", str(out), "--resume", str(out), "--workers", "0"]
    pipeline.main([str(last := tmp_path / "last"), *options, *resumed])
    assert (last / "decoder.safetensors").read_bytes() == (out / "decoder.safetensors").read_bytes()
    assert (last / "talker.safetensors").exists()


def test_restored_weights_export_the_shipped_voice(tmp_path: Path) -> None:
    restore.restore(restore.VOICE, restore.STATE, tmp_path)
    export(tmp_path, restore.VOICE, tmp_path / "voice", FULL_BAND)
    shipped = sorted(restore.VOICE.rglob("*.safetensors"))
    assert shipped
    for path in shipped:
        assert (tmp_path / "voice" / path.relative_to(restore.VOICE)).read_bytes() == path.read_bytes(), path


def test_restored_weights_hold_the_whole_codec(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_codec(Codec(FULL_BAND.sizes), tmp_path)
    restore.restore(restore.VOICE, restore.STATE, tmp_path)
    load_codec(Codec(FULL_BAND.sizes), tmp_path)
