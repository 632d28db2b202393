from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.parity.cases import SIZES, TASKS, Case, named
from tests.parity.golden import Golden, Speaker

SpeakerOf = Callable[[str, str], Speaker]
ALL = [
    pytest.param(size, case, id=f"{size}-{case.task}-{case.name}") for size in SIZES for t in TASKS for case in named(t)
]


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def golden_of() -> Callable[[str], Golden]:
    found = {size: Golden.read(size) for size in SIZES}
    return found.__getitem__


@pytest.fixture(scope="session")
def speaker_of(golden_of: Callable[[str], Golden], tmp_path_factory: pytest.TempPathFactory) -> SpeakerOf:
    """An engine for a size and a task, made when first asked for."""
    made: dict[tuple[str, str], Speaker] = {}

    def speaker(size: str, task: str) -> Speaker:
        if (size, task) not in made:
            made[size, task] = Speaker(golden_of(size), task, tmp_path_factory.mktemp(f"{size}-{task}"))
        return made[size, task]

    return speaker


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found
