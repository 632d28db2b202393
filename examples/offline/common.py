"""Shared by the offline examples: an engine in this process, recordings, and one text spoken into files."""

from __future__ import annotations

import argparse
import json
import time
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from engine.api import ReferenceAudio, RequestFinished, SpeechChunk, SpeechEngine, SpeechRequest
from engine.launch import create_engine
from sessions.audio.recordings.decode import decode_recording


def parser_of(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="checkpoint folder, or OWNER/NAME (default: the embedded voice)")
    parser.add_argument("--out", type=Path, default=Path("spoken"), help="folder of the files (default: spoken)")
    parser.add_argument("--language", default="auto")
    parser.add_argument("--seed", type=int, help="the same seed gives the same speech")
    parser.add_argument("--max-frames", type=int, help="longest speech, in codec frames")
    return parser


@asynccontextmanager
async def running_engine(model: Path | None) -> AsyncIterator[SpeechEngine]:
    engine = create_engine(model, process=False)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.aclose()


def read_recording(path: Path, engine: SpeechEngine, transcript: str = "") -> ReferenceAudio:
    pcm = decode_recording(path.read_bytes(), engine.info.sample_rate, engine.info.max_sample_s)
    return ReferenceAudio(pcm=pcm.tobytes(), transcript=transcript)


async def speak(engine: SpeechEngine, request: SpeechRequest, out: Path) -> dict[str, Any]:
    """Write NAME.wav while it is spoken, each chunk as NAME-000.wav and so on, and the timing as NAME.json.

    NAME is the request's id. Returns the timing. Raises ``SystemExit`` with the reason if the engine refuses.
    """
    out.mkdir(parents=True, exist_ok=True)
    name, rate = request.request_id, engine.info.sample_rate
    chunks: list[dict[str, Any]] = []
    num_samples, start_s = 0, time.monotonic()
    with open_wav(out / f"{name}.wav", rate) as whole:
        async for event in engine.submit(request):
            match event:
                case SpeechChunk():
                    data = (np.clip(event.pcm, -1, 1) * 32_767).astype("<i2").tobytes()
                    whole.writeframes(data)
                    file = out / f"{name}-{len(chunks):03}.wav"
                    with open_wav(file, rate) as part:
                        part.writeframes(data)
                    chunks.append(
                        {
                            "file": file.name,
                            "arrived_ms": round(1000 * (time.monotonic() - start_s), 1),
                            "start_ms": round(1000 * num_samples / rate, 1),
                            "audio_ms": round(1000 * len(event.pcm) / rate, 1),
                        }
                    )
                    num_samples += len(event.pcm)
                case RequestFinished():
                    if event.error is not None:
                        raise SystemExit(event.error.message)
                    finished = event
    elapsed_s, audio_s = time.monotonic() - start_s, num_samples / rate
    timing = {
        "file": f"{name}.wav",
        "reason": finished.reason,
        "seed": finished.seed,
        "audio_s": round(audio_s, 2),
        "first_audio_ms": chunks[0]["arrived_ms"] if chunks else None,
        "elapsed_s": round(elapsed_s, 2),
        "real_time_factor": round(elapsed_s / audio_s, 2) if audio_s else None,
    }
    (out / f"{name}.json").write_text(json.dumps(timing | {"chunks": chunks}, indent=1) + "\n")
    return timing


def open_wav(path: Path, sample_rate: int) -> wave.Wave_write:
    file = wave.open(str(path), "wb")
    file.setparams((1, 2, sample_rate, 0, "NONE", ""))
    return file


def show(*timings: dict[str, Any]) -> None:
    for timing in timings:
        print(json.dumps(timing))
