"""``voicewire say --url``: the same through a server, over the native wire unless a voice comes along."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from typing import Any

from websockets.exceptions import InvalidHandshake

from realtime.client import NativeClient, open_session
from realtime.commands.speaking import (
    SAMPLE_RATE,
    Done,
    Progress,
    ServerError,
    SpeechSource,
    lead_ms,
    print_markup_warning,
    shows_progress,
    speak,
)
from realtime.commands.speech_fields import VOICE_FIELDS, sampling_options
from realtime.protocol import events as ev
from sessions.config import Encoding

RESPONSE_ID = "say"


async def say_through_server(args: argparse.Namespace, fields: dict[str, Any]) -> int:
    """Returns the exit status. Raises ``OSError``, ``ServerError`` among them."""
    if any(name in fields for name in VOICE_FIELDS):
        from realtime.commands.say_posted import say_over_http

        return await say_over_http(args, fields)
    try:
        client = await open_session(args.url, api_key=args.api_key)
    except InvalidHandshake as error:
        raise ServerError(f"{args.url}: {error}") from None
    async with client:
        return await speak(RemoteSpeech(client, settings(args, fields)), args)


def settings(args: argparse.Namespace, fields: dict[str, Any]) -> ev.NativeSpeechSettings:
    lead = lead_ms(args)
    return ev.NativeSpeechSettings(
        voice=args.voice,
        language=args.language,
        seed=args.seed,
        lexicons=None if args.lexicon is None else (args.lexicon,),
        markup="ssml" if args.ssml else None,
        speakers=dict(args.speaker) or None,
        format=ev.NativeAudioFormat(encoding=Encoding.PCM_S16LE, sample_rate=SAMPLE_RATE),
        pace="burst" if lead is None else "lead",
        lead_ms=lead,
        instruct=fields.get("instructions"),
        sampling=sampling_options(fields),
        word_times=shows_progress(args) or None,
    )


class RemoteSpeech(SpeechSource):
    def __init__(self, client: NativeClient, settings: ev.NativeSpeechSettings) -> None:
        self._client, self._settings = client, settings

    async def begin(self, text: str, closed: bool) -> None:
        create = ev.ResponseCreate(response_id=RESPONSE_ID, settings=self._settings, text=text, end=closed)
        await self._client.send(create)

    async def push_text(self, text: str) -> None:
        await self._client.send(ev.TextAppend(response_id=RESPONSE_ID, text=text))

    async def end(self) -> None:
        await self._client.send(ev.TextEnd(response_id=RESPONSE_ID))

    async def cancel(self) -> None:
        await self._client.send(ev.ResponseCancel(response_id=RESPONSE_ID))

    async def __aiter__(self) -> AsyncIterator[bytes | Progress | Done]:
        async for message in self._client:
            match message:
                case ev.AudioMessage():
                    yield b"".join(message.packets)
                case ev.ResponseWarning():
                    print_markup_warning(message)
                case ev.ResponseWords():
                    yield Progress(message.words[-1].raw_end)
                case ev.ResponseDone():
                    yield message
                case ev.ErrorEvent():
                    raise ServerError(message.message)
        raise ServerError(f"the server closed the connection ({self._client.close_code})")
