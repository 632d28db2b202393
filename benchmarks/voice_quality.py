"""Measure the quality of the voice: teacher, the codec's reconstruction and the model, on fixed sentences.

    python -m benchmarks.voice_quality                          the embedded voice through the engine
    python -m benchmarks.voice_quality --model FOLDER           another checkpoint of the embedded kind
    python -m benchmarks.voice_quality --encoder FILE           adds reconstructions of the teacher
    python -m benchmarks.voice_quality --listener FILE          adds the second recognizer (phoneme_recognizer.py)
    python -m benchmarks.voice_quality --mos                    adds DNSMOS (training/mos.py)
    python -m benchmarks.voice_quality --recordings FOLDER      existing recordings (speech_sources.py)

Needs the teachers (``training/README.md``) and the dependency group ``training``. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.codec_roundtrip import CodecCopies
from benchmarks.speech_sources import TEACHERS, EngineSource, Recordings, Setting, SpeechSource, Task, TeacherSource
from benchmarks.voice_metrics import (
    Gate,
    Recognizers,
    Row,
    SentenceMetrics,
    bandwidth_gate,
    gates_of,
    measure,
    read_tasks,
    row_of,
)
from training.acoustics import Band, Signal, VoicePrint, band
from training.asr_judge import to_16k

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
    "mos_overall": "MOS",
    "mos_p808": "P.808",
    "roll_off_hz": "99%Hz",
    "start_peak": "start%",
}


def heading() -> str:
    return f"{'speaker':8} {'setting':20}" + "".join(f"{title:>8}" for title in COLUMNS.values())


def table_line(row: Row) -> str:
    cells = ("-" if value is None else f"{value:g}" for value in (getattr(row, name) for name in COLUMNS))
    return f"{row.speaker:8} {row.setting:20}" + "".join(f"{cell:>8}" for cell in cells)


Spoken = tuple[list[Task], list[Signal], list[Band]]


class Table:
    """Synthesize and measure in ``jobs`` processes, and print the rows in order."""

    def __init__(self, tasks: Sequence[Task], recognizers: Recognizers, jobs: int) -> None:
        self._tasks, self._recognizers = tasks, recognizers
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(jobs, context, initializer=torch.set_num_threads, initargs=(1,))
        self._taught: dict[str, list[Signal]] = {}
        self._prints: dict[str, list[VoicePrint]] = {}
        self.rows: list[Row] = []

    def run(self, speakers: Sequence[tuple[str, SpeechSource, Setting]]) -> None:
        """Evaluate the teacher, then ``speakers``."""
        with self._pool:
            teaching = [("teacher", TeacherSource(), Setting(voice)) for voice in TEACHERS]
            speeches = [self._pool.submit(speak, source, self._tasks, setting) for _, source, setting in teaching]
            speeches += [self._pool.submit(speak, source, self._tasks, setting) for _, source, setting in speakers]
            self._taught = dict(zip(TEACHERS, (speech.result()[1] for speech in speeches[:2]), strict=True))
            rows = [
                (name, setting, *self._measure(name, setting, speech))
                for (name, _, setting), speech in zip([*teaching, *speakers], speeches, strict=True)
            ]
            print(heading())
            self._prints = {
                setting.voice: [one.result().voice for one in found] for _, setting, _, found in rows[: len(TEACHERS)]
            }
            for row in rows:
                self._finish(*row)

    def _measure(
        self, name: str, setting: Setting, speech: Future[Spoken]
    ) -> tuple[list[Task], list[Future[SentenceMetrics]]]:
        tasks, signals, bands = speech.result()
        taught = dict(zip((task.number for task in self._tasks), self._taught[setting.voice], strict=True))
        return tasks, [
            self._pool.submit(
                measure, task.text, signal, taught[task.number], self._recognizers, width, is_copy=name == "codec"
            )
            for task, signal, width in zip(tasks, signals, bands, strict=True)
        ]

    def _finish(self, name: str, setting: Setting, tasks: list[Task], found: list[Future[SentenceMetrics]]) -> None:
        row = row_of(name, setting, tasks, [one.result() for one in found], self._prints)
        self.rows.append(row)
        print(table_line(row), flush=True)

    def gates(self) -> list[tuple[Row, Gate]]:
        teachers = {row.setting: row for row in self.rows if row.speaker == "teacher"}
        return [(row, gate) for row in self.rows for gate in gates_of(row, teachers[row.setting.split(" ")[0]])]


def speak(source: SpeechSource, tasks: Sequence[Task], setting: Setting) -> Spoken:
    """Synthesize those of ``tasks`` that ``source`` has, at 16 kHz, and measure the band before resampling."""
    numbers = source.numbers(setting)
    chosen = [task for task in tasks if numbers is None or task.number in numbers]
    spoken = list(source(chosen, setting))
    bands = [band(pcm / 32_768 if pcm.dtype.kind == "i" else pcm, source.rate_hz) for pcm in spoken]
    return chosen, [to_16k(pcm, source.rate_hz) for pcm in spoken], bands


def speakers(options: argparse.Namespace) -> Iterator[tuple[str, SpeechSource, Setting]]:
    found: list[tuple[str, Recordings | EngineSource | CodecCopies]] = []
    if options.encoder:
        found.append(("codec", CodecCopies(options.model, options.encoder)))
    if options.recordings:
        found.append(("model", Recordings(options.recordings)))
    elif not options.no_model:
        found.append(("model", EngineSource(options.model, options.device)))
    for name, source in found:
        for setting in source.settings:
            if not setting.batch or setting.batch in options.batch:
                yield name, source, setting


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Evaluate the voice on the fixed sentences.")
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: the embedded voice")
    parser.add_argument("--recordings", type=Path, help="recordings of the model's speech instead of an engine")
    parser.add_argument("--encoder", type=Path, help="weights of the encoder, for reconstructions of the teacher")
    parser.add_argument("--no-model", action="store_true", help="evaluate teacher and codec only")
    parser.add_argument("--batch", type=int, nargs="+", default=(1, 12), help="batch sizes")
    parser.add_argument("--every", type=int, default=1, help="use every n-th sentence only")
    parser.add_argument("--no-stock", action="store_true", help="skip the stock language model")
    parser.add_argument("--mos", action="store_true", help="add DNSMOS and its gates")
    parser.add_argument("--listener", type=Path, help="weights of the second recognizer")
    parser.add_argument("--device", default="auto", help="device of the engine")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each")
    options = parser.parse_args(arguments)
    tasks, _ = read_tasks(options.every)
    table = Table(tasks, Recognizers(not options.no_stock, options.listener, options.mos), options.jobs)
    table.run(list(speakers(options)))
    report(tasks, table)


def report(tasks: Sequence[Task], table: Table) -> None:
    gates = table.gates()
    for row, gate in gates:
        verdict = "held  " if gate.passed else "FAILED"
        print(f"{verdict} {row.speaker} {row.setting}: {gate.name} {gate.value:g} ({gate.limit:g})")
    widest = bandwidth_gate(table.rows)
    if widest is not None:
        print(f"{'held  ' if widest.passed else 'FAILED'} model: {widest.name} {widest.value:g} ({widest.limit:g})")
    rows = [asdict(row) for row in table.rows]
    failed = sum(not gate.passed for gate in (*(gate for _, gate in gates), *([widest] if widest else ())))
    summary = {"benchmark": "voice_quality", "num_sentences": len(tasks), "rows": rows, "gates_failed": failed}
    print(json.dumps(summary))


if __name__ == "__main__":
    main(sys.argv[1:])
