"""``voicewire engine`` in real processes, and servers that use it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import psutil
import pytest

from engine.address import EngineAddress
from engine.api import FinishReason
from engine.remote_pool import AddressSource, RemotePool
from realtime.client import open_session
from realtime.protocol import events as ev
from tests.engine.served_engine import StoppableProxy, write_addresses
from tests.engine.test_client import all_have_audio, speak, until
from tests.engine.test_client import request as long_request
from tests.fakes.checkpoints import write_checkpoint
from tests.fork_server import ForkedProcess, fork_server
from tests.realtime.certificates import CertificateAuthority
from tests.realtime.live_server import hear
from tests.realtime.server_process import wire_address

TEXT = "Hello there, how are you today?"
# The checkpoint is random and ends nothing by itself.
BURST = ev.NativeSpeechSettings(pace="burst", max_frames=12)
PATIENCE_S = 120.0
# With what a command imports only once it runs.
MODULES = ("realtime.cli", "realtime.app", "realtime.commands.engine", "engine.models.qwen3_tts.load")
QUICK = ("--set", "engine.options.lazy_graph_capture=true", "--set", "debug.engine.admission_utilization=1e6")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


class RunningEngine(NamedTuple):
    process: ForkedProcess
    address: str


@contextmanager
def command(*arguments: str, stderr: int | None = None) -> Iterator[ForkedProcess]:
    environment = os.environ | {"VOICEWIRE_DEBUG": "1"}
    process = fork_server(*MODULES).start(
        "realtime.cli", *arguments, stdout=subprocess.PIPE, stderr=stderr, env=environment
    )
    try:
        yield process
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
            child.kill()
        process.kill()
        process.close()


def refusal(*arguments: str) -> tuple[int, str]:
    """Return the status and the errors of a command that prints nothing else."""
    with command(*arguments, stderr=subprocess.PIPE) as process:
        output, errors = process.communicate()
    assert output == b""
    return process.wait(), errors.decode()


@contextmanager
def engine(folder: Path, listen: str, *arguments: str) -> Iterator[RunningEngine]:
    with command("engine", "--model", str(folder), "--listen", listen, *QUICK, *arguments) as process:
        name, address = process.stdout.readline().decode().split()
        assert name == "engine"
        yield RunningEngine(process, address)


@contextmanager
def server(addresses: str, *arguments: str) -> Iterator[str]:
    settings = ["--port", "0", "--set", f"engine.addresses={addresses}", *arguments]
    with command("serve", *settings, stderr=subprocess.DEVNULL) as process:
        yield wire_address(process.stdout).removesuffix("/v1/speech")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def tls_flags(authority: CertificateAuthority, name: str) -> list[str]:
    certificate, key = authority.issue(name)
    files = {"certificate": certificate, "key": key, "ca": authority.certificate}
    return [part for kind, file in files.items() for part in ("--set", f"engine.tls_{kind}={file}")]


async def speaks(url: str) -> None:
    async with await open_session(url) as client:
        await client.send(ev.ResponseCreate(response_id="r", settings=BURST, text=TEXT, end=True))
        done = (await hear(client, "r")).done
    assert (done.status, done.error) == ("completed", None)


@pytest.mark.timeout(300)
async def test_gateways_use_engines_of_a_file_over_tls(folder: Path, tmp_path: Path) -> None:
    """One engine is replaced by another; SIGTERM ends the first."""
    authority, file = CertificateAuthority(tmp_path / "ca"), tmp_path / "engines"
    with ExitStack() as running:
        first = running.enter_context(engine(folder, "tcp://0.0.0.0:0", *tls_flags(authority, "one")))
        assert first.address.startswith("tcp://0.0.0.0:")
        port = int(first.address.rpartition(":")[2])
        write_addresses(file, f"tcp://127.0.0.1:{port}")
        flags = ("--gateways", "2", *tls_flags(authority, "gateway"))
        url = running.enter_context(server(f"file:{file}", *flags))
        await speaks(url)
        unix = f"unix:{tmp_path / 'second.sock'}"
        second = running.enter_context(engine(folder, unix))
        assert second.address == unix
        write_addresses(file, unix)
        first.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(first.process.wait, PATIENCE_S) == 0
        await speaks(url)
        await speaks(url)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
async def test_replies_of_an_engine_that_ends_move(folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    """They have the samples of an uninterrupted one."""
    file = tmp_path / "engines"
    with engine(folder, "tcp://127.0.0.1:0") as ending, engine(folder, f"unix:{tmp_path / 'other'}") as other:
        write_addresses(file, ending.address)
        pool = RemotePool(AddressSource(f"file:{file}"))
        await pool.start()
        try:
            uncut, _ = await speak(pool, long_request("uncut", 40))
            specs = [msgspec.structs.replace(long_request(f"r{n}", 40), lead_ms=200) for n in range(4)]
            speaking = [asyncio.create_task(speak(pool, spec)) for spec in specs]
            await until(lambda: all_have_audio(pool.clients[0], len(specs)))
            write_addresses(file, ending.address, other.address)
            await until(lambda: sum(client.is_available for client in pool.clients) == 2)
            ending.process.send_signal(number)
            for pcm, end in await asyncio.gather(*speaking):
                np.testing.assert_allclose(pcm, uncut, atol=1e-5)
                assert end.reason is FinishReason.LENGTH
            status = await asyncio.to_thread(ending.process.wait, PATIENCE_S)
            assert status == (0 if number is signal.SIGTERM else -number)
            await speak(pool, long_request("next"))
        finally:
            await pool.aclose()


def http_status(url: str, body: bytes | None = None) -> int:
    order = urllib.request.Request(url.replace("ws:", "http:"), body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(order, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


async def hear_reply(url: str, settings: ev.NativeSpeechSettings, began: asyncio.Event) -> np.ndarray:
    pcm = bytearray()
    async with await open_session(url) as client:
        await client.send(ev.ResponseCreate(response_id="r", settings=settings, text=TEXT * 4, end=True))
        async for message in client:
            if isinstance(message, ev.AudioMessage):
                assert message.sample_time == len(pcm) // 2
                pcm += b"".join(message.packets)
                began.set()
            elif isinstance(message, ev.ResponseDone):
                assert (message.status, message.audio_samples) == ("completed", len(pcm) // 2), message
                break
    return np.frombuffer(bytes(pcm), np.int16).astype(np.int32)


@pytest.mark.timeout(300)
async def test_reply_of_an_engine_that_is_cut_off_moves(folder: Path, tmp_path: Path) -> None:
    """The server is a process, too. New work is refused meanwhile; what the engine sent arrives late, for nothing."""
    file, began = tmp_path / "engines", asyncio.Event()
    audio = ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=24_000)
    paced = ev.NativeSpeechSettings(format=audio, seed=7, lead_ms=100, max_frames=60)
    burst = msgspec.structs.replace(paced, pace="burst", lead_ms=None)
    with ExitStack() as running:
        lost = running.enter_context(engine(folder, "tcp://127.0.0.1:0"))
        other = running.enter_context(engine(folder, f"unix:{tmp_path / 'other'}"))
        async with StoppableProxy(EngineAddress.parse(lost.address)).open() as way:
            write_addresses(file, way.address)
            # The proxy needs this thread.
            url = await asyncio.to_thread(running.enter_context, server(f"file:{file}"))
            uncut = await hear_reply(url, burst, asyncio.Event())
            reply = asyncio.create_task(hear_reply(url, paced, began))
            await began.wait()
            way.stop()
            while await asyncio.to_thread(http_status, f"{url}/readyz") == 200:
                await asyncio.sleep(0.1)
            assert not reply.done()
            body = b'{"model": "tts-1", "input": "Hello."}'
            assert await asyncio.to_thread(http_status, f"{url}/v1/audio/speech", body) == 503
            write_addresses(file, way.address, other.address)
            while await asyncio.to_thread(http_status, f"{url}/readyz") == 503:
                await asyncio.sleep(0.1)
            way.go_on()
            assert np.abs(await reply - uncut).max() <= 1
            await speaks(url)
            await asyncio.to_thread(running.close)


@pytest.mark.timeout(300)
async def test_a_second_signal_ends_the_drain(folder: Path) -> None:
    with engine(folder, "tcp://127.0.0.1:0") as ending:
        pool = RemotePool(AddressSource(ending.address))
        await pool.start()
        stream = pool.submit(msgspec.structs.replace(long_request("open", 900), text_closed=False))
        await until(lambda: all_have_audio(pool.clients[0], 1))
        ending.process.send_signal(signal.SIGTERM)
        await until(lambda: not pool.is_alive)
        assert pool.clients[0].is_alive
        ending.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(ending.process.wait, PATIENCE_S) == 0
        stream.cancel()
        await pool.aclose()


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["--listen", "tcp://0.0.0.0:0"], 1, "tcp://0.0.0.0:0 is not a loopback address"),
        (["--listen", "nowhere"], 1, "engine address is 'nowhere'"),
        (["--listen", "tcp://127.0.0.1:0", "--tls-ca", "ca.pem"], 1, "tls_certificate is missing"),
        (["--listen", "tcp://127.0.0.1:0", "--set", "engine.optoins.x=1"], 2, "engine.optoins.x"),
        (["--listen", "tcp://127.0.0.1:0", "--set", "engine.options.num_blocks=9"], 1, "num_blocks is a constant"),
        (["--listen", "tcp://127.0.0.1:0", "--set", "engine.options.device=cpu,cpu"], 1, "an engine for each device"),
        (["--listen", "tcp://127.0.0.1:0", "--model", "/nowhere"], 1, "/nowhere"),
    ],
)
def test_what_cannot_start_is_explained_in_one_line(arguments: list[str], status: int, complaint: str) -> None:
    found, errors = refusal("engine", *arguments)
    assert found == status
    assert complaint in errors
    assert errors.count("\n") == 1


def test_a_server_refuses_wrong_addresses_before_it_listens() -> None:
    for gateways in ("1", "2"):
        settings = ["--set", "engine.addresses=tcp://10.0.0.1:9", "--gateways", gateways, "--port", "0"]
        status, errors = refusal("serve", *settings)
        assert status == 1
        assert "tcp://10.0.0.1:9 is not a loopback address" in errors
