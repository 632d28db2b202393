"""Quotas of the keys file on real sockets: headers, refusals, and entries that are wrong."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from realtime.api_keys import load_authenticator
from realtime.cluster.leased_counters import LeasedUsageCounters, leased_limits
from realtime.cluster.limit_leases import Lease, LimitLeases
from realtime.config import ConfigError
from realtime.config_sections import AuthSettings, LimitSettings
from sessions.admission import LocalUsageCounters
from sessions.errors import QuotaExceeded
from sessions.quotas import KeyMeter, KeyQuotas, QuotaCounters, WindowedCounts, quota_counter
from tests.realtime.live_server import live_server, speak

KEY = "a-key-of-16-chars-or-more"
TEXT = "One two three."


def write_keys(folder: Path, lines: str) -> str:
    file = folder / "keys.toml"
    file.write_text(f'[[keys]]\nname = "ann"\nkey = "{KEY}"\n{lines}\n')
    return str(file)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("max_chars_per_minute = 0", "max_chars_per_minute"),
        ("max_chars_per_day = -1", "max_chars_per_day"),
        ("max_audio_s_per_minute = 1.5", "max_audio_s_per_minute"),
        ("max_audio_s_per_day = 10000000000000", "max_audio_s_per_day"),
        ('priority = "urgent"', "urgent"),
        ("max_chars_per_hour = 1", "max_chars_per_hour"),
    ],
)
def test_bad_quota_names_the_field(tmp_path: Path, line: str, found: str):
    with pytest.raises(ConfigError, match=found):
        load_authenticator(AuthSettings(keys_file=write_keys(tmp_path, line)))


def test_quotas_of_keys_are_leased(tmp_path: Path):
    keys = load_authenticator(AuthSettings(keys_file=write_keys(tmp_path, "max_audio_s_per_day = 9")))
    assert leased_limits(LimitSettings(), keys)["max_audio_s_per_day of ann"] == 9_000


@pytest.mark.parametrize(("line", "has_deadline"), [("", True), ('priority = "bulk"', False)])
async def test_priority_of_a_key_decides_about_deadlines(tmp_path: Path, line: str, has_deadline: bool):
    async with live_server(auth__keys_file=write_keys(tmp_path, line)) as live, live.session(KEY) as client:
        assert (await speak(client, TEXT, pace="lead")).done.status == "completed"
    assert [request.lead_ms is not None for request in live.engine.requests] == [has_deadline]


async def test_http_answers_say_what_is_left_and_when(tmp_path: Path):
    keys = write_keys(tmp_path, "max_chars_per_day = 20\nmax_audio_s_per_day = 100")
    async with live_server(auth__keys_file=keys) as live, live.http() as client:
        request = {"json": {"input": TEXT, "response_format": "pcm"}, "headers": {"x-api-key": KEY}}
        spoken = await client.post("/v1/audio/speech", **request)
        assert spoken.status_code == 200
        assert spoken.headers["ratelimit-policy"] == (
            '"max_chars_per_day";q=20;w=86400, "max_audio_s_per_day";q=100;w=86400'
        )
        left = spoken.headers["ratelimit"].split(";")
        assert left[:2] == ['"max_chars_per_day"', f"r={20 - len(TEXT)}"]
        refused = await client.post("/v1/audio/speech", **request)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "quota_exceeded"
        assert "resets in" in refused.json()["error"]["message"]
        assert 0 < int(refused.headers["retry-after"]) <= 86_401
        assert "r=6;t=" in refused.headers["ratelimit"]
        unknown = await client.post("/v1/audio/speech", json={"input": TEXT}, headers={"x-api-key": "x" * 20})
        assert (unknown.status_code, "ratelimit" in unknown.headers) == (401, False)


async def test_session_gets_the_reset_time_with_the_error(tmp_path: Path):
    keys = write_keys(tmp_path, "max_chars_per_day = 20")
    async with live_server(auth__keys_file=keys) as live, live.session(KEY) as client:
        assert (await speak(client, TEXT, "first")).done.status == "completed"
        failed = (await speak(client, TEXT, "second")).done
        assert failed.status == "failed"
        assert failed.error is not None
        assert (failed.error.code, failed.error.retryable) == ("quota_exceeded", True)
        assert 0 < (failed.error.retry_after_ms or 0) <= 86_400_001
        assert (await speak(client, "Four.", "third")).done.status == "completed"


def test_text_larger_than_the_leased_part_is_wanted():
    counters = LeasedUsageCounters(LocalUsageCounters(), {"chars": 100})
    counters.renew(Lease(1, 2, {"chars": 50}), time.monotonic() + 60)
    assert counters.places("chars", 100, needed=50) == 50
    assert not counters.usage()["chars"].is_wanted
    assert counters.places("chars", 100, needed=51) == 50
    assert counters.usage()["chars"].is_wanted


class ClusterGateway:
    """Counts characters of a key on leased places."""

    def __init__(self, name: str, quotas: KeyQuotas) -> None:
        [(rule, limit)] = quotas.given()
        counter = quota_counter(rule, "ann")
        counts = QuotaCounters(LocalUsageCounters(), WindowedCounts.in_memory([(counter, rule.window_s)]))
        self.name, self.counters = name, LeasedUsageCounters(counts, {counter: limit})
        self._meter = KeyMeter("ann", quotas, self.counters)

    def renew(self, leases: LimitLeases) -> None:
        now_s = time.monotonic()
        lease = leases.renew(self.name, self.counters.version, self.counters.usage(), now_s)
        self.counters.renew(lease, now_s + 60)

    def fill(self, num_chars: int) -> int:
        """Charge texts until one is refused, and return how many were not."""
        num_texts = 0
        with suppress(QuotaExceeded):
            while True:
                self._meter.charge_text(num_chars)
                num_texts += 1
        return num_texts


def test_gateways_of_a_cluster_share_a_quota():
    leases = LimitLeases(0)
    gateways = one, other = [ClusterGateway(name, KeyQuotas(max_chars_per_day=100)) for name in "ab"]

    def renew() -> None:
        for gateway in gateways * 3:
            gateway.renew(leases)

    renew()
    assert one.fill(7) == 50 // 7
    renew()  # one was refused, and gets what the other does not use
    assert one.fill(7) == 100 // 7 - 50 // 7
    renew()
    assert other.fill(7) == 0
    assert other.fill(1) == 1  # the last one stays with the gateway that has it
