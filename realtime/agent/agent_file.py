"""The agent file: instructions, phrases and tools of the built-in agent, in TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from realtime.config import ConfigError

INSTRUCTIONS = (
    "You are a helpful voice assistant. Your answers are spoken: keep them short, in plain sentences, "
    "without lists, headings or other markup."
)
MAX_FILE_BYTES = 262_144
MAX_TOOLS = 64
MAX_PHRASE_CHARS = 300
Spoken = Annotated[str, Meta(pattern=r"\S", max_length=MAX_PHRASE_CHARS)]


class AgentPhrases(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Short sentences that the agent speaks by itself."""

    # The language model or the recognizer failed.
    failed: Spoken = "Sorry, something went wrong. Please try again."
    # Nothing was understood.
    unclear: Spoken = "Sorry, I did not catch that."
    # The language model is slow.
    wait: Spoken = "One moment, please."
    # Spoken when a call or a device is connected; empty: the caller speaks first.
    greeting: Annotated[str, Meta(max_length=MAX_PHRASE_CHARS)] = ""


class AgentTool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that clients carry out."""

    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
    description: str = ""
    # JSON schema of the arguments.
    parameters: dict[str, Any] = {}


class AgentFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    instructions: Annotated[str, Meta(min_length=1)] = INSTRUCTIONS
    # Language of the speakers, such as ``en``; empty: the recognizer detects it.
    language: Annotated[str, Meta(max_length=16)] = ""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    # Of an answer.
    max_tokens: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    phrases: AgentPhrases = AgentPhrases()
    tools: Annotated[tuple[AgentTool, ...], Meta(max_length=MAX_TOOLS)] = ()


def load_agent_file(path: str | None) -> AgentFile:
    """Load an agent file; the defaults without one. Raises ``ConfigError``, which names the field."""
    if path is None:
        return AgentFile()
    try:
        data = Path(path).read_bytes()
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"agent.file = {path} has {len(data)} bytes, at most {MAX_FILE_BYTES}")
        return msgspec.convert(tomllib.loads(data.decode()), AgentFile)
    except (OSError, UnicodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"agent.file = {path}: {error}") from error
