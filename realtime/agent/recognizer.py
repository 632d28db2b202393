"""Transcripts of spoken turns: ``POST /v1/audio/transcriptions`` of an OpenAI-compatible server."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np

from realtime.agent.backend import Backend, BackendFailed
from realtime.integration_config import AgentSettings
from sessions.audio.resampler import Resampler
from sessions.audio.wav import wav_file
from sessions.vad.energy import DECODERS
from sessions.vad.turns import SpokenTurn

# What recognizers work with; whisper.cpp's server accepts nothing else.
RATE = 16_000
MAX_TRANSCRIPT_CHARS = 8_000


class _Transcript(msgspec.Struct):
    text: str


class Recognizer:
    def __init__(self, backend: Backend, settings: AgentSettings, language: str) -> None:
        self._backend, self._settings = backend, settings
        self._fields = {"model": settings.stt_model, "response_format": "json"}
        if language:
            self._fields["language"] = language

    async def aclose(self) -> None:
        await self._backend.aclose()

    async def transcribe(self, turn: SpokenTurn) -> str:
        """Return the text, empty if nothing was understood. Raises ``BackendFailed``."""
        wav = await asyncio.to_thread(encode_wav, turn)
        try:
            async with asyncio.timeout(self._settings.stt_timeout_s):
                for _ in range(self._settings.num_retries):
                    try:
                        return await self._attempt(wav)
                    except BackendFailed as error:
                        if not error.may_retry:
                            raise
                    await asyncio.sleep(self._settings.retry_pause_s)
                return await self._attempt(wav)
        except TimeoutError:
            raise self._backend.failed("did not answer in time") from None

    async def _attempt(self, wav: bytes) -> str:
        files = {"file": ("turn.wav", wav, "audio/wav")}
        async with self._backend.post("/audio/transcriptions", data=self._fields, files=files) as pieces:
            body = await self._backend.read_body(pieces)
        try:
            text = msgspec.json.decode(body, type=_Transcript).text
        except msgspec.DecodeError:
            raise self._backend.failed("sent what is no transcript") from None
        return " ".join(text[:MAX_TRANSCRIPT_CHARS].split())


def encode_wav(turn: SpokenTurn) -> bytes:
    """Takes milliseconds for each second of audio: not for the event loop."""
    rate, size = turn.format.sample_rate, turn.format.bytes_per_s
    resampler = Resampler(rate, RATE)
    # By the second: the resampler's memory is a hundred times its input.
    seconds = (turn.data[start : start + size] for start in range(0, len(turn.data), size))
    pieces = [resampler.push(DECODERS[turn.format.encoding](second)) for second in seconds]
    return wav_file(np.concatenate([*pieces, resampler.flush()]), RATE)
