"""The built-in agent on OpenAI Realtime: spoken turns, and answers of the language model."""

from __future__ import annotations

from collections.abc import Iterator

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import agent_turns, model
from realtime.protocol.dialects.openai_audio import SpokenItems, decode_audio, is_on, parse_audio_input
from realtime.protocol.dialects.openai_common import (
    OpenAIResponseParams,
    chat_tool_choice,
    chat_tools,
)
from realtime.protocol.dialects.openai_replies import OpenAIResponse, error_fields, function_call
from realtime.protocol.dialects.openai_speaker import OpenAISpeaker

NO_RECOGNIZER = "audio input needs a recognizer, and this server has none: start it with --stt URL, or send text"


class OpenAIAgentSpeaker(OpenAISpeaker):
    """Answers typed and spoken turns. Without an agent it is never used."""

    uses_agent = True

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self._spoken = SpokenItems()
        # True once audio was refused, which is reported once.
        self._has_refused_audio = False

    def _receive_audio(self, kind: str, audio: str | None) -> Iterator[model.DialectCommand]:
        """Carry out ``input_audio_buffer.*``."""
        match kind:
            case "append" | "commit" if self._agent == "text":
                self._refuse_audio()
            case "append" if self._agent == "audio":
                yield agent_turns.AppendAudio(decode_audio(audio))
            case "commit" if self._agent == "audio":
                yield agent_turns.CommitAudio()
            case "clear":
                if self._agent == "audio":
                    yield agent_turns.ClearAudio()
                self._spoken.next_id = None
                yield self._send("input_audio_buffer.cleared")

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

    def _configure_audio(self) -> Iterator[model.DialectCommand]:
        if self._agent == "audio":
            yield parse_audio_input(self._session)

    def _refuse_audio(self) -> None:
        """Raises ``RemoteProtocolError`` once: clients send audio fifty times a second."""
        if not self._has_refused_audio:
            self._has_refused_audio = True
            raise RemoteProtocolError("invalid_request", NO_RECOGNIZER, "audio")

    def _answer(self, request: OpenAIResponseParams, options: model.SpeechOptions) -> Iterator[model.DialectCommand]:
        """Begin an answer; while transcripts are missing, the language model is not asked."""
        reply = self._begin(request, options)
        reply.is_answering = reply.is_answer = True
        reply.instructions = request.instructions or ""
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
            yield agent_turns.StopAnswer(reply.context)
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
