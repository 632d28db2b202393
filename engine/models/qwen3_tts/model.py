"""Qwen3-TTS as a ``SpeechModel``: when a row may step, what it is fed, how its codes are drawn (spec 3.6, 3.7, 4)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import cached_property, lru_cache
from typing import cast

import torch
from torch import Tensor

from engine.api import ClonedVoice, SpeechRequest, TextLayout, VoiceInfo
from engine.errors import InvalidRequest
from engine.layers.transformer import AttentionContext
from engine.memory.kv_cache import KVShape
from engine.models.base import (
    AwaitText,
    FailedOutcome,
    FrameOutcome,
    ModelCapabilities,
    Outcome,
    SequenceState,
    StopOutcome,
    TalkerInputs,
    TokenQueue,
    VoiceReference,
)
from engine.models.qwen3_tts.config import Qwen3TTSConfig
from engine.models.qwen3_tts.prompt import (
    MIN_NEW_TOKENS,
    NO_TOKEN,
    PromptBuilder,
    PromptPosition,
    QwenSequence,
    row_sampling_params,
)
from engine.models.qwen3_tts.talker import Talker
from engine.models.qwen3_tts.voice import PreparedVoice, QwenVoiceCache
from engine.ops.noise import NoiseSource, PhiloxNoise, SampleKey
from engine.ops.sampler import SamplingBatch, apply_repetition_penalty, sample
from engine.text.tokenizer import TextTokenizer

MAX_PLAIN_PREFIXES = 256


class Qwen3TTS:
    """The talker stage. ``guard_eos`` bans the end of speech until the end-of-text row has been fed."""

    def __init__(
        self,
        config: Qwen3TTSConfig,
        talker: Talker,
        tokenizer: TextTokenizer,
        noise: NoiseSource | None = None,
        guard_eos: bool = True,
        max_voices: int = 32,
    ) -> None:
        self.config, self.talker, self.tokenizer = config, talker, tokenizer
        self.noise = noise or PhiloxNoise()
        self.guard_eos = guard_eos
        self.prompts = PromptBuilder(config, tokenizer.template_ids)
        # Of requests without an instruction, by speaker and language.
        self.plain_prefix = lru_cache(MAX_PLAIN_PREFIXES)(lambda *names: tuple(self.prompts.prefix(*names)))
        weight = talker.codec_head.weight
        self.device = weight.device
        books = config.talker.num_code_groups
        self.voice_cache = QwenVoiceCache(books, weight.dtype, weight.device, tokenizer.encode, max_voices)
        vocab = torch.arange(config.talker.vocab_size, device=self.device)
        self.padding: list[PromptPosition] = []
        self.unseen = torch.zeros_like(vocab, dtype=torch.bool)
        self.never = (vocab >= config.talker.num_codes) & (vocab != config.talker.control.eos)

    @property
    def name(self) -> str:
        return f"qwen3-tts {self.config.size} {self.config.task}"

    @property
    def kv_shape(self) -> KVShape:
        stack = self.config.talker.transformer
        return KVShape(stack.num_hidden_layers, stack.num_key_value_heads, stack.head_dim, self.largest_key)

    @cached_property
    def largest_key(self) -> float:
        """Bound of keys: the length of a normed vector, which rotation keeps, times the largest weight."""
        weights = [layer.self_attn.k_norm.weight for layer in self.talker.model.layers]
        largest = float(torch.stack(weights).detach().abs().max())
        return math.sqrt(self.config.talker.transformer.head_dim) * largest

    @property
    def languages(self) -> tuple[str, ...]:
        """Dialects are no choice of the caller's; a speaker forces them."""
        return ("auto", *(name for name in self.config.talker.languages if "dialect" not in name))

    @property
    def voices(self) -> tuple[VoiceInfo, ...]:
        return tuple(VoiceInfo(name, self.languages) for name in self.config.talker.speakers)

    @property
    def capabilities(self) -> ModelCapabilities:
        config = self.config
        clones = config.task == "base"
        return ModelCapabilities(
            task=config.task,
            takes_instruct=config.takes_instruct,
            can_clone=clones,
            embedding_size=config.talker.transformer.hidden_size if clones else 0,
            num_codebooks=config.talker.num_code_groups,
            codebook_size=config.talker.num_codes,
        )

    @property
    def max_positions(self) -> int:
        return self.config.talker.max_position_embeddings

    @property
    def codes_per_step(self) -> int:
        return self.config.talker.num_code_groups

    def new_sequence(self, request: SpeechRequest, seed: int) -> QwenSequence:
        sampling, defaults = request.sampling, self.config.generation
        voice = self.voice_cache.get(request.voice) if isinstance(request.voice, ClonedVoice) else None
        layout = self._layout(request)
        prefix = self._prefix(request, voice, layout)
        given = sampling.repetition_penalty
        return QwenSequence(
            text=TokenQueue(),
            num_prefix=len(prefix),
            num_reserved=voice.num_reserved(layout) if voice else 0,
            num_prompt_tokens=None if layout is TextLayout.FULL else voice.num_prompt_tokens if voice else 1,
            reference=VoiceReference(voice.key, voice.codes) if voice and voice.codes else None,
            prefix=prefix,
            voice=voice,
            layout=layout,
            num_transcript_fed=voice.num_prefix_ids(layout) if voice else 0,
            num_codes=self.codes_per_step,
            seen=self.unseen,
            seed=seed,
            segment=request.segment,
            code0=row_sampling_params(sampling, defaults, ""),
            residual=row_sampling_params(sampling, defaults, "predictor_"),
            penalty=defaults.repetition_penalty if given is None else given,
            repetition_window=sampling.repetition_window,
            min_new_tokens=MIN_NEW_TOKENS if sampling.min_new_tokens is None else sampling.min_new_tokens,
        )

    def _layout(self, request: SpeechRequest) -> TextLayout:
        if request.layout is not TextLayout.AUTO:
            return request.layout
        knows_all = request.text_closed and not isinstance(request.voice, ClonedVoice)
        return TextLayout.FULL if knows_all else TextLayout.STREAMING

    def _prefix(
        self, request: SpeechRequest, voice: PreparedVoice | None, layout: TextLayout
    ) -> tuple[PromptPosition, ...]:
        """Every row that needs no text of the request; of a transcript as much as stands before it."""
        instruct_ids = self.tokenizer.instruct_ids(request.instruct)
        if voice is None:
            named = request.voice if isinstance(request.voice, str) else None
            speaker = named.lower() if named else next(iter(self.config.talker.speakers), None)
            if not instruct_ids:
                return self.plain_prefix(speaker, request.language)
            return tuple(self.prompts.prefix(speaker, request.language, instruct_ids))
        rows = self.prompts.prefix(None, request.language, instruct_ids, cloned=True)
        head = voice.transcript_ids[: voice.num_prefix_ids(layout)]
        add = self.prompts.transcript_rows if layout is TextLayout.FULL else self.prompts.reference_rows
        return (*rows, *add(head))

    def prefix_key(self, row: SequenceState) -> Hashable:
        assert isinstance(row, QwenSequence)
        return (row.prefix, row.voice.key if row.voice else None)

    def next_input(self, row: SequenceState) -> AwaitText | TalkerInputs:
        assert isinstance(row, QwenSequence)
        if row.prompted:
            text = row.next_text_inputs(self.config.text)
            return AwaitText() if text is None else TalkerInputs((self._frame_row(text, len(row.codes) - 1),))
        if not row.inputs:
            return TalkerInputs(row.prefix, sample=False)
        if not row.text.closed and (row.num_prompt_tokens is None or row.text.num_waiting < row.num_prompt_tokens):
            return AwaitText()
        row.prompted = True
        return TalkerInputs(self._full_tail(row) if row.layout is TextLayout.FULL else self._streaming_tail(row))

    def _frame_row(self, text: int, frame: int) -> PromptPosition:
        """Rows of padding are the same for everybody, and the most of all rows."""
        if text != self.config.text.tts_pad:
            return PromptPosition(text, frame=frame)
        while len(self.padding) <= frame:
            self.padding.append(PromptPosition(text, frame=len(self.padding)))
        return self.padding[frame]

    def _full_tail(self, row: QwenSequence) -> list[PromptPosition]:
        ids, row.eos_fed = row.text.pop_many(row.text.num_waiting), True
        if row.reference is None or row.voice is None:
            return self.prompts.full_tail(ids)
        return self.prompts.full_reference_tail(ids, row.voice.num_code_rows)

    def _streaming_tail(self, row: QwenSequence) -> list[PromptPosition]:
        if not row.text.num_waiting:
            raise InvalidRequest("text holds nothing that can be spoken", "text")
        if row.reference is None or row.voice is None:
            return self.prompts.streaming_tail(row.text.pop_many()[0])
        start = row.num_transcript_fed
        ids = [row.next_text_inputs(self.config.text) for _ in range(start, row.voice.num_code_rows)]
        return self.prompts.reference_rows([i for i in ids if i is not None], start)

    def forward(
        self,
        rows: Sequence[SequenceState],
        inputs: Sequence[Sequence[PromptPosition]],
        positions: Tensor,
        context: AttentionContext,
    ) -> Tensor:
        return self.talker(self._embed(cast(Sequence[QwenSequence], rows), inputs), positions, context)

    def _embed(self, rows: Sequence[QwenSequence], inputs: Sequence[Sequence[PromptPosition]]) -> Tensor:
        flat = [(row, item) for row, items in zip(rows, inputs, strict=True) for item in items]
        x = self.talker.embed_text(torch.tensor([item.text for _, item in flat], device=self.device))
        codec = [(i, item.codec) for i, (_, item) in enumerate(flat) if item.codec != NO_TOKEN]
        frames = [(i, row.frame_of(item)) for i, (row, item) in enumerate(flat) if item.holds_frame]
        for found, embed in ((codec, self.talker.embed_codec), (frames, self.talker.embed_frame)):
            if found:
                index = torch.tensor([i for i, _ in found], device=self.device)
                x.index_add_(0, index, embed(torch.tensor([v for _, v in found], device=self.device)))
        for i, (row, item) in enumerate(flat):
            if item.speaker and row.voice is not None:
                x[i] += row.voice.embedding
        return x.view(len(rows), -1, x.shape[-1])

    def sample(self, rows: Sequence[SequenceState], hidden: Tensor) -> list[Outcome]:
        speech = cast(Sequence[QwenSequence], rows)
        keys = [row.sample_key for row in speech]
        code0 = sample(
            self._code0_logits(speech, hidden),
            SamplingBatch.from_params([row.code0 for row in speech], self.device),
            keys,
            0,
            self.noise,
        )
        frames = self._frames(speech, hidden, code0, keys).tolist()
        finite = torch.isfinite(hidden).all(-1).tolist()
        return [self._outcome(row, codes, ok) for row, codes, ok in zip(speech, frames, finite, strict=False)]

    def _outcome(self, row: QwenSequence, codes: list[int], finite: bool) -> Outcome:
        if not finite:
            return FailedOutcome("the talker's output is not finite")
        if codes[0] == self.config.talker.control.eos:
            return StopOutcome()
        row.record_frame(codes)
        return FrameOutcome(codes)

    def force(self, row: SequenceState, codes: Sequence[int]) -> FrameOutcome:
        assert isinstance(row, QwenSequence)
        for code in codes:
            if not 0 <= code < self.config.talker.num_codes:
                limits = f"it must lie in 0..{self.config.talker.num_codes - 1}"
                raise InvalidRequest(f"resume.codes holds {code}; {limits}", "resume.codes")
        row.record_frame(codes)
        return FrameOutcome(codes)

    def _code0_logits(self, rows: Sequence[QwenSequence], hidden: Tensor) -> Tensor:
        """[N, V] of the N rows; padding goes through the head with them, so that the product's shape stays the same."""
        logits = self.talker.codec_head(hidden)[: len(rows)].float()
        penalty = torch.tensor([[row.penalty] for row in rows], device=self.device)
        logits = apply_repetition_penalty(logits, torch.stack([row.seen for row in rows]), penalty)
        logits = logits.masked_fill(self.never, -torch.inf)
        banned = [len(row.codes) < row.min_new_tokens or (self.guard_eos and not row.eos_fed) for row in rows]
        eos = self.config.talker.control.eos
        logits[:, eos] = logits[:, eos].masked_fill(torch.tensor(banned, device=self.device), -torch.inf)
        return logits

    def _frames(self, rows: Sequence[QwenSequence], hidden: Tensor, code0: Tensor, keys: list[SampleKey]) -> Tensor:
        """Whole frames [N, K]; rows that stopped keep their place, so that the shape does not depend on them."""
        batch = SamplingBatch.from_params([row.residual for row in rows], self.device)
        num_padding = hidden.shape[0] - len(rows)

        def pad(ids: Tensor) -> Tensor:
            return torch.nn.functional.pad(ids, (0, num_padding)) if num_padding else ids

        def sample_code(codebook: int, logits: Tensor) -> Tensor:
            return pad(sample(logits[: len(rows)].float(), batch, keys, codebook, self.noise))

        code0 = pad(code0)
        codes = self.talker.code_predictor.generate(hidden, self.talker.embed_codec(code0), sample_code)
        return torch.cat((code0[:, None], codes), dim=1)
