"""A reply on OpenAI Realtime: its state, and the events that begin and end its items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.api import ErrorInfo
from realtime.errors import CAPACITY_CODES
from realtime.protocol.agent_turns import AnswerLatency, ToolCall
from realtime.protocol.model import SpeechOptions

SERVER_FAULT_CODES = (
    "llm_failed",
    "stt_failed",
    "internal_error",
    "session_error",
    "engine_error",
    "engine_timeout",
    "engine_dead",
)
# Part type in ``response.content_part.*``; items call it ``output_audio``.
AUDIO_PART = {"type": "audio", "transcript": ""}
# Name of an event, and its fields.
NamedEvent = tuple[str, dict[str, Any]]


@dataclass(slots=True)
class OpenAIResponse:
    context: str
    response_id: str
    item_id: str
    in_conversation: bool
    metadata: dict[str, Any] | None = None
    text: str = ""
    num_sent_chars: int = 0
    takes_text: bool = False
    options: SpeechOptions = field(default_factory=SpeechOptions)
    # True once its message has begun, which is spoken.
    has_message: bool = False
    cancel_reason: str | None = None
    # Of an answer of the agent.
    is_answering: bool = False
    # Begun by the language model of the server, whose turn ends with it.
    is_answer: bool = False
    instructions: str = ""
    # Spoken turns whose transcripts it waits for, before the language model is asked.
    pending_turns: set[int] = field(default_factory=set)
    calls: list[dict[str, Any]] = field(default_factory=list)
    failure: ErrorInfo | None = None
    latency: AnswerLatency | None = None

    @property
    def place(self) -> dict[str, Any]:
        return {"response_id": self.response_id, "item_id": self.item_id, "output_index": 0, "content_index": 0}

    def item(self, status: str) -> dict[str, Any]:
        part = {"type": "output_audio", "transcript": self.text}
        content = [] if status == "in_progress" else [part]
        return {
            "id": self.item_id,
            "object": "realtime.item",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def add_call(self, item_id: str, call: ToolCall) -> dict[str, Any]:
        """Add an item for a function call and return it."""
        self.calls.append(
            {
                "id": item_id,
                "object": "realtime.item",
                "type": "function_call",
                "status": "completed",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
            }
        )
        return self.calls[-1]

    def to_object(
        self, status: str, item: dict[str, Any] | None = None, error: ErrorInfo | None = None
    ) -> dict[str, Any]:
        details: dict[str, Any] | None = None
        if status == "cancelled":
            details = {"type": "cancelled", "reason": self.cancel_reason or "client_cancelled"}
        elif error is not None:
            fields = error_fields(error)
            details = {"type": "failed", "error": {name: fields[name] for name in ("type", "code", "message")}}
        latency = {} if self.latency is None else {"latency": self.latency.fields}
        return {
            "object": "realtime.response",
            "id": self.response_id,
            "status": status,
            "status_details": details,
            "output": [*([] if item is None else [item]), *self.calls],
            "output_modalities": ["audio"],
            "metadata": self.metadata,
            "usage": None if status == "in_progress" else _usage(len(self.text)),
        } | latency


def _usage(num_chars: int) -> dict[str, Any]:
    """Counted in characters: no model of language has read or written them."""
    return {"total_tokens": 2 * num_chars, "input_tokens": num_chars, "output_tokens": num_chars}


def end_of_message(reply: OpenAIResponse, item: dict[str, Any]) -> Iterator[NamedEvent]:
    part = {**AUDIO_PART, "transcript": reply.text}
    yield "response.output_audio.done", reply.place
    yield "response.output_audio_transcript.done", {**reply.place, "transcript": reply.text}
    yield "response.content_part.done", {**reply.place, "part": part}
    yield "response.output_item.done", {"response_id": reply.response_id, "output_index": 0, "item": item}


def function_call(reply: OpenAIResponse, item: dict[str, Any], before: str | None) -> Iterator[NamedEvent]:
    """A function call is complete from its first event on. ``before``: the item before it."""
    output = {"response_id": reply.response_id, "output_index": len(reply.calls) - 1 + reply.has_message}
    place = {**output, "item_id": item["id"], "call_id": item["call_id"]}
    begun = {**item, "status": "in_progress", "arguments": ""}
    yield "response.output_item.added", {**output, "item": begun}
    if reply.in_conversation:
        yield "conversation.item.added", {"previous_item_id": before, "item": begun}
    yield "response.function_call_arguments.delta", {**place, "delta": item["arguments"]}
    yield "response.function_call_arguments.done", {**place, "name": item["name"], "arguments": item["arguments"]}
    yield "response.output_item.done", {**output, "item": item}
    if reply.in_conversation:
        yield "conversation.item.done", {"previous_item_id": before, "item": item}


def error_fields(error: ErrorInfo, event_id: str | None = None) -> dict[str, Any]:
    if error.code in CAPACITY_CODES:
        kind = "rate_limit_error"
    else:
        kind = "server_error" if error.code in SERVER_FAULT_CODES else "invalid_request_error"
    return {"type": kind, "code": error.code, "message": error.message, "param": error.param, "event_id": event_id}
