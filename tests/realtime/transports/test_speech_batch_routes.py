"""``POST /v1/audio/speech/batch``: many texts, each with its own success or error."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest

from realtime.transports.speech_batch_routes import PIECE_BYTES, _encode_results
from sessions.audio.wav import wav_file
from sessions.config import Encoding
from tests.fakes.engine import FakeScript
from tests.realtime.cloning import cloning_engine
from tests.realtime.live_server import LiveServer, live_server, until
from tests.sessions.audio.signals import decode, tone

PATH = "/v1/audio/speech/batch"


async def post(live: LiveServer, **body: object) -> tuple[int, dict]:
    async with live.http() as http:
        answer = await http.post(PATH, json=body)
    return answer.status_code, answer.json()


async def test_items_take_the_batch_s_fields_as_defaults(live: LiveServer) -> None:
    items = [{"input": "One."}, {"input": "Two.", "voice": "ada", "response_format": "mp3"}, {"input": "Three."}]
    status, told = await post(live, items=items, voice="ben", response_format="wav", stream=True)
    assert (status, told["total"], told["succeeded"], told["failed"]) == (200, 3, 3, 0)
    assert told["id"].startswith("speech-batch-")
    assert [result["index"] for result in told["results"]] == [0, 1, 2]
    assert [result["media_type"] for result in told["results"]] == ["audio/wav", "audio/mpeg", "audio/wav"]
    for result, encoding in zip(told["results"], (Encoding.WAV, Encoding.MP3, Encoding.WAV), strict=True):
        assert decode(base64.b64decode(result["audio_data"]), encoding)[0].size > 1_000
        assert result["usage"]["output_tokens"] > 0
    voices = {request.text: request.voice for request in live.engine.requests}
    assert voices == {"One.": "ben", "Two.": "ada", "Three.": "ben"}


async def test_each_item_has_its_own_error(live: LiveServer) -> None:
    items = [
        {"input": "Fine."},
        {"input": " "},
        {"input": "Fast.", "speed": 9},
        {"no": "input"},
        "no item at all",
        {"input": "Odd.", "response_format": "tape"},
        {"input": "Fine too.", "voice": "nobody"},
    ]
    status, told = await post(live, items=items)
    assert (status, told["succeeded"], told["failed"]) == (200, 2, 5)
    codes = [result.get("error", {}).get("code") for result in told["results"]]
    assert codes == [
        None,
        "invalid_request",
        "invalid_request",
        "invalid_event",
        "invalid_event",
        "unsupported_format",
        None,
    ]
    assert "unknown" in told["results"][6]["warning"]
    assert all("audio_data" not in result for result in told["results"] if "error" in result)


async def test_an_engine_that_fails_one_item_fails_no_other(live: LiveServer) -> None:
    live.engine.script_next(FakeScript(fail_at_frame=1))
    _, told = await post(live, items=[{"input": "One."}, {"input": "Two."}, {"input": "Three."}])
    assert sorted(result["status"] for result in told["results"]) == ["error", "success", "success"]


@pytest.mark.parametrize("items", [None, [], "text", [{"input": "x"}] * 33])
async def test_the_number_of_items_has_a_limit(live: LiveServer, items: object) -> None:
    status, told = await post(live, items=items)
    assert (status, told["error"]["code"], told["error"]["param"]) == (400, "invalid_request", "items")
    assert "1 to 32" in told["error"]["message"]


async def test_32_items_are_spoken_a_few_at_once(live: LiveServer) -> None:
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, live.speech.num_active_responses)
            await asyncio.sleep(0.001)

    watching = asyncio.create_task(watch())
    _, told = await post(
        live, items=[{"input": f"Text number {number}."} for number in range(32)], response_format="mp3"
    )
    watching.cancel()
    await asyncio.wait([watching])
    assert told["succeeded"] == 32
    assert 1 < most <= live.speech.config.limits.max_active_responses_per_session


@pytest.mark.parametrize("audio", [wav_file(tone(1.5, 16_000), 16_000), b"not audio"])
async def test_a_recording_for_all_is_heard_once(tmp_path: Path, audio: bytes) -> None:
    async with live_server(cloning_engine(), voices__folder=str(tmp_path), voices__max_concurrent_encodings=1) as live:
        reference = f"data:audio/wav;base64,{base64.b64encode(audio).decode()}"
        items = [{"input": f"Text number {number}."} for number in range(12)]
        _, told = await post(live, items=items, task_type="Base", ref_audio=reference, ref_text="Said.")
        is_audio = audio[:4] == b"RIFF"
        assert told["succeeded"] == (12 if is_audio else 0)
        assert len(live.engine.samples) == is_audio
        if not is_audio:
            assert {result["error"]["param"] for result in told["results"]} == {"ref_audio"}


async def test_what_a_batch_gives_has_a_limit_and_so_has_a_whole_file() -> None:
    """Of 30,000 bytes: each of the texts makes some 22,000."""
    async with live_server(limits__max_http_response_bytes=30_000) as live:
        item = {"input": "Twelve chars.", "response_format": "wav"}
        alone = await post(live, items=[item])
        assert 15_000 < len(base64.b64decode(alone[1]["results"][0]["audio_data"])) < 30_000
        status, told = await post(live, items=[item, item, item])
        assert (status, told["succeeded"]) == (200, 1)
        errors = [result["error"] for result in told["results"] if result["status"] == "error"]
        assert {error["code"] for error in errors} == {"limit_exceeded"}
        assert "max_http_response_bytes, 30000" in errors[0]["message"]
        await live.freed()
        async with live.http() as http:
            long = {"input": "This text is a little longer than that.", "response_format": "pcm"}
            refused = await http.post("/v1/audio/speech", json=long | {"stream": False})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "limit_exceeded")
            assert len((await http.post("/v1/audio/speech", json=long)).content) > 30_000, "streams have none"
        await live.freed()


@pytest.mark.parametrize("size", [0, 1, 2, 3, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 2])
async def test_an_answer_in_pieces_is_one_json(size: int) -> None:
    audio = bytes(range(256)) * (size // 256 + 1)
    results = [
        {"index": 0, "status": "success", "audio_data": audio[:size], "usage": {"a": 1}},
        {"index": 1, "status": "error", "error": {"message": 'a "sign"'}},
    ]
    pieces = [piece async for piece in _encode_results(results)]
    assert max(map(len, pieces)) <= PIECE_BYTES * 4 // 3
    told = json.loads(b"".join(pieces))
    assert base64.b64decode(told["results"][0].pop("audio_data")) == audio[:size]
    assert told["results"][0] == {"index": 0, "status": "success", "usage": {"a": 1}}
    assert told["results"][1] == results[1]
    assert (told["total"], told["succeeded"], told["failed"]) == (2, 1, 1)


async def test_a_client_that_leaves_frees_every_slot() -> None:
    async with live_server() as live:
        live.engine.script = FakeScript(first_chunk_s=60.0)
        async with live.http() as http:
            task = asyncio.create_task(http.post(PATH, json={"items": [{"input": "One."}, {"input": "Two."}]}))
            await until(lambda: live.speech.num_active_responses == 2)
            task.cancel()
            await asyncio.wait([task])
        await live.freed()
