"""Vendors' inline forms on their wires: read where the vendor reads them, text elsewhere."""

from __future__ import annotations

import json

import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from realtime.protocol.dialects.rime_v1 import JSON
from tests.realtime.dialects.vendor_clients import KEY
from tests.realtime.live_server import LiveServer

RIME_TEXT = "Wait. <200> A {k1@t} now."


def texts(live: LiveServer) -> list[str]:
    return [request.text.strip() for request in live.engine.requests]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["Wait. <200> A {k1@t}"]),
        ("pauseBetweenBrackets=true", ["Wait.", "A {k1@t}"]),
        ("phonemizeBetweenBrackets=true", ["Wait. <200> A katt"]),
        ("pauseBetweenBrackets=true&phonemizeBetweenBrackets=true", ["Wait.", "A katt"]),
    ],
)
async def test_rime_reads_forms_that_are_switched_on(live: LiveServer, query: str, expected: list[str]) -> None:
    address = f"{live.url}/ws3?audioFormat=pcm&{query}"
    async with connect(address, additional_headers={"X-API-Key": KEY}, proxy=None) as socket:
        await socket.send(json.dumps({"text": RIME_TEXT}))
        await socket.send(json.dumps({"operation": "eos"}))
        kinds = [json.loads(message)["type"] async for message in socket]
    assert kinds[-1] == "done"
    # The last word waits for what follows it.
    assert [text.removesuffix(" now.") for text in texts(live)] == expected


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({}, ["Wait. <200> A {k1@t}"]),
        ({"pauseBetweenBrackets": True, "phonemizeBetweenBrackets": False}, ["Wait.", "A {k1@t}"]),
        ({"phonemizeBetweenBrackets": True}, ["Wait. <200> A katt"]),
    ],
)
async def test_rime_v1_has_the_same_switches(live: LiveServer, switches: dict[str, bool], expected: list[str]) -> None:
    start = {"text": RIME_TEXT, "mistParameters": switches}
    headers = {"X-API-Key": KEY}
    async with connect(
        f"{live.url}/ws", additional_headers=headers, subprotocols=[Subprotocol(JSON)], proxy=None
    ) as socket:
        await socket.send(json.dumps({"contextId": "a", "start": start}))
        async for message in socket:
            if "done" in json.loads(message):
                break
    assert [text.removesuffix(" now.") for text in texts(live)] == expected


@pytest.mark.parametrize("path", ["/v1/speak", "/v2/speak"])
async def test_deepgram_reads_pauses_and_pronunciations(live: LiveServer, path: str) -> None:
    text = 'One. \\{pause:500ms\\} A \\{"word": "cat", "pronounce": "kæt"\\}.'
    async with live.http() as http:
        query = {"model": "aura-2-thalia-en", "encoding": "linear16", "container": "none"}
        answer = await http.post(path, params=query, json={"text": text}, headers={"X-API-Key": KEY})
    assert answer.status_code == 200
    assert texts(live) == ["One.", "A katt."]


async def test_inworld_reads_breaks(live: LiveServer) -> None:
    body = {"text": 'One. <break time="500ms" /> Two.', "voiceId": "zoe", "audioConfig": {"audioEncoding": "PCM"}}
    async with live.http() as http:
        answer = await http.post("/tts/v1/voice:stream", json=body, headers={"X-API-Key": KEY})
    assert answer.status_code == 200
    assert texts(live) == ["One.", "Two."]
