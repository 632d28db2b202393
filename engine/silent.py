"""An engine that answers every request at once with a moment of silence: it warms up what is in front of engines."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import numpy as np

from engine.api import EngineInfo, EngineStats, FinishReason, RequestFinished, SpeechChunk
from engine.client import read_message
from engine.endpoint import READ_AHEAD_BYTES, Connection
from engine.ipc import HelloMessage, SubmitRequest, decode_command, encode, pack_events
from engine.runtime.request import RequestReleased

NUM_FRAMES = 2


class SilentEngine:
    """Answers requests over a pair of sockets in this process: an engine, and the transport to it."""

    end_reason = "the silent engine was closed"
    is_remote = False

    def __init__(self, info: EngineInfo) -> None:
        self._info = info
        self._answering: asyncio.Task[None] | None = None

    async def connect(self) -> Connection:
        near, far = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=far)
        self._answering = asyncio.create_task(self._answer(reader, writer), name="silent engine")
        return await asyncio.open_unix_connection(sock=near, limit=READ_AHEAD_BYTES)

    async def stop(self) -> None:
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.wait([self._answering])

    def current_stats(self) -> EngineStats | None:
        return None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(HelloMessage(self._info)))
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    command = decode_command(await read_message(reader))
                    if isinstance(command, SubmitRequest):
                        self._answer_request(command, writer)
        finally:
            writer.close()

    def _answer_request(self, command: SubmitRequest, writer: asyncio.StreamWriter) -> None:
        request_id = command.request.request_id
        silence = np.zeros(NUM_FRAMES * self._info.frame_samples, np.float32)
        events = (
            SpeechChunk(request_id, 0, silence, last=True),
            RequestFinished(request_id, FinishReason.STOP, num_frames=NUM_FRAMES, num_samples=silence.size),
            RequestReleased(request_id),
        )
        writer.writelines(bytes(piece) for piece in pack_events((command.epoch, event) for event in events))
