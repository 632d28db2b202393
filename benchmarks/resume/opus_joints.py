"""Judge Opus whose connection or encoder changed: difference of a new decoder, seams, and words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.resume.received import Floats, ReceivedOpus
from sessions.audio.resampler import Resampler
from tests.audio.seam_report import seam_report

LISTENER_WEIGHTS = Path("training/state/listener.safetensors")
# The part behind a seam in which a new decoder is compared with the one that was kept.
COMPARED_S = 0.2


def new_decoder_errors_db(audio: ReceivedOpus) -> list[float]:
    """Return the difference of a new decoder from a kept one behind each seam, relative to the level of the reply."""
    kept, new = audio.decode(), audio.decode(keeps_decoder=False)
    size, level = int(COMPARED_S * audio.rate), np.mean(kept**2)
    errors = [np.mean((kept[at : at + size] - new[at : at + size]) ** 2) for at in audio.seams if at < kept.size]
    return [round(float(10 * np.log10(error / level + 1e-12)), 1) for error in errors]


def judge_seams(audios: Sequence[ReceivedOpus], whole: ReceivedOpus) -> dict[str, object]:
    """Compare the seams of all replies with other places, and the same places of an uncut reply."""
    offsets = np.cumsum([0, *(audio.num_samples for audio in audios[:-1])])
    seams = [int(offset) + at for offset, audio in zip(offsets, audios, strict=True) for at in audio.seams]
    sounds = {
        "kept_decoder": [audio.decode() for audio in audios],
        "new_decoder": [audio.decode(keeps_decoder=False) for audio in audios],
        "uncut": [whole.decode()[: audio.num_samples] for audio in audios],
    }
    found: dict[str, object] = {"seams": len(seams)}
    for name, parts in sounds.items():
        report = seam_report(np.concatenate(parts).astype(np.float32), seams, whole.rate)
        ratios = {"jump": round(report.jump_ratio, 3), "spectral": round(report.spectral_ratio, 3)}
        found[name] = ratios | {"passes": bool(report.passes)}
    return found


def judge_words(audios: Sequence[ReceivedOpus], whole: ReceivedOpus, text: str) -> dict[str, object]:
    """Compare with an uncut reply the phonemes that a recognizer finds, and words that are missing or doubled."""
    from training.phoneme_judge import PhoneJudge

    judge = PhoneJudge(LISTENER_WEIGHTS)

    def rates(sounds: Sequence[Floats]) -> dict[str, object]:
        found = [judge.judge(text, to_16k(sound, whole.rate)) for sound in sounds]
        return {
            "phone_errors_percent": round(100 * sum(one.errors for one in found) / sum(one.phones for one in found), 2),
            "words": sum(one.words for one in found),
            "missing": sum(one.missing for one in found),
            "repeated": sum(one.repeated for one in found),
        }

    return {
        "uncut": rates([whole.decode()]),
        "kept_decoder": rates([audio.decode() for audio in audios]),
        "new_decoder": rates([audio.decode(keeps_decoder=False) for audio in audios]),
    }


def to_16k(sound: Floats, rate: int) -> np.ndarray:
    resampler = Resampler(rate, 16_000)
    return np.concatenate([resampler.push(sound.astype(np.float32)), resampler.flush()])
