"""The chart of deploy/helm as Helm's own library renders it, checked against the schemas of Kubernetes, and run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml

from realtime.client import open_session
from realtime.config import load_config
from realtime.protocol import events as ev
from tests.realtime.live_server import hear, next_of
from tests.realtime.server_process import wire_address

pytestmark = [pytest.mark.cluster("helm"), pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "voicewire"
KUBERAY = ROOT / "deploy" / "kuberay.yaml"
EVERYTHING: dict[str, Any] = {
    "image": {"repository": "registry.example.com/voicewire", "tag": "cuda"},
    "imagePullSecrets": [{"name": "registry"}],
    "places": 24,
    "gateways": 4,
    "model": {"path": "/models/a model", "claimName": "models"},
    "data": {"claimName": "voices"},
    "serverToml": '[speech]\nvoice = "edwin" # "quoted"\n',
    "extraEnv": [
        {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ],
    "drain": {"preStopSeconds": 7, "timeoutSeconds": 90},
    "autoscaling": {"enabled": True, "usedPlacesPercent": 65},
    "podDisruptionBudget": {"maxUnavailable": "25%"},
    "service": {"type": "LoadBalancer", "annotations": {"example.com/key": "value"}},
    "resources": {"requests": {"cpu": 2, "memory": "8Gi"}, "limits": {"memory": "8Gi"}},
    "gpus": 1,
    "runtimeClassName": "nvidia",
    "podAnnotations": {"prometheus.io/scrape": "false"},
    "nodeSelector": {"gpu": "h100"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
}


def render(values: dict[str, Any], name: str = "voice") -> dict[str, dict[str, Any]]:
    """Return the objects by kind. Raises ``HelmError``."""
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        texts = chart.render(values, name=name, namespace="speech")
    objects = [yaml.safe_load(text) for path, text in texts.items() if path.endswith(".yaml") and text.strip()]
    return {found["kind"]: found for found in objects if found is not None}


def validate(found: dict[str, Any]) -> None:
    """Raises what the schema of its kind refuses, unknown fields too."""
    import kubernetes_validate

    kubernetes_validate.validate(found, "1.37", strict=True)


def container_of(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    [container] = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize(
    "values",
    [
        {},
        EVERYTHING,
        {"podDisruptionBudget": {"enabled": False}, "resources": {"limits": {}, "requests": {}}},
        {"updateStrategy": {"maxSurge": 0, "maxUnavailable": 1}, "drain": {"preStopSeconds": 0}},
    ],
    ids=["default", "everything", "little", "one GPU"],
)
def test_kubernetes_accepts_what_is_rendered(values: dict[str, Any]) -> None:
    objects = render(values)
    for found in objects.values():
        validate(found)
    assert {"ConfigMap", "Deployment", "Service"} <= objects.keys()
    assert ("PodDisruptionBudget" in objects) == values.get("podDisruptionBudget", {}).get("enabled", True)
    assert ("HorizontalPodAutoscaler" in objects) == ("autoscaling" in values)
    # A deployment with a number of its own would undo what the autoscaler does.
    assert ("replicas" in objects["Deployment"]["spec"]) == ("autoscaling" not in values)
    selector = objects["Deployment"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= objects["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    assert objects["Service"]["spec"]["selector"] == selector


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replica": 3}, "replica"),
        ({"image": {"tags": "cpu"}}, "tags"),
        ({"drain": {"timeout": 3}}, "timeout"),
        ({"autoscaling": {"cpu": 80}}, "cpu"),
        ({"places": 0}, "places"),
        ({"replicas": "two"}, "replicas"),
        ({"secretName": ""}, "secretName"),
        ({"serverToml": {"speech": {"voice": "edwin"}}}, "serverToml"),
        ({"podDisruptionBudget": {"maxUnavailable": "one"}}, "maxUnavailable"),
        ({"autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 2}}, "maxReplicas"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    import helm_python

    with pytest.raises(helm_python.HelmError, match=message):
        render(values)


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["default", "everything"])
def test_helm_finds_no_fault(values: dict[str, Any]) -> None:
    import helm_python

    report = helm_python.lint(CHART, values, strict=True)
    messages = [message for message in report["messages"] if "icon is recommended" not in str(message)]
    assert messages == []


def test_pods_have_time_to_drain() -> None:
    objects = render(EVERYTHING)
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert container_of(objects)["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "7"]
    assert pod["terminationGracePeriodSeconds"] >= 7 + 90 + 10


def test_autoscaler_aims_at_a_share_of_the_places() -> None:
    objects = render(EVERYTHING)
    [metric] = objects["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["target"]["averageValue"] == "15600m"  # 65 % of 24
    assert metric["pods"]["metric"]["name"] == "voicewire_active_responses"
    assert objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "voice-voicewire"


def test_change_of_settings_replaces_the_pods() -> None:
    def checksum(toml: str) -> str:
        template = render({"serverToml": toml})["Deployment"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum("") == checksum("")
    assert checksum("") != checksum("[speech]\n")


def test_long_release_name_is_cut() -> None:
    for name in ("a" * 53, "voicewire", "my-voicewire"):
        for found in render({}, name).values():
            assert len(found["metadata"]["name"]) <= 53
            validate(found)


def command_of(container: dict[str, Any], folder: Path, secrets: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The program of a container with its environment, with files in a folder and secrets given."""
    environment = {}
    for entry in container["env"]:
        named = entry.get("valueFrom", {}).get("secretKeyRef")
        environment[entry["name"]] = entry["value"] if named is None else secrets[named["key"]]
    replaced = {"/etc/voicewire": str(folder), "/run/secrets/voicewire": str(folder)}

    def place(text: str) -> str:
        for path, here in replaced.items():
            text = text.replace(path, here)
        return text

    command = [sys.executable, "-m", "realtime.cli", *map(place, container["args"])]
    return command, {name: place(value) for name, value in environment.items()}


@contextmanager
def started(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        yield process
        process.kill()


async def test_command_of_a_pod_serves_and_drains(tmp_path: Path) -> None:
    """The arguments and variables as they are rendered; the probes get what Kubernetes expects, also in a drain."""
    objects = render({"serverToml": '[speech]\nvoice = "edwin"\n[listen]\nport = 0\n', "places": 3})
    container = container_of(objects)
    (tmp_path / "server.toml").write_text(objects["ConfigMap"]["data"]["server.toml"])
    (tmp_path / "keys.toml").write_text('[[keys]]\nname = "ann"\nkey = "the-key-of-ann-123"\n')
    secrets = {"token-secret": "t" * 32, "watermark-key": "w" * 32}
    command, environment = command_of(container, tmp_path, secrets)
    config = load_config(tmp_path / "server.toml", environment=environment)
    assert (config.limits.max_active_responses, config.speech.voice) == (3, "edwin")
    assert (config.watermark.key, config.listen.drain_timeout_s) == ("w" * 32, 30)
    all_variables = os.environ | environment | {"XDG_DATA_HOME": str(tmp_path)}
    with started(command, all_variables) as process:
        url = (await asyncio.to_thread(wire_address, process.stdout)).removesuffix("/v1/speech")
        names = ("startup", "liveness", "readiness")
        probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in names}
        async with httpx.AsyncClient(base_url=url.replace("ws", "http", 1), trust_env=False, timeout=60) as http:

            async def status(probe: str) -> int:
                return (await http.get(probes[probe])).status_code

            assert [await status(probe) for probe in probes] == [200, 200, 200]
            async with await open_session(url, api_key="the-key-of-ann-123") as client:
                settings = ev.NativeSpeechSettings(pace="lead", lead_ms=300)
                await client.send(ev.ResponseCreate(settings=settings, text="One two three four. " * 3, end=True))
                await next_of(client, ev.AudioMessage)
                process.terminate()
                await until_status(http, probes["readiness"], 503)
                assert await status("liveness") == 200
                done = (await hear(client)).done
                assert (done.status, done.error) == ("completed", None)
        assert await asyncio.to_thread(process.wait, 60) == 0


async def until_status(http: httpx.AsyncClient, path: str, wanted: int) -> None:
    async with asyncio.timeout(30):
        while (await http.get(path)).status_code != wanted:
            await asyncio.sleep(0.02)


def test_pods_of_kuberay_are_valid() -> None:
    """The custom resource has no schema here; its pods and all else do."""
    objects = list(yaml.safe_load_all(KUBERAY.read_text()))
    for found in objects:
        if found["kind"] != "RayCluster":
            validate(found)
            continue
        for group in (found["spec"]["headGroupSpec"], *found["spec"]["workerGroupSpecs"]):
            template = group["template"]
            metadata = {"name": "a-pod", **template.get("metadata", {})}
            validate({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
