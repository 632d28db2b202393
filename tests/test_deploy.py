"""The files of ``deploy`` name what exists: settings, commands, files and limits. Docker itself is not run.

``tests/cluster/test_helm_chart.py`` renders the chart.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from realtime.cli import COMMANDS, load, parser_for
from realtime.cluster.config import parse_cluster_config
from realtime.commands.cluster import leave, leave_timeout_s
from realtime.config import ENVIRONMENT_PREFIX, ServerConfig, environment_name, settings
from realtime.version import VERSION

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
UNIT = (ROOT / "deploy" / "voicewire.service").read_text()
CHART = ROOT / "deploy" / "helm" / "voicewire"
TEMPLATES = "".join(file.read_text() for file in sorted(CHART.glob("templates/*")))
VARIABLES = {environment_name(name) for name in settings()}


def instructions() -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


KUBERAY = list(yaml.safe_load_all((ROOT / "deploy" / "kuberay.yaml").read_text()))
FILES = {"Dockerfile": DOCKERFILE, "compose.yaml": str(COMPOSE), "unit": UNIT, "chart": TEMPLATES}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_variables_are_settings(text: str) -> None:
    named = set(re.findall(rf"\b{ENVIRONMENT_PREFIX}[A-Z_]+", text)) - {"VOICEWIRE_MODELS"}
    assert named <= VARIABLES
    assert named


def test_replies_play_to_their_end_before_a_server_is_killed() -> None:
    drain_s = ServerConfig().listen.drain_timeout_s
    for service in COMPOSE["services"].values():
        assert seconds(service["stop_grace_period"]) > drain_s
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)[1]) > drain_s


def test_workers_of_kuberay_leave_before_they_end() -> None:
    [files] = [found["data"] for found in KUBERAY if found["kind"] == "ConfigMap"]
    [cluster] = [found["spec"] for found in KUBERAY if found["kind"] == "RayCluster"]
    config = parse_cluster_config(yaml.safe_load(files["cluster.yaml"]))
    for group in cluster["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        [container] = pod["containers"]
        program, name, *arguments = container["lifecycle"]["preStop"]["exec"]["command"]
        args = parser_for(name, load(name)).parse_args([name, *arguments])
        mounts = {one["mountPath"] for one in container["volumeMounts"]}
        assert (program, args.act) == ("voicewire", leave)
        assert (str(args.file.parent) in mounts, args.file.name in files) == (True, True)
        assert pod["terminationGracePeriodSeconds"] > leave_timeout_s(config) + 10  # for the start of Ray's client


def test_chart_has_the_version_of_the_server() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_schema_of_the_chart_knows_its_values_and_no_others() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"].pop("global") == {"type": "object"}

    def check(schema: dict[str, object], values: dict[str, object]) -> None:
        assert schema["additionalProperties"] is False
        assert set(schema["properties"]) == set(values)
        for name, value in values.items():
            if "properties" in schema["properties"][name]:
                check(schema["properties"][name], value)

    check(schema, yaml.safe_load((CHART / "values.yaml").read_text()))


def test_templates_of_the_chart_use_every_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    named = set(re.findall(r"\.Values\.(\w+)", TEMPLATES)) | set(re.findall(r'"(\w+)"', TEMPLATES))
    assert set(values) <= named


def test_services_are_built_from_targets_of_the_dockerfile() -> None:
    targets = {rest.split(" AS ")[1] for name, rest in instructions() if name == "FROM"}
    for service in COMPOSE["services"].values():
        assert service["build"]["target"] in targets
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


def test_image_runs_as_a_user_with_a_number() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    users = {stage.split(" AS ")[1].split("\n")[0]: re.findall(r"^USER (\S+)", stage, re.MULTILINE) for stage in stages}
    assert users["runtime"][-1] == "10001:10001"
    assert users["cuda"] == ["0", "10001:10001"]
    assert users["cpu"] == []


def test_build_context_holds_what_is_copied_and_packaged() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = [line[1:] for line in lines if line.startswith("!")]
    assert "*" in lines
    for pattern in kept:
        assert list(ROOT.glob(pattern)), f"{pattern} of .dockerignore does not exist"
    for name, rest in instructions():
        if name == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert source == "." or any(fnmatch(source, pattern) for pattern in kept), (
                    f"{source} is not in the context"
                )
    packages = re.search(r"include = \[([^\]]+)\]", (ROOT / "pyproject.toml").read_text())[1]
    assert {name.strip('" *') for name in packages.split(",")} <= set(kept)


def test_versions_are_those_of_the_set_up_script() -> None:
    uv = re.search(r"^uv=(\S+)$", (ROOT / "run").read_text(), re.MULTILINE)[1]
    assert re.findall(r"uv==(\S+)", DOCKERFILE) == [uv]
    assert len({rest.split(" AS ")[0] for name, rest in instructions() if name == "FROM" and ":" in rest}) == 1


def test_commands_exist() -> None:
    given = [re.search(r'^CMD \["(\w+)"\]$', DOCKERFILE, re.MULTILINE)[1], UNIT.split("bin/voicewire ")[1].split()[0]]
    given += [service["command"][0] for service in COMPOSE["services"].values() if "command" in service]
    assert set(given) <= set(COMMANDS)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "voicewire.service"
    unit.write_text(UNIT.replace("/opt/voicewire/bin/voicewire", "/bin/true"))
    found = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")
