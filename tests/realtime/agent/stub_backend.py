"""A language model and a recognizer on a real socket. They answer by script, at the times of recorded tokens."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

# Gaps between the tokens of a recorded answer of a small model on a laptop, in seconds; the first is its first token.
RECORDED_GAPS_S = (0.021, 0.006, 0.005, 0.007, 0.005, 0.012, 0.006, 0.005, 0.006, 0.019)


@dataclass
class ScriptedAnswer:
    """One answer of the language model."""

    text: str = "Fine, thank you."
    calls: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200
    # Number of tokens after which it waits for ever, or breaks off.
    stalls_at: int | None = None
    breaks_at: int | None = None
    raw: list[bytes] | None = None
    # Speed in relation to the recorded times.
    speed: float = 1.0

    @property
    def tokens(self) -> list[str]:
        words = self.text.split(" ")
        return [word if number == 0 else f" {word}" for number, word in enumerate(words)] if self.text else []


@dataclass
class StubBackend:
    port: int = 0
    answers: deque[ScriptedAnswer] = field(default_factory=deque)
    # Texts of turns; an int is a status, ``None`` never answers.
    transcripts: deque[str | int | None] = field(default_factory=deque)
    chats: list[dict[str, Any]] = field(default_factory=list)
    recordings: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    # Before each event of an answer; they repeat.
    gaps_s: tuple[float, ...] = RECORDED_GAPS_S
    # Used in place of the scripts: the answer to a text of the user, and the text of a recording, in a thread.
    answer_to: Callable[[str], ScriptedAnswer] | None = None
    recognize: Callable[[bytes], str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                request, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.headers.append(headers)
                await self._answer(request.split()[1], body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path.endswith("/models"):
            send_json(writer, 200, {"data": [{"id": "small"}, {"id": "large"}]})
        elif path.endswith("/chat/completions"):
            self.chats.append(json.loads(body))
            await self._chat(self._next_answer(), writer)
        else:
            assert path.endswith("/audio/transcriptions"), path
            self.recordings.append(body[body.index(b"RIFF") :])
            if self.recognize is not None:
                self.transcripts.append(await asyncio.to_thread(self.recognize, self.recordings[-1]))
            said = self.transcripts.popleft() if self.transcripts else "hello"
            if said is None:
                await asyncio.Event().wait()
            status = said if isinstance(said, int) else 200
            send_json(writer, status, {"text": said})

    def _next_answer(self) -> ScriptedAnswer:
        if self.answer_to is not None:
            return self.answer_to(self.chats[-1]["messages"][-1]["content"])
        return self.answers.popleft() if self.answers else ScriptedAnswer()

    async def _chat(self, answer: ScriptedAnswer, writer: asyncio.StreamWriter) -> None:
        if answer.status != 200:
            send_json(writer, answer.status, {"error": "SECRET words of the user"})
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number, data in enumerate(answer.raw or events_of(answer)):
            if number == answer.stalls_at:
                await asyncio.Event().wait()
            if number == answer.breaks_at:
                raise ConnectionResetError
            await asyncio.sleep(self.gaps_s[number % len(self.gaps_s)] / answer.speed)
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
        writer.write(b"0\r\n\r\n")


def events_of(answer: ScriptedAnswer) -> list[bytes]:
    """Server-sent events as OpenAI's API gives them."""
    deltas: list[dict[str, Any]] = [{"content": token} for token in answer.tokens]
    for index, call in enumerate(answer.calls):
        name, arguments = call["name"], call["arguments"]
        first = {"index": index, "id": call["id"], "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [first]})
        pieces = (arguments[:4], arguments[4:])
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in [{"role": "assistant", "content": ""}, *deltas]]
    return [*(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks), b"data: [DONE]\n\n"]


def send_json(writer: asyncio.StreamWriter, status: int, value: object) -> None:
    body = json.dumps(value).encode()
    writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))


@asynccontextmanager
async def stub_backend() -> AsyncIterator[StubBackend]:
    stub, tasks = StubBackend(), set[asyncio.Task[None]]()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(stub.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=16_777_216)
    stub.port = server.sockets[0].getsockname()[1]
    try:
        yield stub
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()


@contextmanager
def stub_backend_thread() -> Iterator[StubBackend]:
    """A backend in a thread of its own, for tests that are not coroutines."""
    started: queue.Queue[tuple[StubBackend, Callable[[], object]]] = queue.Queue()

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with stub_backend() as stub:
            started.put((stub, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    stub, stop = started.get()
    try:
        yield stub
    finally:
        stop()
        thread.join()
