"""Measure a checkpoint that speaks, with one command: words, speaker, runaways, drift over long text, first audio.

    python -m benchmarks.released [--model FOLDER|OWNER/NAME] [--device auto] [--voice NAME]
    [--recording WAV [--transcript TEXT]] [--speaker-model FOLDER] [--transcriber URL [--transcriber-model NAME]]
    [--texts FILE] [--every 1] [--concurrency 8] [--long-chars 3000] [--ttfa-replies 20]

Without ``--model`` it measures the embedded voice. ``--recording`` (mono WAV of 16 bits) is the voice of a checkpoint
that clones. Word errors need ``--transcriber``, a server with OpenAI's ``/v1/audio/transcriptions``; its key is
``TRANSCRIBER_KEY`` of the environment. The speaker's similarity needs a speaker encoder: that of the checkpoint, or of
``--speaker-model``. What is not measured is null. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
import wave
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import numpy.typing as npt

from engine.api import (
    ClonedVoice,
    FinishReason,
    ReferenceAudio,
    RequestFinished,
    SamplingParams,
    SpeechChunk,
    SpeechEngine,
    SpeechRequest,
    TextLayout,
)
from engine.launch import create_engine
from sessions.audio.resampler import Resampler
from sessions.audio.wav import wav_file
from training.held_out import SENTENCES, read_sentences, words_of

Pcm = npt.NDArray[np.float32]
# Speech longer than this many times the median per character is a runaway, too.
MAX_LENGTH_RATIO = 3.0
# Parts of a long text that are compared with the first.
PART_S = 10.0
# A long text that does not fit is tried again with this share of its characters.
SHORTER, MIN_LONG_CHARS = 0.8, 20
# An encoder needs this much.
MIN_SPEAKER_S = 1.0


@dataclass(frozen=True)
class Spoken:
    text: str
    pcm: Pcm
    reason: FinishReason
    ttfa_ms: float | None
    # The code of the error that ended it.
    error: str | None = None


class Speaker:
    """Speaks texts with one voice, with seeds that depend on the text's number alone."""

    def __init__(self, engine: SpeechEngine, voice: str | ClonedVoice | None, language: str, concurrency: int) -> None:
        self._engine, self._voice, self._language = engine, voice, language
        self._turns = asyncio.Semaphore(concurrency)

    async def speak_all(self, texts: Sequence[str]) -> list[Spoken]:
        return list(await asyncio.gather(*(self._take_turn(number, text) for number, text in enumerate(texts))))

    async def _take_turn(self, number: int, text: str) -> Spoken:
        async with self._turns:
            return await self.speak(number, text)

    async def speak(self, number: int, text: str) -> Spoken:
        request = SpeechRequest(
            request_id=f"released-{number}", voice=self._voice, language=self._language, text=text, text_closed=True,
            layout=TextLayout.AUTO, sampling=SamplingParams(seed=number),
        )  # fmt: skip
        begun_s, first_s, pieces = time.monotonic(), None, []
        async for event in self._engine.submit(request):
            if isinstance(event, SpeechChunk):
                first_s = first_s or time.monotonic()
                pieces.append(event.pcm)
            elif isinstance(event, RequestFinished):
                break
        pcm = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
        ttfa_ms = None if first_s is None else 1000 * (first_s - begun_s)
        return Spoken(text, pcm, event.reason, ttfa_ms, event.error.code if event.error else None)

    async def speak_long(self, sentences: Sequence[str], num_chars: int) -> Spoken:
        """Speak so much text as one request, or as much of it as fits into the context."""
        while True:
            spoken = await self.speak(len(sentences), long_text(sentences, num_chars))
            if spoken.error != "request_too_long" or num_chars < MIN_LONG_CHARS:
                return spoken
            num_chars = int(SHORTER * num_chars)


def count_word_errors(text: str, heard: str) -> int:
    """Words inserted, deleted or replaced."""
    words, previous = words_of(heard), list(range(len(words_of(heard)) + 1))
    for row, wanted in enumerate(words_of(text), 1):
        current = [row]
        for column, word in enumerate(words, 1):
            current.append(min(previous[column] + 1, current[-1] + 1, previous[column - 1] + (word != wanted)))
        previous = current
    return previous[-1]


class Transcriber:
    def __init__(self, url: str, model: str, rate_hz: int) -> None:
        key = os.environ.get("TRANSCRIBER_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(base_url=url, headers=headers, timeout=300, trust_env=False)
        self._model, self._rate_hz = model, rate_hz

    async def word_error_rate(self, spoken: Sequence[Spoken]) -> float:
        async with self._client:
            heard = [await self._transcribe(one.pcm) for one in spoken]
        errors = sum(count_word_errors(one.text, text) for one, text in zip(spoken, heard, strict=True))
        return errors / sum(len(words_of(one.text)) for one in spoken)

    async def _transcribe(self, pcm: Pcm) -> str:
        file = ("speech.wav", wav_file(pcm, self._rate_hz), "audio/wav")
        data = {"model": self._model, "response_format": "json"}
        answer = await self._client.post("/v1/audio/transcriptions", data=data, files={"file": file})
        answer.raise_for_status()
        return str(answer.json()["text"])


class SpeakerSpace:
    """Speaker embeddings by a checkpoint's own encoder."""

    def __init__(self, engine: SpeechEngine) -> None:
        self._engine = engine

    async def embed(self, pcm: Pcm, rate_hz: int) -> npt.NDArray[np.float64]:
        """Return the embedding, [embedding_size], of length 1."""
        info = self._engine.info
        audio = resample(pcm, rate_hz, info.sample_rate)[: int(info.max_sample_s * info.sample_rate)]
        voice = await self._engine.encode_voice(ReferenceAudio(pcm=audio.tobytes()))
        vector = np.frombuffer(voice.embedding, np.float32).astype(np.float64)
        return vector / np.linalg.norm(vector)

    async def similarity(self, spoken: Sequence[Spoken], rate_hz: int, reference: Pcm | None) -> dict[str, Any]:
        """Cosines with the recording; without one, with the mean of the other sentences."""
        long = [one.pcm for one in spoken if len(one.pcm) >= MIN_SPEAKER_S * rate_hz]
        vectors = np.array([await self.embed(pcm, rate_hz) for pcm in long])
        if len(vectors) < 2:
            return {"to": None, "mean": None, "min": None}
        if reference is not None:
            targets = np.broadcast_to(await self.embed(reference, rate_hz), vectors.shape)
        else:
            targets = vectors.sum(axis=0) - vectors
        cosines = (vectors * targets).sum(axis=1) / np.linalg.norm(targets, axis=1)
        to = "other sentences" if reference is None else "recording"
        return {"to": to, "mean": round(float(cosines.mean()), 4), "min": round(float(cosines.min()), 4)}


def resample(pcm: Pcm, from_hz: int, to_hz: int) -> Pcm:
    if from_hz == to_hz:
        return pcm
    resampler = Resampler(from_hz, to_hz)
    return np.concatenate([resampler.push(pcm), resampler.flush()])


def read_recording(path: Path, rate_hz: int) -> Pcm:
    """Read mono WAV of 16 bits. Raises ``ValueError`` for others."""
    with wave.open(str(path)) as file:
        if (file.getnchannels(), file.getsampwidth()) != (1, 2):
            found = f"{file.getnchannels()} channels of {8 * file.getsampwidth()} bits"
            raise ValueError(f"{path} has {found}; must have 1 of 16")
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        return resample(samples.astype(np.float32) / 32_768, file.getframerate(), rate_hz)


def count_runaways(spoken: Sequence[Spoken], rate_hz: int) -> dict[str, Any]:
    """Replies that a guard or the frame cap ended, that are far too long, or that hold no audio."""
    reasons = Counter(one.error or str(one.reason) for one in spoken)
    rates = np.array([len(one.pcm) / rate_hz / len(one.text) for one in spoken])
    is_long = rates > MAX_LENGTH_RATIO * np.median(rates)
    is_cut = np.array([one.reason != FinishReason.STOP for one in spoken])
    return {
        "share": round(float((is_long | is_cut | (rates == 0)).mean()), 5),
        "reasons": dict(reasons),
        "too_long": int(is_long.sum()),
        "silent": int((rates == 0).sum()),
        "longest_s": round(max(len(one.pcm) for one in spoken) / rate_hz, 2),
    }


async def measure_drift(spoken: Spoken, rate_hz: int, space: SpeakerSpace | None) -> dict[str, Any]:
    """Compare parts of one long reply with its first: loudness, and speaker if there is an encoder."""
    size = int(PART_S * rate_hz)
    parts = [spoken.pcm[at : at + size] for at in range(0, max(1, len(spoken.pcm) - size + 1), size)]
    loudness = [20 * np.log10(max(1e-6, float(np.sqrt(np.mean(part**2))))) if len(part) else -120.0 for part in parts]
    cosines: list[float] | None = None
    if space is not None and len(parts) > 1:
        vectors = [await space.embed(part, rate_hz) for part in parts]
        cosines = [round(float(vectors[0] @ vector), 4) for vector in vectors[1:]]
    return {
        "seconds": round(len(spoken.pcm) / rate_hz, 1),
        "s_per_char": round(len(spoken.pcm) / rate_hz / len(spoken.text), 4),
        "chars": len(spoken.text),
        "reason": spoken.error or str(spoken.reason),
        "loudness_change_db": round(float(loudness[-1] - loudness[0]), 2),
        "speaker_similarity_to_start": cosines,
    }


def percentiles(spoken: Sequence[Spoken]) -> dict[str, float] | None:
    times = [one.ttfa_ms for one in spoken if one.ttfa_ms is not None]
    return {f"p{at}": round(float(np.percentile(times, at)), 1) for at in (50, 95)} if times else None


def long_text(sentences: Sequence[str], num_chars: int) -> str:
    text = ""
    for sentence in sentences:
        if len(text) >= num_chars:
            break
        text += f" {sentence}" if text else sentence
    return text


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    engine = create_engine(args.model, device=args.device)
    await engine.start()
    other = None
    try:
        if args.speaker_model is not None:
            other = create_engine(args.speaker_model, device=args.device)
            await other.start()
        return await measure_engine(engine, other or engine, args)
    finally:
        await engine.aclose()
        if other is not None:
            await other.aclose()


async def measure_engine(engine: SpeechEngine, encoder: SpeechEngine, args: argparse.Namespace) -> dict[str, Any]:
    rate_hz, sentences = engine.info.sample_rate, read_sentences(args.texts)
    texts = sentences[:: args.every]
    reference = None if args.recording is None else read_recording(args.recording, rate_hz)
    voice: str | ClonedVoice | None = args.voice
    if engine.info.task == "base":
        if reference is None:
            raise ValueError("--recording is missing: this checkpoint clones a voice")
        voice = await engine.encode_voice(ReferenceAudio(pcm=reference.tobytes(), transcript=args.transcript))
    space = SpeakerSpace(encoder) if encoder.info.can_encode else None
    await Speaker(engine, voice, args.language, 1).speak_all(texts[:2])
    alone = await Speaker(engine, voice, args.language, 1).speak_all(texts[: args.ttfa_replies])
    speaker = Speaker(engine, voice, args.language, args.concurrency)
    spoken = await speaker.speak_all(texts)
    long = await speaker.speak_long(sentences, args.long_chars)
    transcriber = Transcriber(args.transcriber, args.transcriber_model, rate_hz) if args.transcriber else None
    return {
        "benchmark": "released",
        "model": engine.info.model,
        "num_texts": len(texts),
        "word_error_rate": round(await transcriber.word_error_rate(spoken), 5) if transcriber else None,
        "speaker_similarity": await space.similarity(spoken, rate_hz, reference) if space else None,
        "runaways": count_runaways(spoken, rate_hz),
        "drift": await measure_drift(long, rate_hz, space),
        "ttfa_ms": {"1": percentiles(alone), str(args.concurrency): percentiles(spoken)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="checkpoint folder or OWNER/NAME; default: the embedded voice")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--voice", help="a named voice; default: the checkpoint's first")
    parser.add_argument("--language", default="auto")
    parser.add_argument("--recording", type=Path)
    parser.add_argument("--transcript", default="")
    parser.add_argument("--speaker-model", type=Path, help="checkpoint whose speaker encoder is used")
    parser.add_argument("--transcriber", metavar="URL")
    parser.add_argument("--transcriber-model", default="whisper-1")
    parser.add_argument("--texts", type=Path, default=SENTENCES, help="one text per line")
    parser.add_argument("--every", type=int, default=1, help="speak every n-th text only")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--long-chars", type=int, default=3_000)
    parser.add_argument("--ttfa-replies", type=int, default=20)
    report = asyncio.run(measure(parser.parse_args()))
    for name, value in report.items():
        print(f"{name:<20} {value}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
