"""Teacher-forced training and free speech must be one model: the same rows, the same codes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine.layers.transformer import CausalContext
from engine.models.qwen3_tts.config import Qwen3TTSConfig
from engine.models.qwen3_tts.prompt import PromptBuilder
from engine.models.qwen3_tts.talker import Talker
from tests.fakes.checkpoints import write_tokenizer
from training.layout import TextIds
from training.pipeline import voice_config
from training.prompt_batches import END, IGNORED, LANGUAGES, Prefixes, build_rows, num_positions
from training.reference_inference import Speaker, SpokenLine, draw
from training.settings import TOY, Sampling
from training.talker import Batches, TalkerInTraining
from training.tokenizer import read_ids

TEXT = [40, 41, 42, 43]
GREEDY = Sampling(temperature=0.0, predictor_temperature=0.0)


class Setup:
    def __init__(self, folder: Path) -> None:
        write_tokenizer(folder)
        ids = TextIds(**read_ids(folder, TOY.sizes.text_vocab))
        torch.manual_seed(6)
        self.config: Qwen3TTSConfig = voice_config(TOY, ids)
        self.prompts = PromptBuilder(self.config, (ids.im_start, ids.assistant, ids.newline))
        self.prefixes = Prefixes.of(self.prompts, TOY.speakers, "cpu")
        self.model = TalkerInTraining(Talker(self.config.talker), TOY.talker).eval()


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return Setup(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("full", [False, True])
def test_free_speech_equals_teacher_forcing(setup: Setup, full: bool) -> None:
    speaker = Speaker(setup.model.talker, setup.config, setup.prompts, GREEDY)
    other = SpokenLine(TEXT[:2], TOY.speakers[0], not full)
    codes, _ = speaker.speak([SpokenLine(TEXT, TOY.speakers[1], full), other], max_frames=7)
    item = torch.tensor([[0, len(codes), 0, len(TEXT), 1]])
    layout = (torch.tensor([full]), torch.tensor([LANGUAGES.index("english")]))
    width = int(num_positions(item, *layout, setup.prefixes))
    rows = build_rows(item, *layout, torch.tensor(TEXT), setup.prefixes, setup.config, width)
    with torch.no_grad():
        hidden = setup.model.talker(setup.model.embed(rows, codes), torch.arange(width)[None], CausalContext())
    hidden = hidden[rows.target >= 0]
    first = setup.model.talker.codec_head(hidden)[:, : TOY.sizes.codebook].argmax(1)
    row = setup.model.talker.embed_codec(first)
    rest = setup.model.talker.code_predictor.teacher_logits(hidden, row, codes[:, 1:]).argmax(2)
    assert torch.equal(torch.cat((first[:, None], rest), 1), codes)


def test_learning_lowers_every_loss(setup: Setup) -> None:
    torch.manual_seed(7)
    codes = torch.randint(TOY.sizes.codebook, (6, TOY.sizes.code_groups))
    labels = torch.randint(9, (6, 8))
    item = torch.tensor([[0, 6, 0, len(TEXT), 0]])
    layout = (torch.tensor([True]), torch.tensor([0]))
    width = int(num_positions(item, *layout, setup.prefixes))
    rows = build_rows(item, *layout, torch.tensor(TEXT), setup.prefixes, setup.config, width)
    model = TalkerInTraining(Talker(setup.config.talker), TOY.talker)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    history = []
    for _ in range(25):
        losses = model.losses(rows, codes, labels)
        optimiser.zero_grad()
        sum(losses.values()).backward()
        optimiser.step()
        history.append({name: float(value.detach()) for name, value in losses.items()})
    assert all(history[-1][name] < 0.9 * history[0][name] for name in history[0])


def test_history_is_corrupted_in_training_alone(setup: Setup) -> None:
    history, heard = torch.zeros(64, 50, 3, dtype=torch.long), torch.ones(64, 50, dtype=torch.bool)
    changed, still_heard = setup.model._corrupt(history, heard)
    share_dropped = 1 - still_heard.float().mean()
    assert 0.05 < share_dropped < 0.2
    assert 0 < (changed != history).any(2).float().mean() < 0.15


def test_batches_hold_every_item_that_fits_once(setup: Setup) -> None:
    torch.manual_seed(8)
    lengths = torch.randint(3, 60, (40,))
    first = lengths.cumsum(0) - lengths
    items = torch.stack((first, lengths, first * 0, first * 0 + 3, first * 0), 1)
    encoded = SimpleNamespace(text=torch.tensor(TEXT), codes=torch.zeros(int(lengths.sum()), 3))
    batches = Batches(encoded, setup.config, setup.prefixes, TOY.talker)
    seen: list[int] = []
    for rows in batches.of(items, torch.rand(40) < 0.5):
        assert len(rows.text) == 1 or rows.text.numel() <= TOY.talker.frames_per_step
        assert ((rows.target == END).sum(1) == 1).all()
        assert (rows.target[:, 0] == IGNORED).all()
        seen += [int(row[row >= 0].min()) for row in rows.target]
    assert sorted(seen) == sorted(first.tolist())


def test_draw_takes_the_best_or_one_of_the_top() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.9, -1.0]]).expand(500, 4)
    assert set(draw(logits, 0.0, 2).tolist()) == {1}
    assert set(draw(logits, 1.0, 2).tolist()) == {1, 2}
