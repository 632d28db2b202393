"""The checks that every test lives under can themselves fail."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.realtime.server_process import FAKE_GATEWAY_MODULE, server, start_fake

CONFTEST = """
from tests.conftest import no_task_left, nothing_left_running, pytest_asyncio_loop_factories
"""
INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
markers = virtual_time
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST)
    pytester.makeini(INI)
    return pytester


@pytest.mark.parametrize("mark", ["", "@pytest.mark.virtual_time"])
def test_a_task_left_running_fails_its_test(project, mark):
    project.makepyfile(f"""
        import asyncio, pytest

        {mark}
        async def test_leaks():
            test_leaks.task = asyncio.create_task(asyncio.sleep(3600), name="forgotten")
    """)
    result = project.runpytest_inprocess()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*tasks left running: forgotten*"])


def test_a_task_that_ends_or_is_cancelled_is_no_leak(project):
    project.makepyfile("""
        import asyncio

        async def test_ends():
            asyncio.create_task(asyncio.sleep(3600)).cancel()
            asyncio.create_task(asyncio.sleep(0))
    """)
    project.runpytest_inprocess().assert_outcomes(passed=1)


def test_tasks_are_looked_for_after_the_fixtures_are_torn_down(project):
    project.makepyfile("""
        import asyncio, pytest

        @pytest.fixture
        async def worker():
            task = asyncio.create_task(asyncio.sleep(3600))
            yield task
            task.cancel()

        async def test_uses_a_worker(worker):
            assert not worker.done()
    """)
    project.runpytest_inprocess().assert_outcomes(passed=1)


def test_thread_left_running_fails_its_test(project, monkeypatch):
    monkeypatch.setattr("tests.conftest.THREAD_GRACE_S", 0.01)
    project.makepyfile("""
        import threading

        release = threading.Event()

        def test_leaks():
            threading.Thread(target=release.wait, name="voicewire engine").start()

        def test_clean():
            release.set()
            threading.Thread(target=release.wait, name="voicewire brief").start()
    """)
    result = project.runpytest_inprocess()
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*threads left running: voicewire engine*"])


def test_forked_process_reports_its_end_like_a_child():
    failing = start_fake(FAKE_GATEWAY_MODULE, "--slots", "many", stderr=subprocess.PIPE)
    output, errors = failing.communicate()
    assert (output, failing.returncode) == (b"", 2)
    assert b"--slots: invalid int value: 'many'" in errors
    with server() as running:
        process = running.process
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
    assert process.returncode == -signal.SIGKILL
    process.kill()  # no other process that has its number now
