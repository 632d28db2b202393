"""What the official package and this engine are both asked to say, on checkpoints of both shapes. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SIZES = ("0b6", "1b7")
TASKS = ("custom_voice", "voice_design", "base")
SHORT, LONG = "Hi you.", "The quick brown fox, 13 years old, jumps over the lazy dog; how are you today?"
CHINESE = "你好，世界！How are you?"
TRANSCRIPT_SHORT, TRANSCRIPT_LONG = "the dog", "Hello, world! How are you today? The quick brown fox jumps over it."
# Of the official package: one frame more than come out.
MAX_NEW_TOKENS = 12
AUDIO_SECONDS = {"brief": 1.0, "uneven": 1.6137}
# Long enough for ids that were penalized to come again.
PENALIZED = {"repetition_penalty": 1.9, "temperature": 1.5, "max_new_tokens": 60}
GREEDY = {"do_sample": False, "subtalker_dosample": False}


@dataclass(frozen=True)
class Case:
    """One utterance. ``official`` are settings by the official package's names; without a seed nothing is drawn."""

    name: str
    task: str
    text: str = LONG
    layout: str = "streaming"
    language: str = "auto"
    speaker: str | None = None
    instruct: str = ""
    audio: str | None = None
    # Empty: the voice is cloned by its vector alone.
    transcript: str = ""
    official: dict[str, Any] = field(default_factory=lambda: dict(GREEDY))
    draws: bool = False
    keeps_wave: bool = False
    # The generator tries seeds until so many come.
    min_frames: int = 0


def named(task: str) -> list[Case]:
    if task == "custom_voice":
        return custom_voice()
    return voice_design() if task == "voice_design" else base()


def custom_voice() -> list[Case]:
    ada = dict(task="custom_voice", speaker="ada")
    return [
        Case("streaming", **ada, keeps_wave=True),
        Case("full", **ada, layout="full"),
        Case("one token", **ada, text="a"),
        Case("english", **ada, language="English", text=SHORT),
        Case("german", **ada, language="german", layout="full"),
        Case("chinese text", **ada, language="chinese", text=CHINESE),
        Case("dialect by auto", task="custom_voice", speaker="Dylan", text=SHORT),
        Case("dialect by chinese", task="custom_voice", speaker="dylan", language="Chinese", text=SHORT),
        Case("no dialect in english", task="custom_voice", speaker="dylan", language="english", text=SHORT),
        Case("instruct", **ada, instruct="Speak softly, like a fox."),
        Case("instruct full", **ada, instruct="Speak softly, like a fox.", layout="full", language="english"),
        Case("strong penalty", **ada, layout="full", official=GREEDY | {"repetition_penalty": 1.6}),
        *drawn(**ada),
    ]


def voice_design() -> list[Case]:
    task = dict(task="voice_design", instruct="A deep old voice, slow.")
    return [
        Case("streaming", **task, keeps_wave=True),
        Case("full", **task, layout="full", language="english"),
        Case("nothing designed", task="voice_design", text=SHORT),
        Case("chinese", **task, language="chinese", layout="full", text=CHINESE),
        Case("drawn", **task, official={}, draws=True),
    ]


def base() -> list[Case]:
    vector = dict(task="base", audio="uneven")
    return [
        Case("vector streaming", **vector, keeps_wave=True),
        Case("vector full", **vector, layout="full", language="english"),
        Case("vector drawn", **vector, official={}, draws=True),
        *in_context("text longer than sound", audio="brief", transcript=TRANSCRIPT_SHORT),
        *in_context("sound longer than text", audio="uneven", transcript=TRANSCRIPT_SHORT, text=SHORT),
        *in_context("transcript longer than sound", audio="brief", transcript=TRANSCRIPT_LONG, language="german"),
        Case("context drawn", task="base", audio="brief", transcript=TRANSCRIPT_SHORT, official={}, draws=True),
    ]


def in_context(name: str, **fields: Any) -> list[Case]:
    return [
        Case(f"{name}, streaming", task="base", **fields, keeps_wave=True),
        Case(f"{name}, full", task="base", **fields, layout="full"),
    ]


def drawn(**fields: Any) -> list[Case]:
    return [
        Case("drawn", **fields, official={}, draws=True),
        Case("drawn full", **fields, layout="full", official={}, draws=True),
        Case("drawn top p", **fields, official={"top_p": 0.7, "subtalker_top_p": 0.8, "top_k": 20}, draws=True),
        Case("drawn hot", **fields, official={"temperature": 1.7, "subtalker_temperature": 0.3}, draws=True),
        Case("drawn long, penalized", **fields, layout="full", official=PENALIZED, draws=True, min_frames=25),
        Case("drawn code 0 alone", **fields, official={"subtalker_dosample": False}, draws=True),
    ]
