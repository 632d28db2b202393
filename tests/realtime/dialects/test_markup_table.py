"""The table of elements, wires and models in docs/reference/ssml.md says what the code does."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize

from sessions.text.ssml.parser import _CONTAINERS, _EMPTY
from tests.fakes.engine import FAKE_INFO, FakeScript
from tests.realtime.dialects.vendor_clients import CLIENTS, KEY, RAW, dial, turn
from tests.realtime.live_server import LiveServer, live_server, speak
from tests.sessions.conftest import RecordingEngine
from tests.test_project import ROOT

Speak = Callable[[LiveServer, str], Awaitable[object]]
Row = dict[str, str]
NONE, TAG = "none", "tag"
# Forms of the table as they are in a text, each with a word behind it.
TAGS = {
    "break": '<break time="300ms"/>',
    "phoneme": '<phoneme ph="kæt">dog</phoneme>',
    "emotion": '<emotion value="sad"/>',
    "voice": '<voice name="ben">Ben</voice>',
    "lang": '<lang xml:lang="de">Tag</lang>',
    "say-as": '<say-as interpret-as="digits">12</say-as>',
    "sub": '<sub alias="alias">written</sub>',
    "spell": "<spell>ab</spell>",
    "p": "<p>paragraph</p>",
    "s": "<s>sentence</s>",
    "prosody": '<prosody rate="fast" pitch="high">quick</prosody>',
    "speed": '<speed ratio="1.1"/>',
    "volume": '<volume ratio="0.9"/>',
    "mark": '<mark name="m"/>',
    "speak": "<speak>spoken</speak>",
    "meta": "<meta/>",
    "desc": "<desc>hidden</desc>",
    "metadata": "<metadata>hidden</metadata>",
    "emphasis": "<emphasis>strong</emphasis>",
    "audio": '<audio src="x">clip</audio>',
    "lexicon": '<lexicon uri="x"/>',
}
INLINE = ["[pause]", "[cheerful]", "<500>", "{k1Ast0xm}", "\\{pause: 500ms\\}",
          '\\{"word": "tomato", "pronounce": "təˈmeɪtoʊ"\\}']  # fmt: skip
FORMS = [*TAGS.values(), *INLINE]
PAUSES = (TAGS["break"], "[pause]", "<500>", "\\{pause: 500ms\\}")
PHONEMES = {TAGS["phoneme"]: "katt", "{k1Ast0xm}": "cuh-stum", INLINE[-1]: "tuh-may-toh"}
TONES = {TAGS["emotion"]: "sad", "[cheerful]": "cheerful"}


def read_table() -> list[Row]:
    """Return the cells of each row by their column."""
    page = (ROOT / "docs/reference/ssml.md").read_text(encoding="utf-8")
    lines = page[page.index("\n| element | native") :].strip().split("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(len(row) == len(head) for row in rows)
    return [dict(zip(head, row, strict=True)) for row in rows]


TABLE = read_table()


def elements_of(row: Row) -> list[str]:
    """Return the elements of a row; attributes follow *with* and *or*."""
    names = re.sub(r"(?:with|or) `\w+`", "", row["element"])
    return re.findall(r"`([a-z-]+)`", names)


def forms_of(column: str) -> set[str]:
    """Return what the wire of a column reads."""
    forms: set[str] = set()
    for row in TABLE:
        cell = row[column]
        if cell.startswith(TAG):
            forms |= {TAGS[name] for name in elements_of(row)}
        forms |= {form for form in re.findall(r"`([^`]+)`", cell) if form in INLINE}
        assert cell.startswith((TAG, NONE, "dictionaries", "`lexicons`", "`speakers`")) or forms, cell
    return forms


def vendor(name: str, query: str = "", **fields: Any) -> Speak:
    """``fields`` are added to the first message of a turn."""
    client = CLIENTS[name]
    say = client.say

    def say_with_fields(turn: str, text: str) -> list[dict[str, Any]]:
        first, *others = say(turn, text)
        added = {key: first.get(key, {}) | value if isinstance(value, dict) else value for key, value in fields.items()}
        return [first | added, *others]

    client = replace(client, path=client.path + query, say=say_with_fields)

    async def speak_there(live: LiveServer, text: str) -> None:
        async with dial(live, client) as socket:
            await turn(socket, client, "t1", text)

    return speak_there


def posted(path: str, field: str, **body: Any) -> Speak:
    async def speak_there(live: LiveServer, text: str) -> None:
        async with live.http() as http:
            answer = await http.post(path, json={field: text, **body}, headers={"X-API-Key": KEY})
        assert answer.status_code == 200, answer.text

    return speak_there


def native(**settings: Any) -> Speak:
    async def speak_there(live: LiveServer, text: str) -> None:
        async with live.session(KEY) as client:
            await speak(client, text, **settings)

    return speak_there


async def wyoming(live: LiveServer, text: str) -> None:
    async with AsyncTcpClient("127.0.0.1", live.uvicorn.config.app.state.wyoming.port) as peer:
        await peer.write_event(Synthesize(text).event())
        while (event := await peer.read_event()) is not None and event.type != "audio-stop":
            pass


ELEVENLABS = "/v1/text-to-speech/zoe?output_format=pcm_24000"
INWORLD = {"voiceId": "zoe", "audioConfig": {"audioEncoding": "PCM"}}
SSML = "&enable_ssml_parsing=true"
BRACKETS = "&pauseBetweenBrackets=true&phonemizeBetweenBrackets=true"
MIST = {"pause_between_brackets": True, "phonemize_between_brackets": True}
WIRES: dict[str, list[Speak]] = {
    "native, speech API, vLLM-Omni": [
        native(markup="ssml"),
        posted("/v1/audio/speech", "input", voice="ada", response_format="pcm", markup="ssml"),
        vendor("vllm-omni", markup="ssml"),
    ],
    "ElevenLabs with `enable_ssml_parsing`": [
        vendor("elevenlabs multi", SSML),
        vendor("elevenlabs single", SSML),
    ],
    "ElevenLabs from v3 on": [
        vendor("elevenlabs multi", "&model_id=eleven_v3"),
        vendor("elevenlabs dialogue"),
        vendor("elevenlabs single dialogue"),
        posted(ELEVENLABS, "text", model_id="eleven_v3"),
    ],
    "Cartesia": [
        vendor("cartesia"),
        posted("/tts/bytes", "transcript", output_format=RAW, voice={"mode": "id", "id": "zoe"}),
    ],
    "Inworld": [vendor("inworld"), posted("/tts/v1/voice:stream", "text", **INWORLD)],
    "Rime": [
        vendor("rime ws3", BRACKETS),
        vendor("rime v1", start={"mist_parameters": MIST}),
        vendor("rime v1 json", start={"mistParameters": MIST}),
    ],
    "Deepgram": [
        vendor("deepgram"),
        vendor("deepgram flux"),
        posted("/v1/speak?encoding=linear16&container=none", "text"),
    ],
}
PLAIN_WIRES = [
    native(),
    posted("/v1/audio/speech", "input", voice="ada", response_format="pcm"),
    posted(ELEVENLABS, "text"),
    vendor("elevenlabs multi"),
    vendor("rime ws3"),
    *map(vendor, ("openai realtime", "vllm-omni", "rime v1", "rime v1 json", "kyutai")),
    wyoming,
]


def test_rows_are_the_elements_of_the_parser():
    named = [name for row in TABLE for name in elements_of(row)]
    assert set(named) == _CONTAINERS | _EMPTY == set(TAGS)
    # The two rows of ``prosody``.
    assert sorted(named) == sorted([*TAGS, "prosody"])


def test_columns_are_the_wires_and_models():
    assert list(TABLE[0]) == ["element", *WIRES, "embedded voice", "Qwen3-TTS", "CosyVoice3"]
    assert all(cell for row in TABLE for cell in row.values())


# Shorter than the lead of the wires, so that nothing waits for its playout.
SHORT = FakeScript(ms_per_char=2.0, first_chunk_s=0.001, real_time_factor=0.02)


@asynccontextmanager
async def recording_server(**info: object) -> AsyncIterator[tuple[LiveServer, RecordingEngine]]:
    engine = RecordingEngine(SHORT, info=msgspec.structs.replace(FAKE_INFO, **info))
    settings = {"wyoming__address": "127.0.0.1:0", "wyoming__default_key_name": "agent"}
    async with live_server(engine, auth__api_keys=f"agent:{KEY}", **settings) as live:
        yield live, engine


def document() -> str:
    return " ".join(f"w{number} {form}" for number, form in enumerate(FORMS)) + " end."


def without_spaces(text: str) -> str:
    return "".join(text.split())


async def check(speak_there: Speak, live: LiveServer, engine: RecordingEngine, expected: set[str]) -> None:
    engine.ever.clear()
    await speak_there(live, document())
    # Segments end at white space.
    spoken = without_spaces("".join(engine.texts))
    for number, form in enumerate(FORMS):
        assert (without_spaces(form) not in spoken) is (form in expected), form
        if form in PAUSES and form in expected:
            assert not any(f"w{number} " in text and f"w{number + 1}" in text for text in engine.texts), form
    requests = [stream._request for stream in engine.ever]
    tones = {form for form, tone in TONES.items() if any(tone in request.instruct for request in requests)}
    assert tones == expected & TONES.keys()
    assert {form for form, letters in PHONEMES.items() if letters in spoken} == expected & PHONEMES.keys()
    assert any(request.voice == "ben" for request in requests) is (TAGS["voice"] in expected)


@pytest.mark.parametrize("column", WIRES)
async def test_wire_reads_what_its_column_lists_and_nothing_else(column: str):
    async with recording_server() as (live, engine):
        for speak_there in WIRES[column]:
            await check(speak_there, live, engine, forms_of(column))


async def test_other_wires_speak_all_forms_as_text():
    async with recording_server() as (live, engine):
        for speak_there in PLAIN_WIRES:
            await check(speak_there, live, engine, set())


MODELS: dict[str, dict[str, Any]] = {
    "embedded voice": {"takes_instruct": False},
    "Qwen3-TTS": {},
    "CosyVoice3": {"reads_phonemes": True, "instructions": ("sad",)},
}
EFFECTS = {"letters": "katt", "phonemes as given": "[K][AE1][T]"}


@pytest.mark.parametrize("column", MODELS)
async def test_model_gets_what_its_column_says(column: str):
    cells = {name: row[column] for row in TABLE for name in elements_of(row)}
    effect = next(effect for begin, effect in EFFECTS.items() if cells["phoneme"].startswith(begin))
    async with recording_server(**MODELS[column]) as (live, engine):
        await native(markup="ssml")(live, TAGS["phoneme"] + TAGS["emotion"] + "end")
    assert effect in "".join(engine.texts)
    is_instruction = any("sad" in stream._request.instruct for stream in engine.ever)
    assert is_instruction is cells["emotion"].startswith("an instruction")
