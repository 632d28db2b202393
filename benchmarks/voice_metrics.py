"""Metrics of one sentence, their sums in a row of the table, and the gates of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.speech_sources import TEACHERS, Setting, Task
from training import phoneme_judge
from training.acoustics import (
    Band,
    Levels,
    Likeness,
    Signal,
    VoicePrint,
    levels,
    likeness,
    share_told_apart,
    voice_print,
    without_outer_silence,
)
from training.asr_judge import Score, Transcription, hear_one
from training.held_out import SENTENCES, read_sentences
from training.phoneme_judge import PhoneJudge, PhoneScore

if TYPE_CHECKING:
    from training.mos import Opinion

LENGTH_TOLERANCE = 0.3
# Percent of full scale.
MAX_START_PERCENT = 0.2
MIN_ROLL_OFF_HZ = 9_000
MIN_MOS = {"overall": 2.9, "P.808": 3.4}


@dataclass(frozen=True)
class Recognizers:
    """Recognizers in addition to that with bigram models."""

    stock: bool = True
    listener: Path | None = None
    # DNSMOS, about a second a sentence.
    mos: bool = False


@dataclass(frozen=True)
class SentenceMetrics:
    """One sentence by one speaker."""

    bigram: Transcription
    stock: Transcription | None
    phones: phoneme_judge.PhonemeTranscription | None
    levels: Levels
    voice: VoicePrint
    likeness: Likeness | None
    # In lengths of the teacher's.
    length: float
    opinion: Opinion | None = None
    # Of the speech before it was resampled.
    band: Band | None = None


def measure(
    text: str, signal: Signal, taught: Signal, recognizers: Recognizers, band: Band | None = None, *, is_copy: bool
) -> SentenceMetrics:
    """Measure a 16 kHz ``signal`` against the teacher's; recognizers are cached in the process."""
    return SentenceMetrics(
        bigram=hear_one(text, signal, _sentences()),
        stock=hear_one(text, signal, None) if recognizers.stock else None,
        phones=_listener(recognizers.listener).judge(text, signal) if recognizers.listener else None,
        levels=levels(signal),
        voice=voice_print(signal),
        likeness=likeness(taught, signal) if is_copy else None,
        length=len(signal) / len(taught),
        opinion=_rate(signal) if recognizers.mos else None,
        band=band,
    )


def _rate(signal: Signal) -> Opinion:
    from training import mos

    # DNSMOS repeats short speech, so silence around it would count as pauses within. The engine's speech fills its last
    # frame with silence, and the teacher's does not.
    return mos.rate(without_outer_silence(signal))


@cache
def _sentences() -> tuple[str, ...]:
    return tuple(read_sentences())


@cache
def _listener(weights: Path) -> PhoneJudge:
    return PhoneJudge(weights)


def read_tasks(every: int) -> tuple[list[Task], dict[int, str]]:
    """Every ``every``-th sentence, and the kind of each."""
    tasks: list[Task] = []
    kinds: dict[int, str] = {}
    kind = ""
    for line in SENTENCES.read_text().splitlines():
        if line.startswith("["):
            kind = line.strip("[]")
        elif line and not line.startswith("#"):
            kinds[len(kinds)] = kind
            tasks.append(Task(len(tasks), line))
    return tasks[::every], kinds


@dataclass(frozen=True)
class Row:
    """One speaker in one setting. Rates are in percent."""

    speaker: str
    setting: str
    words_wrong_bigram: float
    words_wrong_stock: float | None
    words_missing: float
    words_repeated: float
    # By the second listener, as are the next two.
    phones_wrong: float | None
    words_lost: float | None
    words_twice: float | None
    # Utterances within 30 % of the teacher's length.
    length_kept: float
    loudness_dbfs: float
    lead_ms: float
    tail_ms: float
    clipped: float
    pitch_hz: float
    centroid_hz: float
    told_apart: float
    stoi: float | None
    pesq: float | None
    words_wrong_by_kind: dict[str, float]
    # DNSMOS, as the next one.
    mos_overall: float | None = None
    mos_p808: float | None = None
    # Mean frequency below which 99 % of the energy lies, and the largest sample of the first 20 ms of any sentence.
    roll_off_hz: float | None = None
    start_peak: float | None = None


def percent(share: float) -> float:
    return round(100 * share, 2)


def row_of(
    speaker: str,
    setting: Setting,
    tasks: Sequence[Task],
    found: Sequence[SentenceMetrics],
    prints: dict[str, list[VoicePrint]],
) -> Row:
    """Compute a row; ``prints`` are the teacher's voice prints, by voice."""
    bigram = Score([one.bigram for one in found])
    stock = Score([one.stock for one in found if one.stock])
    phones = PhoneScore([one.phones for one in found if one.phones])
    alike = [one.likeness for one in found if one.likeness]
    opinions = [one.opinion for one in found if one.opinion]
    bands = [one.band for one in found if one.band]
    other = next(voice for voice in TEACHERS if voice != setting.voice)
    kinds = read_tasks(1)[1]
    return Row(
        speaker=speaker,
        setting=str(setting),
        words_wrong_bigram=percent(bigram.word_error_rate),
        words_wrong_stock=percent(stock.word_error_rate) if stock.heard else None,
        words_missing=percent(bigram.missing_rate),
        words_repeated=percent(bigram.repeated_rate),
        phones_wrong=percent(phones.phone_error_rate) if phones.heard else None,
        words_lost=percent(phones.missing_rate) if phones.heard else None,
        words_twice=percent(phones.repeated_rate) if phones.heard else None,
        length_kept=percent(fmean(abs(one.length - 1) <= LENGTH_TOLERANCE for one in found)),
        loudness_dbfs=round(fmean(one.levels.loudness_dbfs for one in found), 1),
        lead_ms=round(1000 * fmean(one.levels.lead_s for one in found)),
        tail_ms=round(1000 * fmean(one.levels.tail_s for one in found)),
        clipped=percent(fmean(one.levels.clipped for one in found)),
        pitch_hz=round(fmean(one.voice.pitch_hz for one in found), 1),
        centroid_hz=round(fmean(one.voice.centroid_hz for one in found)),
        told_apart=percent(share_told_apart([one.voice for one in found], prints[setting.voice], prints[other])),
        stoi=round(float(np.nanmean([one.stoi for one in alike])), 3) if alike else None,
        pesq=round(float(np.nanmean([one.pesq for one in alike])), 2) if alike else None,
        words_wrong_by_kind={
            kind: percent(bigram.part([kinds[task.number] == kind for task in tasks]).word_error_rate)
            for kind in dict.fromkeys(kinds.values())
        },
        mos_overall=round(fmean(one.overall for one in opinions), 2) if opinions else None,
        mos_p808=round(fmean(one.p808 for one in opinions), 2) if opinions else None,
        roll_off_hz=round(fmean(one.roll_off_hz for one in bands)) if bands else None,
        start_peak=percent(max(one.start_peak for one in bands)) if bands else None,
    )


@dataclass(frozen=True)
class Gate:
    name: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def passed(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def gates_of(row: Row, teacher: Row) -> list[Gate]:
    """Gates of a row, given the teacher's row of the same voice."""
    more_bigram = round(row.words_wrong_bigram - teacher.words_wrong_bigram, 2)
    if row.speaker == "codec":
        return [
            Gate("words wrong above the teacher, bigram", more_bigram, 2),
            *_stock_gate(row, teacher, 3),
            Gate("STOI", row.stoi or 0, 0.94, at_least=True),
            Gate("PESQ", row.pesq or 0, 2.3, at_least=True),
            *_start_gate(row),
            *_mos_gates(row, teacher, 0.12),
        ]
    if row.speaker == "model":
        return [
            Gate("words wrong, bigram", row.words_wrong_bigram, 10),
            *_stock_gate(row, teacher, 10),
            Gate("utterances of the right length", row.length_kept, 98, at_least=True),
            Gate("words missing or repeated", missing_or_repeated(row), 1),
            Gate("told apart", row.told_apart, 100, at_least=True),
            *_start_gate(row),
            *_mos_gates(row, teacher, 0.25, MIN_MOS),
        ]
    return []


def _mos_gates(row: Row, teacher: Row, limit: float, min_scores: dict[str, float] | None = None) -> list[Gate]:
    """Gates of DNSMOS; none if it was not measured."""
    gates = []
    for name, score, taught in (
        ("overall", row.mos_overall, teacher.mos_overall),
        ("P.808", row.mos_p808, teacher.mos_p808),
    ):
        if score is None or taught is None:
            continue
        gates.append(Gate(f"DNSMOS {name} below the teacher", round(taught - score, 2), limit))
        if min_scores is not None:
            gates.append(Gate(f"DNSMOS {name}", score, min_scores[name], at_least=True))
    return gates


def _start_gate(row: Row) -> list[Gate]:
    if row.start_peak is None:
        return []
    return [Gate("largest sample of the first 20 ms, % of full scale", row.start_peak, MAX_START_PERCENT)]


def bandwidth_gate(rows: Sequence[Row]) -> Gate | None:
    """Of the voice with the wider band: one needs content above 8 kHz."""
    widths = [row.roll_off_hz for row in rows if row.speaker == "model" and row.roll_off_hz is not None]
    return (
        Gate("99 % roll-off of the widest voice, Hz", max(widths), MIN_ROLL_OFF_HZ, at_least=True) if widths else None
    )


def _stock_gate(row: Row, teacher: Row, limit: float) -> list[Gate]:
    """Gate of the stock model; none if it was not used."""
    if row.words_wrong_stock is None or teacher.words_wrong_stock is None:
        return []
    more = round(row.words_wrong_stock - teacher.words_wrong_stock, 2)
    return [Gate("words wrong above the teacher, stock", more, limit)]


def missing_or_repeated(row: Row) -> float:
    """Share of missing or repeated words, by the second recognizer if there is one: it has no language model."""
    if row.words_lost is None or row.words_twice is None:
        return row.words_missing + row.words_repeated
    return row.words_lost + row.words_twice
