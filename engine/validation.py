"""Ranges of what a caller may ask for. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from engine.api import (
    ClonedVoice,
    EngineInfo,
    Pcm,
    ReferenceAudio,
    SpeechRequest,
)
from engine.errors import InvalidRequest, RequestTooLong, UnknownLanguage, UnknownVoice

MAX_COUNT = 2**32 - 1
MAX_INSTRUCT_CHARS = 2_000
MAX_TRANSCRIPT_CHARS = 2_000
# Resampling overshoots full scale a little; numbers beyond this are no audio in -1..1.
MAX_SAMPLE_LEVEL = 2.0
# -80 dBFS: below any speech.
MIN_SAMPLE_LEVEL = 1e-4


def check_minimums(settings: msgspec.Struct, minimums: Mapping[str, float], section: str = "") -> None:
    """Check numbers that are set. Raises ``InvalidRequest`` naming the first one below its minimum."""
    for name, minimum in minimums.items():
        value = getattr(settings, name)
        if value is not None and not value >= minimum:  # False for NaN, too
            raise InvalidRequest(f"{section}{name} is {value}; it must be at least {minimum}", name)


def check_instruct(instruct: str, info: EngineInfo) -> None:
    if instruct and not info.takes_instruct:
        raise InvalidRequest(f"instruct is given; {info.model} does not take instructions", "instruct")
    if len(instruct) > MAX_INSTRUCT_CHARS:
        limit = f"instruct has {len(instruct)} characters; the limit is {MAX_INSTRUCT_CHARS}"
        raise RequestTooLong(limit, "instruct")


def check_voice(voice: str | ClonedVoice | None, info: EngineInfo) -> None:
    names = {voice.name.lower() for voice in info.voices}
    if isinstance(voice, ClonedVoice):
        check_cloned(voice, info)
    elif voice is None:
        if info.can_clone and not info.voices:
            raise InvalidRequest(f"voice is missing; {info.model} speaks only like a recording", "voice")
    elif voice.lower() not in names:
        raise UnknownVoice(f"voice is {voice!r}; known: {', '.join(sorted(names)) or 'none'}", "voice")


def check_cloned(voice: ClonedVoice, info: EngineInfo) -> None:
    """Check a voice against the checkpoint. Raises ``InvalidRequest`` naming what does not fit."""
    if not info.can_clone:
        raise InvalidRequest(f"voice is a cloned one; {info.model} does not clone voices", "voice")
    expected = 4 * info.embedding_size
    if len(voice.embedding) != expected:
        found = f"voice.embedding has {len(voice.embedding)} bytes"
        raise InvalidRequest(f"{found}; it must have {expected}, {info.embedding_size} numbers of 4", "voice.embedding")
    if not np.isfinite(np.frombuffer(voice.embedding, np.float32)).all():
        raise InvalidRequest("voice.embedding holds numbers that are not finite", "voice.embedding")
    if voice.codes:
        check_codes(voice.codes, voice.num_codebooks, info)
    check_mel(voice, info)
    if voice.codes and (voice.transcript or not info.transcript_optional):
        check_transcript(voice.transcript)


def check_codes(codes: bytes, num_codebooks: int, info: EngineInfo) -> None:
    if num_codebooks != info.num_codebooks:
        found = f"voice.codes has {num_codebooks} codebooks"
        raise InvalidRequest(f"{found}; {info.model} takes {info.num_codebooks}", "voice.codes")
    frame_bytes = 2 * info.num_codebooks
    max_frames = math.ceil(info.max_sample_s * info.sample_rate / info.frame_samples)
    if len(codes) % frame_bytes:
        raise InvalidRequest(
            f"voice.codes has {len(codes)} bytes; a frame has {frame_bytes}, {info.num_codebooks} numbers of 2",
            "voice.codes",
        )
    if len(codes) // frame_bytes > max_frames:
        found = f"voice.codes has {len(codes) // frame_bytes} frames"
        raise RequestTooLong(f"{found}; the limit is {max_frames}, {info.max_sample_s:g} s", "voice.codes")
    values = np.frombuffer(codes, np.int16)
    outside = values[(values < 0) | (values >= info.codebook_size)]
    if outside.size:
        limits = f"it must lie in 0..{info.codebook_size - 1}"
        raise InvalidRequest(f"voice.codes holds {outside[0]}; {limits}", "voice.codes")


def check_mel(voice: ClonedVoice, info: EngineInfo) -> None:
    num_codes = len(voice.codes) // (2 * info.num_codebooks) if info.num_codebooks else 0
    expected = 4 * info.mel_bins * info.mel_per_code * num_codes
    if len(voice.mel) != expected:
        found = f"voice.mel has {len(voice.mel)} bytes"
        raise InvalidRequest(f"{found}; with these codes it must have {expected}", "voice.mel")
    if not np.isfinite(np.frombuffer(voice.mel, np.float32)).all():
        raise InvalidRequest("voice.mel holds numbers that are not finite", "voice.mel")


def check_transcript(transcript: str) -> None:
    if len(transcript) > MAX_TRANSCRIPT_CHARS:
        found = f"voice.transcript has {len(transcript)} characters"
        raise RequestTooLong(f"{found}; the limit is {MAX_TRANSCRIPT_CHARS}", "voice.transcript")
    if not transcript.strip():
        raise InvalidRequest(
            "voice.transcript is empty; cloning in context needs what is said in the recording", "voice.transcript"
        )


def check_sample_size(sample: ReferenceAudio, info: EngineInfo) -> None:
    """Check what takes no look at the samples of a recording. Raises ``InvalidRequest``."""
    if not info.can_encode:
        raise InvalidRequest(f"{info.model} cannot listen to recordings", "voice")
    if len(sample.pcm) % 4:
        raise InvalidRequest(f"audio has {len(sample.pcm)} bytes; it must be whole float32 samples", "audio")
    seconds = len(sample.pcm) / 4 / info.sample_rate
    if not info.min_sample_s <= seconds <= info.max_sample_s:
        limits = f"it must last {info.min_sample_s:g} to {info.max_sample_s:g} s"
        raise InvalidRequest(f"audio lasts {seconds:.2f} s; {limits}", "audio")
    if sample.transcript:
        check_transcript(sample.transcript)


def check_sample(sample: ReferenceAudio, info: EngineInfo) -> Pcm:
    """The recording's samples. Raises ``InvalidRequest`` for one that cannot be listened to."""
    check_sample_size(sample, info)
    pcm = np.frombuffer(sample.pcm, np.float32)
    if not np.isfinite(pcm).all():
        raise InvalidRequest("audio holds samples that are not finite", "audio")
    loudest = float(np.abs(pcm).max())
    if loudest > MAX_SAMPLE_LEVEL:
        raise InvalidRequest(f"audio reaches {loudest:g}; it must lie in -1..1", "audio")
    if loudest < MIN_SAMPLE_LEVEL:
        raise InvalidRequest(
            f"audio is silent: it reaches {loudest:g}, at least {MIN_SAMPLE_LEVEL:g} is needed", "audio"
        )
    return pcm


def check_request(request: SpeechRequest, info: EngineInfo, max_text_chars: int) -> None:
    """Check what needs no model. Raises ``InvalidRequest`` or one of its kin."""
    info.check_options(request.sampling, request.chunk_frames)
    check_voice(request.voice, info)
    check_instruct(request.instruct, info)
    if request.language.lower() not in info.languages:
        known = ", ".join(info.languages)
        raise UnknownLanguage(f"language is {request.language!r}; known: {known}", "language")
    if len(request.text) > max_text_chars:
        limit = f"text has {len(request.text)} characters; one request takes {max_text_chars}"
        raise RequestTooLong(limit, "text")
    if request.text_closed and not request.text.strip():
        raise InvalidRequest("text is empty; it must hold something to speak", "text")
    minimums = {"max_frames": 1, "lead_ms": 0, "segment": 0}
    check_minimums(request, minimums)
    for name in minimums:
        value = getattr(request, name)
        if value is not None and value > MAX_COUNT:
            raise InvalidRequest(f"{name} is {value}; it must be at most {MAX_COUNT}", name)
