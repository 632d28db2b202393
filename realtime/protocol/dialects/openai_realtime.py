"""OpenAI Realtime, GA form. A response speaks the text of its input items. Without such text the server's agent answers
the conversation; on a server without an agent the text is that of the user's items since the last response.

Token by token: ``input_text_buffer.append`` with ``delta`` begins a response and goes on with it, and
``input_text_buffer.commit`` ends its text. These two events are extensions of this server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.openai_agent import OpenAIAgentSpeaker
from realtime.protocol.dialects.openai_audio import parse_audio_input
from realtime.protocol.dialects.openai_common import (
    OpenAIClientEvent,
    OpenAIResponseParams,
    from_beta_session,
    merged,
    parse_options,
)
from realtime.protocol.dialects.openai_conversation import check_items
from realtime.protocol.dialects.parsing import parse_json, require_context_id, text_only

MAX_EVENT_ID_CHARS = 512
IGNORED = ("output_audio_buffer.clear",)


class OpenAIRealtimeDialect(OpenAIAgentSpeaker):
    reports_heard_text = True
    forgiving = True

    def start(self) -> Iterator[model.DialectCommand]:
        yield self._send("session.created", session=self._session)
        yield from self._configure_audio()

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
            case "input_audio_buffer.append" | "input_audio_buffer.commit" | "input_audio_buffer.clear" as kind:
                yield from self._receive_audio(kind.rpartition(".")[2], parsed.audio)
            case kind if kind not in IGNORED:
                raise RemoteProtocolError("unknown_event", f"type {kind[:60]!r} is unknown here", "type")

    def _update(self, update: dict[str, Any]) -> Iterator[model.DialectCommand]:
        session = merged(self._session, update | from_beta_session(update) if self._is_beta else update)
        parse_options(session, None)
        if self._agent == "audio":
            parse_audio_input(session)
        self._session = session
        yield from self._configure_audio()
        yield self._send("session.updated", session=self._session)

    def _add(self, parsed: OpenAIClientEvent) -> Iterator[model.DialectCommand]:
        if parsed.item is None:
            raise RemoteProtocolError("invalid_event", "item is missing", "item")
        if parsed.item.id is not None:
            require_context_id(parsed.item.id)
        if self._agent != "none" and any(part.type == "input_audio" for part in parsed.item.content):
            message = "an item has no audio here; send it by input_audio_buffer.append"
            raise RemoteProtocolError("invalid_event", message, "item.content")
        item_id, before = self._conversation.add(parsed.item, parsed.previous_item_id)
        yield from self._send_item(self._conversation.item(item_id), before)

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
        if context is not None and context == self._playing:
            self._playing = None
        if context is not None and (reply := self._conversation.reply(context)) is not None:
            reply.cancel_reason = "client_cancelled"
            yield model.CancelContext(context, parsed.audio_end_ms)
        elif context is not None:
            yield model.QueryHeard(context, parsed.audio_end_ms)
        place = {"content_index": parsed.content_index, "audio_end_ms": round(parsed.audio_end_ms)}
        yield self._send("conversation.item.truncated", item_id=item_id, **place)

    def _create(self, request: OpenAIResponseParams) -> Iterator[model.DialectCommand]:
        in_conversation = request.conversation != "none"
        options = parse_options(self._session, request)
        check_items(request.input or [], "response.input")
        speaking = self._conversation.speaking if in_conversation else None
        if speaking is not None and speaking.cancel_reason is not None and self._agent != "none":
            self._next_request = request
            return
        if speaking is not None:
            message = "the conversation has an active response"
            raise RemoteProtocolError("conversation_already_has_active_response", message)
        text = _joined(item.text for item in request.input or ())
        if not text and self._agent != "none":
            yield from self._answer(request, options)
            return
        if request.input is None:
            text = _joined(self._conversation.pending_text(clear=in_conversation))
        if not text:
            raise self._no_text(request)
        reply = self._begin(request, options)
        yield from self._begin_response(reply)
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
            reply = self._begin(OpenAIResponseParams(), parse_options(self._session, None))
            reply.takes_text = True
            yield from self._begin_response(reply)
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
            # Clients know the error by these words.
            message = "Cancellation failed: no active response found"
            raise RemoteProtocolError("response_cancel_not_active", message, "response_id")
        for reply in replies:
            yield from self._stop(reply, "client_cancelled")


def _joined(texts: Iterable[str]) -> str:
    return " ".join(stripped for text in texts if (stripped := text.strip()))
