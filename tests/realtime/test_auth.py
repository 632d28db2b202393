from __future__ import annotations

import hashlib
from base64 import b64encode
from pathlib import Path

import pytest
from starlette.requests import HTTPConnection

from realtime.auth import KEY_SUBPROTOCOL, LOCAL, Authenticator, Principal, load_authenticator
from realtime.config import AuthSettings, ConfigError
from realtime.errors import RequestRefused

KEY = "k" * 16
OTHER_KEY = "o" * 32
PROXY_HEADERS = """x-forwarded-proto x-forwarded-host x-forwarded-server x-forwarded x-real-ip via cf-connecting-ip
    cf-ray cf-visitor true-client-ip x-client-ip x-cluster-client-ip x-original-forwarded-for
    client-ip x-remote-ip x-remote-addr x-originating-ip x-original-url x-original-host
    fly-client-ip fly-forwarded-port fastly-client-ip fastly-ff cdn-loop x-envoy-external-address
    x-azure-clientip x-azure-socketip x-appengine-user-ip x-amzn-trace-id x-amz-cf-id
    cloudfront-viewer-address x-vercel-forwarded-for x-nf-client-connection-ip do-connecting-ip
    akamai-origin-hop tailscale-user-login x-proxyuser-ip x-rewrite-url x-scheme forwarded-for
    x-cdn-src-ip x-sucuri-clientip x-arr-log-id x-arr-ssl x-nginx-proxy
    x-cloud-trace-context x-varnish front-end-https x-sourceip""".split()


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
    return load_authenticator(AuthSettings(api_keys=f"agent:{KEY}, page:{OTHER_KEY}"))


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
        (request({"host": "evil.example"}), "forbidden_host"),
        (request({"host": "localhost.evil.example:8765"}), "forbidden_host"),
        (request({"host": "[::1"}), "forbidden_host"),
        (request({"host": ""}), "forbidden_host"),
        (request({"origin": "http://evil.example"}), "forbidden_origin"),
        (request({"origin": "http://localhost:9999"}), "forbidden_origin"),
        (request({"origin": "null"}), "forbidden_origin"),
    ],
)
def test_without_keys_nobody_else_is(shown: HTTPConnection, code: str) -> None:
    with pytest.raises(RequestRefused) as refusal:
        Authenticator(()).authenticate(shown)
    assert refusal.value.code == code


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
        f'[[keys]]\nname = "a"\nkey = "{KEY}"\n[[keys]]\nname = "a"\nkey = "{OTHER_KEY}"',
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
