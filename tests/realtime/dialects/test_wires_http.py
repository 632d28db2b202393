"""The vendors' wires over HTTP, with the fake engine behind them."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.engine import FakeScript
from tests.realtime.dialects.socket_client import (
    KEY,
    TEXT,
    dial,
)
from tests.realtime.dialects.vendor_clients import CLIENTS, RAW
from tests.realtime.live_server import LiveServer, until

HTTP = [
    ("/v1/text-to-speech/zoe?output_format=pcm_24000", {"text": TEXT}, "audio/pcm"),
    ("/v1/text-to-speech/zoe/stream", {"text": TEXT, "model_id": "eleven_flash_v2_5"}, "audio/mpeg"),
    ("/v1/text-to-speech/zoe/stream?output_format=opus_48000_32", {"text": TEXT}, "audio/ogg"),
    ("/v1/text-to-speech/zoe/stream/with-timestamps?output_format=pcm_16000", {"text": TEXT}, "application/x-ndjson"),
    ("/v1/text-to-speech/zoe/with-timestamps?output_format=pcm_16000", {"text": TEXT}, "application/json"),
    ("/v1/text-to-dialogue/stream?output_format=wav_24000", {"inputs": [{"text": TEXT}]}, "audio/wav"),
    ("/tts/bytes", {"transcript": TEXT, "output_format": RAW, "voice": {"id": "zoe"}}, "audio/pcm"),
    ("/tts/bytes", {"transcript": TEXT, "output_format": {"container": "mp3", "sample_rate": 44_100}}, "audio/mpeg"),
    ("/tts/bytes", {"transcript": TEXT, "output_format": RAW | {"container": "wav"}}, "audio/wav"),
    ("/tts/sse", {"transcript": TEXT, "output_format": RAW, "add_timestamps": True}, "text/event-stream"),
    ("/v1/speak", {"text": TEXT}, "audio/mpeg"),
    ("/v1/speak?encoding=linear16&container=none", {"text": TEXT}, "audio/l16"),
    ("/v1/speak?encoding=linear16", {"text": TEXT}, "audio/wav"),
    ("/v1/speak?encoding=opus&model=aura-2-zoe-en", {"text": TEXT}, "audio/ogg"),
    ("/v1/speak?encoding=alaw", {"text": TEXT}, "audio/alaw"),
    ("/v2/speak?model=flux-zoe-en&encoding=linear16&container=none", {"text": TEXT}, "audio/l16"),
    ("/api/tts_streaming", {"text": TEXT, "voice": ["zoe"]}, "audio/wav"),
    ("/tts/v1/voice:stream", {"text": TEXT, "voiceId": "zoe", "timestampType": "WORD"}, "application/json"),
]


@pytest.mark.parametrize(("path", "body", "media_type"), HTTP)
async def test_over_http(live: LiveServer, path: str, body: dict[str, Any], media_type: str) -> None:
    async with live.http() as http:
        answer = await http.post(path, json=body, headers={"xi-api-key": KEY})
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, media_type)
        assert len(answer.content) > 5_000
        assert "zoe" in answer.headers.get("X-Voicewire-Warning", "zoe")
        refused = await http.post(path, json=body, headers={"xi-api-key": KEY + "x"})
        assert refused.status_code == 401


async def test_a_dialogue_over_http_has_many_voices(live: LiveServer) -> None:
    inputs = [
        ("ada", "Hello there."),
        ("ada", "How are you?"),
        ("ben", "Well, thank you."),
        ("ada", " "),
        ("ada", "Good."),
    ]
    body = {"inputs": [{"voice_id": voice, "text": text} for voice, text in inputs]}
    async with live.http() as http:
        shown = {"xi-api-key": KEY}
        path = "/v1/text-to-dialogue/stream?output_format="
        answer = await http.post(f"{path}pcm_24000", json=body, headers=shown)
        assert [request.voice for request in live.engine.requests] == ["ada", "ben", "ada"]
        assert len(answer.content) > 2 * 24_000 * sum(len(text.strip()) for _, text in inputs) * 0.04 * 0.9
        refused = await http.post(f"{path}wav_24000", json=body, headers=shown)
        assert (refused.status_code, refused.json()["detail"]["status"]) == (400, "invalid_output_format")
        live.engine.script = FakeScript(fail_at_frame=0)
        failed = await http.post(f"{path}pcm_24000", json=body, headers=shown)
        assert (failed.status_code, failed.json()["detail"]["status"]) == (500, "engine_error")


async def test_what_a_client_names_ends_no_header(live: LiveServer) -> None:
    named = "%0d%0aSet-Cookie:%20a=b%00%E2%82%AC"
    async with live.http() as http:
        answer = await http.post(f"/v1/speak?model={named}", json={"text": TEXT}, headers={"X-API-Key": KEY})
        assert answer.status_code == 200
        refused = await http.post(f"/v1/speak?encoding={named}", json={"text": TEXT}, headers={"X-API-Key": KEY})
        assert (refused.status_code, "set-cookie" in refused.headers, "set-cookie" in answer.headers) == (
            400,
            False,
            False,
        )
    async with dial(live, replace(CLIENTS["deepgram"], path=f"/v1/speak?model={named}")) as socket:
        assert "set-cookie" not in socket.response.headers


@pytest.mark.parametrize("path", sorted({path.partition("?")[0] for path, _, _ in HTTP}))
async def test_bad_bodies_over_http(live: LiveServer, path: str) -> None:
    async with live.http() as http:
        for body, status in (
            (b"{", 400),
            (b"{}", 400),
            (b'{"text":" ","transcript":"","inputs":[]}', 400),
            (b"x" * 300_000, 413),
        ):
            answer = await http.post(path, content=body, headers={"xi-api-key": KEY})
            assert (answer.status_code, bool(answer.json())) == (status, True)


async def test_a_body_that_breaks_off(live: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", live.port)
    head = f"POST /tts/bytes HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {KEY}\r\nContent-Length: 100\r\n\r\n{{"
    writer.write(head.encode())
    await until(lambda: live.speech.num_connections == 1)
    writer.close()
    await live.freed()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("output_format", ["pcm_16000", "mp3_44100_128"])
async def test_timestamps_as_one_document_are_those_of_the_stream(live: LiveServer, output_format: str) -> None:
    asked = {"json": {"text": TEXT, "seed": 1}, "headers": {"xi-api-key": KEY}}
    query = f"?output_format={output_format}"
    async with live.http() as http:
        answer = await http.post(f"/v1/text-to-speech/ada/with-timestamps{query}", **asked)
        stream = await http.post(f"/v1/text-to-speech/ada/stream/with-timestamps{query}", **asked)
    told, lines = answer.json(), [json.loads(line) for line in stream.text.splitlines()]
    audio = base64.b64decode(told["audio_base64"], validate=True)
    assert audio == b"".join(base64.b64decode(line["audio_base64"]) for line in lines)
    assert len(audio) > 5_000
    for name in ("alignment", "normalized_alignment"):
        times = [line[name] for line in lines if line[name]]
        assert told[name] == {field: [value for each in times for value in each[field]] for field in times[0]}


async def test_timestamps_of_a_text_of_signs_are_a_document_too(live: LiveServer) -> None:
    async with live.http() as http:
        path = "/v1/text-to-speech/ada/with-timestamps?output_format=pcm_16000"
        answer = await http.post(path, json={"text": "--- ***"}, headers={"xi-api-key": KEY})
    assert answer.json() == {"audio_base64": "", "alignment": None, "normalized_alignment": None}


async def test_failure_before_audio_with_timestamps_has_a_status(live: LiveServer) -> None:
    live.engine.script_next(FakeScript(fail_at_frame=0))
    async with live.http() as http:
        path = "/v1/text-to-speech/ada/with-timestamps"
        answer = await http.post(path, json={"text": TEXT}, headers={"xi-api-key": KEY})
    assert (answer.status_code, answer.json()["detail"]["status"]) == (500, "engine_error")


async def test_timestamps_as_json_lines_and_as_events(live: LiveServer) -> None:
    async with live.http() as http:
        path = "/v1/text-to-speech/zoe/stream/with-timestamps?output_format=pcm_16000"
        lines = (await http.post(path, json={"text": TEXT}, headers={"xi-api-key": KEY})).text.splitlines()
        told = [json.loads(line)["alignment"] for line in lines]
        assert "".join(char for times in told if times for char in times["characters"]).split() == TEXT.split()
        body = {"transcript": TEXT, "output_format": RAW, "add_timestamps": True}
        events = (await http.post("/tts/sse", json=body, headers={"X-API-Key": KEY})).text.split("\n\n")
        told = [json.loads(event.partition("data: ")[2]) for event in events if event]
        words = [word for event in told if event["type"] == "timestamps" for word in event["word_timestamps"]["words"]]
        assert words == TEXT.split()
        assert told[-1] == {"type": "done", "context_id": None, "done": True, "status_code": 200}
