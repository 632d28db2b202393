"""Sources of speech for ``voice_quality``: the teacher, existing recordings, and the engine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engine.api import RequestFinished, SamplingParams, SpeechChunk, SpeechEngine, SpeechRequest, TextLayout
from training import teachers
from training.settings import SAMPLE_RATE

# flite's voice that is most like each voice, for benchmarks that need flite's times.
TEACHERS = {"clara": "slt", "edwin": "rms"}
# Sentence ``n`` uses seed SEED + n.
SEED = 20_000

Pcm = npt.NDArray[Any]


@dataclass(frozen=True)
class Task:
    # Which of the fixed sentences.
    number: int
    text: str


@dataclass(frozen=True)
class Setting:
    voice: str
    layout: str = "-"
    batch: int = 0

    def __str__(self) -> str:
        return f"{self.voice} {self.layout} {self.batch}" if self.batch else self.voice


class SpeechSource(Protocol):
    """A source of speech; ``rate_hz`` is the rate of its PCM (int16, or float in [-1, 1])."""

    rate_hz: int

    def __call__(self, tasks: Sequence[Task], setting: Setting) -> list[Pcm]: ...

    def numbers(self, setting: Setting) -> set[int] | None:
        """Indices of its sentences; None means all."""


class TeacherSource:
    """The synthesizers that the embedded voice learned from."""

    rate_hz = SAMPLE_RATE

    def __init__(self) -> None:
        self._teachers = teachers.TEACHERS

    def numbers(self, setting: Setting) -> None:
        """All indices: it synthesizes any sentence."""

    def __call__(self, tasks: Sequence[Task], setting: Setting) -> list[Pcm]:
        return [teachers.synthesize(task.text, self._teachers[setting.voice]).pcm for task in tasks]


def save_recordings(path: Path, rate_hz: int, recordings: dict[int, Pcm]) -> None:
    """Write PCM by sentence number; int16 files of 50 sentences at 16 kHz take about 7 MB."""
    pieces = [_sixteen_bits(pcm) for pcm in recordings.values()]
    ends = np.cumsum([len(pcm) for pcm in pieces])
    numbers = np.array(list(recordings), np.int64)
    np.savez_compressed(path, rate_hz=rate_hz, numbers=numbers, ends=ends, pcm=np.concatenate(pieces))


def _sixteen_bits(pcm: Pcm) -> npt.NDArray[np.int16]:
    return pcm if pcm.dtype == np.int16 else np.round(np.clip(pcm, -1, 1) * 32767).astype(np.int16)


class Recordings:
    """A folder of ``VOICE.npz`` or ``VOICE-LAYOUT-BATCH.npz`` that ``save_recordings`` wrote."""

    def __init__(self, folder: Path) -> None:
        self._paths = {self._setting(path): path for path in sorted(folder.glob("*.npz"))}
        if not self._paths:
            raise FileNotFoundError(f"{folder}: no recordings (*.npz)")
        self.rate_hz = int(np.load(next(iter(self._paths.values())))["rate_hz"])

    @staticmethod
    def _setting(path: Path) -> Setting:
        voice, layout, batch = [*path.stem.split("-"), "-", "0"][:3]
        return Setting(voice, layout, int(batch))

    @property
    def settings(self) -> list[Setting]:
        return list(self._paths)

    def numbers(self, setting: Setting) -> set[int]:
        return set(np.load(self._paths[setting])["numbers"].tolist())

    def __call__(self, tasks: Sequence[Task], setting: Setting) -> list[Pcm]:
        file = np.load(self._paths[setting])
        pieces = dict(zip(file["numbers"].tolist(), np.split(file["pcm"], file["ends"][:-1]), strict=True))
        return [pieces[task.number] for task in tasks]


class EngineSource:
    """The real engine over a checkpoint folder, ``None`` for the embedded voice."""

    def __init__(self, model: Path | None, device: str = "auto") -> None:
        self._model, self._device = model, device
        self.rate_hz = 24_000
        self.settings = [
            Setting(voice, layout, batch)
            for voice in TEACHERS
            for layout in (TextLayout.FULL, TextLayout.STREAMING)
            for batch in (1, 12)
        ]

    def numbers(self, setting: Setting) -> None:
        """All indices: it synthesizes any sentence."""

    def __call__(self, tasks: Sequence[Task], setting: Setting) -> list[Pcm]:
        return asyncio.run(self._speak_all(tasks, setting))

    async def _speak_all(self, tasks: Sequence[Task], setting: Setting) -> list[Pcm]:
        from engine.launch import create_engine

        engine = create_engine(self._model, device=self._device)
        await engine.start()
        try:
            self.rate_hz = engine.info.sample_rate
            turns = asyncio.Semaphore(setting.batch)

            async def take_turn(task: Task) -> Pcm:
                async with turns:
                    return await _speak_one(engine, task, setting)

            return list(await asyncio.gather(*map(take_turn, tasks)))
        finally:
            await engine.aclose()


async def _speak_one(engine: SpeechEngine, task: Task, setting: Setting) -> Pcm:
    """Synthesize a sentence: full layout with all text at submit, streaming layout word by word."""
    full = setting.layout == TextLayout.FULL
    request = SpeechRequest(
        request_id=f"sentence-{task.number}",
        voice=setting.voice,
        language="english",
        text=task.text if full else "",
        text_closed=full,
        layout=TextLayout(setting.layout),
        sampling=SamplingParams(seed=SEED + task.number),
    )
    stream = engine.submit(request)
    if not full:
        for word in re.findall(r"\s*\S+", task.text):
            stream.push_text(word)
            await asyncio.sleep(0)
        stream.end_input()
    pieces: list[Pcm] = []
    async for event in stream:
        if isinstance(event, SpeechChunk):
            pieces.append(event.pcm)
        if isinstance(event, RequestFinished):
            break
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
