"""Queries of the dashboard and of the alerts name metrics that the server exports, and labels with values it knows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from realtime.errors import RULES as ERROR_RULES
from realtime.metrics import COUNTERS, ENGINE_COUNTERS, GAUGES, HISTOGRAMS, PREFIX
from sessions.audio.pacer import UnderrunCause
from sessions.events import ResponseStatus

ROOT = Path(__file__).parent.parent
RULES = ROOT / "deploy" / "prometheus-rules.yaml"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
ALERTS = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
TARGETS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
QUERIES = [*TARGETS, *((alert["alert"], alert["expr"]) for alert in ALERTS)]
EXPORTED = {*COUNTERS, *ENGINE_COUNTERS, *GAUGES} | {
    name + suffix for name in HISTOGRAMS for suffix in ("_bucket", "_sum", "_count")
}
VALUES = {"code": set(ERROR_RULES), "cause": set(UnderrunCause), "status": set(ResponseStatus)}


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_query_names_exported_metrics(title: str, query: str) -> None:
    named = {name.removeprefix(PREFIX) for name in re.findall(rf"\b{PREFIX}\w+", query)}
    assert named <= EXPORTED
    assert named or query == 'up{job="voicewire"} == 0'
    for label, _, values in re.findall(r'(\w+)(=~?)"([^"$]+)"', query):
        assert label == "job" or set(values.split("|")) <= VALUES[label]


def test_every_alert_is_explained() -> None:
    page = (ROOT / "docs" / "guides" / "operations.md").read_text()
    for alert in ALERTS:
        assert f"`{alert['alert']}`" in page


def test_panels_do_not_overlap() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)


@pytest.mark.skipif(not shutil.which("promtool"), reason="no program promtool here")
def test_promtool_accepts_the_alerts(tmp_path: Path) -> None:
    """Also those that a fault must raise, and a quiet server must not."""
    found = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(alert_tests()))
    found = subprocess.run(["promtool", "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def alert_tests() -> dict[str, object]:
    """Of a server ``bad`` with many faults and a server ``good`` with none, ``promtool test rules``."""
    series = {
        'up{job="voicewire",instance="%s"}': ("0x40", "1x40"),
        'voicewire_engine_alive{instance="%s"}': ("0x40", "1x40"),
        'voicewire_cluster_lease_current{instance="%s"}': ("0x40", "1x40"),
        'voicewire_time_to_first_audio_seconds_bucket{le="0.1",instance="%s"}': ("0x40", "0+60x40"),
        'voicewire_time_to_first_audio_seconds_bucket{le="1",instance="%s"}': ("0+60x40", "0+60x40"),
        'voicewire_time_to_first_audio_seconds_bucket{le="+Inf",instance="%s"}': ("0+60x40", "0+60x40"),
        'voicewire_real_time_factor_bucket{le="0.5",instance="%s"}': ("0x40", "0+60x40"),
        'voicewire_real_time_factor_bucket{le="2",instance="%s"}': ("0+60x40", "0+60x40"),
        'voicewire_real_time_factor_bucket{le="+Inf",instance="%s"}': ("0+60x40", "0+60x40"),
        'voicewire_responses_total{status="completed",instance="%s"}': ("0+60x40", "0+60x40"),
        'voicewire_responses_total{status="failed",instance="%s"}': ("0+60x40", "0x40"),
        'voicewire_underrun_responses_total{cause="engine",instance="%s"}': ("0+60x40", "0x40"),
        'voicewire_decoder_slots_free{instance="%s"}': ("1x40", "50x40"),
        'voicewire_decoder_slots_total{instance="%s"}': ("64x40", "64x40"),
        'voicewire_refusals_total{code="overloaded",instance="%s"}': ("0+60x40", "0x40"),
        'voicewire_refusals_total{code="unauthorized",instance="%s"}': ("0+600x40", "0+6x40"),
    }
    given = [
        {"series": name % server, "values": values[number]}
        for name, values in series.items()
        for number, server in enumerate(("bad", "good"))
    ]
    # Servers whose alert is active at minute 30, counted by a query, because annotations are for people.
    expected = [
        {
            "expr": f'count by (instance) (ALERTS{{alertname="{alert["alert"]}",alertstate="firing"}})',
            "eval_time": "30m",
            "exp_samples": [{"labels": '{instance="bad"}', "value": 1}],
        }
        for alert in ALERTS
    ]
    return {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, "promql_expr_test": expected}],
    }
