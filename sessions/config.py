"""Settings of a client, and limits of the server. Every limit is a named setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from engine.api import ClonedVoice, ResumePoint, SamplingParams, SpeechRequest, TextLayout

if TYPE_CHECKING:
    from sessions.checkpoint import Replay
    from sessions.text.lexicons.lexicon import Lexicon

# Duration of a packet of any format but Opus without a container.
PACKET_MS = 20


class Encoding(StrEnum):
    # Packets of 20 ms, bare.
    OPUS = "opus"
    PCM_S16LE = "pcm_s16le"
    PCM_F32LE = "pcm_f32le"
    MULAW = "mulaw"
    ALAW = "alaw"
    # s16le behind a header that leaves the length open.
    WAV = "wav"
    MP3 = "mp3"
    # ADTS stream.
    AAC = "aac"
    FLAC = "flac"
    OGG_OPUS = "ogg_opus"


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFormat:
    """Format of the audio sent: mono, in packets. The fields below ``bitrate`` apply to Opus only."""

    encoding: Encoding = Encoding.OPUS
    sample_rate: int = 24_000
    # Opus without a container: 10, 20, 40, 60, 80, 100 or 120 in a packet. All else leaves ``PACKET_MS`` at a time.
    packet_ms: int = 20
    # Bits a second. Opus: 6,000 to 510,000; MP3 and AAC: as far as the rate allows (docs/design/audio.md).
    bitrate: int = 32_000
    # 0 (least work) to 10 (best sound for its bits). ``None``: what suits application and bitrate.
    complexity: int | None = None
    # ``audio`` is a third of the work, and as good as ``voip`` with half the bits (docs/design/audio.md). Below 64,000
    # bits, or with ``fec``, it is ``voip`` all the same.
    application: Literal["voip", "audio"] = "voip"
    # Each packet also holds a poorer copy of the one before.
    fec: bool = False
    # 1 to 100: loss to expect; the more, the more bits FEC takes.
    packet_loss_percent: int = 10
    # Silence costs next to no bits.
    dtx: bool = False


class Markup(StrEnum):
    """What tags in a text are."""

    # Text like any other.
    NONE = "none"
    SSML = "ssml"


class InlineForm(StrEnum):
    """A vendor's own form that controls speech."""

    # ``<500>``: a pause of 500 ms.
    RIME_PAUSE = "rime_pause"
    # ``{k1Ast0xm}``: phonemes.
    RIME_PHONEMES = "rime_phonemes"
    # ``\{pause:1s\}`` and ``\{"word": "tomato", "pronounce": "təˈmeɪtoʊ"\}``
    DEEPGRAM = "deepgram"
    # ``[cheerful]``: the tone of the text that follows. Also read beside tags of SSML.
    BRACKETS = "brackets"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSettings:
    """Settings of a response. A session holds one as the default of its responses."""

    # A name out of ``EngineInfo.voices``; ``None`` takes the first.
    voice: str | None = None
    language: str = "auto"
    instruct: str = ""
    format: AudioFormat = field(default_factory=AudioFormat)
    # ``None`` follows the checkpoint (``EngineInfo.normalize_text``).
    normalize_text: bool | None = None
    # Whether tags in the text control speech (docs/reference/ssml.md).
    markup: Markup = Markup.NONE
    # Read in the text between tags.
    inline_forms: tuple[InlineForm, ...] = ()
    # Voices by the labels that lines of the text begin with, as ``Anna: Hello.`` (docs/reference/ssml.md).
    speakers: Mapping[str, str] = field(default_factory=dict)
    # Words that are spoken in another form (docs/reference/lexicons.md); where two match, the longer one, else the
    # first.
    lexicons: tuple[Lexicon, ...] = ()
    # Names of stored ones, which come after these.
    lexicon_names: tuple[str, ...] = ()
    # Most audio handed over and not yet played; ``None`` hands over as fast as it is made (burst).
    lead_ms: int | None = 2_000
    # Whether the response also emits word times (``ResponseWordTimes``).
    word_times: bool = False
    # Whether the response also emits what another gateway needs to go on with it (``CheckpointAdded``).
    checkpoints: bool = False
    # Whether speech is aligned while it plays, in idle moments, so that heard text is known at once; otherwise the
    # first query takes up to 3 ms per second of speech.
    align_eagerly: bool = False
    # Whether heard text is queried; otherwise speech is aligned only for ``word_times``, and without these heard text
    # is estimated with equal time for every character.
    reports_heard_text: bool = True
    # Whether a segment short of text may be closed early (docs/design/sessions.md).
    avoid_dead_air: bool = True
    # A voice that is not in the checkpoint, used instead of ``voice``, which then is only its name.
    clone: ClonedVoice | None = None
    # Playback rate, 0.25 to 4; the pitch does not change.
    speed: float = 1.0
    layout: TextLayout = TextLayout.AUTO
    # Cap on the codec frames of each segment; ``None`` derives one from its text.
    max_frames: int | None = None
    # Codec frames of a segment's chunks, one after the other; empty leaves it to the engine.
    chunk_frames: tuple[int, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)

    @property
    def reads_markup(self) -> bool:
        return self.markup is not Markup.NONE or bool(self.inline_forms or self.speakers)

    def create_request(
        self,
        request_id: str,
        text: str,
        text_closed: bool,
        segment: int,
        group: str,
        min_lead_ms: int,
        resume: ResumePoint | None = None,
        is_burst: bool = False,
    ) -> SpeechRequest:
        """The engine's request for segment number ``segment``. The engine's lead is the listener's, at least
        ``min_lead_ms``; a burst request has none."""
        return SpeechRequest(
            request_id=request_id,
            voice=self.clone or self.voice,
            language=self.language,
            instruct=self.instruct,
            text=text,
            text_closed=text_closed,
            layout=self.layout,
            segment=segment,
            sampling=self.sampling,
            max_frames=self.max_frames,
            chunk_frames=self.chunk_frames,
            lead_ms=None if is_burst or self.lead_ms is None else max(int(self.lead_ms * self.speed), min_lead_ms),
            group=group,
            resume=resume,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseParams:
    """What a response is created with."""

    response_id: str
    # Names its requests of the engine.
    request_prefix: str
    # Its requests share the engine's burst capacity with those of the same group.
    group: str
    settings: SpeechSettings
    # It retains what it has sent, for ``Response.resume``.
    is_resumable: bool = False
    # It makes again what its client knows, and emits what follows.
    replay: Replay | None = None
    # Its key is for bulk work.
    is_bulk: bool = False

    @property
    def is_burst(self) -> bool:
        """True if the engine has no deadline for it."""
        return self.is_bulk or self.settings.lead_ms is None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits of one session."""

    max_active_responses_per_session: int = 8
    max_response_chars: int = 50_000
    max_instruct_chars: int = 1_000
    max_lead_ms: int = 60_000
    # Smallest lead of the engine, also for a client that receives audio just in time.
    min_engine_lead_ms: int = 500
    # Audio in one message, where so much is ready and the lead is eight times as long.
    max_audio_message_ms: int = 240
    # The first packet of a response is encoded on the event loop, and leaves before the rest of its chunk is.
    flush_first_packet: bool = True
    # Chunks of several responses that come together are made into packets one in each turn of the event loop.
    one_chunk_per_loop_iteration: bool = True
    # The request of a response's first segment is submitted with its first text, before that is a whole word.
    prepare_requests: bool = True
    # Playback is reported to the engine when its own estimate is off by more; 0 reports it with every chunk.
    playback_tolerance_ms: int = 10
    # Time to find heard text; after it, heard text is estimated with equal time for every character.
    heard_text_timeout_ms: int = 1_000
    # Queued audio above which no further segment of a burst response begins.
    max_ready_ms: int = 60_000
    # Segments of a burst response generated concurrently, after its first audio; otherwise one.
    max_burst_segments: int = 2
    # Ended responses whose heard text can still be queried.
    max_retained_responses: int = 4
    # A response that waits for text, with nothing left to play, ends after this.
    text_timeout_s: float = 60.0
    # A response whose due audio is not read ends after this (slow_reader).
    reader_timeout_s: float = 10.0
    # A response that playback reports delay for so long ends (slow_reader).
    playback_timeout_s: float = 60.0
    # A response whose engine emits no audio ends after this.
    engine_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryLimits:
    """Limits of all sessions together, and of those of one key."""

    max_sessions: int = 5_000
    max_active_responses: int = 512
    max_active_responses_per_key: int = 64
    # A session without a response and without a message ends after this.
    idle_timeout_s: float = 600.0
    # Interval of the time-out checks.
    expire_every_s: float = 1.0
    # Retry hint in errors of requests refused for capacity.
    retry_after_ms: int = 1_000
    # Threads of the Opus encoders; 0 encodes on the event loop.
    encoder_threads: int = 1
    # Threads that align speech for the heard text, which takes 5 ms for a second of it. ``None``: one, or none where
    # encoders have none.
    aligner_threads: int | None = None
    # Speech kept for alignment on demand, in megabytes; beyond it the oldest is aligned as more arrives, with 0 all
    # speech on arrival.
    max_alignment_backlog_mb: int = 512
    session: SessionLimits = field(default_factory=SessionLimits)
