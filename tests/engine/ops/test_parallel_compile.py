"""Kernels compiled side by side before they are launched."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import engine
from engine import ops
from engine.ops import parallel_compile
from engine.ops.parallel_compile import (
    CompileRequest,
    KernelNotCached,
    compile_kernels,
    compile_requests,
    intercept,
    launch,
    record_requests,
    run_compiled,
    start_processes,
)
from engine.process import child_environment

REQUEST = CompileRequest("module", "kernel", "", ("cuda", 90, 32), 0)
REQUESTS = [REQUEST._replace(name=f"kernel {number}") for number in range(5)]


class Kernel:
    """Remembers what became of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.calls.append(("launched", grid, (args, options)))


def compile_all(requests: list[CompileRequest], error: BaseException | None = None) -> list[CompileRequest]:
    """Return those that are compiled."""
    compiled: list[CompileRequest] = []
    with compile_requests(compiled.append) as submit:
        for request in requests:
            submit(request)
        if error is not None:
            raise error
    return compiled


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


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Runs a program in place of those that compile."""

    def run(program: str) -> None:
        monkeypatch.setattr(parallel_compile, "WORKER_COMMAND", (sys.executable, "-P", "-c", program))

    return run


def test_processes_that_end_leave_the_rest(workers: Callable[[str], None], caplog: pytest.LogCaptureFixture) -> None:
    workers("input(); input(); print('[1, \"\"]', flush=True)")
    assert compile_all(REQUESTS) == REQUESTS[1:2]
    assert [record.message for record in caplog.records] == [
        "4 of 5 kernels were not compiled by processes: they have ended"
    ]


def test_after_an_error_what_waits_is_compiled(workers: Callable[[str], None], tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    workers(f"import sys; open({str(seen)!r}, 'w').writelines(sys.stdin)")
    with pytest.raises(ZeroDivisionError):
        compile_all(REQUESTS, ZeroDivisionError())
    assert len(seen.read_text().splitlines()) == 5


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, KeyboardInterrupt])
def test_a_start_that_is_given_up_waits_for_no_kernels(
    workers: Callable[[str], None], error: type[BaseException]
) -> None:
    workers("import time; time.sleep(100)")
    start = time.perf_counter()
    with pytest.raises(error):
        compile_all(REQUESTS, error())
    assert time.perf_counter() - start < 50


def test_a_device_without_memory_is_no_reason_to_compile_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_kernels(launch_all: Callable[[], object]) -> bool:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(parallel_compile, "compile_kernels", compile_kernels)
    runs: list[bool] = []

    def run(has_run: bool) -> None:
        runs.append(has_run)
        raise KernelNotCached

    with pytest.raises(torch.OutOfMemoryError):
        run_compiled(run, list)
    assert runs == [False]


def test_a_worker_imports_the_package_of_its_parent(
    workers: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workers("import engine, json\ninput()\nprint(json.dumps([0, engine.__file__]), flush=True)")
    monkeypatch.setattr(sys, "path", [""])  # the current folder
    assert not compile_all([REQUEST])
    assert str(engine.__file__) in caplog.text


@pytest.mark.parametrize(("num_cores", "num_processes"), [(3, 3), (99, 16)])
def test_as_many_processes_compile_as_there_are_cores(
    workers: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, num_cores: int, num_processes: int
) -> None:
    workers("import sys; sys.exit(int(sys.argv[1]))")
    monkeypatch.setattr(parallel_compile, "available_cores", lambda: num_cores)
    with start_processes() as process:
        assert process.wait() == num_processes


def test_all_processes_are_killed_at_the_end(workers: Callable[[str], None], tmp_path: Path) -> None:
    workers(f"import os, sys\nos.fork()\nopen({str(tmp_path)!r} + f'/{{os.getpid()}}', 'w')\nsys.stdin.read()")
    with compile_requests(print):
        while len(found := [int(path.name) for path in tmp_path.iterdir()]) < 2:
            time.sleep(0.01)
        assert {os.getpgid(pid) for pid in found} == {min(found)}
    while any(map(psutil.pid_exists, found)):  # the second one's parent is gone
        time.sleep(0.01)


def test_where_no_pipe_may_be_that_large_processes_compile(
    workers: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError

    workers("input(); print('[0, \"\"]', flush=True)")
    monkeypatch.setattr("fcntl.fcntl", forbid)
    assert compile_all([REQUEST]) == [REQUEST]


def test_what_two_devices_load_is_compiled_once(workers: Callable[[str], None]) -> None:
    workers("import sys\nfor number, line in enumerate(sys.stdin): print(f'[{number}, \"\"]', flush=True)")
    wanted = [request._replace(device=device) for request in REQUESTS for device in (0, 1)]
    assert sorted(compile_all([*wanted[::2], *wanted[1::2]])) == wanted
    workers("import sys; lines = list(sys.stdin); print(f'[0, \"{len(lines)} lines\"]', flush=True)")
    assert compile_all(wanted[:2]) == []


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
    monkeypatch.setattr(parallel_compile, "MAX_PROCESSES", 2)
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


def run_all(has_run: bool = False) -> bool:
    with intercept(load_only):
        launch_some()
    return has_run


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of kernels, which a GPU would load."""
    names: list[str] = []

    def load(request: CompileRequest) -> None:
        getattr(import_module(request.module), request.name).preload(request.specialization)
        names.append(request.name)

    monkeypatch.setattr(parallel_compile, "load_kernel", load)
    return names


def num_compiled(cache: Path) -> int:
    return len(list(cache.glob("*/*.cubin")))


def test_a_kernel_is_compiled_once_for_numbers_on_which_it_does_not_depend(cache: Path) -> None:
    from engine.ops.triton_ops import TritonOps

    ops, weight = TritonOps(), torch.ones(7, 64)
    requests: list[CompileRequest] = []
    with record_requests(requests.append):
        for length in (1, 16, 17):
            x = torch.ones(1, length + 6, 64, dtype=torch.bfloat16)
            ops.depthwise_norm(x, weight, weight[0], (weight[0], weight[0]), 1e-6)
    assert len(requests) == 1


def test_what_is_loaded_is_not_asked_for_again(cache: Path, loaded: list[str]) -> None:
    from triton import knobs

    assert run_compiled(run_all, launch_some)
    assert sorted(loaded) == ["norm_kernel", "swiglu_kernel"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knobs.runtime, "jit_cache_hook", lambda **asked: pytest.fail(str(asked)))
        run_all()


def test_a_kernel_is_loaded_on_each_device_that_launches_it(
    cache: Path, loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.runtime import driver

    def launch_on_both() -> None:
        for device in ("one", "other"):
            monkeypatch.setattr(driver.active, "get_current_device", partial(str, device))
            launch_some()

    with record_requests(print) as requests:
        launch_on_both()
    names = ("swiglu_kernel", "norm_kernel")
    found = [(request.device, request.name) for request in requests]
    assert found == [(device, name) for device in ("one", "other") for name in names]
    assert compile_kernels(launch_on_both)
    assert sorted(loaded) == sorted(2 * names)


def test_one_kernel_that_is_not_compiled_is_told(
    cache: Path, loaded: list[str], workers: Callable[[str], None]
) -> None:
    workers("input(); print('[0, \"\"]', flush=True)")
    assert not compile_kernels(launch_some)
    assert loaded == ["swiglu_kernel"]


def test_a_worker_compiles_without_torch(cache: Path) -> None:
    requests: list[CompileRequest] = []
    with record_requests(requests.append):
        launch_some()
    lines = "".join(json.dumps(request[:4]) + "\n" for request in requests)
    program = "import sys; from engine.ops.compile_worker import main; main(); sys.exit('torch' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program, "2"],
        env=child_environment(), input=lines, text=True, stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    assert sorted(ended.stdout.splitlines()) == ['[0, ""]', '[1, ""]']
    assert (ended.returncode, num_compiled(cache)) == (0, 2)


def test_into_an_empty_cache_all_are_compiled_before_any_runs(cache: Path, loaded: list[str]) -> None:
    seen: list[int] = []

    def run(has_run: bool) -> bool:
        seen.append(num_compiled(cache))
        return run_all(has_run)

    assert run_compiled(run, launch_some)
    assert not run_compiled(run, lambda: pytest.fail("compiled again"))
    assert seen == [2, 2]


def test_at_the_first_kernel_that_is_missing_all_are_compiled_before_the_others_run(cache: Path) -> None:
    (cache / "of another version").touch()
    seen: list[int] = []

    def run(has_run: bool) -> bool:
        seen.append(num_compiled(cache))
        return run_all(has_run)

    def launch_all() -> None:
        seen.append(num_compiled(cache))
        launch_some()

    assert not run_compiled(run, launch_all)  # here none can be loaded
    # The first kernel is compiled when it is missed.
    assert seen == [0, 1, 2]


def test_without_processes_that_compile_kernels_are_compiled_when_they_are_launched(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parallel_compile, "WORKER_COMMAND", (os.devnull,))
    assert not run_compiled(run_all, launch_some)
    assert num_compiled(cache) == 2
    assert "compiling on demand" in caplog.text


@pytest.mark.parametrize("is_loading", [parallel_compile._stop_at_compilation, lambda: record_requests(print)])
def test_another_thread_compiles_what_it_launches(cache: Path, is_loading: Any) -> None:
    (cache / "of another version").touch()
    with ThreadPoolExecutor(1) as other, is_loading():
        other.submit(run_all).result()
    assert num_compiled(cache) == 2


def test_a_kernel_that_does_not_compile_keeps_no_other_from_it(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    requests: list[CompileRequest] = []
    with record_requests(requests.append):
        launch_some()
    first, second = requests
    assert compile_all([first._replace(name="no_kernel"), second]) == [second]
    assert num_compiled(cache) == 1
    assert "1 of 2 kernels were not compiled by processes: " in caplog.text
    assert "no_kernel" in caplog.text


@pytest.fixture
def slow_workers(workers: Callable[[str], None], tmp_path: Path) -> Path:
    """Forked processes wait for each other; each leaves its id in the folder returned."""
    pytest.importorskip("triton")
    folder = tmp_path / "compiling"
    folder.mkdir()
    workers(f"""
import os, time
from pathlib import Path
from engine.ops import compile_worker

def compile_kernel(module, name, *_):
    if name != {REQUESTS[0].name!r} and os.getpid() != main_process:
        Path({str(folder)!r}, str(os.getpid())).touch()
        while len(list(Path({str(folder)!r}).iterdir())) < 3:
            time.sleep(0.01)

main_process = os.getpid()
compile_worker.compile_kernel = compile_kernel
compile_worker.main()
""")
    return folder


@pytest.mark.parametrize(("victim", "num_left"), [("first", 1), ("forked", 0)])
def test_of_a_killed_process_nothing_is_left(
    slow_workers: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, victim: str, num_left: int
) -> None:
    monkeypatch.setattr(parallel_compile, "available_cores", lambda: 2)
    compiled: list[CompileRequest] = []
    with compile_requests(compiled.append) as submit:
        for request in REQUESTS[:4]:
            submit(request)
        while len(forked := [int(path.name) for path in slow_workers.iterdir()]) < 2:
            time.sleep(0.01)
        first = psutil.Process(forked[0]).ppid()
        psutil.Process(first if victim == "first" else forked[0]).kill()
        if victim == "first":
            (slow_workers / "none").touch()
    assert len(compiled) == 4 - num_left
    assert ("they have ended" in caplog.text) == (num_left > 0)
    while any(map(psutil.pid_exists, [first, *forked])):  # what has lost its parent is not waited for
        time.sleep(0.01)


@pytest.mark.parametrize("num_forks", [0, 1])
def test_what_no_process_can_be_forked_for_the_first_one_compiles(
    workers: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, num_forks: int
) -> None:
    pytest.importorskip("triton")
    workers(f"""
import os
from engine.ops import compile_worker

def fork_once(real=os.fork, forks=[]):
    if len(forks) == {num_forks}:
        raise BlockingIOError
    forks.append(None)
    return real()

os.fork = fork_once
compile_worker.compile_kernel = print
compile_worker.main()
""")
    monkeypatch.setattr(parallel_compile, "available_cores", lambda: 4)
    assert sorted(compile_all(REQUESTS)) == REQUESTS


def test_no_key_depends_on_those_computed_before_it() -> None:
    pytest.importorskip("triton")
    program = """
import gc, pkgutil
from importlib import import_module
from engine import ops
from triton.runtime.jit import JITFunction

for module in pkgutil.iter_modules(ops.__path__):
    if module.name.startswith("triton_"):
        import_module("engine.ops." + module.name)
functions = [found for found in gc.get_objects() if type(found) is JITFunction]
own = [function for function in functions if function.module.startswith("engine.")]
without_key = [function for function in functions if function.hash is None]

def keys(own):
    for function in without_key:
        function.hash, function.used_global_vals = None, {}
    return {function.__name__: function.cache_key for function in own}

forward, backward = keys(own), keys(own[::-1])
assert len(own) == len(forward) > 20
print([name for name in forward if forward[name] != backward[name]])
"""
    command, environment = [sys.executable, "-P", "-c", program], child_environment()
    environment.pop("TRITON_INTERPRET", None)
    assert subprocess.check_output(command, env=environment, text=True) == "[]\n"


def test_keys_depend_on_every_value_that_functions_read() -> None:
    """Triton adds to a key what is a ``constexpr``, and no plain number."""
    pytest.importorskip("triton")
    from triton.language import constexpr
    from triton.runtime.jit import JITCallable

    names = [module.name for module in pkgutil.iter_modules(ops.__path__) if module.name.startswith("triton_")]
    modules = [import_module(f"engine.ops.{name}") for name in names]
    functions = [value for module in modules for value in vars(module).values() if isinstance(value, JITCallable)]
    assert {len(function.cache_key) for function in functions} == {64}
    values = [(name, value) for made in functions for (name, _), (value, _) in made.used_global_vals.items()]
    assert values
    assert {name for name, value in values if not isinstance(value, constexpr)} == set()


def test_a_worker_ends_quietly_if_nobody_reads_its_answer(cache: Path) -> None:
    pipe = subprocess.PIPE
    command, environment = [*parallel_compile.WORKER_COMMAND, "1"], child_environment()
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as worker:
        assert worker.stdout is not None
        worker.stdout.close()
        worker.stdout = None
        _, errors = worker.communicate(2 * (json.dumps(REQUEST[:4]).encode() + b"\n"), timeout=60)
    assert (worker.returncode, errors) == (0, b"")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_what_is_only_compiled_writes_nothing_and_runs_later() -> None:
    from engine.ops.reference_ops import ReferenceOps
    from engine.ops.triton_ops import TritonOps

    ops, gate_up = TritonOps(), torch.randn(3, 400, device="cuda")
    x, weight = torch.randn(3, 80, device="cuda"), torch.rand(80, device="cuda")

    def launch_both() -> None:
        kept = torch.zeros(3, 200, device="cuda")
        del kept  # the next of its size lies there
        assert not ops.swiglu(gate_up).any()
        ops.rms_norm(x, weight, 1e-6)

    assert compile_kernels(launch_both)
    torch.testing.assert_close(ops.swiglu(gate_up), ReferenceOps().swiglu(gate_up))
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-6), ReferenceOps().rms_norm(x, weight, 1e-6))
