"""Clips of the embedded voice: those that are missing in a folder are spoken into it, in one batch."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import numpy as np

from engine.api import RequestFinished, SamplingParams, SpeechChunk, SpeechEngine, SpeechRequest
from engine.launch import create_engine
from sessions.audio.pcm import Pcm
from sessions.audio.recordings.decode import decode_recording
from sessions.audio.wav import wav_file

RATE = 24_000
MIN_CLIP_S, MAX_CLIP_S = 6.5, 60
SENTENCES = Path(__file__).parent.with_name("voice_sentences.txt")
# Nearly all of these take 6.5 s or more, and few above 9 s: the mark is the harder to find, the shorter a clip is.
MIN_CHARS, MAX_CHARS = 118, 138
BATCH_ROWS = 24


def make_texts(count: int) -> list[str]:
    """Return different texts of some sentences each."""
    lines = [line for line in SENTENCES.read_text().splitlines() if line and line[0] not in "#["]
    draw, texts = random.Random(5), dict[str, None]()
    while len(texts) < count:
        words: list[str] = []
        while len(" ".join(words)) < MIN_CHARS:
            words.append(draw.choice(lines))
        if len(" ".join(words)) < MAX_CHARS:
            texts[" ".join(words)] = None
    return list(texts)


def clip_file(folder: Path, number: int) -> Path:
    return folder / f"{number:04}.wav"


def read_clip(folder: Path, number: int) -> Pcm:
    return decode_recording(clip_file(folder, number).read_bytes(), RATE, MAX_CLIP_S)


async def make_clips(folder: Path, count: int) -> None:
    """Speak the clips that are not in the folder yet."""
    missing = [(n, text) for n, text in enumerate(make_texts(count)) if not clip_file(folder, n).exists()]
    if not missing:
        return
    engine, rows = create_engine(None, process=False), asyncio.Semaphore(BATCH_ROWS)
    await engine.start()
    try:
        await asyncio.gather(*(_make_clip(engine, rows, folder, number, text) for number, text in missing))
    finally:
        await engine.aclose()


async def _make_clip(engine: SpeechEngine, rows: asyncio.Semaphore, folder: Path, number: int, text: str) -> None:
    request = SpeechRequest(
        request_id=f"clip-{number}",
        text=text,
        text_closed=True,
        voice=engine.info.voices[number % len(engine.info.voices)].name,
        language="auto",
        sampling=SamplingParams(seed=number),
    )
    pieces = []
    async with rows:
        async for event in engine.submit(request):
            match event:
                case SpeechChunk():
                    pieces.append(event.pcm)
                case RequestFinished(error=error) if error is not None:
                    raise RuntimeError(error.message)
    # A run that is stopped leaves no half clip.
    part = folder / f"{number:04}.part"
    part.write_bytes(wav_file(np.concatenate(pieces), RATE))
    part.rename(clip_file(folder, number))
