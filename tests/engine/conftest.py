"""Small checkpoints, made once a session, and the two shaped families."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.engine.families import FAMILIES, Family
from tests.fakes.checkpoints import TINY, TINY_PROJECTED, write_checkpoint
from tests.fakes.checksum_model import ChecksumFamily

SHAPES = tuple(shape for family in FAMILIES for shape in family.shapes)
# For laws of what carries requests to an engine: the slowest of the shapes is among the slow tests.
CARRIED_SHAPES = [
    pytest.param(shape, marks=pytest.mark.slow if shape.name == "cosyvoice3" else (), id=shape.name) for shape in SHAPES
]


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.name)
def shape(request: pytest.FixtureRequest) -> ChecksumFamily:
    found: ChecksumFamily = request.param
    return found


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), TINY)


@pytest.fixture(scope="session")
def projected_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("projected"), TINY_PROJECTED)


@pytest.fixture(params=["tiny_folder", "projected_folder"])
def any_folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name, scope="session")
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture(scope="session")
def family_folder(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: tests that change it make a copy."""
    return family.write(tmp_path_factory.mktemp(family.name))
