from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pocketsphinx", reason="the dependency group training is not installed")
pytest.importorskip("pesq", reason="the dependency group training is not installed")

from benchmarks import speech_sources
from benchmarks.speech_sources import Recordings, Setting, Task, TeacherSource, save_recordings
from benchmarks.voice_metrics import Recognizers, Row, bandwidth_gate, gates_of, read_tasks
from benchmarks.voice_quality import Table
from engine.api import FinishReason, RequestFinished, SpeechChunk, SpeechRequest
from training import flite, teachers
from training.held_out import read_sentences

TEACHER = Row(
    "teacher", "clara", 0.5, 18.0, 0.1, 0, None, None, None, 100, -18, 60, 70, 0, 167, 1150, 100, None, None, {}
)


def test_recordings_come_back_as_they_went(tmp_path: Path) -> None:
    whole, decimal = np.arange(-5, 900, dtype=np.int16), np.linspace(-1.5, 1, 300, dtype=np.float32)
    save_recordings(tmp_path / "clara-streaming-12.npz", 24_000, {8: whole, 4: decimal})
    recordings = Recordings(tmp_path)
    (setting,) = recordings.settings
    assert (setting, recordings.rate_hz, recordings.numbers(setting)) == (
        Setting("clara", "streaming", 12),
        24_000,
        {4, 8},
    )
    first, second = recordings([Task(4, "Four."), Task(8, "Eight.")], setting)
    np.testing.assert_array_equal(second, whole)
    np.testing.assert_array_equal(first, np.round(np.clip(decimal, -1, 1) * 32767))


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no recordings"):
        Recordings(tmp_path)


def test_tasks_are_numbered_as_the_sentences() -> None:
    tasks, kinds = read_tasks(40)
    sentences = read_sentences()
    assert [task.text for task in tasks] == sentences[::40]
    assert [task.number for task in tasks] == list(range(0, 200, 40))
    assert [kinds[number] for number in (0, 69, 70, 199)] == ["replies", "replies", "news", "numbers"]


def test_gates_fail_where_they_should() -> None:
    good = replace(TEACHER, speaker="model", setting="clara full 1", words_wrong_bigram=9, words_wrong_stock=27)
    bad = replace(good, words_wrong_bigram=11, words_missing=0.8, words_repeated=0.4, length_kept=97, told_apart=99.5)
    assert all(gate.passed for gate in gates_of(good, TEACHER))
    assert [gate.passed for gate in gates_of(bad, TEACHER)] == [False, True, False, False, False]
    stricter = replace(good, words_lost=0.7, words_twice=0.4)
    assert [gate.passed for gate in gates_of(stricter, TEACHER)] == [True, True, True, False, True]
    assert len(gates_of(replace(good, words_wrong_stock=None), TEACHER)) == 4
    copy = replace(TEACHER, speaker="codec", words_wrong_bigram=2.6, words_wrong_stock=20, stoi=0.95, pesq=2.2)
    assert [gate.passed for gate in gates_of(copy, TEACHER)] == [False, True, True, False]


def test_opinion_gates_compare_with_teacher_and_minimum() -> None:
    teacher = replace(TEACHER, mos_overall=3.1, mos_p808=3.7)
    model = replace(teacher, speaker="model", setting="clara full 1", mos_overall=2.85, mos_p808=3.42)
    assert [gate.passed for gate in gates_of(model, teacher)[-4:]] == [True, False, False, True]
    copy = replace(teacher, speaker="codec", stoi=0.95, pesq=2.4, mos_overall=2.97, mos_p808=3.6)
    assert [gate.passed for gate in gates_of(copy, teacher)[-2:]] == [False, True]


def test_a_tick_and_a_narrow_band_fail_their_gates() -> None:
    model = replace(TEACHER, speaker="model", setting="clara full 1", roll_off_hz=9_100, start_peak=0.1)
    ticking = replace(model, setting="edwin full 1", roll_off_hz=7_000, start_peak=2.1)
    assert [gates_of(row, TEACHER)[-1].passed for row in (model, ticking)] == [True, False]
    assert bandwidth_gate([TEACHER, model, ticking]).passed
    assert not bandwidth_gate([ticking]).passed
    assert bandwidth_gate([TEACHER]) is None


class FakeStream:
    def __init__(self, request: SpeechRequest) -> None:
        self.request, self.texts, self.ended = request, [request.text], request.text_closed

    def push_text(self, text: str) -> None:
        self.texts.append(text)

    def end_input(self) -> None:
        self.ended = True

    async def __aiter__(self):
        assert self.ended
        yield SpeechChunk("x", 0, np.ones(20, np.float32))
        yield SpeechChunk("x", 20, np.ones(5, np.float32), last=True)
        yield RequestFinished("x", FinishReason.STOP)


class FakeEngine:
    def __init__(self) -> None:
        self.streams: list[FakeStream] = []

    def submit(self, request: SpeechRequest) -> FakeStream:
        self.streams.append(FakeStream(request))
        return self.streams[-1]


@pytest.mark.parametrize(("layout", "num_pieces"), [("full", 1), ("streaming", 5)])
async def test_the_engine_is_given_the_text_as_the_layout_wants(layout: str, num_pieces: int) -> None:
    engine = FakeEngine()
    pcm = await speech_sources._speak_one(engine, Task(3, "It is nine o'clock."), Setting("edwin", layout, 1))
    (stream,) = engine.streams
    assert ("".join(stream.texts), len(stream.texts)) == ("It is nine o'clock.", num_pieces)
    assert (stream.request.voice, stream.request.sampling.seed) == ("edwin", speech_sources.SEED + 3)
    assert len(pcm) == 25


class TwiceSaid(TeacherSource):
    """A bad copy."""

    def __call__(self, tasks, setting):
        return [np.concatenate([pcm, pcm]) for pcm in super().__call__(tasks, setting)]


class OneSentence(TeacherSource):
    def numbers(self, setting):
        return {40}


@pytest.mark.skipif(not flite.available(), reason="flite (libflite1) is not installed")
def test_a_table_of_the_teacher_and_a_bad_copy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teachers, "TEACHERS", speech_sources.TEACHERS)
    tasks = [Task(number, read_sentences()[number]) for number in (3, 40)]
    table = Table(tasks, Recognizers(stock=False), jobs=1)
    table.run([("codec", TwiceSaid(), Setting("clara")), ("model", OneSentence(), Setting("edwin", "full", 12))])
    teacher, _, copy, model = table.rows
    assert (teacher.words_wrong_bigram, teacher.length_kept, teacher.told_apart) == (0, 100, 100)
    assert copy.words_wrong_bigram > 50
    assert copy.length_kept == 0
    assert (model.setting, model.words_wrong_bigram, model.stoi) == ("edwin full 12", 0, None)
    assert any(not gate.passed for _, gate in table.gates())
    assert len(capsys.readouterr().out.splitlines()) == 5
