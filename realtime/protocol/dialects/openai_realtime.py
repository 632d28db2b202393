"""OpenAI Realtime, GA form. A response speaks the text of its input items. Without such text the server's agent answers
the conversation; on a server without an agent the text is that of the user's items since the last response.

Token by token: ``input_text_buffer.append`` with ``delta`` begins a response and goes on with it, and
``input_text_buffer.commit`` ends its text. These two events are extensions of this server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import agent_turns, model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.openai_audio import (
    FIRST_DETECTION,
    SpokenItems,
    decode_audio,
    is_on,
    parse_audio_input,
)
from realtime.protocol.dialects.openai_common import (
    OpenAIClientEvent,
    OpenAIResponseParams,
    chat_tool_choice,
    chat_tools,
    error_fields,
    first_session,
    from_beta_session,
    is_beta,
    merged,
    parse_options,
    to_beta_event,
)
from realtime.protocol.dialects.openai_conversation import OpenAIConversation, check_items
from realtime.protocol.dialects.openai_replies import AUDIO_PART, OpenAIResponse, end_of_message, function_call
from realtime.protocol.dialects.parsing import dump, encode_base64, parse_json, require_context_id, text_only

MAX_EVENT_ID_CHARS = 512
IGNORED = ("input_audio_buffer.append", "input_audio_buffer.commit", "output_audio_buffer.clear")
NO_RECOGNIZER = "audio input needs a recognizer, and this server has none: start it with --stt URL, or send text"


class OpenAIRealtimeDialect(Dialect):
    reports_heard_text = True
    forgiving = True
    uses_agent = True

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        session_id = f"sess_{handshake.request_id}"
        self._agent = handshake.agent
        detection = dict(FIRST_DETECTION) if self._agent == "audio" else None
        self._session = first_session(session_id, handshake.query.get("model", "voicewire"), detection)
        self._conversation = OpenAIConversation(handshake.request_id)
        self._is_beta = is_beta(handshake)
        self._num_events = 0
        self._client_event: str | None = None
        self._spoken = SpokenItems()
        # True once audio was refused, which is reported once.
        self._has_refused_audio = False
        # Context of the last reply that was sent completely and may still be playing.
        self._playing: str | None = None
        # A response to create when the active one has ended.
        self._next_request: OpenAIResponseParams | None = None

    @property
    def open_contexts(self) -> Iterable[str]:
        return self._conversation.open_contexts

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
            case "input_audio_buffer.clear" if self._agent != "audio":
                yield self._send("input_audio_buffer.cleared")
            case "input_audio_buffer.append" | "input_audio_buffer.commit" if self._agent == "text":
                self._refuse_audio()
            case "input_audio_buffer.append" if self._agent == "audio":
                yield agent_turns.AppendAudio(decode_audio(parsed.audio))
            case "input_audio_buffer.commit" if self._agent == "audio":
                yield agent_turns.CommitAudio()
            case "input_audio_buffer.clear":
                yield agent_turns.ClearAudio()
                self._spoken.next_id = None
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

    def send_agent_event(self, event: agent_turns.AgentEvent) -> Iterator[model.DialectCommand]:
        match event:
            case agent_turns.CallerSpeechStarted():
                yield from self._begin_turn(event)
            case agent_turns.CallerSpeechStopped():
                item_id = self._spoken.next_id or ""
                yield self._send("input_audio_buffer.speech_stopped", audio_end_ms=event.audio_ms, item_id=item_id)
            case agent_turns.AudioCommitted():
                yield from self._commit_turn(event)
            case agent_turns.AudioTranscribed():
                yield from self._add_transcript(event)
            case _ if (reply := self._conversation.reply(event.context)) is not None:
                yield from self._send_answer_event(reply, event)

    def _send_answer_event(
        self, reply: OpenAIResponse, event: agent_turns.AnswerEvent
    ) -> Iterator[model.DialectCommand]:
        match event:
            case agent_turns.AnswerText():
                yield from self._continue(reply, event.text)
            case agent_turns.AnswerToolCall():
                item = reply.add_call(self._conversation.new_id("item"), event.call)
                before = self._conversation.add_call(item) if reply.in_conversation else None
                for kind, fields in function_call(reply, item, before):
                    yield self._send(kind, **fields)
            case agent_turns.AnswerLatency():
                reply.latency = event
            case agent_turns.AnswerEnded():
                yield from self._end_answer(reply, event.error)

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield self._send("error", error=error_fields(error, self._client_event))

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        fields = error_fields(error)
        return {"error": {name: fields[name] for name in ("message", "type", "param", "code")}}, {}

    def _update(self, update: dict[str, Any]) -> Iterator[model.DialectCommand]:
        session = merged(self._session, update | from_beta_session(update) if self._is_beta else update)
        parse_options(session, None)
        if self._agent == "audio":
            parse_audio_input(session)
        self._session = session
        yield from self._configure_audio()
        yield self._send("session.updated", session=self._session)

    def _configure_audio(self) -> Iterator[model.DialectCommand]:
        if self._agent == "audio":
            yield parse_audio_input(self._session)

    def _refuse_audio(self) -> None:
        """Raises ``RemoteProtocolError`` once: clients send audio fifty times a second."""
        if not self._has_refused_audio:
            self._has_refused_audio = True
            raise RemoteProtocolError("invalid_request", NO_RECOGNIZER, "audio")

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
        if context is not None and context == self._playing:
            self._playing = None
        if context is not None and self._conversation.reply(context) is not None:
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

    def _begin(self, request: OpenAIResponseParams, options: model.SpeechOptions) -> OpenAIResponse:
        reply = self._conversation.begin(request.conversation != "none", request.metadata)
        reply.options = options
        if reply.in_conversation:
            self._playing = None
        return reply

    # Answers of the agent

    def _answer(self, request: OpenAIResponseParams, options: model.SpeechOptions) -> Iterator[model.DialectCommand]:
        """Begin an answer; while transcripts are missing, the language model is not asked."""
        reply = self._begin(request, options)
        reply.is_answering, reply.instructions = True, request.instructions or ""
        reply.pending_turns = set(self._spoken.pending)
        yield self._send("response.created", response=reply.to_object("in_progress"))
        if not reply.pending_turns:
            yield self._ask(reply)

    def _ask(self, reply: OpenAIResponse) -> agent_turns.StartAnswer:
        self._conversation.pending_text(clear=reply.in_conversation)
        return agent_turns.StartAnswer(
            reply.context,
            self._conversation.chat_turns(),
            reply.instructions or str(self._session.get("instructions") or ""),
            chat_tools(self._session.get("tools")),
            chat_tool_choice(self._session.get("tool_choice")),
        )

    def _continue(self, reply: OpenAIResponse, text: str) -> Iterator[model.DialectCommand]:
        text = text if reply.text else text.lstrip()
        if not text:
            return
        if not reply.has_message:
            yield from self._begin_message(reply)
        reply.text += text
        yield model.AppendText(reply.context, text)

    def _end_answer(self, reply: OpenAIResponse, error: ErrorInfo | None) -> Iterator[model.DialectCommand]:
        reply.is_answering, reply.failure = False, error
        if error is not None:
            yield self._send("error", error=error_fields(error))
        if reply.has_message:
            yield model.EndContext(reply.context)
        else:
            yield from self._finish(reply, "completed" if error is None else "failed", None, error)

    def _begin_turn(self, event: agent_turns.CallerSpeechStarted) -> Iterator[model.DialectCommand]:
        """The user speaks: what is spoken stops, and the conversation keeps what was heard of it."""
        self._spoken.next_id = item_id = self._conversation.new_id("item")
        yield self._send("input_audio_buffer.speech_started", audio_start_ms=event.audio_ms, item_id=item_id)
        if not is_on(self._session, "interrupt_response"):
            return
        self._next_request = None
        if (reply := self._conversation.speaking) is not None:
            yield from self._stop(reply, "turn_detected")
        elif self._playing is not None:
            context, self._playing = self._playing, None
            yield model.QueryHeard(context)

    def _commit_turn(self, event: agent_turns.AudioCommitted) -> Iterator[model.DialectCommand]:
        item_id = self._spoken.pop_next_id(self._conversation.new_id("item"))
        self._spoken.pending[event.turn] = item_id
        before = self._conversation.add_spoken(item_id)
        yield self._send("input_audio_buffer.committed", previous_item_id=before, item_id=item_id)
        yield from self._send_item(self._conversation.item(item_id), before)
        if not event.by_server or not is_on(self._session, "create_response"):
            return
        if self._conversation.speaking is None:
            yield from self._create(OpenAIResponseParams())
        else:
            self._next_request = OpenAIResponseParams()

    def _add_transcript(self, event: agent_turns.AudioTranscribed) -> Iterator[model.DialectCommand]:
        item_id = self._spoken.pending.pop(event.turn)
        place = {"item_id": item_id, "content_index": 0}
        kind = "conversation.item.input_audio_transcription"
        self._conversation.add_transcript(item_id, event.text)
        if event.error is None:
            usage = {"type": "duration", "seconds": round(event.audio_s, 3)}
            yield self._send(f"{kind}.completed", **place, transcript=event.text, usage=usage)
        else:
            fields = error_fields(event.error)
            about = {name: fields[name] for name in ("type", "code", "message", "param")}
            yield self._send(f"{kind}.failed", **place, error=about)
        for context in list(self._conversation.open_contexts):
            reply = self._conversation.reply(context)
            if reply is not None and event.turn in reply.pending_turns:
                reply.pending_turns.discard(event.turn)
                reply.failure = reply.failure or event.error
                if not reply.pending_turns:
                    yield self._ask_or_excuse(reply)

    def _ask_or_excuse(self, reply: OpenAIResponse) -> agent_turns.StartAnswer:
        """Ask the language model; if no turn was understood, a phrase is spoken instead."""
        if self._conversation.pending_text(clear=False):
            return self._ask(reply)
        phrase: agent_turns.Phrase = "unclear" if reply.failure is None else "failed"
        return agent_turns.StartAnswer(reply.context, phrase=phrase, error=reply.failure)

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
            raise RemoteProtocolError("response_cancel_not_active", "no active response is found", "response_id")
        for reply in replies:
            yield from self._stop(reply, "client_cancelled")

    def _stop(self, reply: OpenAIResponse, reason: str) -> Iterator[model.DialectCommand]:
        reply.cancel_reason = reason
        if reply.is_answering:
            reply.is_answering = False
            yield agent_turns.StopAnswer(reply.context)
        if reply.has_message:
            yield model.CancelContext(reply.context)
        else:
            yield from self._finish(reply, "cancelled", None, None)

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

    def _send_text_delta(self, reply: OpenAIResponse, end: int) -> Iterator[model.DialectCommand]:
        """The transcript goes on to a place in the text."""
        if delta := reply.text[reply.num_sent_chars : end]:
            reply.num_sent_chars = end
            yield self._delta(reply, "response.output_audio_transcript.delta", delta)

    def _end(self, reply: OpenAIResponse, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        if reply.is_answering:
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


def _joined(texts: Iterable[str]) -> str:
    return " ".join(stripped for text in texts if (stripped := text.strip()))
