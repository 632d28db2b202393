"""``voicewire say --url`` with a voice that comes along: through ``POST /v1/audio/speech``, which accepts one.

The request holds the whole text, so text from standard input is spoken once it has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec

from realtime.client import speech_url
from realtime.commands.speaking import SAMPLE_RATE, Done, ServerError, SpeechSource, speak
from realtime.commands.speech_fields import name_field
from realtime.protocol.events import ResponseDone, Status
from sessions.audio.wav import BYTES_PER_SAMPLE

PATH = "/v1/audio/speech"
WARNING_HEADER = "X-Voicewire-Warning"
READ_BYTES = 1_920
MAX_REFUSAL_BYTES = 65_536
TIMEOUT_S = 120.0


async def say_over_http(args: argparse.Namespace, fields: dict[str, Any]) -> int:
    """Returns the exit status. Raises ``OSError``, ``ServerError`` among them."""
    about = {"voice": args.voice, "language": args.language, "seed": args.seed, "response_format": "pcm"}
    about |= {"markup": "ssml" if args.ssml else None, "lexicons": [args.lexicon] if args.lexicon else None}
    about |= {"speakers": dict(args.speaker) or None}
    given = {name: value for name, value in about.items() if value is not None}
    return await speak(PostedSpeech(args.url, args.api_key, given | fields), args)


class PostedSpeech(SpeechSource):
    """A thread sends the request and reads the answer, as fast as the server sends it."""

    def __init__(self, url: str, api_key: str | None, fields: dict[str, Any]) -> None:
        parts = urlsplit(speech_url(url))
        connect = http.client.HTTPSConnection if parts.scheme == "wss" else http.client.HTTPConnection
        self._connection = connect(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._fields, self._text = fields, ""
        # Set by ``cancel``, which then wakes the reader by an empty piece.
        self._is_cancelled = False
        # Audio; an empty piece is its end.
        self._events: asyncio.Queue[bytes | OSError] = asyncio.Queue()

    async def begin(self, text: str, closed: bool) -> None:
        self._text = text
        if closed:
            await self.end()

    async def push_text(self, text: str) -> None:
        self._text += text

    async def end(self) -> None:
        arguments = (asyncio.get_running_loop(),)
        threading.Thread(target=self._run, args=arguments, name="voicewire request", daemon=True).start()

    async def cancel(self) -> None:
        self._is_cancelled = True
        self._events.put_nowait(b"")
        if self._connection.sock is not None:
            with suppress(OSError):  # it is closed already
                self._connection.sock.shutdown(socket.SHUT_RDWR)

    async def __aiter__(self) -> AsyncIterator[bytes | Done]:
        num_bytes = 0
        while (event := await self._events.get()) and not self._is_cancelled:
            if isinstance(event, OSError):
                raise event
            num_bytes += len(event)
            yield event
        yield _done("cancelled" if self._is_cancelled else "completed", num_bytes // BYTES_PER_SAMPLE)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        def put(event: bytes | OSError) -> None:
            with suppress(RuntimeError):  # the loop is closed: nothing reads any more
                loop.call_soon_threadsafe(self._events.put_nowait, event)

        try:
            body = msgspec.json.encode({"input": self._text, **self._fields})
            self._connection.request("POST", PATH, body, {"Content-Type": "application/json", **self._headers})
            answer = self._connection.getresponse()
            _check(answer)
            while data := answer.read(READ_BYTES):
                put(data)
            put(b"")
        except OSError as error:
            put(error)
        except http.client.HTTPException as error:
            put(ServerError(f"the server ended the speech early: {type(error).__name__}"))
        finally:
            self._connection.close()


def _check(answer: http.client.HTTPResponse) -> None:
    """Print warnings of the server; raises ``ServerError`` if it refused the request."""
    if warning := answer.headers.get(WARNING_HEADER):
        print(warning, file=sys.stderr)
    if answer.status == http.HTTPStatus.OK:
        return
    try:
        refusal = msgspec.json.decode(answer.read(MAX_REFUSAL_BYTES), type=Refusal).error
    except msgspec.DecodeError:
        raise ServerError(f"the server answered {answer.status}") from None
    raise ServerError(name_field(refusal.message, refusal.param))


class RefusalError(msgspec.Struct):
    message: str
    param: str | None = None


class Refusal(msgspec.Struct):
    """Body of an answer that is no speech."""

    error: RefusalError


def _done(status: Status, num_samples: int) -> ResponseDone:
    return ResponseDone(
        response_id="say",
        response=0,
        status=status,
        audio_samples=num_samples,
        audio_ms=1000 * num_samples / SAMPLE_RATE,
        nothing_spoken=status == "completed" and not num_samples,
    )
