"""``POST /v1/audio/speech`` and its neighbours, over a real socket."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.api import FinishReason
from realtime.option_resolver import WARNING_HEADER
from sessions.audio.provenance import id3_tag
from tests.fakes.engine import FAKE_INFO, FakeScript, FakeSpeechEngine
from tests.realtime.live_server import EMBEDDING_SIZE, QUICK, LiveServer, cloning_engine, live_server, until

TEXT = "Hello there, this is a short reply."


async def post(live: LiveServer, **body: object) -> tuple[int, dict[str, str], bytes]:
    async with live.http() as http:
        answer = await http.post("/v1/audio/speech", json={"input": TEXT} | body)
    return answer.status_code, dict(answer.headers), answer.content


async def error_of(live: LiveServer, **body: object) -> tuple[int, str, str | None]:
    status, _, content = await post(live, **body)
    error = json.loads(content)["error"]
    assert error["message"]
    return status, error["code"], error["param"]


async def test_mp3_is_the_default_format(live: LiveServer) -> None:
    status, headers, content = await post(live, model="tts-1", voice="alloy")
    assert (status, headers["content-type"]) == (200, "audio/mpeg")
    sound = content.removeprefix(id3_tag())
    assert len(sound) < len(content)
    assert sound[0] == 0xFF
    assert sound[1] & 0xE0 == 0xE0
    assert await post(live, model="tts-1", voice="alloy", response_format=None) == (status, headers, content)
    (result,) = (await batch(live, items=[{"input": TEXT}]))["results"]
    assert result["media_type"] == "audio/mpeg"


@pytest.mark.parametrize(("name", "media_type"), [("wav", "audio/wav"), ("flac", "audio/flac")])
async def test_default_format_is_a_setting(name: str, media_type: str) -> None:
    async with live_server(speech__response_format=name) as live:
        assert (await post(live))[1]["content-type"] == media_type
        assert (await post(live, response_format="pcm"))[1]["content-type"] == "audio/pcm"
        (result,) = (await batch(live, items=[{"input": TEXT}]))["results"]
        assert result["media_type"] == media_type
        if name == "flac":
            status, code, param = await error_of(live, stream=True)
            assert (status, code, param) == (400, "unsupported_format", "stream")


SYNTHETIC = {"x-voicewire-digital-source-type": "trainedAlgorithmicMedia"}
PCM = {"content-type": "audio/pcm"} | SYNTHETIC
CHUNKED = {"transfer-encoding": "chunked"}
EVENTS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
} | SYNTHETIC
COMPLETE = {
    "content-length": "69120",
    "x-voicewire-audio-ms": "1440",
    "x-voicewire-input-tokens": "7",
    "x-voicewire-output-tokens": "18",
    "x-voicewire-total-tokens": "25",
}


@pytest.mark.parametrize("base", ["", "/open-webui"])
@pytest.mark.parametrize(
    ("fields", "head"),
    [
        ({}, PCM | CHUNKED),
        ({"input": "---"}, PCM | CHUNKED),
        ({"stream": True}, EVENTS | CHUNKED),
        ({"stream": False}, PCM | COMPLETE),
    ],
    ids=["streamed", "empty", "events", "complete"],
)
async def test_head_of_each_delivery(live: LiveServer, base: str, fields: dict, head: dict[str, str]) -> None:
    async with live.http() as http:
        body = {"input": TEXT, "response_format": "pcm"} | fields
        answer = await http.post(f"{base}/v1/audio/speech", json=body)
    assert (answer.status_code, dict(answer.headers)) == (200, head)


async def test_wav_of_unknown_length_in_stream(live: LiveServer) -> None:
    status, headers, content = await post(live, model="tts-1", voice="ada", response_format="wav")
    assert (status, headers["content-type"]) == (200, "audio/wav")
    assert WARNING_HEADER.lower() not in headers
    assert (content[:4], content[8:12]) == (b"RIFF", b"WAVE")
    assert struct.unpack_from("<HHIIHH", content, 20) == (1, 1, 24_000, 48_000, 2, 16)
    pcm = np.frombuffer(content[44:], "<i2")
    assert pcm.size > 24_000
    assert np.abs(pcm).max() > 1_000


async def test_http_speech_is_not_kept_for_alignment(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    monkeypatch.setattr(live.speech.registry._services.backlog, "add", lambda share, num_bytes: kept.append(num_bytes))
    assert (await post(live))[0] == 200
    assert not kept


async def test_pcm_is_the_wav_without_its_header(live: LiveServer) -> None:
    _, headers, content = await post(live, response_format="pcm", seed=1)
    _, _, wav = await post(live, response_format="wav", seed=1)
    assert headers["content-type"] == "audio/pcm"
    assert content == wav[44:]


async def test_unknown_voice_becomes_default_with_warning(live: LiveServer) -> None:
    for voice in ("alloy", {"id": "voice_1234"}):
        status, headers, _ = await post(live, voice=voice)
        assert status == 200
        assert "unknown" in headers[WARNING_HEADER.lower()]
    assert (await post(live, voice={"id": "ben"}))[0] == 200
    assert [request.voice for request in live.engine.requests] == [None, None, "ben"]


@pytest.mark.parametrize("voice", ["ada", "alloy"])
async def test_unsupported_instructions_are_dropped_with_warning(voice: str) -> None:
    plain = msgspec.structs.replace(FAKE_INFO, takes_instruct=False)
    async with live_server(FakeSpeechEngine(QUICK, info=plain)) as live:
        body = {"model": "gpt-4o-mini-tts", "voice": voice, "instructions": "Speak in a cheerful and positive tone."}
        status, headers, _ = await post(live, **body)
        assert status == 200
        warnings = headers[WARNING_HEADER.lower()].split("; ")
        assert warnings[-1] == "this model takes no instructions, they are left out"
        assert len(warnings) == (1 if voice == "ada" else 2)
        assert live.engine.requests[-1].instruct == ""
        item = (await batch(live, items=[{"input": TEXT}], instructions="Whisper."))["results"][0]
        assert (item["status"], item["warning"]) == ("success", warnings[-1])


async def batch(live: LiveServer, **body: object) -> dict[str, Any]:
    async with live.http() as http:
        answer: dict[str, Any] = (await http.post("/v1/audio/speech/batch", json=body)).json()
    return answer


async def test_a_body_that_is_not_json(live: LiveServer) -> None:
    async with live.http() as http:
        answer = await http.post("/v1/audio/speech", content=b'{"input":')
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed_json")
        answer = await http.post("/v1/audio/speech", content=b'{"model": "tts-1"}')
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_event")
        assert (await http.get("/v1/audio/speech")).status_code == 405


async def test_a_body_that_is_too_long() -> None:
    async with live_server(limits__max_message_bytes=2_000) as live:
        assert await error_of(live, input="a" * 3_000) == (413, "message_too_big", None)


async def test_a_body_that_never_ends() -> None:
    async with live_server(listen__handshake_timeout_s=0.3) as live:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        writer.write(b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert b"408" in await reader.readline()
        writer.close()


@pytest.mark.parametrize("stream", [None, True, False])
@pytest.mark.parametrize(("script", "status"), [(FakeScript(fail_at_frame=0), 500), (FakeScript(die_at_frame=0), 503)])
async def test_failure_before_first_audio_has_http_status(
    live: LiveServer, script: FakeScript, status: int, stream: bool | None
) -> None:
    live.engine.script_next(script)
    assert (await error_of(live, stream=stream))[0] == status


async def test_a_failure_after_it_cuts_the_answer_short(live: LiveServer) -> None:
    # A failure before the first packet is sent would be an error response.
    live.engine.script_next(FakeScript(first_chunk_s=0.01, real_time_factor=0.5, fail_at_frame=25))
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    body = json.dumps({"input": TEXT}).encode()
    writer.write(
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert not answer.endswith(b"0\r\n\r\n")


RUNAWAY = FakeScript(end_at_frame=3, end_reason=FinishReason.LOOP)


@pytest.mark.parametrize(
    ("fields", "num_requests"),
    [({}, 2), ({"seed": 7}, 1), ({"stream": True, "stream_format": "audio"}, 1)],
    ids=["whole", "with a seed", "streamed"],
)
async def test_runaway_is_retried_before_anything_is_sent(live: LiveServer, fields: dict, num_requests: int) -> None:
    live.engine.script_next(RUNAWAY)
    async with live.http() as http:
        told = await http.post("/v1/audio/speech", json={"input": TEXT, "stream": False, **fields})
        metrics = (await http.get("/metrics")).text
    assert told.status_code == 200
    assert len(live.engine.requests) == num_requests
    assert f"voicewire_runaways_retried_total {float(num_requests - 1)}" in metrics


async def test_second_runaway_is_sent_as_it_is(live: LiveServer) -> None:
    live.engine.script_next(RUNAWAY, RUNAWAY)
    async with live.http() as http:
        told = await http.post("/v1/audio/speech", json={"input": TEXT, "stream": False, "response_format": "pcm"})
    assert (told.status_code, len(live.engine.requests)) == (200, 2)
    assert len(told.content) == 3 * 1_920 * 2


@pytest.mark.parametrize(
    "limits", [{}, {"limits__max_http_response_bytes": 3 * 1_920 * 2 + 44}], ids=["fails", "too long"]
)
async def test_failed_retry_of_a_runaway_sends_the_first(limits: dict[str, int]) -> None:
    second = FakeScript(end_at_frame=4) if limits else FakeScript(fail_at_frame=1)
    async with live_server(**limits) as live:
        live.engine.script_next(RUNAWAY, second)
        body = {"input": TEXT, "stream": False, "response_format": "pcm"}
        async with live.http() as http:
            told = await http.post("/v1/audio/speech", json=body)
        assert (told.status_code, len(told.content), len(live.engine.requests)) == (200, 3 * 1_920 * 2, 2)
        await live.freed()


async def test_model_lists_the_settings_that_it_honors() -> None:
    changes = {"refused_fields": ("predictor_top_k", "chunk_frames"), "sampling_limits": {"top_k": (1, 50)}}
    async with live_server(cloning_engine(takes_instruct=False, **changes)) as live, live.http() as http:
        (model,) = (await http.get("/v1/models")).json()["data"]
    assert (model["id"], model["object"], model["task"]) == ("a fake base", "model", "base")
    assert model["supported_parameters"] == [
        *("do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "repetition_window"),
        *("predictor_do_sample", "predictor_temperature", "predictor_top_p", "min_new_tokens"),
    ]
    assert (model["parameter_ranges"]["top_k"], model["parameter_ranges"]["temperature"]) == ([1, 50], [0, 2])
    assert set(model["parameter_ranges"]) < set(model["supported_parameters"])
    assert (model["voice_sources"], model["embedding_size"]) == (["audio", "embedding"], EMBEDDING_SIZE)
    assert (model["min_sample_s"], model["max_sample_s"]) == (1, 30)


async def test_model_that_follows_instructions_says_so() -> None:
    async with live_server() as live, live.http() as http:
        (model,) = (await http.get("/v1/models")).json()["data"]
    assert model["supported_parameters"][:2] == ["instruct", "chunk_frames"]
    assert (model["voice_sources"], model["embedding_size"]) == ([], 0)


async def test_voices_and_metrics(live: LiveServer) -> None:
    await post(live)
    await until(lambda: not live.engine.streams)  # its last audio is here before it ends
    async with live.http() as http:
        told = (await http.get("/v1/voices")).json()
        assert [voice["name"] for voice in told["voices"]] == ["ada", "ben"]
        metrics = await http.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    for name in (
        "time_to_first_audio_seconds_count 1.0",
        'responses_total{status="completed"} 1.0',
        "requests_running 0.0",
    ):
        assert f"voicewire_{name}" in metrics.text


async def test_client_disconnect_before_first_audio_frees_work() -> None:
    async with live_server(FakeSpeechEngine(FakeScript(first_chunk_s=60.0))) as live:
        _, writer = await asyncio.open_connection("127.0.0.1", live.port)
        body = json.dumps({"input": TEXT}).encode()
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await until(lambda: bool(live.engine.streams))
        writer.close()
        async with asyncio.timeout(5):
            await live.freed()
        await until(lambda: "voicewire http client" not in {task.get_name() for task in asyncio.all_tasks()})


async def test_no_task_awaits_disconnect_after_first_audio(live: LiveServer) -> None:
    assert (await post(live))[0] == 200
    assert "voicewire http client" not in {task.get_name() for task in asyncio.all_tasks()}
