"""Messages that the clients of a wire really send, by its address: what a fuzzer bends."""

from __future__ import annotations

from typing import Any

import msgspec

from realtime.protocol.dialects.protobuf import encode
from realtime.protocol.dialects.rime_envelope import REQUEST

_ITEM = {"id": "i1", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]}
_AUDIO = {"output": {"voice": "marin", "format": {"type": "audio/pcmu"}, "speed": 1.0}, "input": {"format": {}}}
_CREATE = {
    "voiceId": "zoe",
    "audioConfig": {"audioEncoding": "PCM", "sampleRateHertz": 24_000},
    "timestampType": "WORD",
}
_START = {
    "speaker": "zoe",
    "text": "",
    "audioParameters": {"audioFormat": "audio/pcm", "samplingRate": 24_000, "timeScaleFactor": 1.5},
    "splitStrategy": "SPLIT_STRATEGY_ACCUMULATE_SENTENCE",
    "timestamps": {"enable": True},
}


def _pack(kind: str, **fields: object) -> bytes:
    return msgspec.msgpack.encode({"type": kind, **fields})


_TWO_VOICES = [{"voice_id": "zoe", "text": "Hello. "}, {"voice_id": "max", "text": "Hi!", "new_turn": True}]
_TEXT: tuple[dict[str, Any], ...] = (
    {"text": " ", "context_id": "c1", "voice_settings": {"speed": 1.1}, "xi_api_key": "key"},
    {"text": "Hello there. ", "context_id": "c1", "flush": True},
    {"text": "", "context_id": "c1"},
    {"context_id": "c1", "flush": True},
    {"context_id": "c1", "close_context": True},
    {"close_socket": True},
)
_DIALOGUE: tuple[dict[str, Any], ...] = (
    {"voices": ["zoe", "max"], "context_id": "c1", "voice_settings": {"stability": 0.5}},
    {"context_id": "c1", "inputs": _TWO_VOICES},
    {"context_id": "c2", "voices": ["max"], "inputs": _TWO_VOICES, "flush": True},
    {"context_id": "c1", "inputs": [{"voice_id": "zoe", "text": ""}], "flush": True},
    {"context_id": "c1", "keep_alive": True},
    {"context_id": "c1", "flush": True},
    {"context_id": "c1", "close_context": True},
    {"close_socket": True},
)
_CARTESIA = {
    "context_id": "c1",
    "transcript": "Hello there. ",
    "voice": {"mode": "id", "id": "zoe"},
    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000},
    "add_timestamps": True,
}
_SPEAK: tuple[dict[str, Any], ...] = (
    {"type": "Speak", "text": "Hello there. "},
    {"type": "Flush"},
    {"type": "Close"},
)


RIGHT: dict[str, tuple[dict[str, Any] | bytes, ...]] = {
    "/v1/text-to-speech/{voice_id}/multi-stream-input": _TEXT,
    "/v1/text-to-speech/{voice_id}/stream-input": _TEXT,
    "/v1/text-to-dialogue/multi-stream-input": _DIALOGUE,
    "/v1/text-to-dialogue/stream-input": _DIALOGUE,
    "/tts/websocket": (
        _CARTESIA | {"continue": True},
        _CARTESIA | {"continue": False, "transcript": ""},
        _CARTESIA | {"continue": True, "flush": True},
        {"context_id": "c1", "cancel": True},
    ),
    "/v1/speak": (*_SPEAK, {"type": "Clear"}),
    "/v2/speak": (
        *_SPEAK,
        {"type": "Interrupt"},
        {"type": "Interrupt", "playback_offset": {"type": "time_ms", "value": 100}},
        {"type": "Configure", "speed": 1.2},
    ),
    "/v1/realtime": (
        {"type": "session.update", "event_id": "e1", "session": {"type": "realtime", "audio": _AUDIO}},
        {"type": "conversation.item.create", "item": _ITEM, "previous_item_id": "root"},
        {"type": "conversation.item.create", "item": _ITEM | {"id": None}},
        {"type": "conversation.item.delete", "item_id": "i1"},
        {"type": "conversation.item.retrieve", "item_id": "i1"},
        {"type": "conversation.item.truncate", "item_id": "i1", "content_index": 0, "audio_end_ms": 500},
        {"type": "response.create", "response": {"metadata": {"a": "b"}, "output_modalities": ["audio"]}},
        {"type": "response.create", "response": {"conversation": "none", "input": [_ITEM], "audio": _AUDIO}},
        {"type": "response.cancel"},
        {"type": "response.cancel", "response_id": "resp_1"},
        {"type": "input_text_buffer.append", "delta": "Hel"},
        {"type": "input_text_buffer.commit"},
        {"type": "input_audio_buffer.append", "audio": "AAAA"},
        {"type": "input_audio_buffer.clear"},
    ),
    "/v1/audio/speech/stream": (
        {"type": "session.config", "response_format": "pcm", "stream_audio": True, "word_timestamps": True},
        {"type": "session.config", "split_granularity": "sentence", "speed": 1.0, "seed": 3, "voice": "zoe"},
        {"type": "session.config", "response_format": "wav", "stream_audio": False, "word_timestamps": False},
        {"type": "input.text", "text": "Hello there. "},
        {"type": "input.text", "text": "Hello there. "},
        {"type": "input.done"},
        {"type": "session.close"},
    ),
    "/api/tts_streaming": (
        _pack("Text", text="Hello"),
        _pack("Voice", embeddings=[0.5], shape=[1]),
        _pack("Eos"),
        b"\0",
    ),
    "/ws3": (
        {"text": "Hello there. ", "contextId": "c1"},
        {"text": "More. "},
        {"operation": "flush"},
        {"operation": "flush", "contextId": "c1"},
        {"operation": "clear"},
        {"operation": "eos"},
    ),
    "/ws": (
        {"contextId": "c1", "start": _START},
        {"contextId": "c2", "start": {"text": "All of it."}},
        {"contextId": "c1", "text": "Hello "},
        {"contextId": "c1", "end": {}},
        {"contextId": "c1", "cancel": {}},
        {"config": {"authorization": "Api-Key k", "defaults": _START}},
        encode({"context_id": "c1", "start": {"speaker": "zoe"}}, REQUEST),
        encode({"context_id": "c1", "text": "Hello "}, REQUEST),
    ),
    "/tts/v1/voice:streamBidirectional": (
        {"create": _CREATE, "contextId": "c1"},
        {"create": _CREATE | {"timestampType": "CHARACTER"}, "contextId": "c2"},
        {"send_text": {"text": "Hello there. "}, "contextId": "c1"},
        {"send_text": {"text": ""}},
        {"flush_context": {}, "contextId": "c1"},
        {"close_context": {}, "contextId": "c1"},
        {"cancel_context": {}, "contextId": "c2"},
    ),
    "/tts/v1/voice:stream": (_CREATE | {"text": "Hello there."},),
}
