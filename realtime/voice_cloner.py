"""Recording to voice: limits, the encoder's turn, and what is stored."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from engine.api import ClonedVoice, EngineInfo, InvalidRequest, ReferenceAudio, SpeechEngine
from realtime.config import ConfigError, ServerConfig
from realtime.config_sections import VoiceStoreSettings
from realtime.errors import RequestRefused
from realtime.references import PREFIX, Fetcher, FetchRules, decode_data_uri, refuse_address
from sessions.admission import ENCODINGS, UPLOADS, LocalUsageCounters, UsageCounters
from sessions.audio.pcm import Pcm
from sessions.audio.recordings.sandbox import DecodeLimits, decode_in_subprocess
from sessions.voices.voice import MAX_TRANSCRIPT_CHARS


@dataclass(slots=True)
class ConcurrencyLimit:
    """A limit on what ``tally`` counts under a name, here and in other processes that keep the same one."""

    limit_name: str
    max_inside: int
    retry_after_ms: int
    tally: UsageCounters
    counted: str
    # Here.
    num_inside: int = 0

    @contextmanager
    def acquire(self) -> Iterator[None]:
        """Hold a place; raises ``RequestRefused`` if all are in use."""
        if self.tally.total(self.counted) >= self.max_inside:
            limit = f"{self.limit_name} is {self.max_inside}"
            raise RequestRefused("overloaded", limit, retry_after_ms=self.retry_after_ms)
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, by: int) -> None:
        self.num_inside += by
        self.tally.add(self.counted, by)


LARGEST = float(np.finfo(np.float32).max)


class VoiceCloner:
    """Clone voices for one server. Gates bound how many recordings are in work at once, wherever ``tally`` counts."""

    def __init__(self, config: ServerConfig, engine: SpeechEngine, tally: UsageCounters | None = None) -> None:
        settings, retry_after_ms = config.voices, config.limits.retry_after_ms
        tally = tally or LocalUsageCounters()
        self._settings = settings
        self._engine = engine
        self.gate = ConcurrencyLimit(
            "max_concurrent_encodings", settings.max_concurrent_encodings, retry_after_ms, tally, ENCODINGS
        )
        self.uploads = ConcurrencyLimit(
            "max_concurrent_uploads", settings.max_concurrent_uploads, retry_after_ms, tally, UPLOADS
        )
        self.fetcher = Fetcher(fetch_rules(settings))

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    async def from_reference(self, reference: str, transcript: str) -> ClonedVoice:
        """``reference`` is a data URI or an address. Raises ``InvalidRequest`` or ``RequestRefused``."""
        self._require_encoder("ref_audio")
        with self.gate.acquire():
            if reference[: len(PREFIX)].lower() == PREFIX:
                data = await asyncio.to_thread(decode_data_uri, reference, self._settings.max_upload_bytes)
            elif self._settings.allow_url_fetch:
                data = await self.fetcher.fetch(reference)
            else:
                raise refuse_address("this server fetches nothing (voices.allow_url_fetch); send a data URI")
            return await self._clone(data, transcript, "ref_audio")

    async def from_upload(self, data: bytes, transcript: str) -> tuple[ClonedVoice, float]:
        """The voice, and how long the recording is. Raises ``InvalidRequest`` or ``RequestRefused``."""
        self._require_encoder("audio_sample")
        with self.gate.acquire():
            pcm = await self._decode(data, "audio_sample")
            return await self._encode(pcm, transcript, "audio_sample"), pcm.size / self.info.sample_rate

    def from_embedding(self, numbers: Sequence[float]) -> ClonedVoice:
        """Build a voice from a speaker embedding; raises ``InvalidRequest``."""
        info = self.info
        if not info.can_clone:
            raise InvalidRequest(f"{info.model} does not clone voices", "speaker_embedding")
        if len(numbers) != info.embedding_size:
            found = f"speaker_embedding has {len(numbers)} numbers"
            raise InvalidRequest(f"{found}, {info.model} takes {info.embedding_size}", "speaker_embedding")
        embedding = np.asarray(numbers, np.float64)
        if not np.all(np.abs(embedding) <= LARGEST):  # nor NaN, which is no number and so not below anything
            raise InvalidRequest("speaker_embedding holds what is no finite number", "speaker_embedding")
        return ClonedVoice(embedding=embedding.astype(np.float32).tobytes())

    async def _clone(self, data: bytes, transcript: str, param: str) -> ClonedVoice:
        return await self._encode(await self._decode(data, param), transcript, param)

    async def _decode(self, data: bytes, param: str) -> Pcm:
        limits = DecodeLimits(max_s=self.info.max_sample_s, timeout_s=self._settings.decode_timeout_s)
        try:
            pcm = await decode_in_subprocess(data, self.info.sample_rate, limits)
        except InvalidRequest as error:
            raise InvalidRequest(str(error), param) from None
        if (length_s := pcm.size / self.info.sample_rate) < self.info.min_sample_s:
            raise InvalidRequest(f"audio is {length_s:.2f} s long, at least {self.info.min_sample_s:g} s needed", param)
        return pcm

    async def _encode(self, pcm: Pcm, transcript: str, param: str) -> ClonedVoice:
        check_transcript(transcript)
        try:
            return await self._engine.encode_voice(ReferenceAudio(pcm=pcm.tobytes(), transcript=transcript))
        except InvalidRequest as error:
            error.param = param if error.param == "audio" else error.param
            raise

    def _require_encoder(self, param: str) -> None:
        if not self.info.can_encode:
            raise InvalidRequest(f"{self.info.model} does not listen to recordings", param)


def check_transcript(transcript: str) -> None:
    """Check a transcript; raises ``InvalidRequest``."""
    if len(transcript) > MAX_TRANSCRIPT_CHARS:
        found = f"ref_text has {len(transcript)} characters"
        raise InvalidRequest(f"{found}, at most {MAX_TRANSCRIPT_CHARS} are allowed", "ref_text")


def fetch_rules(settings: VoiceStoreSettings) -> FetchRules:
    """Build the rules for fetching recordings; raises ``ConfigError``."""
    rules = FetchRules(
        max_bytes=settings.max_upload_bytes,
        timeout_s=settings.fetch_timeout_s,
        max_redirects=settings.max_fetch_redirects,
        allow_http=settings.allow_plain_http_fetch,
    )
    try:
        return replace(
            rules, networks=tuple(ipaddress.ip_network(text) for text in _listed(settings.allowed_private_networks))
        )
    except ValueError as error:
        raise ConfigError(f"voices.allowed_private_networks: {error}") from None


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []
