"""The training batches hold exactly the rows that the engine feeds at inference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.models.qwen3_tts.config import Qwen3TTSConfig
from engine.models.qwen3_tts.prompt import NO_TOKEN, PromptBuilder, PromptPosition
from tests.fakes.checkpoints import write_tokenizer
from training.layout import TextIds
from training.pipeline import voice_config
from training.prompt_batches import END, IGNORED, LANGUAGES, Prefixes, build_rows, num_positions
from training.settings import TOY
from training.tokenizer import read_ids

Setup = tuple[Qwen3TTSConfig, PromptBuilder, Prefixes]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    ids = TextIds(**read_ids(folder, TOY.sizes.text_vocab))
    config = voice_config(TOY, ids)
    prompts = PromptBuilder(config, (ids.im_start, ids.assistant, ids.newline))
    return config, prompts, Prefixes.of(prompts, TOY.speakers, "cpu")


def expected(
    setup: Setup, text: list[int], item: list[int], full: bool, language: int
) -> list[tuple[PromptPosition, int]]:
    """Rows and targets of one utterance by the engine's builder, and by its definition step by step."""
    config, prompts, _ = setup
    first_frame, num_frames, _, _, voice = item
    tail = prompts.full_tail(text) if full else prompts.streaming_tail(text[0])
    queue = [] if full else [*text[1:], config.text.tts_eos]
    rows = prompts.prefix(TOY.speakers[voice], LANGUAGES[language]) + tail
    targets = [IGNORED] * (len(rows) - 1)
    for step in range(num_frames):
        targets.append(first_frame + step)
        row_text = queue[step] if step < len(queue) else config.text.tts_pad
        rows.append(PromptPosition(row_text, frame=first_frame + step))
    return list(zip(rows, [*targets, END], strict=True))


@given(
    utterances=st.lists(
        st.tuples(st.integers(1, 6), st.integers(1, 8), st.integers(0, 1), st.booleans(), st.integers(0, 1)),
        min_size=1,
        max_size=4,
    )
)
def test_rows_equal_the_engines(setup: Setup, utterances: list[tuple[int, int, int, bool, int]]) -> None:
    config, _, prefixes = setup
    texts, items = [], []
    first_frame = 0
    for num_text, num_frames, voice, _, _ in utterances:
        items.append([first_frame, num_frames, len(texts), num_text, voice])
        texts += [7 + (len(texts) + i) % 50 for i in range(num_text)]
        first_frame += num_frames
    full = torch.tensor([u[3] for u in utterances])
    language = torch.tensor([u[4] for u in utterances])
    table = torch.tensor(items)
    lengths = num_positions(table, full, language, prefixes).tolist()
    width = max(lengths) + 3
    rows = build_rows(table, full, language, torch.tensor(texts, dtype=torch.int16), prefixes, config, width)
    for index, item in enumerate(items):
        text = texts[item[2] : item[2] + item[3]]
        wanted = expected(setup, text, item, bool(full[index]), int(language[index]))
        assert len(wanted) == lengths[index]
        found = [
            (
                PromptPosition(*(int(side[index, place]) for side in (rows.text, rows.codec, rows.frame))),
                int(rows.target[index, place]),
            )
            for place in range(lengths[index])
        ]
        assert found == wanted
        assert (rows.target[index, lengths[index] :] == IGNORED).all()
        assert (rows.frame[index, lengths[index] :] == NO_TOKEN).all()
