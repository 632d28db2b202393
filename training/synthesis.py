"""Synthesis in the background: many processes speak the stream of texts into shards that grow as they go."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Self

from training import flite, teachers
from training.flite import TeacherSettings
from training.settings import SAMPLE_RATE, SOURCE_RATE
from training.shards import ShardWriter, SpeechStore
from training.text import TextSettings, TextSource


@dataclass(frozen=True)
class SynthesisSettings:
    folder: Path
    num_workers: int
    # The whole stream stops here, or when the pool is closed.
    num_utterances: int
    # Sentence ``n`` is spoken by voice ``n % len(voices)``.
    voices: tuple[str, ...] = ("slt", "rms")
    first_number: int = 0
    text: TextSettings = field(default_factory=TextSettings)
    teacher: TeacherSettings = field(default_factory=TeacherSettings)
    # SAMPLE_RATE for the full-band teachers, SOURCE_RATE for flite's voices as they are.
    rate_hz: int = SOURCE_RATE


def speak_shard(settings: SynthesisSettings, shard: int, stop: Event | None = None) -> None:
    """Speak every ``num_workers``-th sentence, starting with number ``shard``, as long as the parent process lives."""
    parent = multiprocessing.parent_process()
    source = TextSource(settings.text)
    synthesize = teachers.synthesize if settings.rate_hz == SAMPLE_RATE else flite.synthesize
    first, last = settings.first_number + shard, settings.first_number + settings.num_utterances
    with ShardWriter(settings.folder, shard) as writer:
        for number in range(first, last, settings.num_workers):
            if (stop is not None and stop.is_set()) or (parent is not None and not parent.is_alive()):
                return
            voice = number % len(settings.voices)
            text = source.sentence(number)
            writer.append(number, voice, text, synthesize(text, settings.voices[voice], settings.teacher))


class SynthesisPool:
    """Worker processes for ``settings``; leaving the context ends them after the sentence in hand."""

    def __init__(self, settings: SynthesisSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._processes = [
            context.Process(target=speak_shard, args=(settings, shard, self._stop), daemon=True)
            for shard in range(settings.num_workers)
        ]

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.join()

    def join(self) -> None:
        """Wait until every sentence is spoken; raises if a worker failed."""
        for process in self._processes:
            process.join()
        failed = sum(process.exitcode != 0 for process in self._processes)
        if failed:
            raise RuntimeError(f"synthesis: {failed} of {len(self._processes)} workers failed")

    @property
    def running(self) -> bool:
        return any(process.is_alive() for process in self._processes)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Speak the training sentences into a folder of shards.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--utterances", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--voices", default="slt,rms")
    parser.add_argument("--rate-hz", type=int, choices=(SOURCE_RATE, SAMPLE_RATE), default=SOURCE_RATE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prose", type=Path)
    options = parser.parse_args(arguments)
    text = TextSettings(options.seed, options.prose)
    settings = SynthesisSettings(
        options.folder,
        options.workers,
        options.utterances,
        tuple(options.voices.split(",")),
        text=text,
        rate_hz=options.rate_hz,
    )
    start = time.perf_counter()
    with SynthesisPool(settings) as pool:
        pool.join()
    seconds, store = time.perf_counter() - start, SpeechStore(options.folder)
    total_s = store.num_samples / options.rate_hz
    print(f"{len(store)} utterances, {total_s:.0f} s of speech in {seconds:.1f} s, {total_s / seconds:.0f} x")


if __name__ == "__main__":
    main(sys.argv[1:])
