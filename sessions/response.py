"""One spoken reply: text goes in, packets come out in order, and it ends exactly once."""

from __future__ import annotations

from typing import Protocol

from sessions.config import AudioFormat
from sessions.events import Heard, ResponseEvent


class Response(Protocol):
    """Made by ``Session.create_response``. All methods belong to the session's event loop.

    The text methods, ``cancel`` and ``report_playback`` never wait. Iterate to get the audio as the pace allows; the
    last event is ``ResponseDone``, and then the iteration stops.
    """

    @property
    def response_id(self) -> str: ...

    @property
    def format(self) -> AudioFormat: ...

    @property
    def pre_skip_samples(self) -> int:
        """So many decoded samples come before the speech, at the format's rate; 0 unless the encoding is Opus."""
        ...

    @property
    def done(self) -> bool:
        """Whether it has ended; from then on its only event is ``ResponseDone``."""
        ...

    def push_text(self, text: str) -> None:
        """Append text. Raises ``TextClosed`` after ``end_input`` or the end. Text beyond ``max_response_chars`` fails
        the response (``RequestTooLong``)."""
        ...

    def flush(self) -> int:
        """Speak all text so far to its end without waiting for more; returns the number ``FlushDone`` will carry."""
        ...

    def end_input(self) -> None:
        """No more text will come. A second call changes nothing."""
        ...

    def cancel(self, played_ms: float | None = None) -> None:
        """Stop. When this returns no audio of the response is emitted any more; engine work is being freed.

        ``played_ms`` is what the listener has heard by the client's count; without it the playback clock tells.
        After the end it changes nothing.
        """
        ...

    def report_playback(self, played_ms: float) -> None:
        """What the listener has heard by now, by the client's count; the playback clock runs on from there."""
        ...

    def heard(self, played_ms: float | None = None) -> Heard:
        """What the listener has heard of this response; works after its end too."""
        ...

    def __aiter__(self) -> Response: ...

    async def __anext__(self) -> ResponseEvent:
        """The next event, once it is due. Await it directly: in a task of its own, what it returned may already be
        fenced by a ``cancel`` when the awaiting side sees it (then check ``done``)."""
        ...

    async def released(self) -> None:
        """Wait until the response has ended and every engine resource of it is free."""
        ...
