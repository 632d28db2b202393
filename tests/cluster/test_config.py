"""The YAML file of a cluster: what is wrong is named."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from realtime.cluster.config import SECTIONS, ClusterConfig, load_cluster_config
from realtime.cluster.replica import as_arguments
from realtime.commands import cluster
from realtime.config import ConfigError, allowed, load_config

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "cluster-file.md"
KEYS = "keys_file: k.toml\ntoken_secret_file: s\n"


def load(tmp_path: Path, text: str) -> ClusterConfig:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    return load_cluster_config(file)


def test_a_whole_file_is_read(tmp_path):
    config = load(
        tmp_path,
        KEYS + "model: owner/name\nengine: {max_replicas: 4, gpus: 1}\n"
        "gateway:\n  settings:\n    limits.max_connections: 500\ndoor: {port: 80, haproxy: true}\n",
    )
    assert (config.engine.max_replicas, config.engine.gpus, config.door.haproxy) == (4, 1.0, True)
    assert config.gateway.settings == {"limits.max_connections": 500}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle: x", "modle is no key; known: name, model"),
        ("engine: {replicas: 2}", "engine.replicas is no key; known: engine.min_replicas"),
        ("engine: {gpus: one}", "engine.gpus = 'one': expected a number from 0 to 64"),
        ("engine: {max_replicas: 0}", "engine.max_replicas = 0: expected a whole number from 1 to 1000"),
        ("engine: {min_replicas: true}", "engine.min_replicas = True: expected a whole number from 1 to 1000"),
        ("engine: 3", "engine = 3: expected a table"),
        ("- 3", "the file = [3]: expected a table"),
        ("engine: {min_replicas: 3, max_replicas: 2}", "engine.min_replicas = 3: at most engine.max_replicas, 2"),
        ("target_utilization: 1.1", "target_utilization = 1.1: expected a number above 0 to 1"),
        ("door: {port: 65536}", "door.port = 65536: expected a whole number from 1 to 65535"),
        ("name: Big", "name = 'Big': expected 1 to 40 lower-case letters"),
        ("tls: {certificate: c, key: k, ca: c}", "tls.name is missing: expected a text"),
        ("gateway: {host: node}", "gateway.host = 'node' needs keys_file"),
        ("door: {host: 0.0.0.0}", "door.host = '0.0.0.0' needs keys_file"),
        ("engine: {host: node}", "engine.host = 'node' needs engine.tls_certificate"),
        ("engine: {tls_key: k}", "engine.tls_certificate, engine.tls_key and engine.tls_ca belong together"),
        ("keys_file: k", "token_secret_file is missing"),
        ("gateway: {settings: {listen.port: 1}}", "gateway.settings: listen.port is set by the cluster"),
        (
            "gateway: {settings: {limits.max_calls: 1}}",
            "gateway.settings: limits.max_calls (command line) is no setting",
        ),
        ("gateway: {settings: {limits.max_connections: x}}", "limits.max_connections = 'x'"),
        ("gateway: {settings: {mqtt.password: x}}", "gateway.settings: mqtt.password is a secret"),
        ("gateway: {settings: {limits.max_connections: [1]}}", "limits.max_connections = [1]: expected a plain value"),
        ("engine: {gpus: 1}\nengine: {gpus: 2}", "'engine' is given twice"),
        ("engine: {", "cluster.yaml: while parsing"),
        ("!!python/object/apply:os.system [true]", "could not determine a constructor"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(tmp_path, text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        load_cluster_config(tmp_path / "gone.yaml")


def test_the_command_refuses_a_wrong_file(tmp_path, capsys):
    file = tmp_path / "c.yaml"
    file.write_text("modle: x")
    args = type("Args", (), {"file": file})()
    assert cluster.run(args) == cluster.WRONG_SETTINGS
    assert "modle is no key" in capsys.readouterr().err


def test_settings_survive_the_command_line():
    settings = {"limits.max_connections": 7, "speech.avoid_dead_air": False, "voices.folder": "/a b", "listen.port": 0}
    arguments = as_arguments(settings)
    config = load_config(flags=dict(item.split("=", 1) for item in arguments[1::2]))
    assert (config.limits.max_connections, config.speech.avoid_dead_air) == (7, False)
    assert (config.voices.folder, config.listen.port) == ("/a b", 0)


def documented_keys() -> list[tuple[str, str, str, str]]:
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*?) \| (.*?) \|$", REFERENCE.read_text(), re.MULTILINE)
    return [(name, default.strip("`"), kind, about) for name, default, kind, about in rows]


def test_the_reference_lists_every_key():
    sections = {"": ClusterConfig} | {f"{name}.": kind for name, kind in SECTIONS.items()}
    keys = [
        (prefix + field.name, default_text(field), allowed(field), field.type.__metadata__[-1].description)
        for prefix, kind in sections.items()
        for field in msgspec.structs.fields(kind)
        if prefix or field.name not in SECTIONS
    ]
    assert documented_keys() == keys


def default_text(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if value in (None, {}):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
