"""The talker is fed and scores what the official one is fed and scores (``make_vectors`` made the vectors)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from engine.api import SpeechRequest
from engine.layers.transformer import CausalContext
from engine.models.base import AwaitText, FrameOutcome, StopOutcome
from engine.models.cosyvoice3 import model as talker_model
from engine.models.cosyvoice3.model import CosyVoice3
from engine.models.cosyvoice3.prompt import CosySequence, RasParams
from engine.models.cosyvoice3.voice import VoicePrompt
from engine.ops.noise import SampleKey
from tests.fakes.official_sampling import GeneratorNoise, sample_ras
from tests.parity.cosyvoice3.cases import (
    FILL,
    INSTRUCT,
    KEPT_STEPS,
    LIVES,
    NUM_CODES,
    NUM_RAS_ROWS,
    NUM_RAS_SEEDS,
    PROMPTED_TEXT,
    TALKS,
    TEXT,
    TEXTS,
    TRANSCRIPT,
    Live,
    Talk,
)
from tests.parity.cosyvoice3.golden import Golden, close

EMBEDDING_TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def vectors(golden: Golden) -> dict[str, Tensor]:
    return golden.part("talker")


@contextmanager
def instructed(model: CosyVoice3) -> Iterator[None]:
    """The ids of the cases stand in for those of the instruction's words."""
    with patch.object(model.tokenizer, "instruct_ids", lambda sentence: list(INSTRUCT)):
        yield


def new_row(model: CosyVoice3, speech: Tensor, has_transcript: bool, text_closed: bool) -> CosySequence:
    transcript = TRANSCRIPT if has_transcript else ()
    spoken = tuple(speech.tolist()) if has_transcript else ()
    voice = VoicePrompt(b"v", speech, torch.zeros(0, 80), torch.zeros(192), transcript, spoken)
    with patch.dict(model.named, {"v": voice}), instructed(model):
        row = model.new_sequence(SpeechRequest(request_id="r", voice="v", text_closed=text_closed), 0)
    row.text.ids, row.text.closed = list(TEXT), text_closed
    return row


def fetch(model: CosyVoice3, row: CosySequence) -> bool:
    """Feed until a sample is due; false when the row parks."""
    while not isinstance(found := model.next_input(row), AwaitText):
        row.inputs += found.inputs
        if found.sample:
            return True
    return False


def test_the_checkpoint_is_the_one_of_the_vectors(golden: Golden) -> None:
    digest = hashlib.sha256()
    for name in ("llm.pt", "flow.pt", "hift.pt"):
        for key, tensor in sorted(torch.load(golden.folder / name, weights_only=True).items()):
            digest.update(key.encode())
            digest.update(tensor.numpy().tobytes())
    assert digest.hexdigest() == golden.about["checksum"], "another torch: make fresh vectors"


@pytest.mark.parametrize("place", range(len(TEXTS)))
def test_text_ids(golden: Golden, place: int) -> None:
    """What parts a prompt is no part of a text here; the front of the one that has it is the usual instruction."""
    tokenizer, text = golden.model.tokenizer, TEXTS[place]
    front = [] if not text.endswith(PROMPTED_TEXT) else tokenizer.instruct_ids("")
    text = text if not front else PROMPTED_TEXT
    pieces = tokenizer.incremental()
    assert front + tokenizer.encode_text(text) == golden.about["text_ids"][place]
    assert (
        front + [i for letter in text for i in pieces.push(letter)] + pieces.finish() == golden.about["text_ids"][place]
    )


@pytest.mark.parametrize("case", TALKS, ids=lambda case: case.name)
def test_prompts_and_scores(golden: Golden, vectors: dict[str, Tensor], case: Talk) -> None:
    """Teacher-forced through the ids that the official talker was made to say."""
    model, said = golden.model, vectors["said"]
    row = new_row(model, vectors["prompt_tokens"], case.with_speech, text_closed=True)
    assert fetch(model, row)
    inputs = torch.tensor(row.inputs)
    expected = vectors[f"{case.name}/prompt"]
    torch.testing.assert_close(model.talker.embed(inputs), expected, atol=EMBEDDING_TOLERANCE, rtol=0)
    whole = [*row.inputs, *(model.prompts.speech(token) for token in said.tolist())]
    hidden = model.forward([row], [whole], torch.arange(len(whole))[None], CausalContext())[0, len(inputs) - 1 :]
    scores = model.talker.logits(hidden).log_softmax(-1)
    close(scores[list(KEPT_STEPS)], vectors[f"{case.name}/scores"])
    assert torch.equal(scores.argmax(-1), vectors[f"{case.name}/highest"])


def test_draws_of_repetition_aware_sampling(golden: Golden) -> None:
    """From the same torch seed, the same ids; some redraws are among them."""
    vectors = golden.part("ras")
    drawn = torch.zeros(NUM_RAS_ROWS, NUM_RAS_SEEDS, dtype=torch.long)
    for row in range(NUM_RAS_ROWS):
        for seed in range(NUM_RAS_SEEDS):
            noise = GeneratorNoise(torch.Generator().manual_seed(seed))
            history = vectors["histories"][row].tolist()
            drawn[row, seed] = sample_ras(
                vectors["scores"][row].float(), RasParams(), history, SampleKey(0, 0, 0), noise
            )
    assert torch.equal(drawn, vectors["drawn"])
    likeliest = vectors["scores"].float().argsort(-1, descending=True)[:, :25]
    redrawn = (vectors["drawn"][..., None] != likeliest[:, None]).all(-1)
    assert redrawn[1::2].float().mean() > 2 * redrawn[::2].float().mean()


@pytest.mark.parametrize("live", LIVES, ids=lambda live: live.name)
def test_live_text_is_fed_in_the_same_order(golden: Golden, vectors: dict[str, Tensor], live: Live) -> None:
    """Row by row. The official talker feeds the last speech id twice before the last part (spec 3.3): once is cut."""
    model = golden.model
    said = vectors["said"].repeat(9).tolist()
    if live.early is not None:
        said[live.early] = FILL
    row = new_row(model, vectors["prompt_tokens"][: live.num_prompt_tokens], True, text_closed=False)
    with patch.object(talker_model, "sample", lambda *_: torch.tensor([said.pop(0)])):
        while fetch(model, row):
            model.sample([row], torch.zeros(1, golden.model.config.talker.transformer.hidden_size))
    row.text.closed = True
    assert fetch(model, row)
    counts = vectors[f"live/{live.name}/counts"].tolist()
    last = next(place for place in reversed(range(len(counts))) if counts[place] > 1)
    fed = list(vectors[f"live/{live.name}/fed"].split(counts))
    expected = torch.cat([*fed[:last], fed[last][1:]])
    found = model.talker.embed(torch.tensor(row.inputs))
    torch.testing.assert_close(found, expected, atol=EMBEDDING_TOLERANCE, rtol=0)


def test_what_ends_the_speech_ends_it_and_codes_sound(golden: Golden, vectors: dict[str, Tensor]) -> None:
    model = golden.model
    row = new_row(model, vectors["prompt_tokens"], True, text_closed=True)
    assert fetch(model, row)
    for token, expected in ((NUM_CODES - 1, FrameOutcome((NUM_CODES - 1,))), (NUM_CODES + 1, StopOutcome())):
        with patch.object(talker_model, "sample", lambda *_, token=token: torch.tensor([token])):
            assert model.sample([row], torch.zeros(1, model.config.talker.transformer.hidden_size)) == [expected]
