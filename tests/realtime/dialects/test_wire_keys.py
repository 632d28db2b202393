"""Keys on every vendor's wire: found where clients put them, refused in the vendor's shape."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.realtime.dialects.socket_client import (
    KEY,
    TEXT,
    dial,
    every,
    hear,
    hear_to_the_close,
    send,
)
from tests.realtime.dialects.vendor_clients import VendorClient
from tests.realtime.live_server import LiveServer


@every
@pytest.mark.parametrize("place", ["xi-api-key", "X-API-Key", "Bearer", "Token", "raw", "Basic", "query", "token, KEY"])
async def test_keys_in_every_place(live: LiveServer, client: VendorClient, place: str) -> None:
    for key, is_right in ((KEY, True), (KEY + "x", False)):
        options, query = shown(place, key, client)
        at = replace(client, path=client.path + query)
        handshake = dial(live, at, additional_headers=options.get("additional_headers", {}), **without(options))
        if is_right:
            await (await handshake).close()
            continue
        with pytest.raises(InvalidStatus) as refused:
            await handshake
        assert refused.value.response.status_code == 401


def without(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "additional_headers"}


def shown(place: str, key: str, client: VendorClient) -> tuple[dict[str, Any], str]:
    match place:
        case "query":
            return {}, f"&{client.key_in_query}={key}"
        case "token, KEY":
            return {"subprotocols": ["token", key]}, ""
        case "raw":
            return {"additional_headers": {"Authorization": key}}, ""
        case "Bearer" | "Token" | "Basic":
            return {"additional_headers": {"Authorization": f"{place} {key}"}}, ""
        case _:
            return {"additional_headers": {place: key}}, ""


@every
async def test_a_client_without_a_key(live: LiveServer, client: VendorClient) -> None:
    if client.key_first is None:
        with pytest.raises(InvalidStatus) as refused:
            await dial(live, client, additional_headers={})
        assert refused.value.response.status_code == 401
        return
    for key, heard in ((KEY, True), (KEY + "x", False)):
        async with dial(live, client, additional_headers={}) as socket:
            first, *rest = client.say("t1", TEXT) + client.end("t1")
            await send(socket, client, [*client.key_first(key, first), *rest])
            if heard:
                assert (await hear(socket, client, "t1"))[0]
            else:
                code, said = await hear_to_the_close(socket, client)
                assert (code, client.is_error(said[-1])) == (1008, True)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/text-to-speech/zoe/stream-input", {"detail": {"status": "invalid_api_key"}}),
        ("/tts/websocket", {"error_code": "unauthorized", "status_code": 401}),
        ("/v1/speak", {"err_code": "UNAUTHORIZED"}),
    ],
)
async def test_refusals_have_the_vendors_shape(live: LiveServer, path: str, said: dict[str, Any]) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(live.url + path, additional_headers={"xi-api-key": "wrong"}, compression=None, proxy=None)
    body = json.loads(refused.value.response.body or b"")
    for name, value in said.items():
        assert body[name] == value or body[name].items() >= value.items()
