from __future__ import annotations

import json

import pytest

from tests.fakes.cosyvoice3_checkpoint import write_cosyvoice3
from tests.fakes.cosyvoice3_dims import SHAPES
from tests.parity.cosyvoice3.golden import FOLDER, Golden


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    about = json.loads((FOLDER / "about.json").read_text(encoding="utf-8"))
    config = SHAPES[about["shape"]]
    return Golden(write_cosyvoice3(tmp_path_factory.mktemp("cosyvoice3"), config, about["seed"]), config)
