"""The routes of vendors' wires and their dialects."""

from __future__ import annotations

from realtime.protocol.dialects import (
    cartesia,
    deepgram,
    deepgram_flux,
    elevenlabs,
    elevenlabs_dialogue,
    elevenlabs_dialogue_http,
    elevenlabs_http,
    inworld,
    kyutai,
    openai_realtime,
    rime,
    rime_v1,
    vllm_omni,
)
from realtime.protocol.dialects.base import DialectRoute

DIALECT_ROUTES: tuple[DialectRoute, ...] = (
    DialectRoute("/v1/text-to-speech/{voice_id}/multi-stream-input", elevenlabs.ElevenLabsMultiStream, late_key=True),
    DialectRoute("/v1/text-to-speech/{voice_id}/stream-input", elevenlabs.ElevenLabsStreamInput, late_key=True),
    DialectRoute("/v1/text-to-dialogue/multi-stream-input", elevenlabs_dialogue.ElevenLabsDialogue, late_key=True),
    DialectRoute("/v1/text-to-dialogue/stream-input", elevenlabs_dialogue.ElevenLabsSingleDialogue, late_key=True),
    DialectRoute("/v1/text-to-speech/{voice_id}", elevenlabs_http.ElevenLabsStream, "http"),
    DialectRoute("/v1/text-to-speech/{voice_id}/stream", elevenlabs_http.ElevenLabsStream, "http"),
    DialectRoute("/v1/text-to-speech/{voice_id}/with-timestamps", elevenlabs_http.WithTimestamps, "http"),
    DialectRoute(
        "/v1/text-to-speech/{voice_id}/stream/with-timestamps", elevenlabs_http.ElevenLabsTimestampStream, "http"
    ),
    DialectRoute("/v1/text-to-dialogue", elevenlabs_dialogue_http.ElevenLabsDialogueStream, "http"),
    DialectRoute("/v1/text-to-dialogue/stream", elevenlabs_dialogue_http.ElevenLabsDialogueStream, "http"),
    DialectRoute("/v1/text-to-dialogue/with-timestamps", elevenlabs_dialogue_http.DialogueWithTimestamps, "http"),
    DialectRoute(
        "/v1/text-to-dialogue/stream/with-timestamps",
        elevenlabs_dialogue_http.ElevenLabsDialogueTimestampStream,
        "http",
    ),
    DialectRoute("/tts/websocket", cartesia.CartesiaDialect),
    DialectRoute("/tts/bytes", cartesia.CartesiaBytes, "http"),
    DialectRoute("/tts/sse", cartesia.CartesiaSse, "http"),
    DialectRoute("/v1/speak", deepgram.DeepgramDialect, serial=True),
    DialectRoute("/v1/speak", deepgram.DeepgramHttp, "http"),
    DialectRoute("/v2/speak", deepgram_flux.DeepgramFluxDialect, serial=True),
    DialectRoute("/v2/speak", deepgram.DeepgramHttp, "http"),
    DialectRoute("/v1/realtime", openai_realtime.OpenAIRealtimeDialect),
    DialectRoute("/v1/audio/speech/stream", vllm_omni.VllmOmniDialect, serial=True),
    DialectRoute("/api/tts_streaming", kyutai.KyutaiDialect),
    DialectRoute("/api/tts_streaming", kyutai.KyutaiHttp, "http"),
    DialectRoute("/ws3", rime.RimeWs3Dialect, serial=True),
    DialectRoute("/ws", rime_v1.RimeV1Dialect, late_key=True),
    DialectRoute("/tts/v1/voice:streamBidirectional", inworld.InworldDialect),
    DialectRoute("/tts/v1/voice:stream", inworld.InworldStream, "http"),
)
