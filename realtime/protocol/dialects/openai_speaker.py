"""Replies of OpenAI Realtime: the events from the beginning of a response to its end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from engine.api import ErrorInfo
from realtime.protocol import agent_turns, model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.openai_audio import FIRST_DETECTION
from realtime.protocol.dialects.openai_common import (
    OpenAIResponseParams,
    first_session,
    is_beta,
    to_beta_event,
)
from realtime.protocol.dialects.openai_conversation import OpenAIConversation
from realtime.protocol.dialects.openai_replies import AUDIO_PART, OpenAIResponse, end_of_message, error_fields
from realtime.protocol.dialects.parsing import dump, encode_base64


class OpenAISpeaker(Dialect):
    """Holds the session and its conversation, and speaks replies."""

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self._agent = handshake.agent
        detection = dict(FIRST_DETECTION) if self._agent == "audio" else None
        session_id = f"sess_{handshake.request_id}"
        self._session = first_session(session_id, handshake.query.get("model", "voicewire"), detection)
        self._conversation = OpenAIConversation(handshake.request_id)
        self._is_beta = is_beta(handshake)
        self._num_events = 0
        self._client_event: str | None = None
        # Context of the last reply that was sent completely and may still be playing.
        self._playing: str | None = None
        # A response to create when the active one has ended.
        self._next_request: OpenAIResponseParams | None = None

    @abstractmethod
    def _create(self, request: OpenAIResponseParams) -> Iterator[model.DialectCommand]:
        """Create a response. Raises ``RemoteProtocolError``."""

    @property
    def open_contexts(self) -> Iterable[str]:
        return self._conversation.open_contexts

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        if isinstance(event, model.HeardReported):
            self._conversation.record_heard(event.context, event.heard)
            return
        if isinstance(event, model.AllContextsEnded) or (reply := self._conversation.reply(event.context)) is None:
            return
        match event:
            case model.ContextAudio():
                yield self._delta(reply, "response.output_audio.delta", encode_base64(event.data))
            case model.ContextWords():
                last = event.words[-1]
                yield from self._send_text_delta(reply, last.raw_start + len(last.text))
            case model.ContextEnded():
                yield from self._end(reply, event)

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield self._send("error", error=error_fields(error, self._client_event))

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        fields = error_fields(error)
        return {"error": {name: fields[name] for name in ("message", "type", "param", "code")}}, {}

    def _begin(self, request: OpenAIResponseParams, options: model.SpeechOptions) -> OpenAIResponse:
        reply = self._conversation.begin(request.conversation != "none", request.metadata)
        reply.options = options
        if reply.in_conversation:
            self._playing = None
        return reply

    def _begin_response(self, reply: OpenAIResponse) -> Iterator[model.DialectCommand]:
        yield self._send("response.created", response=reply.to_object("in_progress"))
        yield from self._begin_message(reply)

    def _begin_message(self, reply: OpenAIResponse) -> Iterator[model.DialectCommand]:
        reply.has_message = True
        item = reply.item("in_progress")
        yield self._send("response.output_item.added", response_id=reply.response_id, output_index=0, item=item)
        if reply.in_conversation:
            before = self._conversation.add_reply(reply)
            yield self._send("conversation.item.added", previous_item_id=before, item=item)
        yield self._send("response.content_part.added", **reply.place, part=AUDIO_PART)
        yield model.OpenContext(reply.context, reply.options)

    def _send_item(self, item: dict[str, Any], before: str | None) -> Iterator[model.DialectCommand]:
        for kind in ("conversation.item.added", "conversation.item.done"):
            yield self._send(kind, previous_item_id=before, item=item)

    def _send_text_delta(self, reply: OpenAIResponse, end: int) -> Iterator[model.DialectCommand]:
        """The transcript goes on to a place in the text."""
        if delta := reply.text[reply.num_sent_chars : end]:
            reply.num_sent_chars = end
            yield self._delta(reply, "response.output_audio_transcript.delta", delta)

    def _stop(self, reply: OpenAIResponse, reason: str) -> Iterator[model.DialectCommand]:
        reply.cancel_reason = reason
        reply.is_answering = False
        if reply.is_answer:  # also once the model has finished: nothing may have sounded yet
            yield agent_turns.StopAnswer(reply.context)
        if reply.has_message:
            yield model.CancelContext(reply.context)
        else:
            yield from self._finish(reply, "cancelled", None, None)

    def _end(self, reply: OpenAIResponse, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        if reply.is_answer:
            yield agent_turns.StopAnswer(reply.context)
        if event.status == "completed":
            yield from self._send_text_delta(reply, len(reply.text))
        else:
            reply.text = event.heard
        item = reply.item("completed" if event.status == "completed" else "incomplete")
        for kind, fields in end_of_message(reply, item):
            yield self._send(kind, **fields)
        if reply.in_conversation:
            self._conversation.update(reply, item)
            self._playing = reply.context if event.status == "completed" else None
            yield self._send("conversation.item.done", previous_item_id=None, item=item)
        has_failed = event.status == "completed" and reply.failure is not None
        yield from self._finish(
            reply, "failed" if has_failed else event.status, item, reply.failure if has_failed else event.error
        )

    def _finish(
        self, reply: OpenAIResponse, status: str, item: dict[str, Any] | None, error: ErrorInfo | None
    ) -> Iterator[model.DialectCommand]:
        self._conversation.end(reply)
        yield self._send("response.done", response=reply.to_object(status, item, error))
        if self._next_request is not None and self._conversation.speaking is None:
            request, self._next_request = self._next_request, None
            yield from self._create(request)

    def _delta(self, reply: OpenAIResponse, kind: str, delta: str) -> model.SendMessage:
        return self._send(kind, **reply.place, delta=delta)

    def _send(self, kind: str, **fields: Any) -> model.SendMessage:
        self._num_events += 1
        if self._is_beta:
            kind, fields = to_beta_event(kind, fields)
        return model.SendMessage(
            dump(type=kind, event_id=f"event_{self.handshake.request_id[:12]}{self._num_events}", **fields)
        )
