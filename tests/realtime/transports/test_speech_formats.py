"""POST /v1/audio/speech and its batch: every format, whole, as it is made and as events."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile

from engine.api import CheckpointError
from realtime.app import create_app
from realtime.config import load_config
from realtime.transports.speech_batch_routes import PIECE_BYTES, _encode_results
from sessions.audio.formats import codecs
from sessions.audio.wav import wav_file
from sessions.config import Encoding
from sessions.languages import CODES, NAMES, known_language
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.live_server import QUICK, LiveServer, cloning_engine, live_server, until
from tests.sessions.audio.signals import decode, tone

TEXT = "Hello there, this is a short reply."
MEDIA_TYPES = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
}
ENCODINGS = {
    "wav": Encoding.WAV,
    "mp3": Encoding.MP3,
    "opus": Encoding.OGG_OPUS,
    "aac": Encoding.AAC,
    "flac": Encoding.FLAC,
}
STREAMED = sorted(set(MEDIA_TYPES) - {"flac"})


async def post(live: LiveServer, **body: object) -> tuple[int, dict[str, str], bytes]:
    async with live.http() as http:
        answer = await http.post("/v1/audio/speech", json={"input": TEXT, "seed": 1} | body)
    return answer.status_code, dict(answer.headers), answer.content


async def refusal(live: LiveServer, **body: object) -> dict:
    status, _, content = await post(live, **body)
    error = json.loads(content)["error"]
    assert status == (413 if error["code"] == "request_too_long" else 400)
    return error


def samples(content: bytes, name: str) -> np.ndarray:
    if name == "pcm":
        return np.frombuffer(content, "<i2") / 32_768
    pcm, rate = decode(content, ENCODINGS[name])
    return pcm[:: rate // 24_000]


@pytest.mark.parametrize("name", MEDIA_TYPES)
async def test_every_format_has_equal_duration_and_level(live: LiveServer, name: str) -> None:
    status, headers, content = await post(live, response_format=name)
    assert (status, headers["content-type"]) == (200, MEDIA_TYPES[name])
    _, _, plain = await post(live, response_format="pcm")
    heard, meant = samples(content, name), samples(plain, "pcm")
    assert 0 <= heard.size - meant.size < 4_096
    assert np.sqrt(np.mean(heard**2)) == pytest.approx(np.sqrt(np.mean(meant**2)), rel=0.1)


@pytest.mark.parametrize("name", MEDIA_TYPES)
async def test_whole_file_has_length_and_cost(live: LiveServer, name: str) -> None:
    status, headers, content = await post(live, response_format=name, stream=False)
    assert (status, headers["content-type"]) == (200, MEDIA_TYPES[name])
    assert int(headers["content-length"]) == len(content)
    tokens = [int(headers[f"x-voicewire-{side}-tokens"]) for side in ("input", "output", "total")]
    assert tokens[0] > 0
    assert tokens[1] == pytest.approx(int(headers["x-voicewire-audio-ms"]) / 80, abs=1)
    assert tokens[2] == tokens[0] + tokens[1]
    if name in ("wav", "flac"):
        info = soundfile.info(io.BytesIO(content))
        assert round(1_000 * info.frames / info.samplerate) == int(headers["x-voicewire-audio-ms"])


@pytest.mark.parametrize("name", STREAMED)
async def test_events_carry_the_same_bytes_and_the_usage(live: LiveServer, name: str) -> None:
    status, headers, content = await post(live, response_format=name, stream=True)
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/event-stream")
    events = read_events(content)
    assert [kind for kind, _ in events[:-1]] == ["speech.audio.delta"] * (len(events) - 1)
    assert len(events) > 3
    kind, last = events[-1]
    assert kind == last["type"] == "speech.audio.done"
    assert last["usage"]["output_tokens"] > 0
    assert last["usage"]["total_tokens"] == last["usage"]["input_tokens"] + last["usage"]["output_tokens"]
    assert last["usage"]["input_token_details"]["audio_tokens"] == 0
    _, _, streamed = await post(live, response_format=name)
    joined = b"".join(base64.b64decode(event["audio"]) for _, event in events[:-1])
    if name != "opus":  # each Ogg stream has a number of its own
        assert joined == streamed
    assert samples(joined, name).size == samples(streamed, name).size


def read_events(content: bytes) -> list[tuple[str, dict]]:
    events = []
    for block in content.decode().strip().split("\n\n"):
        kind, data = block.split("\n")
        events.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


@pytest.mark.parametrize(
    ("body", "param"), [({"stream": True}, "stream"), ({"stream_format": "audio"}, "stream_format"),
                        ({"stream_format": "sse", "stream": False}, "stream_format")],
)  # fmt: skip
async def test_streaming_is_refused_to_a_format_that_cannot(live: LiveServer, body: dict, param: str) -> None:
    error = await refusal(live, response_format="flac", **body)
    assert (error["code"], error["param"]) == ("unsupported_format", param)
    assert "flac cannot be streamed" in error["message"]


async def test_error_after_first_audio_is_an_event(live: LiveServer) -> None:
    live.engine.script_next(FakeScript(first_chunk_s=0.01, real_time_factor=0.01, fail_at_frame=4))
    _, _, content = await post(live, stream_format="sse", response_format="pcm")
    events = read_events(content)
    assert events[0][0] == "speech.audio.delta"
    kind, last = events[-1]
    assert kind == "speech.audio.error"
    assert (last["error"]["code"], last["error"]["type"]) == ("engine_error", "server_error")


@pytest.mark.parametrize(
    ("name", "rate"),
    [("wav", 8_000), ("pcm", 48_000), ("mp3", 22_050), ("opus", 16_000), ("aac", 44_100), ("flac", 11_025)],
)
async def test_the_rate_is_the_client_s(live: LiveServer, name: str, rate: int) -> None:
    _, headers, content = await post(live, response_format=name, sample_rate=rate, stream=False)
    if name == "pcm":
        length_s = len(content) / 2 / rate
    else:
        pcm, decoded_rate = decode(content, ENCODINGS[name])
        assert decoded_rate == (48_000 if name == "opus" else rate)
        length_s = pcm.size / decoded_rate
    assert length_s == pytest.approx(int(headers["x-voicewire-audio-ms"]) / 1_000, abs=0.2)


@pytest.mark.parametrize("speed", [0.25, 0.8, 1.5, 4.0])
async def test_speed_changes_the_length_and_not_the_pitch(live: LiveServer, speed: float) -> None:
    text = TEXT * 3
    plain = samples((await post(live, input=text, response_format="pcm"))[2], "pcm")
    changed = samples((await post(live, input=text, response_format="pcm", speed=speed))[2], "pcm")
    assert changed.size == pytest.approx(plain.size / speed, abs=2)
    assert loudest_hz(changed) == pytest.approx(loudest_hz(plain), abs=8)


def loudest_hz(pcm: np.ndarray) -> float:
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(pcm.size)))
    return float(np.fft.rfftfreq(pcm.size, 1 / 24_000)[spectrum.argmax()])


async def test_parameters_reach_the_engine(live: LiveServer) -> None:
    given = {
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.8,
        "repetition_penalty": 1.1,
        "repetition_window": 50,
        "do_sample": True,
        "min_new_tokens": 3,
        "seed": 7,
        "predictor_top_k": 5,
    }
    official = {"subtalker_dosample": False, "subtalker_temperature": 0.5, "subtalker_top_p": 0.9}
    await post(live, **given, **official, language="EN-us", max_new_tokens=41, non_streaming_mode=True,
               initial_codec_chunk_frames=2)  # fmt: skip
    request = live.engine.requests[-1]
    for name, value in given.items():
        assert getattr(request.sampling, name) == value
    assert (request.sampling.predictor_do_sample, request.sampling.predictor_temperature) == (False, 0.5)
    assert request.sampling.predictor_top_p == 0.9
    assert (request.language, request.max_frames, request.layout) == ("en", 40, "full")
    assert request.chunk_frames == (2, 4, 8)


@pytest.mark.parametrize(
    ("body", "code", "param", "words"),
    [
        ({"input": ""}, "invalid_request", "input", "empty"),
        ({"input": " \n"}, "invalid_request", "input", "empty"),
        ({"input": "a" * 4_097}, "request_too_long", "input", "4096"),
        ({"input": 5}, "invalid_event", "input", "str"),
        ({"response_format": "m4b"}, "unsupported_format", "response_format", "mp3"),
        ({"stream_format": "websocket"}, "unsupported_format", "stream_format", "sse"),
        ({"speed": 5}, "invalid_request", "speed", "is 5"),
        ({"instructions": "x" * 1_500}, "limit_exceeded", "instructions", "1000"),
        ({"sample_rate": 7_999}, "unsupported_format", "sample_rate", "8000, 11025"),
        ({"sample_rate": 22_050, "response_format": "opus"}, "unsupported_format", "sample_rate", "8000, 12000"),
        ({"bitrate": 400_000, "response_format": "mp3"}, "unsupported_format", "bitrate", "8000 and 160000"),
        ({"speed": 0.2}, "invalid_request", "speed", "0.25 to 4"),
        ({"speed": 4.01}, "invalid_request", "speed", "is 4.01"),
        ({"temperature": 2.5}, "invalid_request", "temperature", "0.0 to 2.0, is 2.5"),
        ({"top_k": -1}, "invalid_request", "top_k", "is -1"),
        ({"top_p": 0}, "invalid_request", "top_p", "is 0"),
        ({"repetition_penalty": 0.5}, "invalid_request", "repetition_penalty", "is 0.5"),
        ({"seed": -1}, "invalid_request", "seed", "is -1"),
        ({"subtalker_temperature": 3}, "invalid_request", "predictor_temperature", "is 3"),
        ({"max_new_tokens": 1}, "invalid_request", "max_new_tokens", "at least 2, is 1"),
        ({"max_frames": 0}, "invalid_request", "max_frames", "is 0"),
        ({"chunk_frames": [1, 3]}, "invalid_request", "chunk_frames", "holds 3"),
        ({"initial_codec_chunk_frames": 5}, "invalid_request", "initial_codec_chunk_frames", "1, 2, 4, 8, is 5"),
        ({"text_layout": "sideways"}, "invalid_request", "text_layout", "auto, streaming, full"),
        ({"markup": "html"}, "invalid_request", "markup", "one of none, ssml, is 'html'"),
        ({"lexicons": ["nope"]}, "unknown_lexicon", "lexicons", "'nope'"),
        ({"lexicons": ["nope"] * 5}, "invalid_request", "lexicons", "has 5 names, at most 4"),
        ({"speakers": {"Ann": "nobody"}}, "unknown_voice", "speakers", "'Ann' has no voice: voice 'nobody' is unknown"),
        ({"speakers": {"A: b": "ada"}}, "invalid_request", "speakers", "without colons"),
        ({"speakers": {"x" * 41: "ada"}}, "invalid_request", "speakers", "1 to 40 characters, has 41"),
        ({"speakers": {str(n): "ada" for n in range(17)}}, "invalid_request", "speakers", "17 labels, at most 16"),
        ({"speakers": ["ada"]}, "invalid_event", "speakers", "object"),
        ({"language": "klingon"}, "unknown_language", "language", "auto, en, de"),
        ({"task_type": "Singing"}, "invalid_request", "task_type", "CustomVoice, VoiceDesign or Base"),
        ({"task_type": "Base"}, "invalid_request", "task_type", "serves custom_voice"),
        ({"ref_text": "hello"}, "invalid_request", "ref_text", "without ref_audio"),
        ({"ref_audio": "data:,"}, "invalid_request", "ref_audio", "does not listen"),
        ({"speaker_embedding": [1.0]}, "invalid_request", "speaker_embedding", "does not clone"),
        ({"temperature": "hot"}, "invalid_event", "temperature", "float"),
        ({"stream": "yes"}, "invalid_event", "stream", "bool"),
    ],
)  # fmt: skip
async def test_every_field_has_its_range(live: LiveServer, body: dict, code: str, param: str, words: str) -> None:
    error = await refusal(live, **body)
    assert (error["code"], error["param"]) == (code, param)
    assert words in error["message"]
    assert live.engine.requests == []


@pytest.mark.parametrize("stream", [True, False, None])
async def test_markup_of_a_request_controls_its_speech(live: LiveServer, stream: bool | None) -> None:
    text = 'Hi.<mark name="m"/><break time="1s"/><voice name="ben">Ho</voice><nope>.</nope>'
    fields = {"input": text, "markup": "ssml", "voice": "ada", "response_format": "pcm", "stream": stream}
    assert (await post(live, **fields))[0] == 200
    assert [(request.voice, request.text) for request in live.engine.requests] == [("ada", "Hi."), ("ben", "Ho")]


@pytest.mark.parametrize("stream", [True, False, None])
async def test_speakers_of_a_request_speak_its_lines(live: LiveServer, stream: bool | None) -> None:
    fields = {"input": "Hm.\nAnn: Hi.\nBen: Ho.", "voice": "ben", "response_format": "pcm", "stream": stream}
    assert (await post(live, speakers={"Ann": "ada", "Ben": "ben"}, **fields))[0] == 200
    spoken = [(request.voice, request.text.strip()) for request in live.engine.requests]
    assert spoken == [("ben", "Hm."), ("ada", "Hi."), ("ben", "Ho.")]


@pytest.mark.parametrize("task", ["CustomVoice", "custom_voice", None])
async def test_a_task_that_fits_is_taken(live: LiveServer, task: str | None) -> None:
    nothing = dict.fromkeys(("voice", "language", "speed", "temperature", "stream", "ref_audio", "instructions"))
    assert (await post(live, task_type=task, speaker="ben", **nothing))[0] == 200
    assert live.engine.requests[-1].voice == "ben"


async def test_a_text_of_signs_alone_gives_an_empty_file(live: LiveServer) -> None:
    for name in MEDIA_TYPES:
        for body in ({}, {"stream": False}) if name == "flac" else ({}, {"stream": False}, {"stream": True}):
            status, _, content = await post(live, input="--- ***", response_format=name, **body)
            assert status == 200
            if name in ("wav", "flac", "opus") and not body.get("stream"):
                assert content


@pytest.mark.parametrize("stream", [True, False, None])
async def test_a_client_that_leaves_frees_its_slot(
    live: LiveServer, stream: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    live.engine.script = FakeScript(ms_per_char=60, first_chunk_s=0.01, real_time_factor=0.5)
    body = {"input": TEXT * 10, "stream": stream, "response_format": "mp3"}
    async with live.http() as http:
        request = http.build_request("POST", "/v1/audio/speech", json=body)
        if stream is False:
            task = asyncio.create_task(http.send(request))
            await until(lambda: live.speech.num_active_responses == 1)
            task.cancel()
            await asyncio.wait([task])
        else:
            answer = await http.send(request, stream=True)
            await anext(answer.aiter_raw())
            await answer.aclose()
    await until(lambda: live.speech.num_active_responses == 0)
    await until(lambda: not live.uvicorn.config.http_connections)  # type: ignore[attr-defined]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("num_threads", [0, 1, 3])
async def test_encoder_threads_follow_the_setting(num_threads: int) -> None:
    before = encoder_threads()
    async with live_server(limits__encoder_threads=num_threads) as live:
        async with live.http() as http:
            bodies = [{"input": TEXT, "response_format": "mp3", "speed": 1.2, "stream": False}] * 6
            answers = await asyncio.gather(*(http.post("/v1/audio/speech", json=body) for body in bodies))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        assert min(num_threads, 1) <= len(encoder_threads() - before) <= num_threads
        await live.freed()


def encoder_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("voicewire-encoder")}


class WaitsForMp3(FakeSpeechEngine):
    """An engine whose start takes as long as something else has to happen beside it."""

    def __init__(self, opened: list[str]) -> None:
        super().__init__(QUICK)
        self._opened = opened

    async def start(self) -> None:
        await until(lambda: "libmp3lame" in self._opened)
        await super().start()


@pytest.mark.parametrize("num_threads", [0, 1])
async def test_mp3_encoder_is_warmed_while_the_engine_starts(num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    open_codec = codecs._open_codec
    monkeypatch.setattr(codecs, "_open_codec", lambda stream: opened.append(stream.codec) or open_codec(stream))
    codecs.warm_up_codecs.cache_clear()
    async with live_server(WaitsForMp3(opened), limits__encoder_threads=num_threads) as live:
        assert opened == ["libmp3lame"]
        await live.freed()


async def test_encoder_threads_end_with_an_engine_that_does_not_start() -> None:
    before = encoder_threads()
    app = create_app(load_config(flags={"listen.port": 0}), Broken())
    with pytest.raises(CheckpointError):
        await app.state.server.start()
    await until(lambda: not encoder_threads() - before)


class Broken(FakeSpeechEngine):
    async def start(self) -> None:
        raise CheckpointError("no such folder")


async def test_mp3_begins_before_it_is_all_spoken() -> None:
    async with live_server() as live:
        live.engine.script = FakeScript(ms_per_char=60, first_chunk_s=0.01, real_time_factor=1.0)
        body = {"input": TEXT * 3, "response_format": "mp3"}
        async with live.http() as http, http.stream("POST", "/v1/audio/speech", json=body) as answer:
            await anext(answer.aiter_raw())
            assert live.speech.num_active_responses == 1


OFFICIAL = ("auto", "english", "chinese", "german")
SHORT = ("auto", "en", "de")


@pytest.mark.parametrize(
    ("given", "languages", "known"),
    [
        ("English", OFFICIAL, "english"),
        ("en", OFFICIAL, "english"),
        ("EN-us", OFFICIAL, "english"),
        (" zh-Hans-CN ", OFFICIAL, "chinese"),
        ("german", SHORT, "de"),
        ("de-AT", SHORT, "de"),
        ("Auto", SHORT, "auto"),
        ("auto", (), "auto"),
        ("fr", OFFICIAL, None),
        ("klingon", OFFICIAL, None),
        ("", OFFICIAL, None),
        ("-", OFFICIAL, None),
    ],
)
def test_a_language_by_any_name(given: str, languages: tuple[str, ...], known: str | None) -> None:
    assert known_language(given, languages) == known


def test_names_and_codes_are_each_other_s() -> None:
    assert {name: code for code, name in NAMES.items()} == CODES
    for code, name in NAMES.items():
        assert known_language(code, [name]) == name
        assert known_language(name, [code]) == code


PATH = "/v1/audio/speech/batch"


async def post_batch(live: LiveServer, **body: object) -> tuple[int, dict]:
    async with live.http() as http:
        answer = await http.post(PATH, json=body)
    return answer.status_code, answer.json()


async def test_items_take_the_batch_s_fields_as_defaults(live: LiveServer) -> None:
    items = [{"input": "One."}, {"input": "Two.", "voice": "ada", "response_format": "mp3"}, {"input": "Three."}]
    status, told = await post_batch(live, items=items, voice="ben", response_format="wav", stream=True)
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
    status, told = await post_batch(live, items=items)
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
    _, told = await post_batch(live, items=[{"input": "One."}, {"input": "Two."}, {"input": "Three."}])
    assert sorted(result["status"] for result in told["results"]) == ["error", "success", "success"]


@pytest.mark.parametrize("items", [None, [], "text", [{"input": "x"}] * 33])
async def test_the_number_of_items_has_a_limit(live: LiveServer, items: object) -> None:
    status, told = await post_batch(live, items=items)
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
    _, told = await post_batch(
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
        _, told = await post_batch(live, items=items, task_type="Base", ref_audio=reference, ref_text="Said.")
        is_audio = audio[:4] == b"RIFF"
        assert told["succeeded"] == (12 if is_audio else 0)
        assert len(live.engine.samples) == is_audio
        if not is_audio:
            assert {result["error"]["param"] for result in told["results"]} == {"ref_audio"}


async def test_what_a_batch_gives_has_a_limit_and_so_has_a_whole_file() -> None:
    """Of 30,000 bytes: each of the texts makes some 22,000."""
    async with live_server(limits__max_http_response_bytes=30_000) as live:
        item = {"input": "Twelve chars.", "response_format": "wav"}
        alone = await post_batch(live, items=[item])
        assert 15_000 < len(base64.b64decode(alone[1]["results"][0]["audio_data"])) < 30_000
        status, told = await post_batch(live, items=[item, item, item])
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
