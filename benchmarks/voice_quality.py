"""How well the voice speaks: the teacher, the codec's copy of it and the model, side by side on fixed sentences.

    python -m benchmarks.voice_quality                          the embedded voice through the engine
    python -m benchmarks.voice_quality --model FOLDER           another checkpoint of the embedded kind
    python -m benchmarks.voice_quality --recordings FOLDER      speech made elsewhere (benchmarks/spoken.py)
    python -m benchmarks.voice_quality --codec FOLDER           adds the codec's copies of the teacher, VOICE.npz
    python -m benchmarks.voice_quality --listener FILE          adds the second listener (training/listener.py)

Needs flite (Debian's libflite1) and the dependency group ``training``. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.spoken import TEACHERS, EngineSpeaks, Recordings, Setting, Speaks, Task, Teacher
from training.acoustics import Signal, VoicePrint, levels, likeness, share_told_apart, voice_print
from training.heldout import SENTENCES
from training.judge import judge, to_16k
from training.phone_judge import PhoneJudge

LENGTH_TOLERANCE = 0.3


@dataclass(frozen=True)
class Row:
    """One speaker in one setting. Rates are in percent."""

    speaker: str
    setting: str
    words_wrong_bigram: float
    words_wrong_stock: float | None
    words_missing: float
    words_repeated: float
    phones_wrong: float | None
    """By the second listener, as are the next two."""
    words_lost: float | None
    words_twice: float | None
    length_kept: float
    """Utterances within 30 % of the teacher's length."""
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


@dataclass(frozen=True)
class Options:
    stock: bool = True
    processes: int = 2
    second: PhoneJudge | None = None


@dataclass(frozen=True)
class Reference:
    """The teacher's speech for the same sentences."""

    own: Sequence[Signal]
    prints: dict[str, list[VoicePrint]]
    """By voice."""


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


def percent(share: float) -> float:
    return round(100 * share, 2)


def measure(
    speaker: str, setting: Setting, tasks: Sequence[Task], signals: Sequence[Signal], reference: Reference, how: Options
) -> Row:
    texts = [task.text for task in tasks]
    all_tasks, kinds = read_tasks(1)
    bigram = judge(texts, signals, [task.text for task in all_tasks], how.processes)
    stock = judge(texts, signals, None, how.processes) if how.stock else None
    phones = how.second.score(texts, signals) if how.second else None
    heights = [levels(signal) for signal in signals]
    prints = [voice_print(signal) for signal in signals]
    other = next(voice for voice in TEACHERS if voice != setting.voice)
    pairs = list(zip(signals, reference.own, strict=True))
    kept = [abs(len(signal) / len(taught) - 1) <= LENGTH_TOLERANCE for signal, taught in pairs]
    alike = [likeness(taught, signal) for signal, taught in pairs] if speaker == "codec" else []
    return Row(
        speaker=speaker,
        setting=str(setting),
        words_wrong_bigram=percent(bigram.word_error_rate),
        words_wrong_stock=percent(stock.word_error_rate) if stock else None,
        words_missing=percent(bigram.missing_rate),
        words_repeated=percent(bigram.repeated_rate),
        phones_wrong=percent(phones.phone_error_rate) if phones else None,
        words_lost=percent(phones.missing_rate) if phones else None,
        words_twice=percent(phones.repeated_rate) if phones else None,
        length_kept=percent(fmean(kept)),
        loudness_dbfs=round(fmean(one.loudness_dbfs for one in heights), 1),
        lead_ms=round(1000 * fmean(one.lead_s for one in heights)),
        tail_ms=round(1000 * fmean(one.tail_s for one in heights)),
        clipped=percent(fmean(one.clipped for one in heights)),
        pitch_hz=round(fmean(one.pitch_hz for one in prints), 1),
        centroid_hz=round(fmean(one.centroid_hz for one in prints)),
        told_apart=percent(share_told_apart(prints, reference.prints[setting.voice], reference.prints[other])),
        stoi=round(float(np.nanmean([one.stoi for one in alike])), 3) if alike else None,
        pesq=round(float(np.nanmean([one.pesq for one in alike])), 2) if alike else None,
        words_wrong_by_kind={
            kind: percent(bigram.part([kinds[task.number] == kind for task in tasks]).word_error_rate)
            for kind in dict.fromkeys(kinds.values())
        },
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
    """What the voice must hold, beside the teacher's row of the same voice."""
    more_stock = (row.words_wrong_stock or 0) - (teacher.words_wrong_stock or 0)
    if row.speaker == "codec":
        return [
            Gate("words wrong above the teacher, bigram", row.words_wrong_bigram - teacher.words_wrong_bigram, 2),
            Gate("words wrong above the teacher, stock", more_stock, 3),
            Gate("STOI", row.stoi or 0, 0.9, at_least=True),
        ]
    if row.speaker == "model":
        return [
            Gate("words wrong, bigram", row.words_wrong_bigram, 10),
            Gate("words wrong above the teacher, stock", more_stock, 10),
            Gate("utterances of the right length", row.length_kept, 98, at_least=True),
            Gate("words missing or repeated", missing_or_repeated(row), 1),
            Gate("told apart", row.told_apart, 100, at_least=True),
        ]
    return []


def missing_or_repeated(row: Row) -> float:
    """By the second listener where there is one, which has no language model to fill gaps with."""
    if row.words_lost is None or row.words_twice is None:
        return row.words_missing + row.words_repeated
    return row.words_lost + row.words_twice


COLUMNS = {
    "words_wrong_bigram": "wrong%",
    "words_wrong_stock": "stock%",
    "words_missing": "missing%",
    "words_repeated": "repeat%",
    "phones_wrong": "phone%",
    "words_lost": "lost%",
    "words_twice": "twice%",
    "length_kept": "length%",
    "loudness_dbfs": "dBFS",
    "lead_ms": "lead",
    "tail_ms": "tail",
    "clipped": "clip%",
    "pitch_hz": "pitch",
    "told_apart": "apart%",
    "stoi": "STOI",
    "pesq": "PESQ",
}


def heading() -> str:
    return f"{'speaker':8} {'setting':20}" + "".join(f"{title:>8}" for title in COLUMNS.values())


def table_line(row: Row) -> str:
    cells = ("-" if value is None else f"{value:g}" for value in (getattr(row, name) for name in COLUMNS))
    return f"{row.speaker:8} {row.setting:20}" + "".join(f"{cell:>8}" for cell in cells)


class Table:
    """Measures speakers one after another and prints each row as it comes."""

    def __init__(self, tasks: Sequence[Task], how: Options) -> None:
        self._tasks, self._how = tasks, how
        self.rows: list[Row] = []
        teacher = Teacher()
        self._taught = {voice: self._speak(teacher, Setting(voice), tasks) for voice in TEACHERS}
        self._prints = {voice: [voice_print(one) for one in signals] for voice, signals in self._taught.items()}
        print(heading())
        for voice in TEACHERS:
            self._add("teacher", Setting(voice), tasks, self._taught[voice])

    def add(self, speaker: str, speak: Speaks, setting: Setting, numbers: set[int] | None = None) -> None:
        """``numbers``: the sentences that ``speak`` has; all by default."""
        tasks = [task for task in self._tasks if numbers is None or task.number in numbers]
        self._add(speaker, setting, tasks, self._speak(speak, setting, tasks))

    def _speak(self, speak: Speaks, setting: Setting, tasks: Sequence[Task]) -> list[Signal]:
        return [to_16k(pcm, speak.rate_hz) for pcm in speak(tasks, setting)]

    def _add(self, speaker: str, setting: Setting, tasks: Sequence[Task], signals: Sequence[Signal]) -> None:
        by_number = dict(zip((task.number for task in self._tasks), self._taught[setting.voice], strict=True))
        reference = Reference([by_number[task.number] for task in tasks], self._prints)
        row = measure(speaker, setting, tasks, signals, reference, self._how)
        self.rows.append(row)
        print(table_line(row), flush=True)

    def gates(self) -> list[tuple[Row, Gate]]:
        teachers = {row.setting: row for row in self.rows if row.speaker == "teacher"}
        return [(row, gate) for row in self.rows for gate in gates_of(row, teachers[row.setting.split(" ")[0]])]


def speakers(options: argparse.Namespace) -> Iterator[tuple[str, Recordings | EngineSpeaks]]:
    if options.codec:
        yield "codec", Recordings(options.codec)
    if options.recordings:
        yield "model", Recordings(options.recordings)
    elif not options.teacher_only:
        yield "model", EngineSpeaks(options.model)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Judge the voice on the fixed sentences.")
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: the embedded voice")
    parser.add_argument("--recordings", type=Path, help="recordings of the model's speech, instead of an engine")
    parser.add_argument("--codec", type=Path, help="recordings of the codec's copies of the teacher's speech")
    parser.add_argument("--teacher-only", action="store_true", help="without the model")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th sentence")
    parser.add_argument("--no-stock", action="store_true", help="leave out the stock language model, most of the time")
    parser.add_argument("--listener", type=Path, help="weights of the second listener")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    tasks, _ = read_tasks(options.every)
    second = PhoneJudge(options.listener) if options.listener else None
    table = Table(tasks, Options(not options.no_stock, options.processes, second))
    for name, speak in speakers(options):
        for setting in speak.settings:
            table.add(name, speak, setting, speak.numbers(setting))
    report(tasks, table)


def report(tasks: Sequence[Task], table: Table) -> None:
    gates = table.gates()
    for row, gate in gates:
        verdict = "held  " if gate.passed else "FAILED"
        print(f"{verdict} {row.speaker} {row.setting}: {gate.name} {gate.value:g} ({gate.limit:g})")
    rows = [asdict(row) for row in table.rows]
    failed = sum(not gate.passed for _, gate in gates)
    summary = {"benchmark": "voice_quality", "num_sentences": len(tasks), "rows": rows, "gates_failed": failed}
    print(json.dumps(summary))


if __name__ == "__main__":
    main(sys.argv[1:])
