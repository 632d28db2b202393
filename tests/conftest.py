"""What every test lives with: one thread for numerics, virtual time on request, and nothing left running at the end."""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}  # before torch is imported
os.environ["VOICEWIRE_WATERMARK_ENABLED"] = "false"  # speech is compared with what the engine emitted

import asyncio
import functools
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import hypothesis
import pytest
import pytest_asyncio

from tests.fakes.engine import FakeSpeechEngine
from tests.fakes.virtual_time import VirtualTimeLoop

THREAD_PREFIX = "voicewire"
THREAD_GRACE_S = 2.0

# A busy machine is no reason to fail: no deadline for an example, none for making one.
hypothesis.settings.register_profile(
    "default", deadline=None, max_examples=50, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "ci", hypothesis.settings.get_profile("default"), derandomize=True, max_examples=30
)
hypothesis.settings.register_profile("thorough", hypothesis.settings.get_profile("default"), max_examples=2_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))


def pytest_configure() -> None:
    """Write bytecode, or each of a hundred processes compiles all modules of the tree again."""
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_finish() -> None:
    """Collect garbage less often, and never what the modules hold: 3 % of the suite's processor time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("virtual_time"):
        return {"virtual": VirtualTimeLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture(autouse=True, scope="session")
def own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep secrets and voices that a server stores by default out of the user's data folder."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def quick_engines() -> Iterator[None]:
    """Load each checkpoint once for the tests of a module, and start engines without dummy requests."""
    from engine import load
    from engine.runtime.codec_runners import EagerCodec
    from engine.runtime.engine import Engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "load_family", functools.cache(load.load_family))
        patch.setattr(EagerCodec, "warm_up", lambda codec, max_s: None)
        patch.setattr(Engine, "warm_up", Engine.choose_device)
        yield


@pytest.fixture(autouse=True)
def nothing_left_running(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves an asyncio task, or a thread of ours, behind."""
    threads_before = set(threading.enumerate())
    if pytest_asyncio.is_async_test(request.node):
        request.getfixturevalue("no_task_left")
    yield
    leaked = [thread.name for thread in our_threads() - threads_before if not ends_soon(thread)]
    if leaked:
        pytest.fail(f"threads left running: {', '.join(sorted(leaked))}", pytrace=False)


def our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(THREAD_PREFIX)}


def ends_soon(thread: threading.Thread) -> bool:
    thread.join(THREAD_GRACE_S)
    return not thread.is_alive()


@pytest.fixture
async def no_task_left() -> AsyncIterator[None]:
    tasks_before = asyncio.all_tasks()
    yield
    for _ in range(3):  # what was cancelled last gets its turn to end
        await asyncio.sleep(0)
    leaked = asyncio.all_tasks() - tasks_before - {asyncio.current_task()}
    if leaked:
        names = ", ".join(sorted(task.get_name() + " " + repr(task.get_coro()) for task in leaked))
        pytest.fail(f"tasks left running: {names}", pytrace=False)


@pytest.fixture
async def engine() -> AsyncIterator[FakeSpeechEngine]:
    """A started fake engine, closed after the test; script it with ``engine.script`` and ``engine.script_next``."""
    engine = FakeSpeechEngine()
    await engine.start()
    yield engine
    await engine.aclose()
