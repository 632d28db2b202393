"""OpenAI Realtime, GA form, the part where text goes in and speech comes out: a response *speaks* the text of its input
items, or of the user's items since the last response. No language model writes an answer here.

Token by token: ``input_text_buffer.append`` with ``delta`` begins a response and goes on with it, and
``input_text_buffer.commit`` ends its text. These two events are extensions of this server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.openai_common import (
    OpenAIClientEvent,
    OpenAIResponseParams,
    error_fields,
    first_session,
    from_beta_session,
    is_beta,
    merged,
    parse_options,
    to_beta_event,
)
from realtime.protocol.dialects.openai_conversation import OpenAIConversation, OpenAIResponse, check_items
from realtime.protocol.dialects.parsing import dump, encode_base64, parse_json, require_context_id, text_only

MAX_EVENT_ID_CHARS = 512
IGNORED = ("input_audio_buffer.append", "input_audio_buffer.commit", "output_audio_buffer.clear")
AUDIO_PART = {"type": "audio", "transcript": ""}
# Part type in ``response.content_part.*``; items call it ``output_audio``.


class OpenAIRealtimeDialect(Dialect):
    reports_heard_text = True
    forgiving = True

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        session_id = f"sess_{handshake.request_id}"
        self._session = first_session(session_id, handshake.query.get("model", "voicewire"))
        self._conversation = OpenAIConversation(handshake.request_id)
        self._is_beta = is_beta(handshake)
        self._num_events = 0
        self._client_event: str | None = None

    @property
    def open_contexts(self) -> Iterable[str]:
        return self._conversation.open_contexts

    def start(self) -> Iterator[model.DialectCommand]:
        yield self._send("session.created", session=self._session)

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        self._client_event = None
        parsed = parse_json(text_only(message), OpenAIClientEvent)
        self._client_event = (parsed.event_id or "")[:MAX_EVENT_ID_CHARS] or None
        match parsed.type:
            case "session.update":
                yield from self._update(parsed.session or {})
            case "conversation.item.create":
                yield from self._add(parsed)
            case "conversation.item.retrieve" | "conversation.item.delete" | "conversation.item.truncate":
                yield from self._touch_item(parsed)
            case "response.create":
                yield from self._create(parsed.response or OpenAIResponseParams())
            case "response.cancel":
                yield from self._cancel(parsed.response_id)
            case "input_text_buffer.append":
                yield from self._append(parsed.delta)
            case "input_text_buffer.commit":
                yield from self._commit()
            case "input_audio_buffer.clear":
                yield self._send("input_audio_buffer.cleared")
            case kind if kind not in IGNORED:
                raise RemoteProtocolError("unknown_event", f"type {kind[:60]!r} is unknown here", "type")

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

    def _update(self, update: dict[str, Any]) -> Iterator[model.DialectCommand]:
        session = merged(self._session, update | from_beta_session(update) if self._is_beta else update)
        parse_options(session, None)
        self._session = session
        yield self._send("session.updated", session=self._session)

    def _add(self, parsed: OpenAIClientEvent) -> Iterator[model.DialectCommand]:
        if parsed.item is None:
            raise RemoteProtocolError("invalid_event", "item is missing", "item")
        if parsed.item.id is not None:
            require_context_id(parsed.item.id)
        item_id, before = self._conversation.add(parsed.item, parsed.previous_item_id)
        yield from self._send_item(self._conversation.item(item_id), before)

    def _send_item(self, item: dict[str, Any], before: str | None) -> Iterator[model.DialectCommand]:
        for kind in ("conversation.item.added", "conversation.item.done"):
            yield self._send(kind, previous_item_id=before, item=item)

    def _touch_item(self, parsed: OpenAIClientEvent) -> Iterator[model.DialectCommand]:
        item_id = parsed.item_id or ""
        item = self._conversation.item(item_id)
        match parsed.type.rpartition(".")[2]:
            case "retrieve":
                yield self._send("conversation.item.retrieved", item=item)
            case "delete":
                self._conversation.delete(item_id)
                yield self._send("conversation.item.deleted", item_id=item_id)
            case _:
                yield from self._truncate(item_id, parsed)

    def _truncate(self, item_id: str, parsed: OpenAIClientEvent) -> Iterator[model.DialectCommand]:
        """Truncate a reply to what was heard; one that still speaks is canceled."""
        context = self._conversation.context_of(item_id)
        if context is not None and self._conversation.reply(context) is not None:
            yield model.CancelContext(context, parsed.audio_end_ms)
        elif context is not None:
            yield model.QueryHeard(context, parsed.audio_end_ms)
        place = {"content_index": parsed.content_index, "audio_end_ms": round(parsed.audio_end_ms)}
        yield self._send("conversation.item.truncated", item_id=item_id, **place)

    def _create(self, request: OpenAIResponseParams) -> Iterator[model.DialectCommand]:
        in_conversation = request.conversation != "none"
        if in_conversation and self._conversation.speaking is not None:
            message = "the conversation has an active response"
            raise RemoteProtocolError("conversation_already_has_active_response", message)
        options = parse_options(self._session, request)
        check_items(request.input or [], "response.input")
        items = request.input if request.input is not None else self._conversation.pending_text(take=in_conversation)
        text = " ".join(stripped for item in items if (stripped := item.text.strip()))
        if not text:
            raise self._no_text(request)
        reply = self._conversation.begin(in_conversation, request.metadata)
        yield from self._begin(reply, options)
        reply.text = text
        yield model.AppendText(reply.context, text, last=True)

    def _no_text(self, request: OpenAIResponseParams) -> RemoteProtocolError:
        message = "the response has no text to speak: its input items, or the user's items, are empty"
        if request.instructions or self._session.get("instructions"):
            message += "; instructions are for a language model, and this server has none"
        return RemoteProtocolError("response_input_empty", message, "response.input")

    def _append(self, delta: str) -> Iterator[model.DialectCommand]:
        reply = self._conversation.speaking
        if reply is None:
            options = parse_options(self._session, None)
            reply = self._conversation.begin(True, None)
            reply.takes_text = True
            yield from self._begin(reply, options)
        elif not reply.takes_text:
            message = "the conversation has an active response, whose text is whole"
            raise RemoteProtocolError("conversation_already_has_active_response", message)
        if not reply.text:
            delta = delta.lstrip()
        reply.text += delta
        yield model.AppendText(reply.context, delta)

    def _commit(self) -> Iterator[model.DialectCommand]:
        reply = self._conversation.speaking
        if reply is None or not reply.takes_text:
            raise RemoteProtocolError("input_text_buffer_commit_empty", "no text was appended")
        reply.takes_text = False
        yield self._send("input_text_buffer.committed", response_id=reply.response_id)
        yield model.EndContext(reply.context)

    def _cancel(self, response_id: str | None) -> Iterator[model.DialectCommand]:
        replies = self._conversation.replies(response_id)
        if not replies:
            raise RemoteProtocolError("response_cancel_not_active", "no active response is found", "response_id")
        for reply in replies:
            yield model.CancelContext(reply.context)

    def _begin(self, reply: OpenAIResponse, options: model.SpeechOptions) -> Iterator[model.DialectCommand]:
        yield self._send("response.created", response=reply.to_object("in_progress"))
        item = reply.item("in_progress")
        place = {"response_id": reply.response_id, "output_index": 0}
        yield self._send("response.output_item.added", **place, item=item)
        if reply.in_conversation:
            before = self._conversation.add_reply(reply)
            yield self._send("conversation.item.added", previous_item_id=before, item=item)
        yield self._send("response.content_part.added", **self._place(reply), part=AUDIO_PART)
        yield model.OpenContext(reply.context, options)

    def _send_text_delta(self, reply: OpenAIResponse, end: int) -> Iterator[model.DialectCommand]:
        """The transcript goes on to a place in the text."""
        if delta := reply.text[reply.num_sent_chars : end]:
            reply.num_sent_chars = end
            yield self._delta(reply, "response.output_audio_transcript.delta", delta)

    def _end(self, reply: OpenAIResponse, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        self._conversation.end(reply)
        if event.status == "completed":
            yield from self._send_text_delta(reply, len(reply.text))
        else:
            reply.text = event.heard
        place, part = self._place(reply), {**AUDIO_PART, "transcript": reply.text}
        done = "completed" if event.status == "completed" else "incomplete"
        item = reply.item(done)
        yield self._send("response.output_audio.done", **place)
        yield self._send("response.output_audio_transcript.done", **place, transcript=reply.text)
        yield self._send("response.content_part.done", **place, part=part)
        yield self._send("response.output_item.done", response_id=reply.response_id, output_index=0, item=item)
        if reply.in_conversation:
            self._conversation.update(reply, item)
            yield self._send("conversation.item.done", previous_item_id=None, item=item)
        yield self._send("response.done", response=reply.to_object(event.status, item, event.error))

    def _place(self, reply: OpenAIResponse) -> dict[str, Any]:
        return {"response_id": reply.response_id, "item_id": reply.item_id, "output_index": 0, "content_index": 0}

    def _delta(self, reply: OpenAIResponse, kind: str, delta: str) -> model.SendMessage:
        return self._send(kind, **self._place(reply), delta=delta)

    def _send(self, kind: str, **fields: Any) -> model.SendMessage:
        self._num_events += 1
        if self._is_beta:
            kind, fields = to_beta_event(kind, fields)
        return model.SendMessage(
            dump(type=kind, event_id=f"event_{self.handshake.request_id[:12]}{self._num_events}", **fields)
        )
