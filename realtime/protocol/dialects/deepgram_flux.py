"""Deepgram's ``/v2/speak`` socket (Flux): turns one after the other, each from ``SpeechStarted`` to
``SpeechMetadata``, and interruptions that tell what was heard.

Played audio is counted from the beginning of the session, as if it were one recording of what was played: an
interruption cuts it there, and the next turn goes on from that point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from msgspec import Struct

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.deepgram import MODEL_UUID, MODEL_VERSION, DeepgramSocket, DeepgramTurn
from realtime.protocol.dialects.parsing import parse_json, text_only

ERROR_CODES = {"malformed_json": "MESSAGE-0000", "message_too_big": "BIG-0000", "invalid_request": "DATA-0000"}
SPEEDS = (0.5, 1.5)
CONTROLS = {"pronunciations_applied": 0, "breaks_applied": 0, "pronunciation_warnings": 0}


class FluxOffset(Struct):
    value: float
    type: str = "time_ms"


class FluxMessage(Struct):
    type: str
    text: str | None = None
    playback_offset: FluxOffset | None = None
    speed: float | None = None


@dataclass(slots=True, kw_only=True)
class FluxTurn(DeepgramTurn):
    speech_id: str
    # Start in the audio played.
    start_ms: float = 0.0
    num_chars: int = 0
    audio_ms: float = 0.0
    started: bool = False
    # An interruption said how much was played.
    offset_ms: float | None = None
    interrupted: bool = False

    @property
    def metadata(self) -> dict[str, Any]:
        return {
            "speech_id": self.speech_id,
            "audio_duration_ms": round(self.audio_ms),
            "input_character_count": self.num_chars,
            "billable_character_count": self.num_chars,
            "controls_applied": CONTROLS,
        }


class DeepgramFluxDialect(DeepgramSocket[FluxTurn]):
    reports_heard_text = True

    def __init__(self, handshake: model.ClientHandshake) -> None:
        if not handshake.query.get("model"):
            raise RemoteProtocolError("invalid_request", "model is missing", "model")
        super().__init__(handshake)
        # The last that ended; the listener may still hear it.
        self._last: tuple[str, FluxTurn] | None = None
        self._num_chars = 0
        # Start of the next turn.
        self._played_ms = 0.0
        self._min_offset_ms = 0.0

    def start(self) -> Iterator[model.DialectCommand]:
        yield self._send(
            "Connected",
            request_id=self.handshake.request_id,
            model_name=self.handshake.query["model"],
            model_version=MODEL_VERSION,
            model_uuids=[MODEL_UUID],
        )

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        parsed = parse_json(text_only(message), FluxMessage)
        match parsed.type:
            case "Speak":
                yield from self._append(parsed.text or "")
            case "Flush":
                yield from self._flush()
            case "Interrupt":
                yield from self._interrupt(parsed.playback_offset)
            case "Configure":
                yield from self._configure(parsed.speed)
            case "Close":
                yield from self._finish()
            case _:
                message = f"type must be Speak, Flush, Interrupt, Configure or Close, is {parsed.type[:40]!r}"
                raise RemoteProtocolError("unknown_event", message, "type")

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                self._contexts[event.context].audio_ms = event.end_ms
                yield model.SendMessage(event.data)
            case model.ContextEnded():
                yield from self._end(event)
            case model.HeardReported():
                yield from self._recalled(event)
            case model.AllContextsEnded():
                yield self._send(
                    "SessionMetadata",
                    total_audio_duration_ms=round(self._played_ms),
                    total_input_character_count=self._num_chars,
                    total_billable_character_count=self._num_chars,
                )
                yield model.CloseConnection()

    def _append(self, text: str) -> Iterator[model.DialectCommand]:
        context = self._open_turn
        if context is None:
            if not text:
                return
            speech_id = f"dg_sp_{self.handshake.request_id[:8]}{self._num_turns + 1:04x}"
            context = yield from self._begin_turn(FluxTurn(speech_id=speech_id))
            yield from self._announce()
        if context in self._contexts:
            self._contexts[context].num_chars += len(text)
            self._num_chars += len(text)
        yield model.AppendText(context, text)

    def _announce(self) -> Iterator[model.DialectCommand]:
        """The turn whose time has come: what was said of the one before has been told."""
        turn = next(iter(self._contexts.values()), None)
        if turn is not None and not turn.started:
            turn.started, turn.start_ms = True, self._played_ms
            yield self._send("SpeechStarted", speech_id=turn.speech_id)

    def _flush(self) -> Iterator[model.DialectCommand]:
        context = self._open_turn
        if context is None:
            yield self._warn("NO_ACTIVE_SPEECH", "there is no turn to flush")
            return
        turn = self._contexts[context]
        turn.flushed = True
        yield self._send("Flushed", speech_id=turn.speech_id)
        yield model.EndContext(context)

    def _finish(self) -> Iterator[model.DialectCommand]:
        context = self._open_turn
        if context is not None:
            self._contexts[context].flushed = True
            yield model.EndContext(context)
        yield model.FinishContexts()

    def _configure(self, speed: float | None) -> Iterator[model.DialectCommand]:
        """Change the speed of later turns."""
        low, high = SPEEDS
        if speed is not None and not low <= speed <= high:
            description = f"speed must be {low} to {high}"
            fields = {"code": "SPEED_OUT_OF_RANGE", "field": "speed", "value": speed, "description": description}
            yield self._send("ConfigureFailure", **fields)
            return
        if speed is not None:
            self.options = replace(self.options, speed=speed)
        yield self._send("ConfigureSuccess", applied={"speed": self.options.speed})

    def _interrupt(self, offset: FluxOffset | None) -> Iterator[model.DialectCommand]:
        if any(turn.interrupted for turn in self._contexts.values()):
            yield self._warn("INTERRUPT_IN_PROGRESS", "an interruption is at work")
        elif not self._contexts and self._last is None:
            yield self._warn("NO_AUDIO_GENERATED", "nothing was spoken yet")
        elif offset is not None and not offset.value >= self._min_offset_ms:  # nor NaN, which is below nothing
            description = f"playback_offset must be at least {self._min_offset_ms:.0f}, is {offset.value:.0f}"
            yield self._warn("INVALID_INTERRUPT_OFFSET", description)
        else:
            # A player's clock runs ahead of the audio when it counts its own buffer or silence.
            yield from self._truncate(None if offset is None else min(offset.value, self._sent_ms))

    @property
    def _sent_ms(self) -> float:
        """Return the duration of all audio sent, the maximum that was played."""
        return self._played_ms + sum(turn.audio_ms for turn in self._contexts.values())

    def _truncate(self, offset_ms: float | None) -> Iterator[model.DialectCommand]:
        if self._contexts:
            (context, turn), *waiting = self._contexts.items()
            turn.interrupted, turn.offset_ms = True, offset_ms
            for _, later in waiting:
                later.cleared = True
            for waits, _ in reversed(waiting):
                yield model.CancelContext(waits)
            yield model.CancelContext(context, _since(turn, offset_ms))
        elif self._last is not None:
            context, turn = self._last
            turn.offset_ms = offset_ms
            yield model.QueryHeard(context, _since(turn, offset_ms))

    def _end(self, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        turn = self._contexts.pop(event.context)
        if turn.cleared or not turn.started:
            if event.error is not None and not turn.cleared:
                yield self._error(event.error)
            return
        turn.audio_ms = event.audio_ms
        if turn.interrupted:
            yield from self._send_interrupted(turn, event.heard, event.remaining)
        else:
            self._played_ms += event.audio_ms
            self._last = (event.context, turn) if event.audio_ms else self._last
            yield from self._send_turn_end(turn, event.failure)
        yield from self._announce()

    def _send_turn_end(self, turn: FluxTurn, error: ErrorInfo | None) -> Iterator[model.DialectCommand]:
        if error is not None:
            yield self._error(error)
        elif not turn.audio_ms:
            yield self._warn("NO_SYNTHESIZABLE_TEXT", "the text held nothing that can be spoken")
        yield self._send("SpeechMetadata", **turn.metadata)

    def _recalled(self, event: model.HeardReported) -> Iterator[model.DialectCommand]:
        if self._last is None or self._last[0] != event.context:
            return
        turn = self._last[1]
        if not event.remaining:
            yield self._warn("NO_ACTIVE_SPEECH", "everything was played")
        else:
            self._played_ms = turn.start_ms
            yield from self._send_interrupted(turn, event.heard, event.remaining)

    def _send_interrupted(self, turn: FluxTurn, heard: str, remaining: str) -> Iterator[model.DialectCommand]:
        """Without an offset, what was sent counts as played."""
        played_ms = turn.start_ms + turn.audio_ms if turn.offset_ms is None else turn.offset_ms
        texts = {} if turn.offset_ms is None else {"text_spoken": heard, "text_remaining": remaining}
        self._played_ms = self._min_offset_ms = played_ms
        self._last = None
        yield self._send("SpeechInterrupted", audio_played_ms=round(played_ms), **texts, metadata=turn.metadata)

    def _warn(self, code: str, description: str) -> model.SendMessage:
        return self._send("Warning", code=code, description=description)

    def _error(self, error: ErrorInfo) -> model.SendMessage:
        return self._send("Error", code=ERROR_CODES.get(error.code, "NET-0000"), description=error.message)


def _since(turn: FluxTurn, offset_ms: float | None) -> float | None:
    return None if offset_ms is None else max(offset_ms - turn.start_ms, 0.0)
