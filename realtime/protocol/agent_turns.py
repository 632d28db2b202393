"""The vocabulary of the built-in agent: what a dialect requests of it, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from engine.api import ErrorInfo


# ``text``: a language model answers typed turns. ``audio``: a recognizer transcribes spoken turns as well.
AgentAbility = Literal["none", "text", "audio"]
ChatRole = Literal["system", "user", "assistant", "tool"]
# What is spoken in place of an answer.
Phrase = Literal["failed", "unclear", "greeting"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the language model calls."""

    call_id: str
    name: str
    # JSON, as the model wrote it.
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One entry of the conversation, as the language model receives it."""

    role: ChatRole
    text: str = ""
    # Of the assistant.
    call: ToolCall | None = None
    # Of the result of a tool.
    call_id: str = ""


# --- commands of dialects


@dataclass(frozen=True, slots=True)
class StartAnswer:
    """Have the language model answer in a context: ``AnswerText`` and ``AnswerToolCall`` follow, and one
    ``AnswerEnded``. With a ``phrase`` that is spoken instead, and ``AnswerEnded`` carries ``error``.
    """

    context: str
    turns: tuple[ChatTurn, ...] = ()
    # Empty: the operator's.
    instructions: str = ""
    # JSON schema of functions; empty: the operator's.
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] = "auto"
    phrase: Phrase | None = None
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class StopAnswer:
    """Stop the answer in a context; no event of it follows."""

    context: str


@dataclass(frozen=True, slots=True)
class DetectedTurns:
    """How the server finds the end of a spoken turn."""

    # Minimum speech probability; ``None`` is that of calls.
    threshold: float | None = None
    # Audio before the detected speech that belongs to the turn.
    prefix_ms: int = 300
    # Silence that ends the turn.
    silence_ms: int = 500


@dataclass(frozen=True, slots=True)
class ConfigureAudio:
    """Set the format of the client's audio, and how turns end."""

    # ``pcm_s16le``, ``mulaw`` or ``alaw``.
    encoding: str
    sample_rate: int
    # ``None``: by ``CommitAudio`` alone.
    detection: DetectedTurns | None = None


@dataclass(frozen=True, slots=True)
class AppendAudio:
    data: bytes
    # Event loop time of the last sample; ``None`` is now.
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class CommitAudio:
    """End the spoken turn; ``AudioCommitted`` and ``AudioTranscribed`` follow."""


@dataclass(frozen=True, slots=True)
class ClearAudio:
    """Drop the audio that was not committed."""


AgentCommand = StartAnswer | StopAnswer | ConfigureAudio | AppendAudio | CommitAudio | ClearAudio


# --- events for dialects


@dataclass(frozen=True, slots=True)
class AnswerText:
    context: str
    text: str


@dataclass(frozen=True, slots=True)
class AnswerToolCall:
    context: str
    call: ToolCall


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """The last event of an answer. With an ``error`` a phrase was sent in its place."""

    context: str
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class AnswerLatency:
    """Where the time went between the end of the user's turn and the first audio, in milliseconds."""

    context: str
    # From the last speech to the end of the turn.
    endpointing_ms: float | None = None
    stt_ms: float | None = None
    llm_first_token_ms: float | None = None
    # From the last speech, or from ``StartAnswer``, to the first audio.
    first_audio_ms: float | None = None

    @property
    def fields(self) -> dict[str, float | None]:
        """Return the latencies by name."""
        names = ("endpointing_ms", "stt_ms", "llm_first_token_ms", "first_audio_ms")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class CallerSpeechStarted:
    # Position in the audio that was appended.
    audio_ms: int


@dataclass(frozen=True, slots=True)
class CallerSpeechStopped:
    audio_ms: int


@dataclass(frozen=True, slots=True)
class AudioCommitted:
    """A spoken turn is complete; ``AudioTranscribed`` follows."""

    turn: int
    # True if the server found its end.
    by_server: bool


@dataclass(frozen=True, slots=True)
class AudioTranscribed:
    turn: int
    audio_s: float
    # Empty if nothing was understood.
    text: str = ""
    error: ErrorInfo | None = None


AnswerEvent = AnswerText | AnswerToolCall | AnswerEnded | AnswerLatency
AgentEvent = AnswerEvent | CallerSpeechStarted | CallerSpeechStopped | AudioCommitted | AudioTranscribed
