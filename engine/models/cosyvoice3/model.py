"""CosyVoice3's talker as a ``SpeechModel``: who is fed what, how a speech id is drawn, when it ends (spec 2, 3)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from engine.api import ClonedVoice, SpeechRequest, TextLayout, VoiceInfo
from engine.errors import InvalidRequest, RequestTooLong, UnknownVoice
from engine.layers.transformer import AttentionContext
from engine.memory.kv_cache import KVShape
from engine.models.base import (
    AwaitText,
    ControlOutcome,
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
from engine.models.cosyvoice3.config import MAX_TOP_K, MAX_WINDOW, CosyVoice3Config
from engine.models.cosyvoice3.prompt import (
    INSTRUCTS,
    Bistream,
    CosyPromptBuilder,
    CosySequence,
    RasParams,
    SamplingPhase,
    known_sentence,
)
from engine.models.cosyvoice3.settings import TalkerSettings
from engine.models.cosyvoice3.talker import SpeechLM, StopRules, sample
from engine.models.cosyvoice3.tokenizer import CosyTokenizer
from engine.models.cosyvoice3.voice import CosyVoiceCache, VoicePrompt
from engine.ops.noise import NoiseSource, PhiloxNoise

# Which it was trained on. It hears from the text which one it is: the choice changes nothing.
LANGUAGES = ("chinese", "english", "japanese", "korean", "german", "spanish", "french", "italian", "russian")

# Below, scores in fp32 would overflow; so near 0 all of them sample alike.
MIN_TEMPERATURE = 1e-6
# Repetition is held off by sampling again and by no penalty.
SAMPLING_LIMITS: dict[str, tuple[float, float]] = {
    "top_k": (1, MAX_TOP_K),
    "repetition_window": (1, MAX_WINDOW),
    "repetition_penalty": (1, 1),
}
# There is one code a frame, and chunks are blocks of the flow.
REFUSED_FIELDS = (
    "predictor_do_sample",
    "predictor_temperature",
    "predictor_top_k",
    "predictor_top_p",
    "chunk_frames",
)


class CosyVoice3:
    """``named`` are the voices that the checkpoint has of its own."""

    name = "cosyvoice3"

    def __init__(
        self,
        config: CosyVoice3Config,
        talker: SpeechLM,
        tokenizer: CosyTokenizer,
        settings: TalkerSettings | None = None,
        named: Mapping[str, VoicePrompt] | None = None,
        noise: NoiseSource | None = None,
        max_voices: int = 32,
        trims_prompts: bool = True,
    ) -> None:
        self.config, self.talker, self.tokenizer = config, talker, tokenizer
        self.settings, self.named = settings or TalkerSettings(), dict(named or {})
        self.noise = noise or PhiloxNoise()
        self.prompts = CosyPromptBuilder(config.talker)
        self.bistream = Bistream(config.talker, self.prompts)
        self.stops = StopRules(config.talker.speech_ids, self.settings.stop_mode)
        bins = config.flow.dit.mel_bins
        self.voice_cache = CosyVoiceCache(bins, tokenizer.encode_text, max_voices, trims_prompts)
        self.device = talker.llm_decoder.weight.device

    @property
    def kv_shape(self) -> KVShape:
        stack = self.config.talker.transformer
        return KVShape(stack.num_hidden_layers, stack.num_key_value_heads, stack.head_dim)

    @property
    def languages(self) -> tuple[str, ...]:
        return ("auto", *LANGUAGES)

    @property
    def voices(self) -> tuple[VoiceInfo, ...]:
        return tuple(VoiceInfo(name, self.languages) for name in self.named)

    @property
    def capabilities(self) -> ModelCapabilities:
        flow = self.config.flow
        return ModelCapabilities(
            task="base",
            takes_instruct=True,
            instructions=() if self.settings.allow_untrained_instructions else tuple(INSTRUCTS),
            can_clone=True,
            embedding_size=flow.spk_embed_size,
            num_codebooks=1,
            codebook_size=self.config.talker.speech_ids.num_codes,
            mel_bins=flow.dit.mel_bins,
            mel_per_code=flow.token_mel_ratio,
            transcript_optional=True,
            reads_phonemes=self.settings.parse_control_tags,
            max_text_tokens=self.settings.max_text_tokens,
            sampling_limits=SAMPLING_LIMITS,
            refused_fields=REFUSED_FIELDS,
        )

    @property
    def max_positions(self) -> int:
        return self.config.talker.max_positions

    @property
    def codes_per_step(self) -> int:
        return 1

    def new_sequence(self, request: SpeechRequest, seed: int) -> CosySequence:
        voice = self._voice(request.voice)
        sentence = known_sentence(request.instruct, self.settings.allow_untrained_instructions)
        row = CosySequence(
            text=TokenQueue(),
            settings=self.settings,
            voice=voice,
            reference=VoiceReference(voice.key, (), voice) if voice else None,
            max_tokens_limit=request.max_frames,
            min_tokens_limit=request.sampling.min_new_tokens,
            ras=self._ras(request),
            seed=seed,
            segment=request.segment,
        )
        if voice is not None and voice.has_transcript and not sentence:
            row.transcript, row.speech = list(voice.transcript_ids), list(voice.speech_ids)
        self._build_prefix(
            row, self.prompts.head(self.tokenizer.instruct_ids(sentence)), self._uses_full_layout(request)
        )
        return row

    @staticmethod
    def _uses_full_layout(request: SpeechRequest) -> bool:
        if request.layout is TextLayout.AUTO:
            return request.text_closed
        return request.layout is TextLayout.FULL

    def _build_prefix(self, row: CosySequence, head: list[int], knows_all: bool) -> None:
        """Return the part of the prompt that needs no text and is shared by all requests of a voice."""
        if knows_all:
            row.prefix = (*head, *row.transcript)
            row.transcript.clear()
            row.num_prompt_tokens = None
        else:
            self.bistream.begin(row, head)
        row.num_prefix = len(row.prefix)
        row.num_reserved = len(row.transcript) + len(row.speech)

    def _voice(self, voice: str | ClonedVoice | None) -> VoicePrompt | None:
        if isinstance(voice, ClonedVoice):
            return self.voice_cache.get(voice)
        if voice is None:
            return next(iter(self.named.values()), None)
        if voice.lower() not in self.named:
            raise UnknownVoice(f"voice is {voice!r}; known: {', '.join(self.named) or 'none'}", "voice")
        return self.named[voice.lower()]

    def _ras(self, request: SpeechRequest) -> RasParams:
        sampling, usual = request.sampling, self.config.talker.ras
        temperature = 1.0 if sampling.temperature is None else sampling.temperature
        return RasParams(
            temperature=0.0 if sampling.do_sample is False or temperature == 0 else max(temperature, MIN_TEMPERATURE),
            top_p=usual.top_p if sampling.top_p is None else sampling.top_p,
            top_k=usual.top_k if sampling.top_k is None else sampling.top_k,
            window=usual.window if sampling.repetition_window is None else sampling.repetition_window,
            tau=usual.tau,
        )

    def prefix_key(self, row: SequenceState) -> Hashable:
        assert isinstance(row, CosySequence)
        return row.prefix

    def next_input(self, row: SequenceState) -> AwaitText | TalkerInputs:
        assert isinstance(row, CosySequence)
        if row.num_text > self.settings.max_text_tokens:
            limit = f"the limit of one segment is {self.settings.max_text_tokens}"
            raise RequestTooLong(f"text has {row.num_text} tokens; {limit}", "text")
        if not row.inputs:
            return TalkerInputs(row.prefix, sample=False)
        if row.phase is not SamplingPhase.WHOLE:
            return self.bistream.next_input(row)
        if row.prompted:
            assert row.unfed is not None
            return TalkerInputs([self.prompts.speech(row.unfed)])
        return self._next_whole_text_input(row) if row.text.closed else AwaitText()

    def _next_whole_text_input(self, row: CosySequence) -> TalkerInputs:
        ids, row.prompted = row.text.pop_many(row.text.num_waiting), True
        if not ids:
            raise InvalidRequest("text holds nothing that can be spoken", "text")
        return TalkerInputs(self.prompts.tail(ids, row.speech))

    def forward(
        self,
        rows: Sequence[SequenceState],
        inputs: Sequence[Sequence[Any]],
        positions: Tensor,
        context: AttentionContext,
    ) -> Tensor:
        return self.talker(torch.tensor([list(items) for items in inputs], device=self.device), positions, context)

    def sample(self, rows: Sequence[SequenceState], hidden: Tensor) -> list[Outcome]:
        speech = cast(Sequence[CosySequence], rows)
        logits = self.stops.apply(self.talker.logits(hidden)[: len(rows)], speech)
        keys = [row.sample_key for row in speech]
        finite = torch.isfinite(hidden[: len(rows)]).all(-1)
        safe = torch.where(finite[:, None], logits, 0.0)
        drawn = sample(safe, [row.ras for row in speech], [row.history for row in speech], keys, self.noise)
        found = zip(speech, drawn.tolist(), finite.tolist(), strict=True)
        return [self.outcome(row, token, ok) for row, token, ok in found]

    def outcome(self, row: CosySequence, token: int, finite: bool) -> Outcome:
        """Interpret a drawn id and record it in the row."""
        if not finite:
            return FailedOutcome("the talker's output is not finite")
        if row.phase is not SamplingPhase.BLOCK and row.num_generated >= row.max_tokens:
            return StopOutcome(at_limit=True)
        ids = self.config.talker.speech_ids
        if row.phase is SamplingPhase.BLOCK and token == ids.fill:
            row.sampled_codes.append(token)
            self.bistream.end_block(row)
            return ControlOutcome()
        if token >= ids.num_codes:
            return StopOutcome()
        row.sampled_codes.append(token)
        row.record_token(token)
        if row.phase is SamplingPhase.BLOCK:
            self.bistream.record_token(row, token)
        else:
            row.unfed = token
        return ControlOutcome() if row.record_silence(token) else FrameOutcome((token,))

    def force(self, row: SequenceState, codes: Sequence[int]) -> Outcome:
        assert isinstance(row, CosySequence)
        (token,) = codes
        outcome = self.outcome(row, token, finite=True) if token >= 0 else StopOutcome()
        if isinstance(outcome, StopOutcome):
            raise InvalidRequest(f"resume.codes holds {token}, which ends the speech", "resume.codes")
        return outcome
