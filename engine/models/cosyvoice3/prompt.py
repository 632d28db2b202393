"""State of one request at the talker, and its inputs: prompt, instruction and live text (spec 2.3, 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from engine.errors import InvalidRequest
from engine.models.base import AwaitText, SequenceState, TalkerInputs
from engine.models.cosyvoice3.config import CosyTalkerConfig
from engine.models.cosyvoice3.settings import TalkerSettings
from engine.models.cosyvoice3.tokenizer import ASSISTANT, END_OF_PROMPT
from engine.models.cosyvoice3.voice import VoicePrompt
from engine.ops.noise import SampleKey

# Speech ids that sound like silence or breath (spec 2.2).
SILENT_IDS = frozenset((1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323))


@dataclass(frozen=True, slots=True)
class RasParams:
    """Sampling parameters of one row. Temperature 0 is greedy and repeats freely; top_k 0 is no limit."""

    temperature: float = 1.0
    top_p: float = 0.8
    top_k: int = 25
    window: int = 10
    tau: float = 0.1


class SamplingPhase(Enum):
    """Phases of a row, by the ids that may be drawn next."""

    # All text is known: speech, or the end.
    WHOLE = auto()
    # Live text, inside a block: speech, or a wish for more text.
    BLOCK = auto()
    # Live text has ended: speech, or the end.
    REST = auto()


@dataclass(slots=True)
class CosySequence(SequenceState):
    """``unfed`` is the last speech id while its keys and values are not computed; ``history`` the last ids drawn."""

    settings: TalkerSettings = TalkerSettings()
    prefix: tuple[int, ...] = ()
    voice: VoicePrompt | None = None
    phase: SamplingPhase = SamplingPhase.WHOLE
    prompted: bool = False
    # Of the recording, as far as it is still to be fed; live text goes on from it.
    transcript: list[int] = field(default_factory=list)
    # The recording's ids, likewise.
    speech: list[int] = field(default_factory=list)
    # Speech ids in the open block; None between two.
    block: int | None = None
    unfed: int | None = None
    history: list[int] = field(default_factory=list)
    num_sampled: int = 0
    num_generated: int = 0
    num_silent: int = 0
    # Speech ids the request allows.
    max_tokens_limit: int | None = None
    min_tokens_limit: int | None = None
    ras: RasParams = RasParams()
    seed: int = 0
    segment: int = 0

    @property
    def num_text(self) -> int:
        """Ids to be spoken, as far as they are known."""
        return len(self.text.ids)

    @property
    def max_tokens(self) -> int:
        """Speech ids that this text may take, unless the request says how many (spec 2.4, 8.14); live text goes on from
        a transcript, which counts there."""
        if self.max_tokens_limit is not None:
            return min(self.max_tokens_limit, self.settings.max_tokens)
        told = 0 if self.phase is SamplingPhase.WHOLE or self.voice is None else len(self.voice.transcript_ids)
        by_text = int(self.settings.max_tokens_per_text_token * (self.num_text + told))
        return max(1, min(by_text, self.settings.max_tokens))

    @property
    def min_tokens(self) -> int:
        """Speech ids before which it may not end; live text, whose length is unknown, has none (spec 3.2)."""
        if self.phase is not SamplingPhase.WHOLE:
            return 0 if self.min_tokens_limit is None else self.min_tokens_limit
        by_text = max(1, int(self.settings.min_tokens_per_text_token * self.num_text))
        return min(self.max_tokens, by_text if self.min_tokens_limit is None else self.min_tokens_limit)

    def frame_cap(self) -> int | None:
        return self.max_tokens

    @property
    def sample_key(self) -> SampleKey:
        return SampleKey(self.seed, self.segment, self.num_sampled)

    def record_token(self, token: int) -> None:
        """One more id that counts as drawn."""
        self.history.append(token)
        del self.history[: -self.ras.window]
        self.num_sampled += 1

    def record_silence(self, token: int) -> bool:
        """Count one more speech id; true when it is one silent id too many in a row to be spoken (spec 2.7)."""
        self.num_generated += 1
        self.num_silent = self.num_silent + 1 if token in SILENT_IDS else 0
        limit = self.settings.max_consecutive_silent_tokens
        is_too_many = limit is not None and self.num_silent > limit
        self.num_dropped += is_too_many
        return is_too_many


_DIALECTS = {
    "cantonese": "广东",
    "northeastern": "东北",
    "gansu": "甘肃",
    "guizhou": "贵州",
    "henan": "河南",
    "hubei": "湖北",
    "hunan": "湖南",
    "jiangxi": "江西",
    "minnan": "闽南",
    "ningxia": "宁夏",
    "shanxi": "山西",
    "shaanxi": "陕西",
    "shandong": "山东",
    "shanghai": "上海",
    "sichuan": "四川",
    "tianjin": "天津",
    "yunnan": "云南",
}
INSTRUCTS = {name: f"请用{place}话表达。" for name, place in _DIALECTS.items()} | {
    "loud": "Please say a sentence as loudly as possible.",
    "soft": "Please say a sentence in a very soft voice.",
    "slow": "请用尽可能慢地语速说一句话。",
    "fast": "请用尽可能快地语速说一句话。",
    "happy": "请非常开心地说一句话。",
    "sad": "请非常伤心地说一句话。",
    "angry": "请非常生气地说一句话。",
    "peppa": "我想体验一下小猪佩奇风格，可以吗？",
    "robot": "你可以尝试用机器人的方式解答吗？",
}
MARKS = " .。!！?？"


def known_sentence(instruct: str, takes_any: bool = False) -> str:
    """The sentence behind a name, or the sentence itself, also when it comes with all that stands around it.

    Raises ``InvalidRequest`` for one that the model does not know.
    """
    bare = instruct.strip().removesuffix(END_OF_PROMPT).strip().removeprefix(ASSISTANT).strip()
    if not bare:
        return ""
    if bare.lower() in INSTRUCTS:
        return INSTRUCTS[bare.lower()]
    for sentence in INSTRUCTS.values():
        if bare.rstrip(MARKS) == sentence.rstrip(MARKS):
            return sentence
    if takes_any:
        return bare
    known = ", ".join(INSTRUCTS)
    raise InvalidRequest(f"instruct is {bare[:80]!r}, which the model does not know; known: {known}", "instruct")


class CosyPromptBuilder:
    """``[sos, instruction, transcript, text, task, recording]``, or what of it a request has."""

    def __init__(self, config: CosyTalkerConfig) -> None:
        self._offset = config.text_vocab_size
        self.sos, self.task = self.speech(config.speech_ids.sos), self.speech(config.speech_ids.task)

    def speech(self, token: int) -> int:
        return self._offset + token

    def head(self, instruct_ids: Sequence[int]) -> list[int]:
        """The same for all texts of an instruction."""
        return [self.sos, *instruct_ids]

    def tail(self, text_ids: Sequence[int], recording: Sequence[int]) -> list[int]:
        """Behind the head and the transcript, once all text is known."""
        return [*text_ids, self.task, *[self._offset + token for token in recording]]


class Bistream:
    """Text and speech of the recording go in first, in the same blocks, and live text goes on from them."""

    def __init__(self, config: CosyTalkerConfig, prompts: CosyPromptBuilder) -> None:
        self.block_text, self.block_speech = config.block_text, config.block_speech
        self.fill = config.speech_ids.fill
        self.prompts = prompts

    def begin(self, row: CosySequence, head: list[int]) -> None:
        """The row's prefix: ``head``, and all whole blocks of the recording, which need no live text."""
        prefix = list(head)
        while len(row.transcript) >= self.block_text and len(row.speech) >= self.block_speech:
            prefix += self._pop_transcript(row, self.block_text)
            prefix += self._pop_speech(row)
        row.prefix = tuple(prefix)
        row.num_prompt_tokens = max(1, self._num_missing(row))
        row.phase = SamplingPhase.BLOCK

    def _num_missing(self, row: CosySequence) -> int:
        """Live ids without which no block opens for the row's own speech."""
        num_blocks = len(row.speech) // self.block_speech + 1
        return self.block_text * num_blocks - len(row.transcript)

    def next_input(self, row: CosySequence) -> AwaitText | TalkerInputs:
        """Called when all inputs so far are computed."""
        if row.phase is SamplingPhase.REST or row.block is not None:
            return self._step(row)
        if not row.text.ids and not row.text.closed:
            return AwaitText()
        if len(row.transcript) + row.text.num_waiting >= self.block_text:
            return self._open_block(row)
        return self._close(row) if row.text.closed else AwaitText()

    def _step(self, row: CosySequence) -> TalkerInputs:
        assert row.unfed is not None
        token, row.unfed = row.unfed, None
        return TalkerInputs([self.prompts.speech(token)])

    def _open_block(self, row: CosySequence) -> TalkerInputs:
        """The last speech id of the block before, five text ids and, of a recording, the speech that goes with them."""
        inputs = self._pop_unfed(row) + self._pop_text(row, self.block_text)
        if not row.speech:
            row.block = 0
            return TalkerInputs(inputs)
        num_speech = min(len(row.speech), self.block_speech)
        inputs += self._pop_speech(row)
        row.block = num_speech if num_speech < self.block_speech else None
        return TalkerInputs(inputs, sample=row.block is not None)

    def _close(self, row: CosySequence) -> TalkerInputs:
        """No more text: what is left of it, and the sign to speak on to the end."""
        inputs = self._pop_unfed(row) + self._pop_text(row, self.block_text)
        row.phase, row.block = SamplingPhase.REST, None
        rest = [self.prompts.speech(token) for token in row.speech]
        row.speech.clear()
        return TalkerInputs([*inputs, self.prompts.task, *rest])

    def _pop_unfed(self, row: CosySequence) -> list[int]:
        token, row.unfed = row.unfed, None
        return [] if token is None else [self.prompts.speech(token)]

    def _pop_text(self, row: CosySequence, count: int) -> list[int]:
        taken = self._pop_transcript(row, count)
        return taken + row.text.pop_many(count - len(taken))

    def _pop_transcript(self, row: CosySequence, count: int) -> list[int]:
        taken, row.transcript = row.transcript[:count], row.transcript[count:]
        return taken

    def _pop_speech(self, row: CosySequence) -> list[int]:
        taken, row.speech = row.speech[: self.block_speech], row.speech[self.block_speech :]
        return [self.prompts.speech(token) for token in taken]

    def record_token(self, row: CosySequence, token: int) -> None:
        """A speech id was drawn inside a block; the last is followed by a request for text that is not sampled."""
        assert row.block is not None
        row.unfed = token
        row.block += 1
        if row.block == self.block_speech:
            self.end_block(row)

    def end_block(self, row: CosySequence) -> None:
        row.record_token(self.fill)
        row.block = None
