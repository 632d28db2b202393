"""Recordings wait in line for the one thread that encodes them, beside the engine's own. No torch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from engine.api import ClonedVoice, ReferenceAudio
from engine.errors import EngineOverloaded

MAX_WAITING_SAMPLES = 8
RETRY_MS = 2_000


class VoiceEncodingThread:
    """``encode`` is called on one thread, recording by recording; the thread starts with the first."""

    def __init__(self, encode: Callable[[ReferenceAudio], ClonedVoice]) -> None:
        self._encode = encode
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="voicewire-encode")
        self._unfinished: set[Future[ClonedVoice]] = set()

    def submit(self, sample: ReferenceAudio) -> Future[ClonedVoice]:
        """Raises ``EngineOverloaded`` when too many wait already."""
        if len(self._unfinished) >= MAX_WAITING_SAMPLES:
            raise EngineOverloaded(f"{MAX_WAITING_SAMPLES} recordings wait to be encoded", RETRY_MS)
        future = self._executor.submit(self._encode, sample)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return future

    def close(self) -> None:
        """Drop what waits; returns when the recording under way is done."""
        self._executor.shutdown(wait=True, cancel_futures=True)
