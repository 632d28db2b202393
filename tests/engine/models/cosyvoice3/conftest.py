"""One tiny checkpoint in the released layout for all tests of the family."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.cosyvoice3_checkpoint import write_cosyvoice3


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: tests that change it make a copy."""
    return write_cosyvoice3(tmp_path_factory.mktemp("cosyvoice3"))
