"""Measure every task of the model family by length and language of the text: TTFA, speed, similarity.

    python -m benchmarks.model_tasks                             (small random checkpoints, without usable speech)
    python -m benchmarks.model_tasks --custom-voice FOLDER --voice-design FOLDER --base FOLDER [--device cuda]
        [--reference WAV --transcript WORDS] [--concurrency 1] [--repeats 3]

TTFA runs from the submission of the whole text to its first chunk. The real-time factor is latency over audio. Tokens
are codec frames. Similarity is the cosine of the speaker embeddings of recording and speech, if the checkpoint has the
encoder. Without ``--reference`` the embedded voice is recorded. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
import wave
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from engine.api import ClonedVoice, ReferenceAudio, RequestFinished, SpeechChunk, SpeechEngine, SpeechRequest
from engine.launch import create_engine
from tests.fakes.checkpoints import write_checkpoint

ENGLISH = "The last train leaves at ten, and nobody has told her that it will be late. "
CHINESE = "最后一班火车十点出发，还没有人告诉她会晚点。"
MIXED = "She said 最后一班火车 would leave at ten, 还没有人告诉她 that it is late. "
LANGUAGES = {"english": ENGLISH, "chinese": CHINESE, "mixed": MIXED}
# Characters of the text of each class.
LENGTHS = {"under 50": 40, "50 to 200": 150, "over 200": 260}
TASKS = {
    "CustomVoice": "custom_voice",
    "VoiceDesign": "voice_design",
    "Base x-vector": "base",
    "Base in-context": "base",
}
DESIGN = "A calm voice, low and close."
TRANSCRIPT = "Good evening. The last train leaves at ten, so please be there in time."


@dataclass(frozen=True)
class TaskResult:
    first_s: float
    latency_s: float
    audio_s: float
    num_frames: int
    pcm: bytes


@dataclass(frozen=True)
class Row:
    task: str
    language: str
    text: str
    requests: int
    ttfa_ms_p50: float
    ttfa_ms_p95: float
    latency_ms_p50: float
    latency_ms_p95: float
    real_time_factor: float
    requests_per_s: float
    tokens_per_s: float
    likeness: float | None


def text_of(language: str, length: str) -> str:
    """A text of a language with a number of characters."""
    wanted, sentence = LENGTHS[length], LANGUAGES[language]
    return (sentence * (wanted // len(sentence) + 1))[:wanted].strip()


async def speak(engine: SpeechEngine, request: SpeechRequest) -> TaskResult:
    begun_s, first_s, pieces, num_frames = time.monotonic(), 0.0, [], 0
    async for event in engine.submit(request):
        if isinstance(event, SpeechChunk) and len(event.pcm):
            first_s = first_s or time.monotonic() - begun_s
            pieces.append(event.pcm)
        elif isinstance(event, RequestFinished):
            num_frames = event.num_frames
            if event.error:
                raise SystemExit(f"{event.error.code}: {event.error.message}")
    pcm = np.concatenate(pieces)
    return TaskResult(
        first_s, time.monotonic() - begun_s, len(pcm) / engine.info.sample_rate, num_frames, pcm.tobytes()
    )


async def measure(
    engine: SpeechEngine, task: str, language: str, length: str, fields: dict[str, Any], args: argparse.Namespace
) -> Row:
    spoken_of = [name for name in engine.info.languages if name == language] or ["auto"]
    spec = dict(text=text_of(language, length), text_closed=True, language=spoken_of[0], max_frames=args.max_frames)
    await speak(engine, SpeechRequest(request_id="first", **(spec | fields)))
    begun_s = time.monotonic()
    found: list[TaskResult] = []
    for start in range(0, args.repeats * args.concurrency, args.concurrency):
        together = [SpeechRequest(request_id=str(start + i), **(spec | fields)) for i in range(args.concurrency)]
        found += await asyncio.gather(*(speak(engine, request) for request in together))
    seconds = time.monotonic() - begun_s
    return summary(task, language, length, found, seconds, await likeness(engine, fields.get("voice"), found[0]))


def summary(task: str, language: str, length: str, found: list[TaskResult], seconds: float, alike: float | None) -> Row:
    first, latency = (1000 * np.array([getattr(one, name) for one in found]) for name in ("first_s", "latency_s"))
    return Row(
        task=task,
        language=language,
        text=length,
        requests=len(found),
        ttfa_ms_p50=round(float(np.percentile(first, 50)), 1),
        ttfa_ms_p95=round(float(np.percentile(first, 95)), 1),
        latency_ms_p50=round(float(np.percentile(latency, 50)), 1),
        latency_ms_p95=round(float(np.percentile(latency, 95)), 1),
        real_time_factor=round(mean(one.latency_s / one.audio_s for one in found), 4),
        requests_per_s=round(len(found) / seconds, 3),
        tokens_per_s=round(sum(one.num_frames for one in found) / seconds, 1),
        likeness=alike,
    )


async def likeness(engine: SpeechEngine, voice: object, spoken: TaskResult) -> float | None:
    """Similarity; None without a cloned recording or a loaded encoder, or with too little speech."""
    is_long_enough = engine.info.min_sample_s <= spoken.audio_s <= engine.info.max_sample_s
    if not isinstance(voice, ClonedVoice) or not engine.info.can_encode or not is_long_enough:
        return None
    heard = await engine.encode_voice(ReferenceAudio(pcm=spoken.pcm))
    one, other = (np.frombuffer(v.embedding, np.float32) for v in (voice, heard))
    return round(float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other))), 4)


@asynccontextmanager
async def started(model: Path | None, device: str) -> AsyncIterator[SpeechEngine]:
    engine = create_engine(model, device=device)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.aclose()


async def recording(args: argparse.Namespace) -> ReferenceAudio:
    if args.reference is None:
        async with started(None, "cpu") as engine:
            spoken = await speak(engine, SpeechRequest(request_id="r", text=TRANSCRIPT.lower(), text_closed=True))
        return ReferenceAudio(pcm=spoken.pcm, transcript=TRANSCRIPT)
    with wave.open(str(args.reference), "rb") as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, 24_000):
            raise SystemExit(f"{args.reference}: the reference must be mono, 16 bits, 24000 Hz")
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
    return ReferenceAudio(pcm=samples.tobytes(), transcript=args.transcript)


async def fields_of(engine: SpeechEngine, task: str, sample: ReferenceAudio) -> dict[str, Any]:
    """Fields of a request of this task."""
    if task == "VoiceDesign":
        return {"instruct": DESIGN}
    if task == "CustomVoice":
        return {"voice": engine.info.voices[0].name}
    transcript = sample.transcript if task == "Base in-context" else ""
    return {"voice": await engine.encode_voice(ReferenceAudio(pcm=sample.pcm, transcript=transcript))}


async def run(args: argparse.Namespace, room: Path) -> list[Row]:
    rows, sample = [], await recording(args)
    for task, kind in TASKS.items():
        model = getattr(args, kind) or write_checkpoint(room / kind, task=kind)
        async with started(model, args.device) as engine:
            fields = await fields_of(engine, task, sample)
            for language, length in ((language, length) for language in LANGUAGES for length in LENGTHS):
                rows.append(await measure(engine, task, language, length, fields, args))
                print(*lines([rows[-1]], heading=len(rows) == 1), sep="\n", flush=True)
    return rows


def lines(rows: list[Row], heading: bool) -> Iterator[str]:
    if heading:
        counts = f"{'RTF':>8}{'req/s':>8}{'tok/s':>8}{'like':>7}"
        yield f"{'task':16}{'language':9}{'text':10}{'TTFA ms':>16}{'latency ms':>18}{counts}"
    for row in rows:
        times = f"{row.ttfa_ms_p50:8.1f}{row.ttfa_ms_p95:8.1f}{row.latency_ms_p50:9.1f}{row.latency_ms_p95:9.1f}"
        alike = "-" if row.likeness is None else f"{row.likeness:.3f}"
        rates = f"{row.real_time_factor:8.3f}{row.requests_per_s:8.2f}{row.tokens_per_s:8.1f}{alike:>7}"
        yield f"{row.task:16}{row.language:9}{row.text:10}{times}{rates}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind in sorted(set(TASKS.values())):
        parser.add_argument(f"--{kind.replace('_', '-')}", type=Path, metavar="FOLDER", dest=kind)
    parser.add_argument("--reference", type=Path, metavar="WAV")
    parser.add_argument("--transcript", default="")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-frames", type=int, help="maximum codec frames (random checkpoints never end)")
    args = parser.parse_args()
    if args.max_frames is None and not any(getattr(args, kind) for kind in TASKS.values()):
        args.max_frames = 25
    with tempfile.TemporaryDirectory() as room:
        rows = asyncio.run(run(args, Path(room)))
    print(json.dumps({"device": args.device, "concurrency": args.concurrency, "rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
