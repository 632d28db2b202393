"""Lexicons of a cluster, in one process: a coordinator, the links of two replicas, and the stores of their gateways."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from msgspec import msgpack

from engine.api import CodedError, InvalidRequest
from realtime.cluster import coordinator as coordinator_module
from realtime.cluster.coordinator import Coordinator, SyncAnswer, SyncRequest
from realtime.cluster.leased_counters import LeasedUsageCounters
from realtime.cluster.link import ClusterLink, ReplicaLink
from realtime.cluster.replicated_stores import ReplicatedLexiconStore
from realtime.cluster.stored_files import RemoveLexicon, StoredFiles
from sessions.admission import LocalUsageCounters
from sessions.lexicon_store import LEXICON_FOLDER, MAX_VERSIONS, LexiconManifest, LexiconRecord, LexiconStore
from sessions.text.lexicons.files import ParsedLexicon
from sessions.text.lexicons.lexicon import LexiconEntry
from tests.cluster.test_link import CoordinatorThread
from tests.realtime.live_server import until


def record(alias: str, name: str = "one") -> LexiconRecord:
    entries = [LexiconEntry(text="a", alias=alias)]
    return LexiconRecord.build(LexiconManifest(name=name, owner="ann"), ParsedLexicon("en", entries))


@asynccontextmanager
async def two_stores(
    tmp_path: Path,
) -> AsyncIterator[tuple[CoordinatorThread, ReplicatedLexiconStore, ReplicatedLexiconStore]]:
    coordinator = CoordinatorThread(tmp_path / "all")
    async with AsyncExitStack() as stack:
        stack.callback(coordinator.close)
        stores = []
        for name in "ab":
            (tmp_path / name).mkdir()
            replica = ReplicaLink(name, tmp_path / name, coordinator.caller(name))
            stack.push_async_callback(asyncio.to_thread, replica.close)
            link = ClusterLink(replica.address)
            await stack.enter_async_context(link.open(LeasedUsageCounters(LocalUsageCounters(), {})))
            await until(lambda link=link: link.has_current_files)
            stores.append(ReplicatedLexiconStore(replica.voices_folder / LEXICON_FOLDER, link))
        yield coordinator, stores[0], stores[1]


async def test_lexicon_is_on_every_replica_when_it_is_stored(tmp_path):
    """Also its next version and the former one, by name, and nothing of it after it is deleted."""
    async with two_stores(tmp_path) as (_, first, second):
        records = [record(alias) for alias in "bcd"]
        for one in records:
            await asyncio.to_thread(first.put, one)
            for store in (first, second):
                assert store.read("ann", "one") == one
        former = f"one@{records[0].manifest.version}"
        for store in (first, second):
            assert {one.version for one in store.versions("ann", "one")} == {one.manifest.version for one in records}
            assert store.find("ann", former).lexicon == records[0].lexicon
        assert await asyncio.to_thread(second.remove, "ann", "one")
        for store in (first, second):
            assert [store.find("ann", name) for name in ("one", former)] == [None, None]
        assert not await asyncio.to_thread(second.remove, "ann", "one")


async def test_store_that_is_cut_off_finds_no_lexicon_at_all(tmp_path):
    """Not even an unchanged one: it cannot know."""
    async with two_stores(tmp_path) as (coordinator, first, second):
        await asyncio.to_thread(first.put, record("b"))
        coordinator.unreachable = {"b"}
        changed = record("c")
        await asyncio.to_thread(first.put, changed)
        for read in (second.find, second.read):
            with pytest.raises(CodedError, match="lexicon 'one' cannot be compared") as error:
                read("ann", "one")
            assert (error.value.code, error.value.info.retryable) == ("lexicons_unavailable", True)
        with pytest.raises(CodedError, match="may not have reached every gateway"):
            await asyncio.to_thread(second.put, record("d"))
        coordinator.unreachable = set()
        await until(lambda: second._copied._link.has_current_files)
        assert second.read("ann", "one") == first.read("ann", "one") == changed


async def test_edits_at_two_gateways_are_all_kept(tmp_path):
    num_edits = 5

    def add(text: str):
        def change(current: LexiconRecord) -> LexiconRecord:
            entries = [*current.entries, LexiconEntry(text=text, alias="x")]
            return LexiconRecord.build(current.manifest, ParsedLexicon("en", entries))

        return change

    async with two_stores(tmp_path) as (_, *stores):
        await asyncio.to_thread(stores[0].put, record("b"))
        texts = [[f"{name}{number}" for number in range(num_edits)] for name in "pq"]

        async def edit(store: ReplicatedLexiconStore, texts: list[str]) -> None:
            for text in texts:
                assert await asyncio.to_thread(store.edit, "ann", "one", add(text)) is not None

        await asyncio.gather(*map(edit, stores, texts))
        assert {entry.text for entry in stores[1].read("ann", "one").entries} == {"a", *texts[0], *texts[1]}
        assert await asyncio.to_thread(stores[0].edit, "ann", "two", add("c")) is None
        assert await asyncio.to_thread(stores[0].edit, "ann", "../one", add("c")) is None


async def test_lexicon_that_the_head_refuses_changes_nothing(tmp_path):
    async with two_stores(tmp_path) as (_, first, second):
        with pytest.raises(CodedError, match="name") as error:
            await asyncio.to_thread(first.put, record("b", name="../two"))
        assert error.value.code == InvalidRequest.code
        assert second.list("ann") == []


async def test_answers_are_limited_and_their_last_completes_the_copy(tmp_path, monkeypatch):
    """One file an answer here. An operator's lexicon is copied with its versions in their order."""
    monkeypatch.setattr(coordinator_module, "MAX_CHANGE_BYTES", 0)
    head = LexiconStore(tmp_path / "head" / LEXICON_FOLDER)
    for number in range(MAX_VERSIONS):
        head.put(record(str(number)))
    for number, version in enumerate(sorted((tmp_path / "head").rglob("*.version"))):
        os.utime(version, (number, number))
    coordinator, copy = Coordinator(tmp_path / "head"), StoredFiles(tmp_path / "copy")
    request, num_answers = SyncRequest("a"), 0
    while True:
        answer = await coordinator.sync(request)
        assert len(answer.changes) == 1
        for change in answer.changes:
            copy.apply(change)
        num_answers += 1
        if answer.is_complete:
            break
        request = SyncRequest("a", epoch=answer.epoch, files=answer.files)
    assert num_answers == MAX_VERSIONS + 1
    copied = LexiconStore(tmp_path / "copy" / LEXICON_FOLDER)
    assert copied.versions("ann", "one") == head.versions("ann", "one")
    assert (found := copied.read("ann", "one")) is not None
    assert found == head.read("ann", "one")


async def test_names_of_lexicons_that_have_gone_are_forgotten(tmp_path, monkeypatch):
    """A replica that was away meanwhile has none of them either."""
    monkeypatch.setattr(coordinator_module, "MAX_GONE", 1)
    async with two_stores(tmp_path) as (coordinator, first, second):
        head = LexiconStore(tmp_path / "all" / LEXICON_FOLDER)
        for name in "pqrs":
            head.put(record("b", name))
        for store in (first, second):
            await until(lambda store=store: len(store.list("ann")) == 4)
        coordinator.unreachable = {"b"}
        for name in "pqr":
            assert head.remove("ann", name)
        head.put(record("b", "t"))
        await until(lambda: {one.name for one in first.list("ann")} == {"s", "t"})
        assert len(second.list("ann")) == 4
        coordinator.unreachable = set()
        await until(lambda: {one.name for one in second.list("ann")} == {"s", "t"})
        answer = await asyncio.to_thread(coordinator.caller("c"), msgpack.encode(SyncRequest("c")), 5.0)
        # Each lexicon is a file, and so is its version.
        assert len(msgpack.decode(answer, type=SyncAnswer).changes) == 2 * 2 + 1


async def test_leases_are_renewed_before_the_changes_that_wait(tmp_path, monkeypatch):
    LexiconStore(tmp_path / LEXICON_FOLDER).put(record("b"))
    coordinator, may_scan, num_scans = Coordinator(tmp_path), threading.Event(), 0
    versions = coordinator._stored.versions

    def scan():
        nonlocal num_scans
        num_scans += 1
        may_scan.wait()
        return versions()

    monkeypatch.setattr(coordinator._stored, "versions", scan)
    changes = [asyncio.create_task(coordinator.change_file(RemoveLexicon("bob", str(number)))) for number in range(20)]
    await until(lambda: num_scans)
    sync = asyncio.create_task(coordinator.sync(SyncRequest("a")))
    await asyncio.sleep(0.2)  # time for changes that do not wait for each other to come before it
    may_scan.set()
    await sync
    assert num_scans <= 3
    for change in changes:
        change.cancel()
    await asyncio.wait(changes)
