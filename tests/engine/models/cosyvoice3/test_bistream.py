"""Live text: what is fed is the layout of training, whenever the text comes."""

from __future__ import annotations

from itertools import chain

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from engine.models.base import AwaitText, TalkerInputs, TokenQueue
from engine.models.cosyvoice3.config import CosyTalkerConfig
from engine.models.cosyvoice3.prompt import Bistream, CosyPromptBuilder, CosySequence, SamplingPhase
from engine.models.cosyvoice3.voice import VoicePrompt, make_prompt

CONFIG = CosyTalkerConfig()
IDS = CONFIG.speech_ids
HEAD = [CONFIG.text_vocab_size + IDS.sos, 1, 2]
TASK = CONFIG.text_vocab_size + IDS.task
FILL = "fill"


def in_blocks(
    transcript: list[int], recording: list[int], text: list[int], draws: list[int | str]
) -> tuple[list[int], list[int]]:
    """The slow, obvious way, all text known: inputs, and what was spoken. ``draws`` go round in a block."""
    queue, given, said, inputs = [*transcript, *text], [*recording], list[int](), [*HEAD]
    drawn = chain.from_iterable(draws for _ in range(10_000)) if draws else iter([])

    def speech(token: int) -> int:
        return CONFIG.text_vocab_size + token

    while len(queue) >= 5:
        inputs += [queue.pop(0) for _ in range(5)]
        place = min(15, len(given))
        inputs += [speech(given.pop(0)) for _ in range(place)]
        if place == 15:
            continue
        while place < 15:
            token = next(drawn)
            if token == FILL:
                break
            assert isinstance(token, int)
            said.append(token)
            inputs.append(speech(token))
            place += 1
    return [*inputs, *queue, TASK, *map(speech, given)], said


def voice_of(transcript: list[int], recording: list[int]) -> VoicePrompt | None:
    if not recording:
        return None
    mel, embedding = torch.zeros(2 * len(recording), 80), torch.zeros(192)
    return make_prompt(b"v", recording, mel, embedding, transcript, trims=False)


def begun(transcript: list[int], recording: list[int]) -> tuple[Bistream, CosySequence]:
    bistream = Bistream(CONFIG, CosyPromptBuilder(CONFIG))
    row = CosySequence(text=TokenQueue(), voice=voice_of(transcript, recording))
    row.transcript, row.speech = list(transcript), list(recording)
    bistream.begin(row, HEAD)
    row.inputs += row.prefix
    return bistream, row


def take(bistream: Bistream, row: CosySequence, token: int | str, said: list[int]) -> None:
    if isinstance(token, str):
        bistream.end_block(row)
    else:
        said.append(token)
        row.record_token(token)
        bistream.record_token(row, token)


text_ids = st.lists(st.integers(100, 200), max_size=23)
recordings = st.integers(0, 50).map(lambda n: list(range(1000, 1000 + n)))
draw_lists = st.lists(st.integers(0, 6560) | st.just(FILL), min_size=1, max_size=40)


@given(transcript=st.lists(st.integers(300, 400), max_size=17), recording=recordings, text=text_ids, draws=draw_lists,
       arrivals=st.lists(st.integers(1, 7), max_size=30))  # fmt: skip
@example(transcript=[], recording=[], text=[1, 2, 3, 4, 5], draws=[7], arrivals=[5])
@example(transcript=[300], recording=list(range(15)), text=[1, 2, 3, 4], draws=[7, FILL], arrivals=[])
def test_whenever_text_comes_the_layout_is_that_of_training(
    transcript: list[int], recording: list[int], text: list[int], draws: list[int | str], arrivals: list[int]
) -> None:
    if not recording:
        transcript = []
    if not text:
        text = [100]
    bistream, row = begun(transcript, recording)
    said, num_sampled, start = list[int](), 0, 0

    def run() -> None:
        nonlocal num_sampled
        while row.phase is SamplingPhase.BLOCK and isinstance(due := bistream.next_input(row), TalkerInputs):
            row.inputs += due.inputs
            if due.sample and row.phase is SamplingPhase.BLOCK:
                take(bistream, row, draws[num_sampled % len(draws)], said)
                num_sampled += 1

    for count in arrivals:
        row.text.ids += text[start : start + count]
        start += count
        run()
    row.text.ids += text[start:]
    row.text.closed = True
    run()
    inputs, spoken = in_blocks(transcript, recording, text, draws)
    assert row.inputs == inputs
    assert said == spoken
    assert row.phase is SamplingPhase.REST


def test_block_waits_for_five_ids() -> None:
    bistream, row = begun([], [])
    assert isinstance(bistream.next_input(row), AwaitText)
    row.text.ids += [1, 2, 3, 4]
    assert isinstance(bistream.next_input(row), AwaitText)
    row.text.ids += [5, 6, 7, 8, 9]
    assert bistream.next_input(row) == TalkerInputs([1, 2, 3, 4, 5])
    for token in range(14):
        bistream.record_token(row, token)
        assert bistream.next_input(row) == TalkerInputs([CONFIG.text_vocab_size + token])
    bistream.record_token(row, 14)
    assert row.history[-1] == IDS.fill
    assert isinstance(bistream.next_input(row), AwaitText)
    row.text.ids += [10]
    assert bistream.next_input(row) == TalkerInputs([CONFIG.text_vocab_size + 14, 6, 7, 8, 9, 10])


def test_no_speech_before_text_with_any_transcript() -> None:
    bistream, row = begun(list(range(40)), list(range(15)))
    assert isinstance(bistream.next_input(row), AwaitText)


def test_whole_blocks_of_a_recording_are_in_the_shared_prefix() -> None:
    _, row = begun(list(range(12)), list(range(40)))
    assert len(row.prefix) == len(HEAD) + 2 * 20
    assert (row.transcript, row.speech) == ([10, 11], list(range(30, 40)))
    assert row.num_prompt_tokens == 3, "two ids of the transcript wait for three more"
    _, row = begun(list(range(4)), list(range(45)))
    assert row.num_prompt_tokens == 16, "three blocks for the recording, and one for speech of its own"


def test_asking_early_ends_a_block() -> None:
    bistream, row = begun([], [])
    row.text.ids += list(range(10))
    bistream.next_input(row)
    bistream.record_token(row, 3)
    bistream.next_input(row)
    bistream.end_block(row)
    assert bistream.next_input(row) == TalkerInputs([5, 6, 7, 8, 9]), "its last id was fed already"
