"""``voicewire say --url``: the same through a server, over the native wire."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from websockets.exceptions import InvalidHandshake

from realtime.client import NativeClient, open_session
from realtime.commands.say import EXIT_STATUS, PLAYER_LEAD_MS, SpeechProgress
from realtime.commands.streams import Output, arriving_text, open_output
from realtime.protocol import events as ev
from sessions.config import Encoding
from sessions.events import ResponseStatus

RESPONSE_ID = "say"
SAMPLE_RATE = 24_000
BYTES_PER_SAMPLE = 2


class ServerError(OSError):
    """The server refused, or left; the message says why."""


async def say_over_websocket(args: argparse.Namespace) -> int:
    """Returns the exit status. Raises ``OSError``, ``ServerError`` among them."""
    try:
        client = await open_session(args.url, api_key=args.api_key)
    except InvalidHandshake as error:
        raise ServerError(f"{args.url}: {error}") from None
    async with client:
        output = await open_output(args.output, SAMPLE_RATE)
        progress = SpeechProgress(SAMPLE_RATE, args.seed)
        try:
            async with feed_text(client, args), cancel_on_sigint(client):
                done = await write_audio(client, output, progress)
            progress.print_summary(done)
            if done.status == "completed":
                await output.finish()
        finally:
            await output.abort()
    return 1 if done.nothing_spoken else EXIT_STATUS[ResponseStatus(done.status)]


def settings(args: argparse.Namespace) -> ev.NativeSpeechSettings:
    return ev.NativeSpeechSettings(
        voice=args.voice,
        language=args.language,
        seed=args.seed,
        format=ev.NativeAudioFormat(encoding=Encoding.PCM_S16LE, sample_rate=SAMPLE_RATE),
        pace="burst" if args.output else "lead",
        lead_ms=None if args.output else PLAYER_LEAD_MS,
    )


@asynccontextmanager
async def feed_text(client: NativeClient, args: argparse.Namespace) -> AsyncIterator[None]:
    """Send the text while the context is open: at once, or as it arrives on standard input."""
    arriving = args.text == "-"
    text = "" if arriving else args.text
    create = ev.ResponseCreate(response_id=RESPONSE_ID, settings=settings(args), text=text, end=not arriving)
    await client.send(create)
    typing = asyncio.create_task(pump_text(client, sys.stdin.fileno()) if arriving else asyncio.sleep(0))
    try:
        yield
    finally:
        typing.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            await typing


async def pump_text(client: NativeClient, descriptor: int) -> None:
    async for piece in arriving_text(descriptor):
        await client.send(ev.TextAppend(response_id=RESPONSE_ID, text=piece))
    await client.send(ev.TextEnd(response_id=RESPONSE_ID))


async def write_audio(client: NativeClient, output: Output, progress: SpeechProgress) -> ev.ResponseDone:
    async for message in client:
        match message:
            case ev.AudioMessage():
                await output.write(b"".join(message.packets))
                progress.add(sum(map(len, message.packets)) // BYTES_PER_SAMPLE)
            case ev.ResponseDone():
                return message
            case ev.ErrorEvent():
                raise ServerError(message.message)
    raise ServerError(f"the server closed the connection ({client.close_code})")


@asynccontextmanager
async def cancel_on_sigint(client: NativeClient) -> AsyncIterator[None]:
    """Cancel only the response on Ctrl-C, so that its end is printed and the output stays whole."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
    cancels: list[asyncio.Task[None]] = []
    cancel = ev.ResponseCancel(response_id=RESPONSE_ID)
    loop.add_signal_handler(signal.SIGINT, lambda: cancels.append(loop.create_task(client.send(cancel))))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
        await asyncio.gather(*cancels, return_exceptions=True)
