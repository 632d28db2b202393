"""Decoding in a process of its own, which can do no harm: hostile bytes meet a large parser written in C.

The child reads a file from its standard input and writes float32 samples; its memory, its time and its files are
limited by the system, and it is killed when it takes too long.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass

import numpy as np

from engine.api import InvalidRequest
from sessions.audio.pcm import Pcm
from sessions.audio.recordings.child import BAD_RECORDING
from sessions.audio.recordings.decode import InvalidRecording, container_format

MODULE = "sessions.audio.recordings.child"
MAX_MESSAGE_BYTES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    # Sound beyond this is refused before it is decoded.
    max_s: float = 30.0
    timeout_s: float = 10.0
    # Of address space; 30 s of stereo at 48 kHz take a quarter of it.
    memory_bytes: int = 2**30


async def decode_in_subprocess(data: bytes, sample_rate: int, limits: DecodeLimits) -> Pcm:
    """Decode a recording in a child process, which is killed on cancellation or timeout. Raises ``InvalidRequest``."""
    try:
        container_format(data)
    except InvalidRecording as error:
        raise InvalidRequest(str(error), "audio") from None
    arguments = (str(sample_rate), repr(limits.max_s), str(int(limits.timeout_s) + 1), str(limits.memory_bytes))
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", MODULE, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(),
    )
    try:
        async with asyncio.timeout(limits.timeout_s):
            pcm, message = await child.communicate(data)
    except TimeoutError:
        raise InvalidRequest(f"audio takes longer than {limits.timeout_s:g} s to decode", "audio") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode == BAD_RECORDING:
        raise InvalidRequest(message[:MAX_MESSAGE_BYTES].decode("utf-8", "replace").strip(), "audio")
    if child.returncode:
        raise InvalidRequest("audio cannot be decoded", "audio")
    return np.frombuffer(pcm, np.float32)


def _environment() -> dict[str, str]:
    """The environment holds nothing of the server but its module path; ``-P`` keeps the current folder out of it."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
    return kept | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OPENBLAS_NUM_THREADS": "1"}
