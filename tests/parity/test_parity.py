"""This engine and the official ``qwen-tts`` package say the same (tests/parity/make_vectors.py made the vectors).

Tolerances are absolute, in fp32, where values are of the order of one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.api import FinishReason, InvalidRequest, SpeechRequest, TextLayout
from engine.config import EngineConfig
from engine.load import build_engine_info
from engine.models.qwen3_tts import model as qwen_model
from engine.models.qwen3_tts.config import read_config
from engine.ops.noise import PhiloxNoise
from engine.validation import check_request, check_sample
from tests.fakes.checkpoints import write_checkpoint
from tests.fakes.official_sampling import GeneratorNoise, sample_official
from tests.parity.cases import LONG, SHORT, SIZES, TASKS, Case, named
from tests.parity.conftest import ALL, SpeakerOf
from tests.parity.golden import SHAPES, Golden, Speaker

# Text rows are looked up in a table that was made at once, and added up in another order.
PROMPT_TOLERANCE = 2e-6
HIDDEN_TOLERANCE = 1e-4
WAVE_TOLERANCE = 1e-5
EMBEDDING_TOLERANCE = 2e-5
HALF = len(ALL) // 2
# Each case in one of the sizes, in turn, and in the other one among the slow tests.
IN_TURN = [
    pytest.param(*case.values, id=case.id, marks=() if (number % HALF + number // HALF) % 2 else pytest.mark.slow)
    for number, case in enumerate(ALL)
]
SIZE_AND_TASK = [(size, task) for size in SIZES for task in TASKS]


@pytest.fixture(autouse=True)
def official_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qwen_model, "sample", sample_official)


def noise_of(speaker: Speaker, case: Case) -> GeneratorNoise | PhiloxNoise:
    if not case.draws:
        return PhiloxNoise()
    return GeneratorNoise(torch.Generator().manual_seed(speaker.golden.seed(case)))


@pytest.mark.parametrize(("size", "task"), SIZE_AND_TASK)
def test_the_checkpoint_is_the_one_of_the_vectors(size: str, task: str, speaker_of: SpeakerOf) -> None:
    speaker = speaker_of(size, task)
    names = ("vocab.json", "merges.txt", "model.safetensors", "speech_tokenizer/model.safetensors")
    found = hashlib.sha256(b"".join((speaker.folder / name).read_bytes() for name in names)).hexdigest()
    assert found == speaker.golden.about["tasks"][task]["checksum"], "another torch or tokenizers: make fresh vectors"


@pytest.mark.parametrize(("size", "case"), ALL)
def test_text_ids(size: str, case: Case, speaker_of: SpeakerOf) -> None:
    speaker = speaker_of(size, case.task)
    tokenizer, expected = speaker.model.tokenizer, speaker.golden.text_ids(case)
    pieces = tokenizer.incremental()
    assert tokenizer.encode(case.text) == expected
    assert [i for letter in case.text for i in pieces.push(letter)] + pieces.finish() == expected


@pytest.mark.parametrize(("size", "case"), ALL)
def test_prompt_and_trailing_text(size: str, case: Case, speaker_of: SpeakerOf) -> None:
    speaker = speaker_of(size, case.task)
    row, prompt, text = speaker.inputs(case)
    embedded = speaker.model._embed([row], [prompt])[0]
    torch.testing.assert_close(embedded, speaker.golden.of(case, "prompt"), atol=PROMPT_TOLERANCE, rtol=0)
    trailing = speaker.model.talker.embed_text(torch.tensor(text))
    torch.testing.assert_close(trailing, speaker.golden.of(case, "trailing"), atol=PROMPT_TOLERANCE, rtol=0)


@pytest.mark.parametrize(("size", "case"), ALL)
def test_hidden_states(size: str, case: Case, speaker_of: SpeakerOf) -> None:
    speaker = speaker_of(size, case.task)
    expected = speaker.golden.of(case, "hidden")
    torch.testing.assert_close(speaker.teacher_forced(case), expected, atol=HIDDEN_TOLERANCE, rtol=0)


@pytest.mark.parametrize(("size", "case"), IN_TURN)
def test_codes_and_waveform(size: str, case: Case, speaker_of: SpeakerOf) -> None:
    """Greedy, or drawn from the same torch seed; the waveform comes in chunks, the official one at once."""
    speaker = speaker_of(size, case.task)
    speaker.model.noise = noise_of(speaker, case)
    ((codes, heard),) = speaker.speak(speaker.golden.request(case))
    assert codes == speaker.golden.of(case, "codes").tolist()
    assert len(heard.pcm) == 1920 * len(codes)
    stopped_by_itself = len(codes) < speaker.golden.request(case)["max_frames"]
    assert heard.reason is (FinishReason.STOP if stopped_by_itself else FinishReason.LENGTH)
    if case.keeps_wave:
        wave = speaker.golden.of(case, "wave").numpy()  # may begin one sample early (spec 5.5)
        assert len(wave) - len(heard.pcm) in (0, 1)
        assert np.abs(heard.pcm - wave[-len(heard.pcm) :]).max() < WAVE_TOLERANCE


GREEDY_STREAMING = [p for p in IN_TURN if p.values[1].layout == "streaming" and not p.values[1].draws]


@pytest.mark.parametrize(("size", "case"), GREEDY_STREAMING)
def test_text_letter_by_letter_gives_the_codes_of_the_whole_text(size: str, case: Case, speaker_of: SpeakerOf) -> None:
    speaker = speaker_of(size, case.task)
    request = speaker.golden.request(case) | {"text": "", "text_closed": False}
    ((codes, _),) = speaker.speak(request, pieces=list(case.text))
    assert codes == speaker.golden.of(case, "codes").tolist()


@pytest.mark.parametrize(("size", "task"), SIZE_AND_TASK)
def test_batch_of_two_equals_official_batch(size: str, task: str, speaker_of: SpeakerOf) -> None:
    speaker, case = speaker_of(size, task), named(task)[0]
    request = speaker.golden.request(case)
    spoken = speaker.speak(*(request | {"text": text} for text in (LONG, SHORT)))
    expected = [speaker.golden.tensors[f"{task}/batch/{i}"].tolist() for i in range(2)]
    assert [codes for codes, _ in spoken] == expected
    alone = [speaker.speak(request | {"text": text})[0][0] for text in (LONG, SHORT)]
    assert alone == expected


@pytest.mark.parametrize(("size", "task"), SIZE_AND_TASK)
def test_speech_ends_where_the_model_ends_it(size: str, task: str, speaker_of: SpeakerOf) -> None:
    speaker, case = speaker_of(size, task), named(task)[0]
    seed = speaker.golden.about["tasks"][task]["stop_seed"]
    speaker.model.noise = GeneratorNoise(torch.Generator().manual_seed(seed))
    request = speaker.golden.request(case) | {"text": SHORT, "max_frames": 59, "instruct": ""}
    request |= {"sampling": speaker.golden.request(Case("", task, official={}))["sampling"]}
    if task == "base":
        request["voice"] = speaker.golden.voice("brief", "")
    ((codes, heard),) = speaker.speak(request)
    assert codes == speaker.golden.tensors[f"{task}/stop/codes"].tolist()
    assert heard.reason is FinishReason.STOP


@pytest.mark.parametrize(("size", "task"), SIZE_AND_TASK)
def test_at_least_two_frames_come_before_an_end(
    size: str, task: str, golden_of: Callable[[str], Golden], tmp_path: Path
) -> None:
    golden, case = golden_of(size), named(task)[0]
    write_checkpoint(tmp_path, SHAPES[size], golden.about["seed"], task)
    file = tmp_path / "model.safetensors"
    tensors, eos = load_file(file), read_config(tmp_path).talker.control.eos
    tensors["talker.codec_head.weight"][eos] = golden.tensors[f"{task}/eager/row"]
    save_file(tensors, file)
    ((codes, heard),) = Speaker(golden, task, tmp_path).speak(golden.request(case))
    assert codes == golden.tensors[f"{task}/eager/codes"].tolist()
    assert len(codes) == 2
    assert heard.reason is FinishReason.STOP


@pytest.mark.parametrize("name", ["brief", "uneven"])
@pytest.mark.parametrize("size", SIZES)
def test_recordings_are_heard_alike(size: str, name: str, speaker_of: SpeakerOf) -> None:
    speaker = speaker_of(size, "base")
    assert speaker.family.encode_voice is not None
    voice = speaker.family.encode_voice(speaker.golden.sample(name, "some words"))
    embedding = torch.from_numpy(np.frombuffer(voice.embedding, np.float32).copy())
    expected = speaker.golden.tensors[f"audio/{name}/embedding"]
    torch.testing.assert_close(embedding, expected, atol=EMBEDDING_TOLERANCE, rtol=0)
    codes = np.frombuffer(voice.codes, np.int16).reshape(-1, 4)
    np.testing.assert_array_equal(codes, speaker.golden.tensors[f"audio/{name}/codes"].numpy())
    by_vector = speaker.family.encode_voice(speaker.golden.sample(name, ""))
    assert (by_vector.codes, by_vector.embedding) == (b"", voice.embedding)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("transcript", ["", "the dog"])
def test_encoded_voice_equals_the_official_one(size: str, transcript: str, speaker_of: SpeakerOf) -> None:
    speaker = speaker_of(size, "base")
    assert speaker.family.encode_voice is not None
    wanted = ("base", "brief", "the dog") if transcript else ("base", "uneven", "")
    case = next(c for c in named("base") if (c.task, c.audio, c.transcript) == wanted and not c.draws)
    sample = speaker.golden.sample(case.audio or "", transcript)
    info = build_engine_info(speaker.model, speaker.family.audio, EngineConfig(), normalize_text=False)
    request = speaker.golden.request(case) | {"voice": speaker.family.encode_voice(sample)}
    check_request(SpeechRequest(request_id="r", **request), info, 1000)
    ((codes, _),) = speaker.speak(request)
    assert codes == speaker.golden.of(case, "codes").tolist()
    with pytest.raises(InvalidRequest, match="cannot listen"):
        check_sample(sample, info)


def test_small_custom_voice_refuses_an_instruction(speaker_of: SpeakerOf) -> None:
    for size, is_taken in (("0b6", False), ("1b7", True)):
        speaker = speaker_of(size, "custom_voice")
        info = build_engine_info(speaker.model, speaker.family.audio, EngineConfig(), normalize_text=False)
        request = SpeechRequest(request_id="r", text="a", voice="ada", instruct="Softly.", layout=TextLayout.FULL)
        assert info.takes_instruct is is_taken
        if is_taken:
            check_request(request, info, 1000)
        else:
            with pytest.raises(InvalidRequest, match="does not take instructions") as refused:
                check_request(request, info, 1000)
            assert refused.value.param == "instruct"


def test_the_vectors_cover_every_task_layout_and_language(golden_of: Callable[[str], Golden]) -> None:
    for size in SIZES:
        cases = [case for task in TASKS for case in named(task)]
        assert {(case.task, case.layout) for case in cases} == {(t, x) for t in TASKS for x in ("streaming", "full")}
        assert {case.language.lower() for case in cases} == {"auto", "english", "chinese", "german"}
        assert all(f"{case.task}/{case.name}/codes" in golden_of(size).tensors for case in cases)
