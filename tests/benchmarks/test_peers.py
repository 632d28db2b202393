"""The client of several servers' wires: against our server, and a small one of Nari's wire."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.peers.__main__ import main, summarize_level
from benchmarks.peers.http_connection import open_connection
from benchmarks.peers.load import LevelPlan, Load
from benchmarks.peers.processes import read_line, start_clients
from benchmarks.peers.reply import Reply, now_s
from benchmarks.peers.wires import OpenAIWire, Target
from realtime.bench.plan import ResponseResult, endless
from tests.benchmarks.nari_server import NariServer
from tests.realtime.server_process import server

ROOT = Path(__file__).parents[2]
TEXTS = ("Good morning to all.", "It is late.", "Where have you been?", "Come in, please.")
OURS = ("native", "openai", "vllm-omni")
SCRIPT = {"ms_per_char": 20.0, "real_time_factor": 0.05}


@pytest.fixture(scope="module")
def url():
    with server(SCRIPT) as running:
        yield running.url.replace("ws", "http", 1)


def plan_of(wire: str, url: str, num_replies: int, **fields: object) -> LevelPlan:
    level = {"loop": "closed", "level": 1.0} | fields
    return LevelPlan(wire=wire, target=Target(url=url), texts=list(TEXTS), num_replies=num_replies, **level)


async def run_in_processes(plan: LevelPlan, num_processes: int) -> list[ResponseResult]:
    async with start_clients(num_processes) as clients:
        return await clients.run(plan)


@pytest.mark.parametrize("loop", ["closed", "open"])
@pytest.mark.parametrize("wire", OURS)
def test_each_wire_completes_every_reply(wire, loop, url):
    plan = plan_of(wire, url, 4, loop=loop, level=2 if loop == "closed" else 20)
    results = asyncio.run(Load(plan).run())
    found = summarize_level(loop, 2, results)
    assert (found["responses"], found["errors"]) == (4, 0), found
    assert found["ttfa_ms"]["p50"] > 0
    assert found["audio_s_per_s"] > 0


def test_all_wires_deliver_the_same_seconds(url):
    seconds = {}
    for wire in OURS:
        results = asyncio.run(Load(plan_of(wire, url, 4)).run())
        seconds[wire] = sum(result.audio_s for result in results)
    assert seconds["openai"] == pytest.approx(seconds["native"], rel=0.02)
    assert seconds["vllm-omni"] == pytest.approx(seconds["native"], rel=0.02)


@pytest.mark.parametrize("wire", ["native", "vllm-omni"])
def test_text_is_written_at_its_pace(wire, url):
    (result,) = asyncio.run(Load(plan_of(wire, url, 1, tokens_per_second=100)).run())
    assert result.error is None
    assert result.ended_s - result.begun_s > len(TEXTS[0]) / 8 / 100


async def run_nari(nari: NariServer, tokens_per_second: float = 0.0) -> dict[str, object]:
    async with nari as url:
        results = await Load(plan_of("nari", url, 4, level=2, tokens_per_second=tokens_per_second)).run()
    return summarize_level("closed", 2, results)


@pytest.mark.parametrize("tokens_per_second", [0, 500])
def test_nari_opens_a_connection_for_each_reply(tokens_per_second):
    nari = NariServer()
    found = asyncio.run(run_nari(nari, tokens_per_second))
    assert (found["errors"], found["continuity"], nari.num_connections) == (0, 1.0, 4)


def test_pause_longer_than_the_audio_is_a_gap():
    longest_s = 0.06 * max(map(len, TEXTS))
    assert asyncio.run(run_nari(NariServer(stall_s=longest_s)))["continuity"] == 0.0


def test_errors_are_counted_by_code():
    found = asyncio.run(run_nari(NariServer(error="overloaded")))
    assert found["error_codes"] == {"overloaded": 4}
    assert found["ttfa_ms"] is None


def test_command_reports_each_level(url):
    command = [sys.executable, "-m", "benchmarks.peers", "--wire", "openai", "--url", url, "--replies", "3"]
    command += ["--warm-up", "1", "--closed", "1,2", "--open", "20", "--processes", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    levels = json.loads(done.stdout.splitlines()[-1])["levels"]
    assert [(level["loop"], level["level"], level["responses"], level["errors"]) for level in levels] == [
        ("closed", 1.0, 3, 0), ("closed", 2.0, 3, 0), ("open", 20.0, 3, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("--processes", "0", "must be a whole number of at least 1, is 0"),
        ("--closed", "8,0.5", "must be a whole number of at least 1, is 0.5"),
        ("--open", "20,0", "must be above 0, is 0"),
        ("--warm-up", "x", "must be a whole number of at least 0, is x"),
        ("--url", "ws://a", "must be http://HOST:PORT, is ws://a"),
    ],
)
def test_bad_value_is_named(option, value, error, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["peers", "--wire", "openai", "--url", "http://a", option, value])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.endswith(f"argument {option}: {error}\n")


OK, CHUNKED = b"HTTP/1.1 200 OK\r\n", b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = b"f00\r\n" + bytes(0xF00) + b"\r\n"
WHOLE = (OK + b"Content-Length: 3840\r\n\r\n", bytes(3840))


class HttpServer:
    """Answers each text with these writes, ``pause_s`` apart; with ``closes`` it ends the connection then.

    The first connection is accepted after ``accept_s``.
    """

    def __init__(self, *answer: bytes, closes: bool = False, pause_s: float = 0.0, accept_s: float = 0.0) -> None:
        self.answer, self.closes, self.pause_s, self.accept_s = answer, closes, pause_s, accept_s
        self.texts: list[str] = []
        self.num_connections = 0
        self.accepted_at_s = 0.0
        self._handlers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        (self.socket,) = self._server.sockets
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.gather(*self._handlers)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._handlers.append(asyncio.current_task())
        index, self.num_connections = self.num_connections, self.num_connections + 1
        with suppress(ConnectionError):
            # A killed client resets its connections.
            await self._answer_all(reader, writer, self.accept_s if index == 0 else 0)
        writer.close()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, accept_s: float) -> None:
        while request := await reader.read(2**16):
            if request.startswith(b"GET"):
                await asyncio.sleep(accept_s)
                self.accepted_at_s = now_s()
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno")
                continue
            # One write of the client is one read here.
            self.texts.append(json.loads(request.partition(b"\r\n\r\n")[2])["input"])
            for piece in self.answer:
                writer.write(piece)
                await asyncio.sleep(self.pause_s)
            if self.closes:
                break


async def run_http(served: HttpServer, num_replies: int = 3, **fields: object) -> list[ResponseResult]:
    async with served as url:
        return await Load(plan_of("openai", url, num_replies, **fields)).run()


@pytest.mark.parametrize(
    ("answer", "closes", "num_connections"),
    [
        ((OK + CHUNKED + CHUNK, b"0\r\n\r\n"), False, 1),
        (WHOLE, False, 1),
        ((OK + b"Connection: close\r\n\r\n", bytes(3840)), True, 3),
        ((OK + b"Connection: close\r\nContent-Length: 3840\r\n\r\n" + bytes(3840),), True, 3),
    ],
)
async def test_bodies_of_every_framing_are_received(answer, closes, num_connections):
    served = HttpServer(*answer, closes=closes, pause_s=0.01)
    results = await run_http(served)
    assert [(result.error, result.audio_s) for result in results] == [(None, 0.08)] * 3
    assert served.num_connections == num_connections
    assert served.texts == list(islice(endless(TEXTS, 0), 3))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno",), "http_503"),
        ((), "closed"),
        ((OK + CHUNKED, CHUNK), "incomplete"),
        ((OK + b"Content-Length: 9000\r\n\r\n", bytes(3840)), "incomplete"),
        ((OK + b"Content-Length: 0\r\n\r\n",), "no_audio"),
        ((b"no HTTP\r\n\r\n",), "illegal status line: bytearray(b'no HTTP')"),
    ],
)
async def test_http_errors_have_codes_of_their_own(answer, error):
    results = await run_http(HttpServer(*answer, closes=True))
    assert [result.error for result in results] == [error] * 3


async def test_body_of_an_error_is_not_audio():
    (result,) = await run_http(HttpServer(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno"), 1)
    assert (result.ttfa_ms, result.audio_s) == (None, 0)


async def test_close_without_announcement_fails_every_second_reply():
    served = HttpServer(*WHOLE, closes=True, pause_s=0.05)
    results = await run_http(served, 4)
    assert [result.error for result in results] == [None, "closed", None, "closed"]
    assert served.num_connections == 2


@pytest.mark.parametrize("linger", [struct.pack("ii", 0, 0), struct.pack("ii", 1, 0)], ids=["closes", "resets"])
async def test_connection_that_ended_between_replies_is_opened_again(linger):
    served, wire = HttpServer(*WHOLE, closes=True, pause_s=0.01), OpenAIWire()
    async with served as url:
        # The server's connections inherit it.
        served.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await wire.open(Target(url=url))
        for text in TEXTS:
            await wire.speak(Reply(text))
            await asyncio.sleep(0.05)
    assert served.num_connections == len(TEXTS)


async def test_pieces_of_one_read_arrive_at_one_time():
    pieces = []
    async with HttpServer(OK + CHUNKED + CHUNK + CHUNK + b"0\r\n\r\n") as url:
        http = await open_connection(url, {})
        await http.send(http.encode("POST", "/", b'{"input": ""}'), lambda *piece: pieces.append(piece))
        http.close()
    (first, first_s), (second, second_s) = pieces
    assert (first, second) == (0xF00, 0xF00)
    assert first_s == second_s


async def test_head_alone_is_not_first_audio():
    (result,) = await run_http(HttpServer(*WHOLE, pause_s=0.05), 1)
    assert result.ttfa_ms >= 50


@pytest.mark.parametrize(
    ("loop", "level", "num_replies", "num_connections", "shares"),
    [("closed", 5.0, 20, 5, (8, 8, 4)), ("closed", 9.0, 8, 8, (3, 3, 2)), ("open", 200.0, 8, 8, (3, 3, 2))],
)
async def test_processes_share_the_load_out(loop, level, num_replies, num_connections, shares):
    served = HttpServer(*WHOLE)
    async with served as url:
        results = await run_in_processes(plan_of("openai", url, num_replies, loop=loop, level=level, first_text=1), 3)
    assert [result.error for result in results] == [None] * num_replies
    assert {result.session for result in results} == set(range(num_connections))
    assert served.num_connections == num_connections
    # A process has replies in proportion to its connections, so that all are busy until the end.
    assert Counter(result.session % 3 for result in results) == dict(enumerate(shares))
    assert Counter(served.texts) == Counter(islice(endless(TEXTS, 0), 1, 1 + num_replies))


async def test_processes_begin_when_the_connections_of_all_are_open():
    served = HttpServer(*WHOLE, accept_s=0.5)
    async with served as url:
        results = await run_in_processes(plan_of("openai", url, 4, level=4.0), 2)
    assert served.num_connections == 4
    assert min(result.begun_s for result in results) > served.accepted_at_s


@pytest.mark.parametrize(("loop", "level"), [("closed", 2.0), ("open", 20.0)])
async def test_replies_begin_at_the_moment_of_the_plan(loop, level):
    begin_s = now_s() + 0.1

    async def begin() -> float:
        return begin_s

    async with HttpServer(*WHOLE) as url:
        first, second = await Load(plan_of("openai", url, 2, loop=loop, level=level), begin).run()
    assert first.begun_s >= begin_s
    assert second.begun_s >= begin_s + (random.Random(0).expovariate(level) if loop == "open" else 0)


async def test_process_that_fails_ends_the_level():
    with pytest.raises(ChildProcessError, match="ended"):
        await run_in_processes(plan_of("unknown", "http://127.0.0.1:1", 2), 1)


async def test_processes_end_with_the_command():
    command = [sys.executable, "-m", "benchmarks.peers", "--wire", "openai", "--closed", "2", "--replies", "40"]
    served = HttpServer(*WHOLE, pause_s=0.03)
    async with served as url:
        running = await asyncio.create_subprocess_exec(
            *command, "--warm-up", "0", "--url", url, cwd=ROOT, stderr=subprocess.PIPE
        )
        while not served.texts:
            await asyncio.sleep(0.01)
        running.kill()
        # The processes hold this pipe until they end.
        await running.communicate()
    assert len(served.texts) < 40


async def test_ctrl_c_does_not_reach_the_processes():
    async with start_clients(1) as clients:
        (process,) = clients._processes
        assert os.getsid(process.pid) == process.pid


async def test_process_that_ends_within_a_line_is_named():
    half = await asyncio.create_subprocess_exec("printf", "[{", stdout=subprocess.PIPE)
    with pytest.raises(ChildProcessError, match="ended"):
        await read_line(half)
    await half.wait()
