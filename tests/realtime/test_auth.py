"""Keys and tokens: where they are shown, what they open, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection
from starlette.routing import WebSocketRoute
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from realtime import auth
from realtime.api_keys import load_authenticator
from realtime.auth import KEY_SUBPROTOCOL, LOCAL, Authenticator, Principal
from realtime.browser_tokens import TokenScope, issue, load_token_secret, parse
from realtime.config import ConfigError
from realtime.config_sections import AuthSettings
from realtime.errors import RequestRefused
from realtime.protocol import mqtt311 as mqtt
from realtime.protocol.dialects.registry import DIALECT_ROUTES
from tests.realtime.live_server import live_server

KEY, OTHER = "a-key-of-enough-characters", "another-key-of-enough-characters"
PROXY_HEADERS = """x-forwarded-proto x-forwarded-host x-forwarded-server x-forwarded x-real-ip via cf-connecting-ip
    cf-ray cf-visitor true-client-ip x-client-ip x-cluster-client-ip x-original-forwarded-for
    client-ip x-remote-ip x-remote-addr x-originating-ip x-original-url x-original-host
    fly-client-ip fly-forwarded-port fastly-client-ip fastly-ff cdn-loop x-envoy-external-address
    x-azure-clientip x-azure-socketip x-appengine-user-ip x-amzn-trace-id x-amz-cf-id
    cloudfront-viewer-address x-vercel-forwarded-for x-nf-client-connection-ip do-connecting-ip
    akamai-origin-hop tailscale-user-login x-proxyuser-ip x-rewrite-url x-scheme forwarded-for
    x-cdn-src-ip x-sucuri-clientip x-arr-log-id x-arr-ssl x-nginx-proxy
    x-cloud-trace-context x-varnish front-end-https x-sourceip""".split()

MANY_HEADERS = {f"x-description-{number}": "1" for number in range(auth.MAX_REMEMBERED_CHARS)}


def request(
    headers: dict[str, str] | None = None,
    *,
    query: str = "",
    client: str | None = "127.0.0.1",
    offered: tuple[str, ...] = (),
) -> HTTPConnection:
    sent = {"host": "localhost:8765"} | (headers or {})
    return HTTPConnection(
        {
            "type": "websocket",
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "query_string": query.encode(),
            "client": None if client is None else (client, 1),
            "subprotocols": list(offered),
        }
    )


@pytest.fixture
def gatekeeper() -> Authenticator:
    return load_authenticator(AuthSettings(api_keys=f"agent:{KEY}, page:{OTHER}"))


@pytest.mark.parametrize(
    "shown",
    [
        request({"authorization": f"Bearer {KEY}"}),
        request({"authorization": f"bearer  {KEY}"}),
        request({"x-api-key": KEY}),
        request(query=f"api_key={KEY}"),
        request(offered=("voicewire.v1", KEY_SUBPROTOCOL + KEY)),
        request({"authorization": f"Token {KEY}"}),
        request({"authorization": KEY}),
        request({"authorization": f"Basic {KEY}"}),
        request({"authorization": f"Basic {b64encode(f'{KEY}:'.encode()).decode()}"}),
        request({"authorization": f"Basic {b64encode(f'api:{KEY}'.encode()).decode()}"}),
        request({"xi-api-key": KEY}),
        request({"kyutai-api-key": KEY}),
        request({"authorization": "Bearer another", "x-api-key": KEY}),
        request(query=f"authorization=Bearer%20{KEY}"),
        request(query=f"access_token={KEY}"),
        request(query=f"single_use_token={KEY}"),
        request(query=f"auth_id={KEY}"),
        request(query=f"token={KEY}"),
        request(offered=("token", KEY)),
        request(offered=("bearer", KEY)),
        request(offered=("realtime", f"openai-insecure-api-key.{KEY}")),
        request({"x-api-key": KEY, "host": "tts.example", "origin": "https://app.example"}, client="10.0.0.9"),
    ],
)
def test_a_key_is_found_wherever_it_may_be_shown(gatekeeper: Authenticator, shown: HTTPConnection) -> None:
    assert gatekeeper.authenticate(shown) == Principal("agent")


@pytest.mark.parametrize(
    "shown",
    [
        request(),
        request({"x-api-key": ""}),
        request({"x-api-key": KEY[:-1]}),
        request({"x-api-key": KEY + "k"}),
        request({"authorization": f"Digest {KEY}"}),
        request({"x-api-key": "agent"}),
        request({"authorization": "Basic !!!"}),
        request({"authorization": "Basic"}),
        request(offered=("token",)),
        request(offered=(KEY, "token")),
        request(query="&".join(f"api_key=wrong{n}" for n in range(50)) + f"&token=x&api_key={KEY}x"),
    ],
)
def test_a_wrong_key_is_refused_even_from_here(gatekeeper: Authenticator, shown: HTTPConnection) -> None:
    with pytest.raises(RequestRefused) as refusal:
        gatekeeper.authenticate(shown)
    assert refusal.value.code == "unauthorized"


@pytest.mark.parametrize(
    "shown",
    [
        request(),
        request({"host": "127.0.0.1"}),
        request({"host": "[::1]:8765"}, client="::1"),
        request(client="::ffff:127.0.0.1"),
        request({"origin": "http://localhost:8765"}),
        request({"origin": "https://LOCALHOST:8765"}),
        request(MANY_HEADERS),
        request({"x-request-id": "1", "x-api-key": KEY, "traceparent": "00-1-1-00", "x-description": "1", "ip": "1"}),
    ],
)
def test_without_keys_this_machine_is_let_in(shown: HTTPConnection) -> None:
    assert Authenticator(()).authenticate(shown) == LOCAL


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        (request(client="10.0.0.9"), "not_loopback"),
        (request(client=None), "not_loopback"),
        (request({"x-forwarded-for": "127.0.0.1"}), "not_loopback"),
        (request({"forwarded": "for=127.0.0.1"}), "not_loopback"),
        *((request({name: "1"}), "not_loopback") for name in PROXY_HEADERS),
        (request(MANY_HEADERS | {"via": "1"}), "not_loopback"),
        (request({"host": "evil.example"}), "forbidden_host"),
        (request({"host": "localhost.evil.example:8765"}), "forbidden_host"),
        (request({"host": "[::1"}), "forbidden_host"),
        (request({"host": ""}), "forbidden_host"),
        (request({"origin": "http://evil.example"}), "forbidden_origin"),
        (request({"origin": "http://localhost:9999"}), "forbidden_origin"),
        (request({"origin": "null"}), "forbidden_origin"),
    ],
)
def test_without_keys_all_callers_are_one(shown: HTTPConnection, code: str) -> None:
    with pytest.raises(RequestRefused) as refusal:
        Authenticator(()).authenticate(shown)
    assert refusal.value.code == code


def test_only_short_texts_are_remembered() -> None:
    found: list[str] = []
    find = auth.remember_short(found.append)
    short, long = "x" * auth.MAX_REMEMBERED_CHARS, "x" * (auth.MAX_REMEMBERED_CHARS + 1)
    for text in (short, short, long, long):
        find(text)
    assert found == [short, long, long]


def test_a_keys_file_holds_limits_and_sums(tmp_path: Path) -> None:
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    file = tmp_path / "keys.toml"
    file.write_text(f'[[keys]]\nname = "agent"\nsha256 = "{digest}"\nmax_connections = 2\nmax_active_responses = 3\n')
    gatekeeper = load_authenticator(AuthSettings(keys_file=str(file)))
    assert gatekeeper.authenticate(request({"x-api-key": KEY})) == Principal("agent", 2, 3)


@pytest.mark.parametrize(
    "content",
    [
        "[[keys]]",
        '[[keys]]\nname = "a"',
        f'[[keys]]\nname = "a"\nkey = "{KEY}"\nsha256 = "00"',
        '[[keys]]\nname = "a"\nkey = "secret"',
        '[[keys]]\nname = "a"\nsha256 = "secret"',
        f'[[keys]]\nname = "a"\nkey = "{KEY}"\nlimit = 4',
        f'[[keys]]\nname = "a"\nkey = "{KEY}"\n[[keys]]\nname = "a"\nkey = "{OTHER}"',
        "keys = 5",
        "keys = []",
        f'[[keys]]\nname = ""\nkey = "{KEY}"',
        f'[[keys]]\nname = "a"\nkey = "{KEY}"\nmax_connections = -1',
        f'[[keys]]\nname = "a"\nkey = "{KEY}"\nmax_active_responses = -1',
        "[[",
    ],
)
def test_unusable_keys_file_is_rejected_without_leaking_keys(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(content)
    with pytest.raises(ConfigError) as error:
        load_authenticator(AuthSettings(keys_file=str(file)))
    assert "secret" not in str(error.value)
    assert KEY not in str(error.value)


def test_one_key_under_two_names_is_refused() -> None:
    with pytest.raises(ConfigError, match="two names have the same API key"):
        load_authenticator(AuthSettings(api_keys=f"agent:{KEY},page:{KEY}"))


@pytest.mark.parametrize(
    "text", ["", " ", "key-without-name-is-long", "a:short", ":" + KEY, f"a:{KEY},", f"a:ü{KEY}", f"a:{KEY} b"]
)
def test_keys_in_the_environment_are_checked(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_authenticator(AuthSettings(api_keys=text))
    assert KEY not in str(error.value)


def test_a_missing_keys_file_is_named() -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        load_authenticator(AuthSettings(keys_file="nowhere.toml"))


SECRET = b"secret"


@given(st.text(max_size=40), st.integers(0, 2**40))
def test_a_token_is_read_as_it_was_minted_and_no_other_way(name: str, expires_s: int) -> None:
    text = issue(name, expires_s, SECRET)
    token = parse(text)
    assert token is not None
    assert (token.key_name, token.expires_s, token.is_genuine(SECRET)) == (name, expires_s, True)
    assert token.scopes == {TokenScope.SPEECH}
    assert not token.is_genuine(b"other secret")


@given(st.text(max_size=80) | st.from_regex(r"vwt2\.[\w-]{0,9}\.\d{0,9}\.(speech|calls)\.[\w-]{0,9}", fullmatch=True))
def test_any_text_is_no_token_or_a_false_one(text: str) -> None:
    token = parse(text)
    assert token is None or not token.is_genuine(SECRET)


@given(st.data())
def test_a_bent_token_is_false(data: st.DataObject) -> None:
    text = issue("agent", 2**31, SECRET)
    at = data.draw(st.integers(0, len(text) - 1))
    bent = text[:at] + data.draw(st.characters(exclude_characters=text[at])) + text[at + 1 :]
    token = parse(bent)
    assert token is None or not token.is_genuine(SECRET)


def shows(key: str) -> HTTPConnection:
    headers = [(b"authorization", f"Bearer {key}".encode())]
    return HTTPConnection({"type": "http", "headers": headers, "query_string": b"", "client": ("10.0.0.1", 1)})


def test_a_token_speaks_for_its_key_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    gatekeeper = load_authenticator(AuthSettings(api_keys=f"agent:{KEY},other:{OTHER}"))
    monkeypatch.setattr(auth.time, "time", lambda: 1_000.0)
    token, expires_s = gatekeeper.issue_token(gatekeeper.authenticate(shows(KEY)), 60)
    caller = gatekeeper.authenticate(shows(token))
    assert (caller.name, caller.by_token, expires_s) == ("agent", True, 1_060)
    with pytest.raises(RequestRefused, match="an API key is needed here"):
        gatekeeper.require_api_key(shows(token))
    late = load_authenticator(AuthSettings(api_keys=f"agent:{KEY},other:{OTHER}", max_token_ttl_s=59))
    with pytest.raises(RequestRefused, match="an API key is needed"):
        late.authenticate(shows(token))
    monkeypatch.setattr(auth.time, "time", lambda: 1_060.0)
    with pytest.raises(RequestRefused, match="an API key is needed"):
        gatekeeper.authenticate(shows(token))


def test_a_token_of_one_process_is_good_in_another() -> None:
    here, there = (load_authenticator(AuthSettings(api_keys=f"agent:{KEY},other:{OTHER}")) for _ in range(2))
    token, _ = here.issue_token(here.authenticate(shows(KEY)), 60)
    assert there.authenticate(shows(token)).name == "agent"


def test_a_token_dies_with_its_key() -> None:
    gatekeeper = load_authenticator(AuthSettings(api_keys=f"agent:{KEY}"))
    token, _ = gatekeeper.issue_token(gatekeeper.authenticate(shows(KEY)), 60)
    with pytest.raises(RequestRefused):
        load_authenticator(AuthSettings(api_keys=f"agent:{OTHER}")).authenticate(shows(token))


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
        assert (await http.post(path, headers={"X-API-Key": token})).status_code == 403
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
            assert (await http.request(method, path, headers=shown)).status_code == 403
            assert (await http.request(method, path, headers={"X-API-Key": KEY})).status_code not in (401, 403)


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"{",
        b'{"ttl_s": 0}',
        b'{"ttl_s": true}',
        b'{"ttl_s": 9999999}',
        b'{"scopes": []}',
        b'{"scopes": "calls"}',
        b'{"scopes": ["agents"]}',
        b'{"scopes": [{}]}',
    ],
)
async def test_invalid_token_request_is_refused(content: bytes) -> None:
    async with live_server(auth__api_keys=f"agent:{KEY}") as live, live.http() as http:
        answer = await http.post("/v1/tokens", content=content, headers={"X-API-Key": KEY})
        assert answer.status_code == 400


def signed_with_stored_sum(version: str, *claims: str) -> str:
    """The best token that a reader of the keys file can make, which holds the key's SHA-256 sum."""
    name = base64.urlsafe_b64encode(b"agent").rstrip(b"=").decode()
    signed = ".".join((version, name, str(int(time.time()) + 60), *claims))
    signature = hmac.digest(hashlib.sha256(KEY.encode()).digest(), signed.encode(), hashlib.sha256)
    return f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


@pytest.mark.parametrize("claims", [("vwt1",), ("vwt2", "speech")])
async def test_keys_file_alone_makes_no_token(tmp_path: Path, claims: tuple[str, ...]) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[keys]]\nname = "agent"\nsha256 = "{hashlib.sha256(KEY.encode()).hexdigest()}"')
    async with live_server(auth__keys_file=str(keys)) as live, live.http() as http:
        forged = signed_with_stored_sum(*claims)
        assert (await http.get("/v1/voices", headers={"X-API-Key": KEY})).status_code == 200
        assert (await http.get("/v1/voices", headers={"X-API-Key": forged})).status_code == 401


LINES = ("/v1/calls/telnyx", "/v1/calls/plivo", "/v1/calls/vonage", "/v1/calls/asterisk", "/xiaozhi/v1/")


async def test_speech_token_opens_no_call_and_calls_token_only_calls() -> None:
    async with live_server(auth__api_keys=f"agent:{KEY}") as live, live.http() as http:
        speech = (await http.post("/v1/tokens", headers={"X-API-Key": KEY})).json()["token"]
        body = {"scopes": ["calls"]}
        calls = (await http.post("/v1/tokens", json=body, headers={"X-API-Key": KEY})).json()["token"]
        for path in LINES:
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"{live.url}{path}?token={speech}", compression=None, proxy=None)
            assert refused.value.response.status_code == 403
            assert b"insufficient_scope" in (refused.value.response.body or b"")
            async with connect(f"{live.url}{path}?token={calls}", compression=None, proxy=None):
                pass
        for path in ("/v1/speech", "/tts/websocket", "/v1/realtime", "/v1/calls"):
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"{live.url}{path}?token={calls}", compression=None, proxy=None)
            assert refused.value.response.status_code == 403


async def test_lines_for_devices_by_mqtt_need_the_calls_scope() -> None:
    flags = {"xiaozhi__mqtt": "127.0.0.1:0", "xiaozhi__udp": "127.0.0.1:0"}
    async with live_server(auth__api_keys=f"agent:{KEY}", **flags) as live, live.http() as http:
        for scope, code in (("speech", mqtt.WRONG_KEY), ("calls", mqtt.ACCEPTED)):
            answer = await http.post("/v1/tokens", json={"scopes": [scope]}, headers={"X-API-Key": KEY})
            reader, writer = await asyncio.open_connection("127.0.0.1", live.uvicorn.config.app.state.device_ports.port)
            writer.write(connect_packet(answer.json()["token"]))
            assert (await reader.readexactly(4))[3] == code
            writer.close()
            await writer.wait_closed()


def connect_packet(password: str) -> bytes:
    """CONNECT of MQTT 3.1.1 with a client id, a user name and a password."""
    fields = b"".join(len(text).to_bytes(2, "big") + text for text in (b"device", b"user", password.encode()))
    body = b"\x00\x04MQTT\x04\xc2\x00\x3c" + fields
    return b"\x10" + bytes([len(body) % 128 | 128, len(body) // 128]) + body  # the length in two bytes


@pytest.fixture
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def test_secret_is_created_once_for_this_user_alone(data_home: Path) -> None:
    with ThreadPoolExecutor(8, thread_name_prefix="voicewire test") as threads:
        found = set(threads.map(lambda _: load_token_secret(None), range(32)))
    [file] = (data_home / "voicewire").iterdir()
    assert found == {file.read_bytes().strip()}
    assert (file.stat().st_mode & 0o777, len(file.read_bytes())) == (0o600, 65)


def test_deleted_secret_ends_all_tokens(data_home: Path) -> None:
    here = load_authenticator(AuthSettings(api_keys=f"agent:{KEY}"))
    token, _ = here.issue_token(here.authenticate(shows(KEY)), 60)
    assert load_authenticator(AuthSettings(api_keys=f"agent:{KEY}")).authenticate(shows(token)).name == "agent"
    (data_home / "voicewire" / "token-secret").unlink()
    with pytest.raises(RequestRefused):
        load_authenticator(AuthSettings(api_keys=f"agent:{KEY}")).authenticate(shows(token))


def test_configured_secret_signs_and_no_file_is_made(data_home: Path) -> None:
    first, second = (AuthSettings(api_keys=f"agent:{KEY}", token_secret=letter * 32) for letter in "ab")
    token, _ = load_authenticator(first).issue_token(Principal("agent"), 60)
    assert load_authenticator(first).authenticate(shows(token)).name == "agent"
    with pytest.raises(RequestRefused):
        load_authenticator(second).authenticate(shows(token))
    assert not list(data_home.iterdir())


def test_server_without_keys_makes_no_secret(data_home: Path) -> None:
    load_authenticator(AuthSettings())
    assert not list(data_home.iterdir())


@pytest.mark.parametrize(("mode", "content"), [(0o640, "a" * 64), (0o604, "a" * 64), (0o600, "short"), (0o600, "")])
def test_unsafe_secret_file_is_refused_by_name(data_home: Path, mode: int, content: str) -> None:
    (file := data_home / "voicewire" / "token-secret").parent.mkdir()
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(ConfigError, match="token-secret") as error:
        load_authenticator(AuthSettings(api_keys=f"agent:{KEY}"))
    assert "aaa" not in str(error.value)


def test_short_secret_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError, match=r"auth\.token_secret has 9 characters, at least 32") as error:
        load_authenticator(AuthSettings(api_keys=f"agent:{KEY}", token_secret="not-shown"))
    assert "not-shown" not in str(error.value)


def test_data_folder_that_cannot_be_written_names_the_setting(data_home: Path) -> None:
    (data_home / "voicewire").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match=r"auth\.token_secret"):
        load_authenticator(AuthSettings(api_keys=f"agent:{KEY}"))


FOR_SPEECH = {f"{'WS' if wire.transport == 'socket' else 'POST'} {wire.path}" for wire in DIALECT_ROUTES} | {
    *("WS /v1/speech", "POST /v1/audio/speech", "POST /v1/audio/speech/batch"),
    *("GET /v1/models", "GET /v1/voices", "GET /v2/voices", "GET /voices"),
    *("GET /v1/audio/voices", "GET /v1/audio/voices/{name}"),
}
FOR_CALLS = {f"WS {path}" for path in ("/v1/calls/twilio", *LINES, "/xiaozhi/v1")}
FOR_ANYONE = {"GET /healthz", "GET /readyz"}


async def test_tokens_open_only_what_is_listed() -> None:
    """A new address is for holders of a key unless it is added to a list here."""
    async with live_server(auth__api_keys=f"agent:{KEY}") as live, live.http() as http:
        routes = [route for route in live.uvicorn.config.app.routes if not route.path.endswith("{path:path}")]
        for scope, listed in (("speech", FOR_SPEECH), ("calls", FOR_CALLS)):
            answer = await http.post("/v1/tokens", json={"scopes": [scope]}, headers={"X-API-Key": KEY})
            shown, opened = {"X-API-Key": answer.json()["token"]}, set()
            for route in routes:
                path = re.sub(r"{.+?}", "x", route.path)
                if isinstance(route, WebSocketRoute) and await handshake_status(live.url + path, shown) != 403:
                    opened.add(f"WS {route.path}")
                for method in set(getattr(route, "methods", None) or ()) - {"HEAD"}:
                    if (await http.request(method, path, headers=shown)).status_code != 403:
                        opened.add(f"{method} {route.path}")
            assert opened == listed | FOR_ANYONE


async def handshake_status(url: str, headers: dict[str, str]) -> int:
    try:
        async with connect(url, additional_headers=headers, compression=None, proxy=None):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code
