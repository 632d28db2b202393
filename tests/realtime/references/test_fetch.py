"""Nothing that a client writes makes us ask a host that the client could not ask itself."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from pathlib import Path

import pytest

from engine.api import InvalidRequest
from realtime.h11_limits import ChunkLimitedConnection
from realtime.references import Fetcher, FetchRules, parse_url
from tests.realtime.certificates import self_signed
from tests.realtime.references.fake_network import LOOPBACK, PUBLIC, FakeResolver, NoConnection, answer, web_server

HOSTILE = """
http://2130706433/ http://3232235777/ http://0x7f000001/ http://0x7F.0.0.1/ http://0x7f.1/ http://0177.0.0.1/
http://017700000001/ http://127.1/ http://127.0.1/ http://127.0.0.1/ http://127.0.0.1./ http://127.255.255.254/
http://0/ http://0.0.0.0/ http://10.0.0.1/ http://10.1/ http://172.16.0.1/ http://172.31.255.255/ http://192.168.1.1/
http://169.254.169.254/latest/meta-data/ http://169.254.1.1/ http://100.64.0.1/ http://192.0.0.8/ http://198.18.0.1/
http://192.0.2.1/ http://198.51.100.1/ http://203.0.113.1/ http://224.0.0.1/ http://240.0.0.1/ http://255.255.255.255/
http://256.256.256.256/ http://1.2.3.4.5/ http://127.0.0.1:8080/ http://00127.0.0.1/ http://134744072/ http://8.8.2056/
http://[::]/ http://[::1]/ http://[0:0:0:0:0:0:0:1]/ http://[::127.0.0.1]/ http://[::ffff:127.0.0.1]/
http://[::ffff:7f00:1]/ http://[::ffff:10.0.0.1]/ http://[::ffff:0:127.0.0.1]/ http://[64:ff9b::127.0.0.1]/
http://[64:ff9b::7f00:1]/ http://[64:ff9b:1::a00:1]/ http://[2002:7f00:1::]/ http://[2002:c0a8:101::1]/
http://[2001:0:7f00:1::]/ http://[fe80::1]/ http://[fe80::1%25eth0]/ http://[fe80::1%eth0]/ http://[fc00::1]/
http://[fd00:ec2::254]/ http://[fec0::1]/ http://[ff02::1]/ http://[2001:db8::1]/ http://[100::1]/ http://[::1 http://::1/
http://localhost/ http://localhost./ http://LOCALHOST/ http://loopback.test/ http://private.test/ http://metadata.test/
http://mixed.test/ http://mixed-again.test/ http://mapped.test/ http://nat64.test/ http://six.test/ http://nowhere.test/
http://127.0.0.1.wildcard.test/ http://unknown.test/ http://public.test@127.0.0.1/ http://127.0.0.1@public.test/
http://user:secret@public.test/ http://public.test\\@127.0.0.1/ http://127.0.0.1\\.public.test/ http://@127.0.0.1/
http://①②⑦.⓪.⓪.①/ http://127。0。0。1/ http://ⓛocalhost/ http://public.tеst/ http://public.test:22/ http://public.test:25/
http://public.test:99999/ http://public.test:-1/ http://public.test:0/ http:///etc/passwd http:public.test
file:///etc/passwd ftp://public.test/ gopher://public.test:70/_x dict://127.0.0.1:11211/stat unix:/var/run/docker.sock
jar:http://127.0.0.1!/ //public.test/ public.test javascript:alert(1) http+unix://%2Fvar%2Frun/ http://127%2e0%2e0%2e1/
http://[3fff::1]/ http://-public.test/ http://pub..test/ http://%6c%6f%63%61%6c%68%6f%73%74/
""".split()
UNSPLITTABLE = ["http://public.test/a b", "http://public.test/\r\nHost: 127.0.0.1", "http://public.test\t/", " http://127.1/",
                "http://public.test/\x00", "http://" + "a" * 2_100, "http://" + "a." * 130 + "test/", ""]  # fmt: skip


# As a redirect these mean a path on the host that sent it.
SAME_HOST = {"public.test", "http:public.test", "http:///etc/passwd"}


def test_the_list_is_long() -> None:
    assert len(set(HOSTILE)) > 90


@pytest.mark.parametrize("url", HOSTILE + UNSPLITTABLE)
async def test_hostile_addresses_are_refused_before_anyone_connects(url: str) -> None:
    nobody = NoConnection()
    fetcher = Fetcher(FetchRules(allow_http=True), resolve=FakeResolver(), connect=nobody)
    with pytest.raises(InvalidRequest) as refused:
        await fetcher.fetch(url)
    assert refused.value.param == "ref_audio"
    assert nobody.tried == []
    assert "10.0.0.1" not in str(refused.value), "what a name means inside is not told"


@pytest.mark.parametrize("url", ["http://public.test/", "ftp://public.test/", "HTTP://public.test/"])
async def test_plain_http_needs_a_setting(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"must begin with https://$"):
        await Fetcher(resolve=FakeResolver(), connect=NoConnection()).fetch(url)


@pytest.mark.parametrize(
    "url", ["https://public.test/a.wav?b=c", "https://93.184.216.34/", "https://[2606:2800:220:1::1]:8443/", "HTTPS://PUBLIC.test./"]
)  # fmt: skip
async def test_public_addresses_are_asked(url: str) -> None:
    nobody = NoConnection()
    with pytest.raises(InvalidRequest, match="cannot be fetched"):
        await Fetcher(resolve=FakeResolver(), connect=nobody).fetch(url)
    assert len(nobody.tried) == 1


def test_what_is_asked_is_what_was_written() -> None:
    target = parse_url("https://Public.test:8443/a/../b.wav?c=d#e")
    assert (target.host, target.port, target.path) == ("public.test", 8443, "/a/../b.wav?c=d")
    assert target.host_header == "public.test:8443"
    assert parse_url("https://[2606:2800::1]/").host_header == "[2606:2800::1]"


async def test_the_connection_goes_to_the_address_that_was_looked_at() -> None:
    names, nobody = FakeResolver(**{"rebind.test": [[PUBLIC], ["127.0.0.1"]]}), NoConnection()
    with pytest.raises(InvalidRequest):
        await Fetcher(resolve=names, connect=nobody).fetch("https://rebind.test/")
    assert (nobody.tried, names.asked) == ([PUBLIC], ["rebind.test"])


def local(names: FakeResolver | None = None, **rules: object) -> Fetcher:
    """May ask the loopback address, so that there is somebody to answer."""
    names = names or FakeResolver(**{"good.test": [["127.0.0.1"]]})
    return Fetcher(FetchRules(**({"allow_http": True, "networks": LOOPBACK, "timeout_s": 5.0} | rules)), resolve=names)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pieces",
    [
        [answer(b"sound")],
        [b"HTTP/1.1 100 Continue\r\n\r\n", answer(b"sound")],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"2\r\nso\r\n", 0.01, b"3\r\nund\r\n0\r\n\r\n"],
        [b"HTTP/1.0 200 OK\r\n\r\nso", 0.01, b"und"],
        [bytes([byte]) for byte in answer(b"sound")],
    ],
)
async def test_a_recording_arrives(pieces: list[bytes | float]) -> None:
    heads = []
    async with web_server(lambda head: heads.append(head) or pieces) as port:
        assert await local().fetch(f"http://good.test:{port}/a.wav?b") == b"sound"
    (head,) = heads
    assert head.startswith(b"GET /a.wav?b HTTP/1.1\r\n")
    assert f"Host: good.test:{port}\r\n".encode() in head
    assert b"Accept-Encoding: identity" in head


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([answer(b"", "404 Not Found")], "status 404"),
        ([answer(b"", "204 No Content")], "status 204"),
        ([answer(b"x" * 2_000)], "larger than max_upload_bytes, 1000"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", 5.0], "larger than"),
        ([b"HTTP/1.0 200 OK\r\n\r\n", *[b"x" * 100] * 50, 5.0], "larger than"),
        ([answer(b"x", Content_Encoding="gzip")], "compressed"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort"], "cannot be fetched"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], "cannot be fetched"),
        ([b"HTTP/1.1 200 OK\r\nX: ", b"y" * 100_000], "cannot be fetched"),
        ([b""], "cannot be fetched|does not answer"),
        ([answer(b"", "302 Found")], "redirected to nowhere"),
    ],
)
async def test_what_is_no_good_answer_is_refused(pieces: list[bytes | float], words: str) -> None:
    async with web_server(lambda _: pieces) as port:
        with pytest.raises(InvalidRequest, match=words):
            await local(max_bytes=1_000).fetch(f"http://good.test:{port}/")


@pytest.mark.parametrize(
    "pieces", [[9.0], [b"HTTP/1.1 200 OK\r\n", *[0.05, b"A: b\r\n"] * 100], [answer(b"ab")[:-1], 9.0]]
)
async def test_one_clock_runs_over_all_of_it(pieces: list[bytes | float]) -> None:
    async with web_server(lambda _: pieces) as port:
        with pytest.raises(InvalidRequest, match=r"within 0\.3 s"):
            await local(timeout_s=0.3).fetch(f"http://good.test:{port}/")


async def test_body_in_tiny_pieces_is_read_cheaply() -> None:
    """Each crumb is work for the parser, and the event loop is everybody's."""
    crumbs = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_000
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            before = connections[0].num_events if connections else 0
            await asyncio.sleep(0)
            most = max(most, (connections[0].num_events if connections else 0) - before)

    connections: list[CountingConnection] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("realtime.references.ChunkLimitedConnection", lambda *a, **k: counting(connections, *a, **k))
        async with web_server(lambda _: [crumbs, b"0\r\n\r\n"]) as port:
            watching = asyncio.create_task(watch())
            with pytest.raises(InvalidRequest, match="cannot be fetched: RemoteProtocolError"):
                await local().fetch(f"http://good.test:{port}/")
            watching.cancel()
    assert 0 < most < 1_000
    assert connections[0].num_events < 1_100


class CountingConnection(ChunkLimitedConnection):
    num_events = 0

    def next_event(self) -> object:
        self.num_events += 1
        return super().next_event()


def counting(made: list[CountingConnection], *args: object, **kwargs: object) -> CountingConnection:
    made.append(CountingConnection(*args, **kwargs))  # type: ignore[arg-type]
    return made[-1]


@pytest.mark.parametrize("pieces", [200, 2_000])
async def test_a_body_in_small_pieces_arrives(pieces: int) -> None:
    body = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"200\r\n" + b"x" * 512 + b"\r\n") * pieces
    async with web_server(lambda _: [body + b"0\r\n\r\n"]) as port:
        assert len(await local().fetch(f"http://good.test:{port}/")) == 512 * pieces


@pytest.mark.parametrize("location", ["/there", "http://good.test:{port}/there", "there"])
async def test_redirects_are_followed(location: str) -> None:
    def give(head: bytes) -> list[bytes]:
        if b"GET /there" in head:
            return [answer(b"sound")]
        return [answer(b"", "302 Found", Location=location.format(port=port))]

    async with web_server(give) as port:
        assert await local().fetch(f"http://good.test:{port}/here") == b"sound"


async def test_redirects_to_hostile_addresses_are_not() -> None:
    locations = sorted(set(HOSTILE) - SAME_HOST)
    asked = []

    def give(head: bytes) -> list[bytes]:
        asked.append(head)
        location = locations[len(asked) - 1].encode()
        return [b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + location + b"\r\n\r\n"]

    here = ipaddress.ip_network("127.9.9.9/32")
    names = FakeResolver(**{"good.test": [["127.9.9.9"]], "public.test": [["10.9.9.9"]]})
    async with web_server(give, host="127.9.9.9") as port:
        for number in range(len(locations)):
            with pytest.raises(InvalidRequest):
                await local(names, networks=(here,)).fetch(f"http://good.test:{port}/")
            assert len(asked) == number + 1, locations[number]


async def test_fetch_refuses_private_address_after_redirect() -> None:
    names = FakeResolver(**{"rebind.test": [["127.0.0.1"], ["10.0.0.1"]]})
    async with web_server(lambda _: [answer(b"", "302 Found", Location="/again")]) as port:
        with pytest.raises(InvalidRequest, match="not on the public network"):
            await local(names).fetch(f"http://rebind.test:{port}/")
    assert names.asked == ["rebind.test", "rebind.test"]


async def test_redirects_come_to_an_end() -> None:
    asked = []
    async with web_server(lambda head: asked.append(head) or [answer(b"", "302 Found", Location="/")]) as port:
        with pytest.raises(InvalidRequest, match="redirected more than 3 times"):
            await local().fetch(f"http://good.test:{port}/")
    assert len(asked) == 4


async def test_https_is_not_left_for_http(certificate: Path) -> None:
    async with web_server(lambda _: [answer(b"", "302 Found", Location="http://good.test/")], tls(certificate)) as port:
        fetcher = trusting(certificate, allow_http=False)
        with pytest.raises(InvalidRequest, match="must begin with https://"):
            await fetcher.fetch(f"https://good.test:{port}/")


async def test_fetch_requires_trusted_certificate_for_host(certificate: Path) -> None:
    async with web_server(lambda _: [answer(b"sound")], tls(certificate)) as port:
        assert await trusting(certificate).fetch(f"https://good.test:{port}/") == b"sound"
        for fetcher, host in (
            (trusting(certificate), "other.test"),
            (trusting(certificate), "127.0.0.1"),
            (local(), "good.test"),
        ):
            with pytest.raises(InvalidRequest, match="SSLCertVerificationError"):
                await fetcher.fetch(f"https://{host}:{port}/")


def trusting(certificate: Path, **rules: object) -> Fetcher:
    names = FakeResolver(**{"good.test": [["127.0.0.1"]], "other.test": [["127.0.0.1"]]})
    plain = local(names, **rules)
    return Fetcher(plain.rules, resolve=names, tls=ssl.create_default_context(cafile=str(certificate)))


def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return context


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For good.test alone, its key beside it."""
    return self_signed(tmp_path_factory.mktemp("tls"), "good.test")[0]
