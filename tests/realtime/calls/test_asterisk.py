"""A real Asterisk calls us by the dialplan of examples/asterisk, and the caller hears what the agent says."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import ClientConnection, connect

from sessions.audio.resampler import Resampler
from tests.realtime.calls.asterisk import PROGRAM, WAIT_S, Asterisk, asterisk, until
from tests.realtime.server_process import ServerProcess, wire_address

pytest.importorskip("pocketsphinx", reason="the dependency group training is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Asterisk is installed (docs/guides/calls.md tells how)"),
]

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "Seven men went to the market on a rainy day.",
    "Please leave your number and we will call you back.",
    "A large house stands beside the old river.",
)
LONG = " ".join(SENTENCES * 4)
# Extensions of the example, and the wire by which each comes.
WAYS = {"100": "audiosocket", "101": "audiosocket", "102": "asterisk"}
# Our clock and the caller's recording agree by so much.
SETTLED_MS = 100.0
# Held by an Asterisk that takes back: without our clear, the caller would hear it after a cut.
LEAD_MS = 2_000


@pytest.fixture(scope="module")
def audiosocket_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as placeholder:
        return placeholder.getsockname()[1]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def server(audiosocket_port: int) -> Iterator[ServerProcess]:
    """With the embedded voice."""
    settings = {"audiosocket": f"127.0.0.1:{audiosocket_port}", "lead_ms": LEAD_MS}
    flags = [part for name, value in settings.items() for part in ("--set", f"calls.{name}={value}")]
    command = [sys.executable, "-m", "realtime.cli", "serve", "--set", "listen.port=0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield ServerProcess(process, wire_address(process.stdout).removesuffix("/v1/speech"))
        process.terminate()


@pytest.fixture(scope="module")
def pbx(server: ServerProcess, audiosocket_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asterisk]:
    folder = tmp_path_factory.mktemp("asterisk")
    _speech_of_a_caller(folder / "caller.sln")
    with asterisk(folder, server.url, audiosocket_port) as one:
        yield one


def _speech_of_a_caller(path: Path) -> None:
    from training.flite import SAMPLE_RATE_HZ, synthesize

    spoken = np.asarray(synthesize("Wait a moment, please. I have a question.", "slt").pcm, np.float32)
    path.write_bytes(Resampler(SAMPLE_RATE_HZ, 8_000).push(spoken).astype("<i2").tobytes())


class Agent:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.call_id = ""

    def told(self, kind: str) -> dict[str, Any]:
        while (event := json.loads(self._socket.recv(timeout=WAIT_S)))["type"] != kind:
            assert event["type"] != "error", event
        return event  # type: ignore[no-any-return]

    def tell(self, kind: str, **fields: object) -> None:
        self._socket.send(json.dumps({"type": kind, "call_id": self.call_id, **fields}))


@contextmanager
def answered(server: ServerProcess, pbx: Asterisk, extension: str, caller: str) -> Iterator[Agent]:
    """A call, and an agent in it. Afterwards nothing is left, here or there."""
    with connect(f"{server.url}/v1/calls", proxy=None) as socket:
        agent = Agent(socket)
        pbx.call(extension, caller)
        connected = agent.told("call.connected")
        assert connected["provider"] == WAYS[extension]
        agent.call_id = connected["call_id"]
        yield agent
    until(lambda: pbx.num_channels() == 0)
    until(lambda: held(server) == 0)


def held(server: ServerProcess) -> float:
    """Connections, responses, and what the engine holds for them."""
    with urllib.request.urlopen(server.url.replace("ws", "http", 1) + "/metrics") as answer:
        found = dict(re.findall(r"^voicewire_(\w+) (\S+)$", answer.read().decode(), re.MULTILINE))
    busy = [found["open_connections"], found["active_responses"]]
    free = [(found[f"{kind}_total"], found[f"{kind}_free"]) for kind in ("kv_blocks", "decoder_slots")]
    return sum(map(float, busy)) + sum(float(total) - float(left) for total, left in free)


def words(text: str) -> str:
    return re.sub(r"[^a-z ]", "", text.lower())


@pytest.mark.parametrize("extension", WAYS)
def test_caller_receives_speech_of_agent(server: ServerProcess, pbx: Asterisk, extension: str) -> None:
    from training.asr_judge import Recognizer, to_16k

    with answered(server, pbx, extension, "listens") as agent:
        for sentence in SENTENCES[:2]:
            agent.tell("say", text=sentence)
        played = [agent.told("reply.played") for _ in range(2)]
        assert {one["confirmed"] for one in played} == {WAYS[extension] == "asterisk"}, "its marks came back"
        agent.tell("hang_up", after_speech=True)
        assert agent.told("call.hung_up")["reason"] == "agent"
    samples, rate = pbx.heard()
    loud = np.flatnonzero(np.abs(samples.astype(int)) > 300)
    assert (loud[-1] - loud[0]) / rate == pytest.approx(sum(one["played_ms"] for one in played) / 1000, abs=0.5)
    hypothesis = Recognizer(SENTENCES).hear(to_16k(samples, rate))
    assert hypothesis == " ".join(map(words, SENTENCES[:2]))


@pytest.mark.parametrize("extension", WAYS)
def test_a_hang_up_in_mid_word_leaves_nothing_behind(server: ServerProcess, pbx: Asterisk, extension: str) -> None:
    with answered(server, pbx, extension, "listens") as agent:
        agent.tell("say", text=LONG, reply_id="r")
        agent.told("reply.accepted")
        with pytest.raises(TimeoutError):
            agent._socket.recv(timeout=2.0)
        pbx.hang_up()
        cut = agent.told("reply.interrupted")
        assert (cut["reply_id"], cut["cause"]) == ("r", "hang_up")
        assert LONG.startswith(cut["heard"]["text"])
        assert 500 < cut["heard"]["played_ms"] < 4_000
        assert agent.told("call.hung_up")["reason"] == "caller"


@pytest.mark.parametrize("extension", WAYS)
def test_the_callers_voice_cuts_the_reply(server: ServerProcess, pbx: Asterisk, extension: str) -> None:
    with answered(server, pbx, extension, "speaks") as agent:
        agent.tell("say", text=LONG)
        cut = agent.told("reply.interrupted")
        assert cut["cause"] == "caller"
        with pytest.raises(TimeoutError):
            agent._socket.recv(timeout=2.0)
        pbx.hang_up()
        agent.told("call.hung_up")
    samples, rate = pbx.heard()
    spoken = np.flatnonzero(samples)  # the voice's pauses too: it is cut between two sentences
    heard_ms = 1000 * (spoken[-1] - spoken[0]) / rate
    assert heard_ms == pytest.approx(cut["heard"]["played_ms"], abs=SETTLED_MS), "what came after the cut was not heard"


@pytest.mark.parametrize("extension", WAYS)
def test_dtmf_during_playout_is_reported(server: ServerProcess, pbx: Asterisk, extension: str) -> None:
    with answered(server, pbx, extension, "presses") as agent:
        agent.tell("say", text=LONG)
        assert agent.told("call.dtmf")["digit"] == "7"
        agent.tell("hang_up")
        assert agent.told("reply.interrupted")["cause"] == "hang_up"
        assert agent.told("call.hung_up")["reason"] == "agent"
