from __future__ import annotations

from copy import deepcopy

import torch
import torch.nn.functional as F

from engine.layers.transformer import CausalContext
from engine.models.qwen3_tts.talker import Talker


def test_the_text_projection_is_its_formula(plain_talker: Talker) -> None:
    """T(x) = fc2(silu(fc1(text_embedding[x]))) (spec 2.2), looked up or computed."""
    ids, project = torch.tensor([0, 5, 17]), plain_talker.text_projection
    embedded = plain_talker.model.text_embedding.weight[ids]
    inner = F.silu(embedded @ project.linear_fc1.weight.t() + project.linear_fc1.bias)
    expected = inner @ project.linear_fc2.weight.t() + project.linear_fc2.bias
    fused = deepcopy(plain_talker)
    fused.fuse()
    for talker in (plain_talker, fused):
        torch.testing.assert_close(talker.embed_text(ids), expected, atol=1e-5, rtol=1e-4)


def test_a_frame_is_the_sum_of_its_embeddings(plain_talker: Talker) -> None:
    codes = torch.tensor([[1, 2, 3, 4], [63, 0, 63, 0]])
    tables = [plain_talker.model.codec_embedding, *plain_talker.code_predictor.model.codec_embedding]
    expected = sum(table.weight[codes[:, j]] for j, table in enumerate(tables))
    fused = deepcopy(plain_talker)
    fused.fuse()
    for talker in (plain_talker, fused):
        torch.testing.assert_close(talker.embed_frame(codes), expected, atol=1e-5, rtol=1e-4)


def test_merged_products_give_the_same_hidden_states(plain_talker: Talker) -> None:
    x = torch.randn(2, 11, plain_talker.codec_head.in_features)
    positions = torch.arange(11)[None].expand(2, -1)
    before = plain_talker(x, positions, CausalContext())
    fused = deepcopy(plain_talker)
    fused.fuse()
    torch.testing.assert_close(fused(x, positions, CausalContext()), before, atol=1e-4, rtol=1e-4)
