"""The YAML file of ``voicewire cluster``: its keys with defaults and ranges, and what the replicas are started with."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml
from msgspec import Meta, Struct

from realtime.config import SECRETS, ConfigError, allowed, load_config

Scalar = str | int | float | bool
Replicas = Annotated[int, Meta(ge=1, le=1_000)]
Settings = Annotated[
    dict[str, Any],
    Meta(
        description="Settings of `voicewire serve` by their full names.", extra={"expected": "a table of plain values"}
    ),
]
# Settings that the cluster gives to its gateways itself.
OWN_SETTINGS = frozenset(
    "listen.host listen.port listen.tls_certificate listen.tls_key listen.tls_port listen.tls_host"
    " listen.drain_timeout_s engine.model engine.addresses engine.tls_certificate engine.tls_key engine.tls_ca"
    " auth.keys_file voices.folder".split()
)


class EngineReplicas(Struct, frozen=True, kw_only=True):
    min_replicas: Annotated[Replicas, Meta(description="Minimum of engines.")] = 1
    max_replicas: Annotated[Replicas, Meta(description="Maximum of engines.")] = 1
    cpus: Annotated[float, Meta(ge=0, le=1_024, description="CPU cores of an engine, for its placement.")] = 1.0
    gpus: Annotated[float, Meta(ge=0, le=64, description="GPUs of an engine.")] = 0.0
    host: Annotated[str, Meta(description="Address to listen on; `node` is that of the machine.")] = "127.0.0.1"
    tls_certificate: Annotated[
        str | None, Meta(description="File with the certificate chain for TCP between gateways and engines.")
    ] = None
    tls_key: Annotated[str | None, Meta(description="File with the private key of that certificate.")] = None
    tls_ca: Annotated[str | None, Meta(description="File with the CA that has signed these certificates.")] = None
    settings: Settings = {}

    @property
    def tls_settings(self) -> dict[str, str]:
        """Settings of engines and gateways; empty without TLS."""
        names = ("tls_certificate", "tls_key", "tls_ca")
        return {f"engine.{name}": value for name in names if (value := getattr(self, name)) is not None}


class GatewayReplicas(Struct, frozen=True, kw_only=True):
    min_replicas: Annotated[Replicas, Meta(description="Minimum of gateways.")] = 1
    max_replicas: Annotated[Replicas, Meta(description="Maximum of gateways.")] = 1
    cpus: Annotated[float, Meta(ge=0, le=1_024, description="CPU cores of a gateway, for its placement.")] = 1.0
    host: Annotated[str, Meta(description="Address to listen on; `node` is that of the machine.")] = "127.0.0.1"
    places: Annotated[int, Meta(ge=1, le=100_000, description="Active responses that fill a gateway.")] = 80
    settings: Settings = {}


class DoorSettings(Struct, frozen=True, kw_only=True):
    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65_535, description="Port to listen on.")] = 8800
    haproxy: Annotated[bool, Meta(description="Run HAProxy on the port; else it serves `GET /v1/where` alone.")] = False


class ClientTls(Struct, frozen=True, kw_only=True):
    certificate: Annotated[str, Meta(description="File with the certificate chain.")]
    key: Annotated[str, Meta(description="File with the private key.")]
    ca: Annotated[str, Meta(description="File with the CA certificates that gateways are checked against.")]
    name: Annotated[str, Meta(min_length=1, description="Host name in the certificate.", extra={"expected": "a text"})]


class ClusterConfig(Struct, frozen=True, kw_only=True):
    name: Annotated[
        str,
        Meta(
            pattern=r"\A[a-z][a-z0-9-]{0,39}\Z",
            description="Name of the cluster; several can share one Ray.",
            extra={"expected": "1 to 40 lower-case letters, digits and hyphens"},
        ),
    ] = "voicewire"
    model: Annotated[str | None, Meta(description="As the setting `engine.model`.")] = None
    keys_file: Annotated[str | None, Meta(description="As `auth.keys_file`; at the same path on each machine.")] = None
    token_secret_file: Annotated[
        str | None, Meta(description="File with the secret of browser tokens; needed with `keys_file`.")
    ] = None
    voices_folder: Annotated[
        str | None, Meta(description="Folder of stored voices on the head node; by default that of `voices.folder`.")
    ] = None
    target_utilization: Annotated[float, Meta(gt=0, le=1, description="Share of used places to aim at.")] = 0.7
    scale_down_delay_s: Annotated[
        float, Meta(ge=0, le=86_400, description="Time for which fewer replicas must do before one is drained.")
    ] = 60.0
    drain_timeout_s: Annotated[
        float, Meta(ge=0, le=3_600, description="Time for active responses of a leaving replica to end.")
    ] = 120.0
    engine: EngineReplicas = EngineReplicas()
    gateway: GatewayReplicas = GatewayReplicas()
    door: DoorSettings = DoorSettings()
    tls: ClientTls | None = None


SECTIONS: Mapping[str, type[Struct]] = {
    "engine": EngineReplicas,
    "gateway": GatewayReplicas,
    "door": DoorSettings,
    "tls": ClientTls,
}


def load_cluster_config(file: Path) -> ClusterConfig:
    """Read and check the YAML file. Raises ``ConfigError``, which names the key, its value and what it may be."""
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), UniqueKeyLoader)
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: {error}") from None
    try:
        config = parse_cluster_config(content)
        _check_together(config)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    return config


class UniqueKeyLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses a key that is given twice, of which plain YAML keeps the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} is given twice", node.start_mark)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def parse_cluster_config(content: object) -> ClusterConfig:
    """Convert what was read from the file. Raises ``ConfigError``."""
    table = _table(content, "the file")
    sections = {
        name: _convert(SECTIONS[name], _table(values, name), f"{name}.")
        for name, values in table.items()
        if name in SECTIONS
    }
    return _convert(ClusterConfig, table | sections, "")


S = TypeVar("S", bound=Struct)


def _convert(kind: type[S], values: Mapping[str, object], prefix: str) -> S:
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name, value in values.items():
        if name not in fields:
            raise ConfigError(f"{prefix}{name} is no key; known: {', '.join(prefix + known for known in fields)}")
        if isinstance(value, Struct):
            continue
        try:
            msgspec.convert(value, fields[name].type)
        except msgspec.ValidationError:
            raise ConfigError(f"{prefix}{name} = {value!r}: expected {allowed(fields[name])}") from None
    for name, field in fields.items():
        if field.required and name not in values:
            raise ConfigError(f"{prefix}{name} is missing: expected {allowed(field)}")
    return kind(**values)


def _table(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{name} = {value!r}: expected a table")
    return value


def _check_together(config: ClusterConfig) -> None:
    for name in ("engine", "gateway"):
        section = getattr(config, name)
        if section.min_replicas > section.max_replicas:
            raise ConfigError(
                f"{name}.min_replicas = {section.min_replicas}: at most {name}.max_replicas, {section.max_replicas}"
            )
        _check_settings(section.settings, f"{name}.settings")
    if config.engine.tls_settings and len(config.engine.tls_settings) < 3:
        raise ConfigError("engine.tls_certificate, engine.tls_key and engine.tls_ca belong together; one is missing")
    if not config.engine.tls_settings and not _is_loopback(config.engine.host):
        raise ConfigError(f"engine.host = {config.engine.host!r} needs engine.tls_certificate: other machines reach it")
    if config.keys_file is None:
        for name in ("gateway", "door"):
            host = getattr(config, name).host
            if not _is_loopback(host):
                raise ConfigError(f"{name}.host = {host!r} needs keys_file: without keys it must be a loopback address")
    elif config.token_secret_file is None:
        raise ConfigError("token_secret_file is missing: with keys_file, all gateways sign tokens with one secret")


def _check_settings(settings: Mapping[str, object], where: str) -> None:
    for name, value in settings.items():
        if not isinstance(value, Scalar):
            raise ConfigError(f"{where}: {name} = {value!r}: expected a plain value")
        if name in SECRETS:
            raise ConfigError(f"{where}: {name} is a secret: set it in the environment of Ray's workers")
        if name in OWN_SETTINGS:
            raise ConfigError(f"{where}: {name} is set by the cluster")
    try:
        load_config(flags=dict(settings))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def setting_text(value: Scalar) -> str:
    """Write a value as ``--set NAME=VALUE`` reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
