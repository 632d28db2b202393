"""Load and results: the messages between the benchmark and its processes."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

CORPUS = Path(__file__).with_name("corpus.txt")
MAX_PIECE_CHARS = 4


def read_corpus(path: Path) -> list[str]:
    """Read one utterance per line; raises ``OSError``, or ``ValueError`` if there is none."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [line for line in lines if line]
    if not texts:
        raise ValueError(f"{path} holds no text")
    return texts


def pieces(text: str) -> list[str]:
    """The text cut before each word, and longer words cut again."""
    words = re.findall(r"\s*\S+", text)
    return [word[at : at + MAX_PIECE_CHARS] for word in words for at in range(0, len(word), MAX_PIECE_CHARS)]


def first_word_is_final_at(deltas: Sequence[str]) -> int:
    """The index of the delta that begins the second word; the number of deltas when there is none (then the end of the
    text makes the first word final)."""
    seen = False
    for index, delta in enumerate(deltas):
        if seen and delta[:1].isspace():
            return index
        seen = seen or not delta.isspace()
    return len(deltas)


def endless(texts: Sequence[str], seed: int) -> Iterator[str]:
    """Yield all texts in random order, endlessly."""
    rng = random.Random(seed)
    while True:
        yield from rng.sample(texts, len(texts))


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Load of one process of clients."""

    url: str
    api_key: str | None = None
    first_session: int = 0
    # The next session's number less this one's.
    session_step: int = 1
    # Sessions of this process; numbers continue over all processes.
    num_sessions: int = 1
    total_sessions: int = 1
    # Consecutive responses of each session.
    num_responses: int = 1
    # 0 sends each text at once.
    tokens_per_second: float = 50.0
    burst: bool = False
    # True to end each session with one more response, which is cancelled.
    cancel: bool = True
    # True to count packets without decoding.
    count_packets: bool = False
    # Codec frames of every segment, for weights that never end one.
    frames: int | None = None
    voice: str | None = None
    corpus: str
    seed: int = 0
    # Sessions arrive evenly over so long a time.
    spread_s: float = 1.0


class ResponseResult(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a response. Times in ms count from the delta that completed the first word."""

    session: int
    status: Literal["completed", "cancelled", "failed"]
    error: str | None = None
    # Monotonic clock of the machine, as ``ended_s``.
    begun_s: float = 0.0
    ended_s: float = 0.0
    ttfa_ms: float | None = None
    # Counted from the first delta.
    ttfa_first_delta_ms: float | None = None
    # Counted to the first sample above -50 dBFS.
    ttfa_audible_ms: float | None = None
    audio_s: float = 0.0
    # Counted to the last packet.
    work_s: float = 0.0
    underruns_text: int = 0
    underruns_engine: int = 0
    # Time from the cancel to the last audio message after it; 0 if there was none.
    cancel_ms: float | None = None
    # Time from the cancel to ``response.done``.
    cancel_done_ms: float | None = None
