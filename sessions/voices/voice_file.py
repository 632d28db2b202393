"""Read and write stored voices: one file each, numbers as tensors and the manifest in the header."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from engine.api import ClonedVoice
from sessions.voices.voice import StoredVoice, VoiceManifest

MANIFEST_KEY = "voice"
MAX_HEADER_BYTES = 100_000
USUAL_HEADER_BYTES = 8_192
LENGTH_BYTES = 8


class CorruptVoiceFile(ValueError):
    """Raised for a file that is damaged or no voice file."""


class VoiceFileHeader(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


def to_bytes(voice: StoredVoice) -> bytes:
    tensors = {"embedding": np.frombuffer(voice.clone.embedding, "<f4")}
    if voice.clone.codes:
        tensors["codes"] = codes = np.frombuffer(voice.clone.codes, "<i2").reshape(-1, voice.clone.num_codebooks)
        if voice.clone.mel:
            tensors["mel"] = np.frombuffer(voice.clone.mel, "<f4").reshape(len(codes), -1)
    return save(tensors, {MANIFEST_KEY: msgspec.json.encode(voice.manifest).decode()})


def read_voice(path: Path) -> StoredVoice:
    """Read a voice; raises ``FileNotFoundError`` or ``CorruptVoiceFile``."""
    return parse_voice(path.read_bytes())


def parse_voice(data: bytes) -> StoredVoice:
    """Read a voice from a file's content; raises ``CorruptVoiceFile``."""
    manifest = _manifest_of(data[LENGTH_BYTES : LENGTH_BYTES + _header_bytes(data)])
    try:
        tensors = load(data)
    except (SafetensorError, KeyError) as error:  # the second for a type that numpy has not
        raise CorruptVoiceFile(str(error)) from None
    codes = tensors.get("codes", np.zeros((0, 0), np.int16))
    embedding, mel = tensors.get("embedding"), tensors.get("mel", np.zeros(0, np.float32))
    if embedding is None or embedding.dtype != np.float32 or codes.dtype != np.int16 or mel.dtype != np.float32:
        raise CorruptVoiceFile("its tensors are not embedding (float32), codes (int16) and mel (float32)")
    if codes.ndim != 2:
        raise CorruptVoiceFile(f"its codes have the shape {codes.shape}, not frames by codebooks")
    clone = ClonedVoice(
        embedding=embedding.tobytes(),
        codes=codes.tobytes(),
        num_codebooks=codes.shape[1],
        transcript=manifest.transcript if codes.size else "",
        mel=mel.tobytes(),
    )
    return StoredVoice(manifest, clone)


def read_manifest(path: str | Path) -> VoiceManifest:
    """Read the manifest alone, usually in one read, so that a thousand voices can be listed.

    Raises ``OSError`` or ``CorruptVoiceFile``.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        start = os.read(descriptor, USUAL_HEADER_BYTES)
        end = LENGTH_BYTES + _header_bytes(start)
        while len(start) < end and (more := os.read(descriptor, end - len(start))):
            start += more
    finally:
        os.close(descriptor)
    return _manifest_of(start[LENGTH_BYTES:end])


def _header_bytes(start: bytes) -> int:
    if len(start) < LENGTH_BYTES:
        raise CorruptVoiceFile("it is too short")
    (num_bytes,) = struct.unpack_from("<Q", start)
    if num_bytes > MAX_HEADER_BYTES:
        raise CorruptVoiceFile(f"its header is longer than {MAX_HEADER_BYTES} bytes")
    return int(num_bytes)


def _manifest_of(header: bytes) -> VoiceManifest:
    try:
        metadata = msgspec.json.decode(header, type=VoiceFileHeader).metadata
        return msgspec.json.decode(metadata.get(MANIFEST_KEY, ""), type=VoiceManifest)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise CorruptVoiceFile(f"its header: {error}") from None
