from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from realtime import auth
from realtime.auth import load_gatekeeper
from realtime.config import AuthSettings
from realtime.errors import Refused
from realtime.tokens import mint, read
from tests.realtime.live import live_server

KEY, OTHER = "a-key-of-enough-characters", "another-key-of-enough-characters"
SECRET = b"secret"


@given(st.text(max_size=40), st.integers(0, 2**40))
def test_a_token_is_read_as_it_was_minted_and_no_other_way(name: str, expires_s: int) -> None:
    text = mint(name, expires_s, SECRET)
    token = read(text)
    assert token is not None
    assert (token.key_name, token.expires_s, token.is_genuine(SECRET)) == (name, expires_s, True)
    assert not token.is_genuine(b"other secret")


@given(st.text(max_size=80) | st.from_regex(r"vwt1\.[\w-]{0,9}\.\d{0,9}\.[\w-]{0,9}", fullmatch=True))
def test_any_text_is_no_token_or_a_false_one(text: str) -> None:
    token = read(text)
    assert token is None or not token.is_genuine(SECRET)


@given(st.data())
def test_a_bent_token_is_false(data: st.DataObject) -> None:
    text = mint("agent", 2**31, SECRET)
    at = data.draw(st.integers(0, len(text) - 1))
    bent = text[:at] + data.draw(st.characters(exclude_characters=text[at])) + text[at + 1 :]
    token = read(bent)
    assert token is None or not token.is_genuine(SECRET)


def shows(key: str) -> HTTPConnection:
    headers = [(b"authorization", f"Bearer {key}".encode())]
    return HTTPConnection({"type": "http", "headers": headers, "query_string": b"", "client": ("10.0.0.1", 1)})


def test_a_token_speaks_for_its_key_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    gatekeeper = load_gatekeeper(AuthSettings(api_keys=f"agent:{KEY},other:{OTHER}"))
    monkeypatch.setattr(auth.time, "time", lambda: 1_000.0)
    token, expires_s = gatekeeper.mint(gatekeeper.admit(shows(KEY)), 60)
    caller = gatekeeper.admit(shows(token))
    assert (caller.name, caller.by_token, expires_s) == ("agent", True, 1_060)
    with pytest.raises(Refused, match="an API key is needed"):
        gatekeeper.admit_holder(shows(token))
    monkeypatch.setattr(auth.time, "time", lambda: 1_060.0)
    with pytest.raises(Refused, match="an API key is needed"):
        gatekeeper.admit(shows(token))


def test_a_token_of_one_process_is_good_in_another() -> None:
    here, there = (load_gatekeeper(AuthSettings(api_keys=f"agent:{KEY},other:{OTHER}")) for _ in range(2))
    token, _ = here.mint(here.admit(shows(KEY)), 60)
    assert there.admit(shows(token)).name == "agent"


def test_a_token_dies_with_its_key() -> None:
    gatekeeper = load_gatekeeper(AuthSettings(api_keys=f"agent:{KEY}"))
    token, _ = gatekeeper.mint(gatekeeper.admit(shows(KEY)), 60)
    with pytest.raises(Refused):
        load_gatekeeper(AuthSettings(api_keys=f"agent:{OTHER}")).admit(shows(token))


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/tokens", {"ttl_s": 5}, "token"),
        ("/v1/tokens", None, "token"),
        ("/v1/single-use-token/tts_websocket", None, "token"),
        ("/access-token", {"grants": {"tts": True}, "expires_in": 60}, "token"),
        ("/v1/auth/grant", {"ttl_seconds": 30}, "access_token"),
        ("/v1/realtime/client_secrets", {"session": {"type": "realtime"}}, "value"),
    ],
)
async def test_tokens_in_every_shape_open_sockets(path: str, body: dict[str, Any] | None, field: str) -> None:
    async with live_server(auth__api_keys=f"agent:{KEY}") as live, live.http() as http:
        answer = await http.post(path, json=body, headers={"X-API-Key": KEY})
        assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-store")
        token = answer.json()[field]
        for address, options in (
            (f"/tts/websocket?access_token={token}", {}),
            (f"/v1/text-to-speech/zoe/stream-input?single_use_token={token}", {}),
            ("/v1/speak", {"subprotocols": ["bearer", token]}),
        ):
            async with connect(live.url + address, compression=None, proxy=None, **options):  # type: ignore[arg-type]
                pass
        assert (await http.post(path, headers={"X-API-Key": token})).status_code == 401
        assert (await http.post(path)).status_code == 401
        with pytest.raises(InvalidStatus):
            await connect(f"{live.url}/tts/websocket?access_token={token}x", compression=None, proxy=None)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/tokens", {"ttl_s": 20}),
        ("/v1/realtime/client_secrets", {"expires_after": {"anchor": "created_at", "seconds": 20}}),
    ],
)
async def test_a_token_lives_as_long_as_was_asked(path: str, body: dict[str, Any]) -> None:
    async with live_server(auth__api_keys=f"agent:{KEY}") as live, live.http() as http:
        begun_s = int(time.time())
        told = (await http.post(path, json=body, headers={"X-API-Key": KEY})).json()
        assert begun_s + 20 <= told["expires_at"] <= time.time() + 20
        for odd in ({"expires_after": 5}, {"expires_after": {"seconds": None}}):
            assert (await http.post(path, json=odd, headers={"X-API-Key": KEY})).status_code == 200


async def test_a_token_speaks_and_does_nothing_else() -> None:
    async with live_server(auth__api_keys=f"agent:{KEY}") as live, live.http() as http:
        token = (await http.post("/v1/tokens", headers={"X-API-Key": KEY})).json()["token"]
        shown = {"X-API-Key": token}
        assert (await http.post("/v1/text-to-speech/zoe", json={"text": "Hello."}, headers=shown)).status_code == 200
        assert (await http.get("/v1/voices", headers=shown)).status_code == 200
        for method, path in (("POST", "/v1/audio/voices"), ("DELETE", "/v1/audio/voices/zoe"), ("GET", "/metrics")):
            assert (await http.request(method, path, headers=shown)).status_code == 401
            assert (await http.request(method, path, headers={"X-API-Key": KEY})).status_code != 401


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"ttl_s": 0}', b'{"ttl_s": true}', b'{"ttl_s": 9999999}'])
async def test_bad_wishes_for_tokens(content: bytes) -> None:
    async with live_server(auth__api_keys=f"agent:{KEY}") as live, live.http() as http:
        answer = await http.post("/v1/tokens", content=content, headers={"X-API-Key": KEY})
        assert answer.status_code == 400
