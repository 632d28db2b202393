"""Requests whose gateway vanished, kept for another gateway that claims their session. No torch.

The engine ends such a request at once. What is kept is what another submission needs to go on: the request, its later
text, and the codes of the audio that the gateway was sent.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from engine.api import OrphanedRequest, SpeechChunk, SpeechRequest
from engine.ipc import CancelRequest, Command, EndRequestInput, PushRequestText, encoded_size

ORPHAN_GRACE_S = 30.0
# Of all sessions; the oldest are dropped beyond it.
MAX_ORPHAN_BYTES = 32 * 2**20


class RequestRecord:
    """One active request of a session. One thread applies commands, another adds chunks, a third takes snapshots."""

    def __init__(self, request: SpeechRequest) -> None:
        self._request = request
        self._texts: list[str] = []
        self._is_closed = request.text_closed
        # Codes of each chunk, and the final samples up to its end.
        self._chunks: list[tuple[bytes, int]] = []
        if request.resume is not None and not request.resume.is_replay:
            self._chunks.append((request.resume.codes, request.resume.num_samples))

    @property
    def session_id(self) -> str:
        return self._request.session_id

    def apply(self, command: Command) -> None:
        match command:
            case PushRequestText(_, text):
                self._texts.append(text)
            case EndRequestInput():
                self._is_closed = True

    def add(self, chunk: SpeechChunk) -> None:
        end = chunk.start_sample + len(chunk.pcm) - chunk.provisional_tail_samples
        self._chunks.append((chunk.codes, end))

    def snapshot(self) -> OrphanedRequest:
        chunks = list(self._chunks)
        return OrphanedRequest(
            request=msgspec.structs.replace(self._request, resume=None),
            text="".join(self._texts),
            text_closed=self._is_closed,
            codes=b"".join(codes for codes, _ in chunks),
            num_samples=chunks[-1][1] if chunks else 0,
        )


class RecordTable:
    """Records of the requests of one gateway that name a session, by epoch."""

    def __init__(self) -> None:
        self._records: dict[int, RequestRecord] = {}

    def submit(self, epoch: int, request: SpeechRequest) -> None:
        if request.session_id:
            self._records[epoch] = RequestRecord(request)

    def apply(self, epoch: int, command: Command) -> None:
        if isinstance(command, CancelRequest):
            self._records.pop(epoch, None)
        elif record := self._records.get(epoch):
            record.apply(command)

    def add_chunk(self, epoch: int, chunk: SpeechChunk) -> None:
        if record := self._records.get(epoch):
            record.add(chunk)

    def release(self, epoch: int) -> None:
        self._records.pop(epoch, None)

    def clear(self) -> None:
        self._records = {}

    @property
    def session_ids(self) -> set[str]:
        return {record.session_id for record in list(self._records.values())}

    def snapshot(self) -> list[OrphanedRequest]:
        return [record.snapshot() for record in list(self._records.values())]


class OrphanStore:
    """Orphaned requests by session; each can be claimed once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # Until when, size and requests, in the order in which they came.
        self._sessions: OrderedDict[str, tuple[float, int, list[OrphanedRequest]]] = OrderedDict()
        self._num_bytes = 0

    def keep(self, requests: Iterable[OrphanedRequest]) -> None:
        by_session: dict[str, list[OrphanedRequest]] = {}
        for one in requests:
            by_session.setdefault(one.request.session_id, []).append(one)
        with self._lock:
            for session_id, found in by_session.items():
                self._remove(session_id)
                size = sum(map(encoded_size, found))
                self._sessions[session_id] = self._clock() + ORPHAN_GRACE_S, size, found
                self._num_bytes += size
            self._evict()

    def claim(self, session_id: str) -> list[OrphanedRequest]:
        """Return the requests of a session, which are kept no longer; empty if there are none."""
        with self._lock:
            self._evict()
            return self._remove(session_id)

    def evict(self) -> None:
        """Drop what has been kept long enough."""
        with self._lock:
            self._evict()

    def _evict(self) -> None:
        now_s = self._clock()
        while self._sessions:
            session_id, (until_s, _, _) = next(iter(self._sessions.items()))
            if until_s > now_s and self._num_bytes <= MAX_ORPHAN_BYTES:
                return
            self._remove(session_id)

    def _remove(self, session_id: str) -> list[OrphanedRequest]:
        _, size, requests = self._sessions.pop(session_id, (0.0, 0, []))
        self._num_bytes -= size
        return requests
