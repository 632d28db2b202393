"""What an agent says into a call: text that waits for its turn, then a response on the line."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from sessions.errors import LimitExceeded, TextInputClosed
from sessions.events import HeardText
from sessions.response import Response


@dataclass(slots=True, eq=False)
class CallReply:
    reply_id: str
    max_waiting_chars: int
    response: Response | None = None
    ended: bool = False
    # Position on the line of its first sample.
    start: int = 0
    # Of it, that were put on the line.
    num_samples: int = 0
    # Set when there is something to say, or nothing will come any more.
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    # Names of the agent's marks, by the number of the flush that they stand for.
    marks: list[str] = field(default_factory=list)
    # Text, and ``None`` where a mark stands.
    _waiting: list[str | None] = field(default_factory=list)
    _num_waiting_chars: int = 0

    @property
    def waiting_text(self) -> str:
        return "".join(piece for piece in self._waiting if piece is not None)

    def append(self, text: str) -> None:
        """Raises ``TextInputClosed``, and ``LimitExceeded`` for more text than may wait."""
        self._require_open()
        if self.response is not None:
            self.response.push_text(text)
            return
        if self._num_waiting_chars + len(text) > self.max_waiting_chars:
            raise LimitExceeded(f"the text of a reply may have {self.max_waiting_chars} characters")
        if text:
            self._waiting.append(text)
            self._num_waiting_chars += len(text)
        if text.strip():
            self.changed.set()

    def mark(self, name: str, max_marks: int) -> None:
        """Raises ``TextInputClosed`` or ``LimitExceeded``."""
        self._require_open()
        if len(self.marks) >= max_marks:
            raise LimitExceeded(f"a reply may have {max_marks} marks")
        self.marks.append(name)
        if self.response is None:
            self._waiting.append(None)
        else:
            self.response.flush()

    def end(self) -> None:
        self.ended = True
        self.changed.set()
        if self.response is not None:
            self.response.end_input()

    def pop_text(self) -> str | None:
        """All of its text, if no more will come and no mark stands in it; it waits no longer then."""
        if not self.ended or self.marks:
            return None
        text, self._waiting = self.waiting_text, []
        return text

    def begin(self, response: Response, start: int) -> None:
        """Its turn: hand on what has waited."""
        self.response, self.start = response, start
        waiting, self._waiting = self._waiting, []
        for piece in waiting:
            if response.is_done:
                return
            if piece is None:
                response.flush()
            else:
                response.push_text(piece)
        if self.ended:
            response.end_input()

    def heard_text(self, played: int, rate: int) -> HeardText:
        """What the caller has heard, who is at this position of the line."""
        if self.response is None:
            return HeardText("", self.waiting_text, 0.0)
        return self.response.heard(self.played_ms(played, rate))

    def played_ms(self, played: int, rate: int) -> float:
        return 1000 * min(max(played - self.start, 0), self.num_samples) / rate

    def _require_open(self) -> None:
        if self.ended or (self.response is not None and self.response.is_done):
            raise TextInputClosed(f"the text of reply {self.reply_id!r} has ended", "reply_id")
