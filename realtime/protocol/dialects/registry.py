"""Every vendor's wire: where it is found, and which dialect is spoken there."""

from __future__ import annotations

from typing import Literal, NamedTuple

from realtime.protocol.dialects import (
    cartesia,
    cartesia_http,
    deepgram,
    deepgram_flux,
    deepgram_http,
    elevenlabs,
    elevenlabs_dialogue,
    elevenlabs_http,
    inworld,
    kyutai,
    openai_realtime,
    rime,
    rime_v1,
    vllm_omni,
)
from realtime.protocol.dialects.base import Dialect


class Wire(NamedTuple):
    path: str
    dialect: type[Dialect]
    carrier: Literal["socket", "http"] = "socket"
    """``http``: POST, one body in, one streamed body out."""
    serial: bool = False
    """Contexts are spoken one after the other; else at once, told apart by their ids."""
    late_key: bool = False
    """The API key may stand in the first message."""


WIRES: tuple[Wire, ...] = (
    Wire("/v1/text-to-speech/{voice_id}/multi-stream-input", elevenlabs.MultiStream, late_key=True),
    Wire("/v1/text-to-speech/{voice_id}/stream-input", elevenlabs.StreamInput, late_key=True),
    Wire("/v1/text-to-dialogue/multi-stream-input", elevenlabs_dialogue.Dialogue, late_key=True),
    Wire("/v1/text-to-dialogue/stream-input", elevenlabs_dialogue.SingleDialogue, late_key=True),
    Wire("/v1/text-to-speech/{voice_id}", elevenlabs_http.Stream, "http"),
    Wire("/v1/text-to-speech/{voice_id}/stream", elevenlabs_http.Stream, "http"),
    Wire("/v1/text-to-speech/{voice_id}/with-timestamps", elevenlabs_http.WithTimestamps, "http"),
    Wire("/v1/text-to-speech/{voice_id}/stream/with-timestamps", elevenlabs_http.StreamWithTimestamps, "http"),
    Wire("/v1/text-to-dialogue", elevenlabs_http.DialogueStream, "http", serial=True),
    Wire("/v1/text-to-dialogue/stream", elevenlabs_http.DialogueStream, "http", serial=True),
    Wire("/tts/websocket", cartesia.Cartesia),
    Wire("/tts/bytes", cartesia_http.Bytes, "http"),
    Wire("/tts/sse", cartesia_http.ServerSentEvents, "http"),
    Wire("/v1/speak", deepgram.Speak, serial=True),
    Wire("/v1/speak", deepgram_http.SpeakOnce, "http"),
    Wire("/v2/speak", deepgram_flux.Flux, serial=True),
    Wire("/v2/speak", deepgram_http.SpeakOnce, "http"),
    Wire("/v1/realtime", openai_realtime.OpenAIRealtime),
    Wire("/v1/audio/speech/stream", vllm_omni.VllmOmni, serial=True),
    Wire("/api/tts_streaming", kyutai.Kyutai),
    Wire("/api/tts_streaming", kyutai.KyutaiOnce, "http"),
    Wire("/ws3", rime.RimeWs3, serial=True),
    Wire("/ws", rime_v1.RimeV1, late_key=True),
    Wire("/tts/v1/voice:streamBidirectional", inworld.Inworld),
    Wire("/tts/v1/voice:stream", inworld.InworldStream, "http"),
)
