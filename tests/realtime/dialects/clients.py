"""Each vendor's socket in a few words: how a client speaks there, and how it knows that a turn is over."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class VendorClient:
    name: str
    path: str
    say: Callable[[str, str], Messages]
    """Text of a turn with this id."""
    end: Callable[[str], Messages]
    cancel: Callable[[str], Messages]
    """None: clients drop the socket."""
    is_end: Callable[[dict[str, Any], str], bool]
    audio: Callable[[dict[str, Any]], bytes] = lambda message: b""
    """In a text message; binary ones are audio as they are."""
    is_error: Callable[[dict[str, Any]], bool] = lambda message: message.get("type") in ("error", "Error")
    one_turn: bool = False
    cancel_is_silent: bool = False
    close_after_bad_json: int | None = 1008
    key_in_query: str = "api_key"


def _b64(field: str) -> Callable[[dict[str, Any]], bytes]:
    return lambda message: base64.b64decode(message.get(field) or "")


def _cartesia(context: str, text: str, **fields: Any) -> Messages:
    voice = {"mode": "id", "id": "zoe"}
    return [{"context_id": context, "transcript": text, "output_format": RAW, "voice": voice, **fields}]


VLLM_CONFIG = {
    "type": "session.config",
    "response_format": "pcm",
    "stream_audio": True,
    "split_granularity": "sentence",
}
PCM_CONFIG = {"audioEncoding": "PCM", "sampleRateHertz": 24_000}


def _status(message: dict[str, Any]) -> str | None:
    return message.get("response", {}).get("status")


def _result(message: dict[str, Any], turn: str) -> dict[str, Any]:
    result = message.get("result", {})
    return result if result.get("contextId") == turn else {}


CLIENTS = {
    client.name: client
    for client in (
        VendorClient(
            "elevenlabs multi",
            "/v1/text-to-speech/zoe/multi-stream-input?output_format=pcm_24000&auto_mode=true",
            say=lambda turn, text: [{"text": " ", "context_id": turn}, {"text": text, "context_id": turn}],
            end=lambda turn: [{"context_id": turn, "flush": True}, {"context_id": turn, "close_context": True}],
            cancel=lambda turn: [{"context_id": turn, "close_context": True}],
            is_end=lambda message, turn: message.get("isFinal") is True and message["contextId"] == turn,
            audio=_b64("audio"),
            is_error=lambda message: "error" in message,
            key_in_query="authorization",
        ),
        VendorClient(
            "elevenlabs single",
            "/v1/text-to-speech/zoe/stream-input?output_format=pcm_24000",
            say=lambda turn, text: [{"text": " "}, {"text": text}],
            end=lambda turn: [{"text": ""}],
            cancel=lambda turn: [],
            is_end=lambda message, turn: message.get("isFinal") is True,
            audio=_b64("audio"),
            is_error=lambda message: "error" in message,
            one_turn=True,
            key_in_query="single_use_token",
        ),
        VendorClient(
            "elevenlabs dialogue",
            "/v1/text-to-dialogue/multi-stream-input?output_format=pcm_24000&sync_alignment=true",
            say=lambda turn, text: [
                {"context_id": turn, "voices": ["zoe"]},
                {"context_id": turn, "inputs": [{"text": text, "voice_id": "zoe"}]},
            ],
            end=lambda turn: [{"context_id": turn, "flush": True}, {"context_id": turn, "close_context": True}],
            cancel=lambda turn: [{"context_id": turn, "close_context": True}],
            is_end=lambda message, turn: message.get("is_final") is True and message["context_id"] == turn,
            audio=_b64("audio"),
            is_error=lambda message: "error" in message,
            key_in_query="authorization",
        ),
        VendorClient(
            "elevenlabs single dialogue",
            "/v1/text-to-dialogue/stream-input?output_format=pcm_24000",
            say=lambda turn, text: [{"voices": ["zoe"]}, {"inputs": [{"text": text, "voice_id": "zoe"}]}],
            end=lambda turn: [{"flush": True}, {"close_socket": True}],
            cancel=lambda turn: [],
            is_end=lambda message, turn: message.get("is_final") is True,
            audio=_b64("audio"),
            is_error=lambda message: "error" in message,
            one_turn=True,
            key_in_query="single_use_token",
        ),
        VendorClient(
            "cartesia",
            "/tts/websocket?cartesia_version=2026-03-01",
            say=lambda turn, text: _cartesia(turn, text, **{"continue": True, "add_timestamps": True}),
            end=lambda turn: _cartesia(turn, "", **{"continue": False}),
            cancel=lambda turn: [{"context_id": turn, "cancel": True}],
            is_end=lambda message, turn: message["type"] == "done" and message["context_id"] == turn,
            audio=_b64("data"),
            cancel_is_silent=True,
            close_after_bad_json=None,
            key_in_query="access_token",
        ),
        VendorClient(
            "deepgram",
            "/v1/speak?model=aura-2-zoe-en&encoding=linear16&sample_rate=24000",
            say=lambda turn, text: [{"type": "Speak", "text": text}],
            end=lambda turn: [{"type": "Flush"}],
            cancel=lambda turn: [{"type": "Clear"}],
            is_end=lambda message, turn: message["type"] in ("Flushed", "Cleared"),
        ),
        VendorClient(
            "deepgram flux",
            "/v2/speak?model=flux-zoe-en&encoding=linear16&sample_rate=24000",
            say=lambda turn, text: [{"type": "Speak", "text": text}],
            end=lambda turn: [{"type": "Flush"}],
            cancel=lambda turn: [{"type": "Interrupt"}],
            is_end=lambda message, turn: message["type"] in ("SpeechMetadata", "SpeechInterrupted"),
        ),
        VendorClient(
            "openai realtime",
            "/v1/realtime?model=gpt-realtime",
            say=lambda turn, text: [{"type": "input_text_buffer.append", "delta": text}],
            end=lambda turn: [{"type": "input_text_buffer.commit"}],
            cancel=lambda turn: [{"type": "response.cancel"}],
            is_end=lambda message, turn: message["type"] == "response.done",
            audio=lambda message: _b64("delta")(message) if message["type"] == "response.output_audio.delta" else b"",
            is_error=lambda message: message["type"] == "error" or _status(message) == "failed",
            close_after_bad_json=None,
        ),
        VendorClient(
            "vllm-omni",
            "/v1/audio/speech/stream?",
            say=lambda turn, text: [VLLM_CONFIG, {"type": "input.text", "text": text}],
            end=lambda turn: [{"type": "input.done"}],
            cancel=lambda turn: [],
            is_end=lambda message, turn: message["type"] == "session.done",
            close_after_bad_json=None,
        ),
        VendorClient(
            "rime ws3",
            "/ws3?speaker=zoe&modelId=coda&audioFormat=pcm&samplingRate=24000",
            say=lambda turn, text: [{"text": text, "contextId": turn}],
            end=lambda turn: [{"operation": "flush"}],
            cancel=lambda turn: [{"operation": "clear"}],
            is_end=lambda message, turn: message["type"] == "done" and message["contextId"] == turn,
            audio=_b64("data"),
            close_after_bad_json=None,
        ),
        VendorClient(
            "inworld",
            "/tts/v1/voice:streamBidirectional?",
            say=lambda turn, text: [
                {"create": {"audioConfig": PCM_CONFIG, "timestampType": "WORD"}, "contextId": turn},
                {"send_text": {"text": text}, "contextId": turn},
            ],
            end=lambda turn: [{"flush_context": {}, "contextId": turn}, {"close_context": {}, "contextId": turn}],
            cancel=lambda turn: [{"cancel_context": {}, "contextId": turn}],
            is_end=lambda message, turn: "contextClosed" in _result(message, turn),
            audio=lambda message: _b64("audioContent")(message.get("result", {}).get("audioChunk", {})),
            is_error=lambda message: "error" in message or message["result"]["status"]["code"] != 0,
            close_after_bad_json=None,
        ),
    )
}


def read(client: VendorClient, message: str | bytes) -> tuple[bytes, dict[str, Any]]:
    """The audio in a message, and the message if it is one."""
    if isinstance(message, bytes):
        return message, {}
    told = json.loads(message)
    return client.audio(told), told
