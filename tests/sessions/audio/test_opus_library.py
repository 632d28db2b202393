"""Which libopus is found, and what a machine without one is told."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
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
