"""Limits and voices of a cluster: a coordinator, the links of replicas, and real gateway processes. No Ray."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import msgspec
import numpy as np
import pytest

from realtime.cluster.coordinator import Coordinator
from realtime.cluster.link import LINK_VARIABLE, ReplicaLink
from sessions.voices.store import VoiceStore
from sessions.voices.voice import StoredVoice
from tests.cluster.callers import speakers
from tests.realtime.live_server import EMBEDDING_SIZE, NO_CERTIFICATES, WAIT_S
from tests.realtime.server_process import FAKE_GATEWAY_MODULE, start_fake, wire_address

pytestmark = pytest.mark.timeout(120)

LIMIT = 6


class CoordinatorThread:
    """A coordinator on an event loop of its own; can be cut off from some replicas, or from all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.unreachable: set[str] = set()
        self._is_closing = False
        self._coordinator = Coordinator(folder)

    def restart(self) -> None:
        self._coordinator = Coordinator(self._folder, is_successor=True)

    async def _end_calls(self) -> None:
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def caller(self, name: str):
        def call(message: bytes, timeout_s: float) -> bytes:
            if self._is_closing or name in self.unreachable:
                raise OSError("cut off")
            answer = asyncio.run_coroutine_threadsafe(self._coordinator.handle(message), self._loop)
            try:
                return answer.result(timeout_s)
            except CancelledError:
                raise OSError("cut off") from None

        return call

    def close(self) -> None:
        self._is_closing = True
        asyncio.run_coroutine_threadsafe(self._end_calls(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class LinkedGateway:
    def __init__(self, name: str, folder: Path, coordinator: CoordinatorThread) -> None:
        folder.mkdir()
        self.link = ReplicaLink(name, folder, coordinator.caller(name))
        settings = ["listen.port=0", f"limits.max_active_responses_per_key={LIMIT}"]
        settings += [f"voices.folder={self.link.voices_folder}"]
        arguments = [text for item in settings for text in ("--set", item)]
        environment = {**os.environ, LINK_VARIABLE: str(self.link.address)}
        self.process = start_fake(FAKE_GATEWAY_MODULE, *arguments, env=environment)
        self.url = wire_address(self.process.stdout)

    async def request(self, method: str, path: str, **options: object) -> httpx.Response:
        address = self.url.replace("ws", "http").removesuffix("/v1/speech")
        async with httpx.AsyncClient(trust_env=False, verify=NO_CERTIFICATES, timeout=WAIT_S) as client:
            return await client.request(method, address + path, **options)

    async def metric(self, name: str) -> float:
        lines = (await self.request("GET", "/metrics")).text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"voicewire_{name} "))

    async def until(self, name: str, value: float) -> None:
        async with asyncio.timeout(WAIT_S):
            while await self.metric(name) != value:
                await asyncio.sleep(0.1)

    async def add_voice(self, name: str, number: float = 1.0) -> httpx.Response:
        form = {"name": name, "consent": "c", "speaker_embedding": str([number] * EMBEDDING_SIZE)}
        return await self.request("POST", "/v1/audio/voices", files={key: (None, value) for key, value in form.items()})

    async def show(self, voice: str) -> int:
        return (await self.request("GET", f"/v1/audio/voices/{voice}")).status_code

    async def speak(self, voice: str, text: str = "x", **fields: object) -> httpx.Response:
        body = {"input": text, "voice": voice, "response_format": "pcm"}
        return await self.request("POST", "/v1/audio/speech", json=body | fields)

    async def put_lexicon(self, name: str, alias: str) -> httpx.Response:
        return await self.request("PUT", f"/v1/lexicons/{name}", json={"entries": {"NGINX": alias}})

    async def num_bytes(self, *lexicons: str) -> int:
        """Length of a word that these lexicons change: the fake engine speaks each character as long."""
        async with asyncio.timeout(WAIT_S):
            while (spoken := await self.speak("ada", "NGINX", lexicons=lexicons)).status_code == 429:
                await asyncio.sleep(0.1)  # until places of the key have moved here
        assert spoken.status_code == 200, spoken.text
        return len(spoken.content)

    def close(self) -> None:
        self.process.kill()
        self.process.close()
        self.link.close()


@contextmanager
def two_gateways(tmp_path: Path) -> Iterator[tuple[CoordinatorThread, LinkedGateway, LinkedGateway]]:
    coordinator = CoordinatorThread(tmp_path / "all")
    gateways = [LinkedGateway(name, tmp_path / name, coordinator) for name in "ab"]
    try:
        yield coordinator, *gateways
    finally:
        for gateway in gateways:
            gateway.close()
        coordinator.close()


def test_link_that_is_closed_logs_no_failed_call(tmp_path, caplog):
    called, cut = threading.Event(), threading.Event()

    def call(message: bytes, timeout_s: float) -> bytes:
        called.set()
        assert cut.wait(WAIT_S)
        raise OSError("cut off")

    link = ReplicaLink("a", tmp_path, call)
    assert called.wait(WAIT_S)
    closing = threading.Thread(target=link.close)
    closing.start()
    assert link._closed.wait(WAIT_S)
    cut.set()
    closing.join()
    for thread in threading.enumerate():
        if thread.name == "voicewire cluster link":
            thread.join(WAIT_S)
    assert caplog.messages == []


async def test_limit_of_a_key_holds_over_two_gateways(tmp_path):
    """One gateway gets all places of an idle cluster; the other gets one when a reply ends."""
    with two_gateways(tmp_path) as (_, first, second):
        for gateway in (first, second):
            await gateway.until("cluster_lease_current", 1)
        async with speakers(first.url, second.url) as (one, other):
            assert await one.fill(LIMIT) == LIMIT
            assert await other.fill(1) == 0
            await one.cancel()
            assert await other.fill(2) == 1
            assert not await one.begin()
            assert (one.num_ended, other.num_ended) == (1, 0)


async def test_gateway_cut_off_keeps_its_places_and_gets_no_more(tmp_path):
    """Beyond an equal part of the limit it begins no reply again."""
    with two_gateways(tmp_path) as (coordinator, first, second):
        for gateway in (first, second):
            await gateway.until("cluster_lease_current", 1)
        async with speakers(first.url, second.url) as (one, other):
            assert await other.fill(1) == 1
            assert await one.fill(LIMIT - 1) == LIMIT - 1
            coordinator.unreachable = {"a", "b"}
            for gateway in (first, second):
                await gateway.until("cluster_lease_current", 0)
            assert (one.num_ended, other.num_ended) == (0, 0)
            for speaker in (one, other):
                await speaker.cancel()
            assert await one.fill(1) == 0
            assert await other.fill(2) == 1
            coordinator.restart()
            coordinator.unreachable = set()
            for gateway in (first, second):
                await gateway.until("cluster_lease_current", 1)
            assert await one.fill(2, max_refused=30) == 1
            assert not await other.begin()
            assert (one.num_ended, other.num_ended) == (1, 1)


async def test_voice_is_on_every_gateway_when_its_upload_is_answered(tmp_path):
    """Also its successor of the same name; and nowhere after its deletion."""
    with two_gateways(tmp_path) as (_, first, second):
        for gateway in (first, second):
            await gateway.until("cluster_lease_current", 1)
        for number in (1.0, 2.0):
            assert (await first.add_voice("ann", number)).status_code == 200
            assert [await gateway.show("ann") for gateway in (first, second)] == [200, 200]
            stored = [VoiceStore(gateway.link.voices_folder).find("local", "ann") for gateway in (first, second)]
            assert [np.frombuffer(one.clone.embedding, np.float32)[0] for one in stored] == [number] * 2
            assert (await second.add_voice("ann")).status_code == 409
            assert (await second.request("DELETE", "/v1/audio/voices/ann")).status_code == 200
            assert [await gateway.show("ann") for gateway in (first, second)] == [404, 404]


async def test_voice_of_a_gateway_cut_off_is_answered_with_503(tmp_path):
    """A change waits until the other gateway knows that its copy is old. Voices of the model go on."""
    with two_gateways(tmp_path) as (coordinator, first, second):
        for gateway in (first, second):
            await gateway.until("cluster_lease_current", 1)
        assert (await first.add_voice("ann")).status_code == 200
        async with asyncio.timeout(WAIT_S):
            while (await second.speak("ann")).status_code != 200:
                await asyncio.sleep(0.1)
        coordinator.unreachable = {"b"}
        assert (await first.request("DELETE", "/v1/audio/voices/ann")).status_code == 200
        assert (await first.add_voice("ann", 2.0)).status_code == 200
        for name in ("ann", "nobody"):
            refused = await second.speak(name)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "voices_unavailable")
            assert "Retry-After" in refused.headers
        assert (await second.speak("ada")).status_code == 200
        assert (await second.add_voice("cat")).status_code == 503
        coordinator.unreachable = set()
        await second.until("cluster_lease_current", 1)
        assert (await second.speak("ann")).status_code == 200


async def test_voices_of_a_new_coordinator_replace_others(tmp_path):
    """What an operator adds or removes in its folder while there is none, too."""
    with two_gateways(tmp_path) as (coordinator, first, second):
        for gateway in (first, second):
            await gateway.until("cluster_lease_current", 1)
        assert (await first.add_voice("ann")).status_code == 200
        coordinator.unreachable = {"a", "b"}
        store = VoiceStore(tmp_path / "all")
        ann = store.find("local", "ann")
        assert store.remove("local", "ann")
        store.add(StoredVoice(msgspec.structs.replace(ann.manifest, name="cat"), ann.clone))
        coordinator.restart()
        coordinator.unreachable = set()
        for gateway in (first, second):
            async with asyncio.timeout(WAIT_S):
                while [await gateway.show(name) for name in ("cat", "ann")] != [200, 404]:
                    await asyncio.sleep(0.1)


@pytest.mark.cluster
async def test_lexicon_is_spoken_by_every_gateway_once_it_is_stored(tmp_path):
    """A former version by its name; a gateway that is cut off speaks with none, and without one as before."""
    with two_gateways(tmp_path) as (coordinator, first, second):
        for gateway in (first, second):
            await gateway.until("cluster_lease_current", 1)
        plain = await first.num_bytes()
        stored = await first.put_lexicon("names", "engine x " * 3)
        former = f"names@{stored.json()['lexicon']['version']}"
        longer = [await gateway.num_bytes("names") for gateway in (first, second)]
        assert longer[0] == longer[1] > plain
        assert (await second.put_lexicon("names", "N G I N X " * 8)).status_code == 200
        longest = [await gateway.num_bytes("names") for gateway in (first, second)]
        assert longest[0] == longest[1] > longer[0]
        assert [await gateway.num_bytes(former) for gateway in (first, second)] == longer
        coordinator.unreachable = {"b"}
        assert (await first.put_lexicon("names", "x")).status_code == 200
        refused = await second.speak("ada", "NGINX", lexicons=["names"])
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "lexicons_unavailable")
        assert "Retry-After" in refused.headers
        assert (await second.put_lexicon("names", "y")).status_code == 503
        assert await second.num_bytes() == plain
        coordinator.unreachable = set()
        await second.until("cluster_lease_current", 1)
        assert await second.num_bytes("names") == await first.num_bytes("names") != longest[0]
        assert (await second.request("DELETE", "/v1/lexicons/names")).status_code == 200
        for gateway in (first, second):
            spoken = await gateway.speak("ada", "NGINX", lexicons=["names"])
            assert (spoken.status_code, spoken.json()["error"]["code"]) == (400, "unknown_lexicon")
