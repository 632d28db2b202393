"""Which libopus is found, and what a machine without one is told."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from pathlib import Path

import pytest

from sessions.audio import opus_library
from sessions.audio.opus_library import USE_SYSTEM_LIBRARY, OpusUnavailable, describe, load_opuslib


@pytest.fixture
def fresh_load(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(USE_SYSTEM_LIBRARY, "0")
    load_opuslib.cache_clear()
    yield
    load_opuslib.cache_clear()


def test_describe_gives_path_and_version() -> None:
    library = describe()
    assert Path(library.path).name.startswith("libopus")
    assert library.version.startswith("libopus")


ROUND_TRIP = """
import numpy as np
from sessions.audio.opus import OpusEncoder, OpusSettings, decode_all
from sessions.audio.opus_library import describe

samples = 0.5 * np.sin(np.arange(24_000) * 2 * np.pi * 440 / 24_000).astype(np.float32)
encoder = OpusEncoder(OpusSettings())
decoded = decode_all([*encoder.push(samples), *encoder.flush()], encoder.settings)
print(describe().path, decoded.size, np.corrcoef(samples, decoded)[0, 1])
"""


def test_system_library_is_chosen_by_environment() -> None:
    if find_library("opus") is None:
        pytest.skip("no system libopus here; on Debian: apt install libopus0")
    environment = os.environ | {USE_SYSTEM_LIBRARY: "1"}
    command = [sys.executable, "-c", ROUND_TRIP]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    path, num_samples, likeness = shown.split()
    assert path == find_library("opus")
    assert int(num_samples) == 24_000
    assert float(likeness) > 0.9


def test_falls_back_to_the_system_library(fresh_load: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real_import = importlib.import_module

    def without_bundled(name: str) -> object:
        asked.append(os.environ[USE_SYSTEM_LIBRARY])
        if asked[-1] != "1":
            raise RuntimeError("Bundled Opus library not found")
        return real_import(name)

    monkeypatch.setattr(opus_library.importlib, "import_module", without_bundled)
    assert load_opuslib().OK == 0
    assert asked == ["0", "1"]


def test_without_any_library_the_error_tells_what_to_install(fresh_load: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> object:
        raise OSError("libopus.so: cannot open shared object file")

    monkeypatch.setattr(opus_library.importlib, "import_module", nothing)
    with pytest.raises(OpusUnavailable, match=r"opuslib-next-bundled.*apt install libopus0"):
        load_opuslib()
