from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from engine.models.cosyvoice3.config import CosyVoice3Config, read_config
from tests.fakes.cosyvoice3_checkpoint import WEIGHT_NORMS, write_cosyvoice3
from tests.fakes.cosyvoice3_dims import TINY
from tests.fakes.cosyvoice3_tensors import flow_shapes, hift_shapes, normed_hift_shapes, talker_shapes


def test_released_sizes_make_the_released_tensors_and_bytes() -> None:
    config = CosyVoice3Config()
    talker, flow, hift = talker_shapes(config.talker), flow_shapes(config.flow), hift_shapes(config.hift)
    normed = [shape for name, shape in normed_hift_shapes(config.hift) if name.endswith("weight")]
    assert (len(talker), len(flow), len(hift) + len(normed)) == (293, 330, 328)
    del talker["llm.model.lm_head.weight"]
    gains = sum(shape[0] for shape in normed)
    bytes_of = [4 * sum(math.prod(shape) for shape in shapes.values()) for shapes in (talker, flow, hift)]
    assert bytes_of == [2_024_593_920, 1_329_028_480, 83_119_548 - 4 * gains]


@pytest.mark.parametrize("spelling", WEIGHT_NORMS)
def test_a_small_folder_reads_as_the_sizes_it_was_made_by(tmp_path: Path, spelling: str) -> None:
    write_cosyvoice3(tmp_path, TINY, weight_norm=spelling)
    assert read_config(tmp_path) == TINY
    names = torch.load(tmp_path / "hift.pt", weights_only=True).keys()
    assert len(names) == 328
    assert sum(name.endswith(WEIGHT_NORMS[spelling]) for name in names) == 2 * 82
