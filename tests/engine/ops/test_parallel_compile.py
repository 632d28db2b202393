"""Kernels compiled side by side before they are launched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import engine
from engine.ops import parallel_compile
from engine.ops.parallel_compile import (
    CompileRequest,
    CompileWorker,
    KernelNotCached,
    compile_only,
    compile_requests,
    intercept,
    launch,
    one_of_each_signature,
    record_requests,
    run_compiled,
    start_workers,
)
from engine.process import child_environment

REQUEST = CompileRequest("module", "kernel", "", ("cuda", 90, 32))
REQUESTS = [REQUEST._replace(name=f"kernel {number}") for number in range(5)]


class Kernel:
    """Remembers what became of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.calls.append(("launched", grid, (args, options)))


def compile_all(
    workers: list[CompileWorker], requests: list[CompileRequest], error: BaseException | None = None
) -> None:
    with compile_requests(workers) as submit:
        for request in requests:
            submit(request)
        if error is not None:
            raise error


def test_a_kernel_is_launched_or_intercepted() -> None:
    kernel = Kernel()

    def remember(kernel: Kernel, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        kernel.calls.append(("intercepted", grid, (args, options)))

    launch(kernel, 3, 4)(1, BLOCK=2)
    with intercept(remember):
        launch(kernel, 3, 4)(1, BLOCK=2)
        with ThreadPoolExecutor(1) as other:
            other.submit(lambda: launch(kernel, 6)()).result()
    with pytest.raises(ZeroDivisionError), intercept(remember):
        _ = 1 // 0
    launch(kernel, 5)()
    given = ((1,), {"BLOCK": 2})
    assert kernel.calls == [
        ("launched", (3, 4), given),
        ("intercepted", (3, 4), given),
        ("launched", (6,), ((), {})),
        ("launched", (5,), ((), {})),
    ]


def worker_that_notes(seen: Path) -> tuple[str, ...]:
    """A command that appends each request to a file."""
    answers = f"import sys\nfor line in sys.stdin: print(line, file=open({str(seen)!r}, 'a')); print(flush=True)"
    return sys.executable, "-c", answers


def num_noted(seen: Path) -> int:
    return len(seen.read_text().split("\n\n")) - 1


def test_a_worker_that_ends_leaves_the_rest_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen = tmp_path / "seen"
    with ExitStack() as stack:
        monkeypatch.setattr(parallel_compile, "WORKER_COMMAND", (sys.executable, "-c", "input()"))
        ended = CompileWorker(stack)
        for _ in range(2):
            compile_all([ended], REQUESTS)
            ended._process.wait()
        assert [record.message for record in caplog.records] == [
            "5 of 5 kernels were not compiled by processes: a process that compiles kernels has ended"
        ] * 2
        monkeypatch.setattr(parallel_compile, "WORKER_COMMAND", worker_that_notes(seen))
        compile_all([ended, CompileWorker(stack)], REQUESTS)
    assert num_noted(seen) in {4, 5}


def test_after_an_error_what_waits_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_compile, "WORKER_COMMAND", worker_that_notes(tmp_path / "seen"))
    with ExitStack() as stack, pytest.raises(ZeroDivisionError):
        compile_all([CompileWorker(stack)], REQUESTS, ZeroDivisionError())
    assert num_noted(tmp_path / "seen") == 5


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, KeyboardInterrupt])
def test_a_start_that_is_given_up_waits_for_no_kernels(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    answers = "while input(): print(flush=True)"
    monkeypatch.setattr(parallel_compile, "WORKER_COMMAND", (sys.executable, "-c", answers))
    with ExitStack() as stack:
        worker = CompileWorker(stack)
        with pytest.raises(error):
            compile_all([worker], REQUESTS, error())
        assert worker._process.wait(10) == -signal.SIGKILL


def test_a_device_without_memory_is_no_reason_to_compile_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_compile, "compile_only", nullcontext)
    runs: list[int] = []

    def run() -> None:
        runs.append(1)
        raise KernelNotCached

    def launch_all() -> None:
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        run_compiled(run, launch_all)
    assert len(runs) == 1


def test_a_worker_imports_the_package_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = "import engine\nwhile input(): print(engine.__file__, flush=True)"
    monkeypatch.setattr(parallel_compile, "WORKER_COMMAND", (sys.executable, "-P", "-c", answers))
    monkeypatch.setattr(sys, "path", [""])  # the current folder
    with ExitStack() as stack:
        assert CompileWorker(stack).compile(REQUEST) == engine.__file__


@pytest.mark.parametrize(("num_startable", "num_cores", "num_started"), [(9, 3, 3), (9, 99, 4), (2, 3, 2)])
def test_as_many_workers_start_as_there_are_cores_or_as_the_system_lets(
    monkeypatch: pytest.MonkeyPatch, num_startable: int, num_cores: int, num_started: int
) -> None:
    left = iter(range(num_startable))

    class Process(subprocess.Popen[bytes]):
        def __init__(self, *command: Any, **how: Any) -> None:
            if next(left, None) is None:
                raise BlockingIOError("no more processes")
            super().__init__(*command, **how)

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(parallel_compile, "WORKER_COMMAND", (sys.executable, "-c", "input()"))
    monkeypatch.setattr(parallel_compile, "MAX_WORKERS", 4)
    monkeypatch.setattr(parallel_compile, "available_cores", lambda: num_cores)
    with ExitStack() as stack:
        assert len(start_workers(stack)) == num_started


def test_a_worker_has_a_process_group_of_its_own_and_is_killed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_compile, "WORKER_COMMAND", (sys.executable, "-c", "import sys; sys.stdin.read()"))
    with ExitStack() as stack:
        process = CompileWorker(stack)._process
        assert os.getpgid(process.pid) == process.pid
    assert process.returncode == -signal.SIGKILL


def test_launchers_are_built_for_the_current_device_once_for_each_signature() -> None:
    here, elsewhere = ("cuda", 90, 32), ("cuda", 80, 32)
    requests = [
        REQUEST._replace(name=name, target=target, specialization=json.dumps({"name": name, "signature": signature}))
        for name, target, signature in [
            ("a", here, {"x": "*bf16"}),
            ("b", here, {"x": "*bf16"}),
            ("c", here, {"x": "*fp32"}),
            ("d", elsewhere, {"x": "*bf16"}),
            ("e", elsewhere, {"x": "i32"}),
        ]
    ]
    assert [request.name for request in one_of_each_signature(requests, here)] == ["b", "c"]


# -- with Triton, and without a GPU ------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Compile for a GPU that is not here, into an empty cache."""
    pytest.importorskip("triton")
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from engine.ops.compile_worker import TargetDriver
    from engine.ops.triton_linear import norm_kernel, swiglu_kernel

    class Driver(TargetDriver):
        def get_current_stream(self, device: str) -> int:
            return 0

    for kernel in (norm_kernel, swiglu_kernel):
        monkeypatch.setattr(kernel, "device_caches", type(kernel.device_caches)(kernel.create_binder))
    monkeypatch.setattr(driver, "_active", Driver(GPUTarget("cuda", 90, 32)))
    monkeypatch.setattr(parallel_compile, "MAX_WORKERS", 2)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert knobs.cache.dir == str(tmp_path)
    return tmp_path


def launch_some() -> None:
    from engine.ops.triton_ops import TritonOps

    ops, x = TritonOps(), torch.ones(3, 400, dtype=torch.bfloat16)
    ops.swiglu(x)
    ops.rms_norm(x, x[0], 1e-6)
    ops.rms_norm(x[:2], x[0], 1e-6)


def load_only(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """What a launch does before the kernel runs."""
    kernel.warmup(*args, grid=grid, **options)


def run_all() -> str:
    with intercept(load_only):
        launch_some()
    return "ran"


def num_compiled(cache: Path) -> int:
    return len(list(cache.glob("*/*.cubin")))


def test_kernels_of_all_launches_are_compiled_once(cache: Path) -> None:
    with compile_only():
        launch_some()
    assert num_compiled(cache) == 2
    compiled: list[str] = []
    run_compiled(run_all, lambda: compiled.append("again"))
    assert num_compiled(cache) == 2
    assert not compiled


def test_a_kernel_is_compiled_once_for_numbers_on_which_it_does_not_depend(cache: Path) -> None:
    from engine.ops.triton_ops import TritonOps

    ops, weight = TritonOps(), torch.ones(7, 64)
    requests: list[CompileRequest] = []
    with record_requests(requests.append) as found:
        for length in (1, 16, 17):
            x = torch.ones(1, length + 6, 64, dtype=torch.bfloat16)
            ops.depthwise_norm(x, weight, weight[0], (weight[0], weight[0]), 1e-6)
    assert len(requests) == 1
    assert list(found) == requests


def test_launchers_are_built_once_all_is_compiled(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[set[str], int]] = []

    def build(requests: Collection[CompileRequest]) -> None:
        built.append(({request.name for request in requests}, num_compiled(cache)))

    monkeypatch.setattr(parallel_compile, "build_launchers", build)
    with compile_only():
        launch_some()
    assert built == [({"norm_kernel", "swiglu_kernel"}, 2)]


def test_a_worker_compiles_without_torch(cache: Path) -> None:
    requests: list[CompileRequest] = []
    with record_requests(requests.append):
        launch_some()
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    command = "import sys; from engine.ops.compile_worker import main; main(); sys.exit('torch' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", command], env=child_environment(), input=lines, text=True, check=False
    )
    assert (ended.returncode, num_compiled(cache)) == (0, 2)


def test_into_an_empty_cache_all_are_compiled_before_any_runs(cache: Path) -> None:
    seen: list[int] = []

    def run() -> str:
        seen.append(num_compiled(cache))
        return run_all()

    assert run_compiled(run, launch_some) == "ran"
    assert seen == [2]


def test_at_the_first_kernel_that_is_missing_all_are_compiled_before_the_others_run(cache: Path) -> None:
    (cache / "of another version").touch()
    seen: list[int] = []

    def run() -> str:
        seen.append(num_compiled(cache))
        return run_all()

    def launch_all() -> None:
        seen.append(num_compiled(cache))
        launch_some()

    assert run_compiled(run, launch_all) == "ran"
    # The first kernel is compiled when it is missed.
    assert seen == [0, 1, 2]


def test_without_processes_that_compile_kernels_are_compiled_when_they_are_launched(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parallel_compile, "WORKER_COMMAND", (os.devnull,))
    assert run_compiled(run_all, launch_some) == "ran"
    assert num_compiled(cache) == 2
    assert "compiling on demand" in caplog.text


@pytest.mark.parametrize("is_loading", [parallel_compile._stop_at_compilation, lambda: record_requests(print)])
def test_another_thread_compiles_what_it_launches(cache: Path, is_loading: Any) -> None:
    (cache / "of another version").touch()
    with ThreadPoolExecutor(1) as other, is_loading():
        assert other.submit(run_all).result() == "ran"
    assert num_compiled(cache) == 2


def test_a_kernel_that_does_not_compile_keeps_no_other_from_it(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    requests: list[CompileRequest] = []
    with record_requests(requests.append):
        launch_some()
    first, second = requests
    with ExitStack() as stack:
        compile_all([CompileWorker(stack)], [first._replace(name="no_kernel"), second])
    assert num_compiled(cache) == 1
    assert "1 of 2 kernels were not compiled by processes: " in caplog.text
    assert "no_kernel" in caplog.text


def test_a_worker_ends_quietly_if_nobody_reads_its_answer(cache: Path) -> None:
    pipe = subprocess.PIPE
    command, environment = parallel_compile.WORKER_COMMAND, child_environment()
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as worker:
        assert worker.stdout is not None
        worker.stdout.close()
        worker.stdout = None
        _, errors = worker.communicate(json.dumps(REQUEST).encode() + b"\n", timeout=60)
    assert (worker.returncode, errors) == (0, b"")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_what_is_only_compiled_writes_nothing_and_runs_later() -> None:
    from engine.ops.reference_ops import ReferenceOps
    from engine.ops.triton_ops import TritonOps

    ops, gate_up = TritonOps(), torch.randn(3, 400, device="cuda")
    x, weight = torch.randn(3, 80, device="cuda"), torch.rand(80, device="cuda")
    with compile_only():
        kept = torch.zeros(3, 200, device="cuda")
        del kept  # the next of its size lies there
        assert not ops.swiglu(gate_up).any()
        ops.rms_norm(x, weight, 1e-6)
    torch.testing.assert_close(ops.swiglu(gate_up), ReferenceOps().swiglu(gate_up))
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-6), ReferenceOps().rms_norm(x, weight, 1e-6))
