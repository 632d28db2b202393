"""The configuration of the server, from a TOML file, the environment and flags.

A setting ``limits.max_connections`` is ``max_connections`` under ``[limits]`` in the file, the variable
``VOICEWIRE_LIMITS_MAX_CONNECTIONS``, and the flag ``--set limits.max_connections=N``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from inspect import get_annotations
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from realtime.config_sections import (
    AuthSettings,
    DebugConfig,
    DialectSettings,
    EngineSettings,
    LimitSettings,
    ListenSettings,
    LogSettings,
    SettingsSection,
    SpeechDefaults,
    VoiceStoreSettings,
    WatermarkSettings,
)
from realtime.integration_config import (
    Address,
    AgentSettings,
    CallSettings,
    MqttSettings,
    WyomingSettings,
    XiaozhiSettings,
    parse_address,
)

ENVIRONMENT_PREFIX = "VOICEWIRE_"
SECRETS = frozenset(
    {"auth.api_keys", "auth.token_secret", "calls.twilio_auth_token", "mqtt.password", "mqtt.url", "watermark.key"}
)


class ConfigError(Exception):
    """Raised for an invalid setting; the message names the setting, its origin, its value and its range."""


class ServerConfig(Struct, frozen=True, kw_only=True):
    listen: ListenSettings = ListenSettings()
    limits: LimitSettings = LimitSettings()
    speech: SpeechDefaults = SpeechDefaults()
    engine: EngineSettings = EngineSettings()
    auth: AuthSettings = AuthSettings()
    dialects: DialectSettings = DialectSettings()
    voices: VoiceStoreSettings = VoiceStoreSettings()
    calls: CallSettings = CallSettings()
    agent: AgentSettings = AgentSettings()
    mqtt: MqttSettings = MqttSettings()
    wyoming: WyomingSettings = WyomingSettings()
    xiaozhi: XiaozhiSettings = XiaozhiSettings()
    watermark: WatermarkSettings = WatermarkSettings()
    log: LogSettings = LogSettings()
    debug: DebugConfig = DebugConfig()

    def __post_init__(self) -> None:
        for section, values in self.debug.constants.items():
            msgspec.structs.force_setattr(self, section, replace_constants(getattr(self, section), values))

    @property
    def num_encoder_threads(self) -> int:
        """Of each process. Gateways share the cores, and a thread beside each event loop costs CPU."""
        threads = self.limits.encoder_threads
        return threads if threads is not None else int(self.listen.gateways <= 1)


def replace_constants(section: SettingsSection, values: Mapping[str, object]) -> SettingsSection:
    """Return ``section`` as an instance of a subclass with other constants."""
    kind = type(section)
    if unknown := values.keys() - constants_of(kind).keys():
        raise ConfigError(f"debug.constants: {kind.__name__} has no constant {min(unknown)!r}")
    changed: type[SettingsSection] = type(kind.__name__, (kind,), dict(values))
    return changed(**msgspec.structs.asdict(section))


def constants_of(section: type[SettingsSection]) -> Mapping[str, object]:
    """Return constants by name; what is derived from a setting has a property as its value."""
    # A copy of a configuration replaces constants once more, of classes that define nothing else.
    section = next((kind for kind in section.__mro__ if get_annotations(kind)), section)
    fixed = {name for name, kind in get_annotations(section).items() if str(kind).startswith("ClassVar[")}
    return {name: value for name, value in vars(section).items() if name in fixed or isinstance(value, property)}


def gateway_address(config: ServerConfig, setting: str, text: str | None) -> Address | None:
    """Parse an address at which all gateways listen; raises ``ConfigError`` for port 0 with several gateways."""
    address = parse_address(text) if text is not None else None
    if address is not None and not address.port and config.listen.gateways > 1:
        raise ConfigError(f"{setting} = {text}: several gateways share one port, which must not be 0")
    return address


TABLE = "a table"
# Settings of earlier versions, and those that replace them.
REPLACED = {
    "listen.ping_timeout_s": "listen.ping_interval_s",
    "limits.max_http_connections": "limits.max_connections",
    "calls.audiosocket_enabled": "calls.audiosocket",
    "calls.audiosocket_host": "calls.audiosocket",
    "calls.audiosocket_port": "calls.audiosocket",
    "wyoming.enabled": "wyoming.address",
    "wyoming.host": "wyoming.address",
    "wyoming.port": "wyoming.address",
    "xiaozhi.mqtt_enabled": "xiaozhi.mqtt",
    "xiaozhi.mqtt_udp_host": "xiaozhi.mqtt",
    "xiaozhi.mqtt_port": "xiaozhi.mqtt",
    "xiaozhi.udp_port": "xiaozhi.udp",
    "mqtt.host": "mqtt.url",
    "mqtt.port": "mqtt.url",
    "mqtt.tls": "mqtt.url",
    "mqtt.username": "mqtt.url",
}


class RawSetting(NamedTuple):
    """A setting as it was given."""

    name: str
    value: object
    origin: str
    # True if the origin has text only, which is converted to numbers and booleans.
    is_text: bool = True


def load_config(
    file: Path | None = None, environment: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> ServerConfig:
    """Merge the sources, later ones over earlier ones. ``flags`` maps full setting names to values.

    Raises ``ConfigError``.
    """
    given = [*_from_file(file), *_from_environment(environment or {}), *_from_flags(flags or {})]
    sections: dict[str, dict[str, object]] = {}
    for setting in map(_as_table, given):
        section, _, field = setting.name.partition(".")
        values = sections.setdefault(section, {})
        values[field] = merge_tables(values.get(field), _convert(setting))
    if "debug" in sections and (environment or {}).get(f"{ENVIRONMENT_PREFIX}DEBUG") != "1":
        raise ConfigError(f"debug is for tests and benchmarks, with {ENVIRONMENT_PREFIX}DEBUG=1")
    kinds = {field.name: field.type for field in msgspec.structs.fields(ServerConfig)}
    return ServerConfig(**{name: kinds[name](**values) for name, values in sections.items()})


@cache
def settings() -> Mapping[str, msgspec.structs.FieldInfo]:
    """Return all settings by their full names, without those for debugging. The first call takes 10 ms."""
    return {name: field for name, field in _fields().items() if not name.startswith("debug.")}


@cache
def constants() -> Mapping[str, object]:
    """Return the constants of all sections by their full names. Most of them were settings."""
    sections = msgspec.structs.fields(ServerConfig)
    return {f"{one.name}.{name}": value for one in sections for name, value in constants_of(one.type).items()}


@cache
def _fields() -> Mapping[str, msgspec.structs.FieldInfo]:
    sections = msgspec.structs.fields(ServerConfig)
    fields = {section.name: msgspec.structs.fields(section.type) for section in sections}
    return {f"{section}.{field.name}": field for section in fields for field in fields[section]}


def environment_name(setting: str) -> str:
    return ENVIRONMENT_PREFIX + setting.replace(".", "_").upper()


def _from_file(file: Path | None) -> Iterator[RawSetting]:
    if file is None:
        return
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    for section, values in content.items():
        if not isinstance(values, dict):
            raise ConfigError(f"{file}: {section} stands outside of a [section]")
        yield from (
            RawSetting(f"{section}.{field}", value, str(file), is_text=False) for field, value in values.items()
        )


def _from_environment(environment: Mapping[str, str]) -> Iterator[RawSetting]:
    for name in (*settings(), *constants(), *REPLACED):
        variable = environment_name(name)
        if variable in environment:
            yield RawSetting(name, environment[variable], variable)


def _from_flags(flags: Mapping[str, object]) -> Iterator[RawSetting]:
    return (RawSetting(name, value, "command line") for name, value in flags.items())


@cache
def _tables() -> frozenset[str]:
    """Names of the settings that are tables, whose entries may be given one by one."""
    return frozenset(name for name, field in _fields().items() if allowed(field) == TABLE)


def _as_table(setting: RawSetting) -> RawSetting:
    """The setting itself, or for an entry of a table, such as ``engine.options.max_batch_size``, the table with it
    alone.

    Text becomes a TOML value where it is one: ``8``, ``false``, ``[1, 2]``, ``"text"``; else it stays text.
    """
    if not setting.is_text:
        return setting
    if setting.name in _tables() and isinstance(setting.value, str):
        return setting._replace(value=_toml_value(setting.value), is_text=False)
    table = next((name for name in _tables() if setting.name.startswith(name + ".")), None)
    if table is None:
        return setting
    value = _toml_value(setting.value) if isinstance(setting.value, str) else setting.value
    for key in reversed(setting.name[len(table) + 1 :].split(".")):
        value = {key: value}
    return setting._replace(name=table, value=value, is_text=False)


def _toml_value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def merge_tables(former: object, value: object) -> object:
    """A table's entries replace those of the same name; any other value replaces the former."""
    if not isinstance(former, dict) or not isinstance(value, dict):
        return value
    return former | {key: merge_tables(former.get(key), entry) for key, entry in value.items()}


def _convert(setting: RawSetting) -> object:
    """The value in its field's type."""
    field = _fields().get(setting.name)
    if setting.name in REPLACED:
        new = REPLACED[setting.name]
        raise ConfigError(
            f"{setting.name} ({setting.origin}) is no setting any more: set {new}, {allowed(_fields()[new])}"
        )
    if setting.name in constants():
        value = constants()[setting.name]
        raise ConfigError(
            f"{setting.name} ({setting.origin}) is no setting any more: it is always {value!r}; remove it"
        )
    if field is None:
        raise ConfigError(f"{setting.name} ({setting.origin}) is no setting")
    try:
        return msgspec.convert(setting.value, field.type, strict=not setting.is_text)
    except msgspec.ValidationError:
        value = "..." if setting.name in SECRETS else repr(setting.value)
        raise ConfigError(f"{setting.name} = {value} ({setting.origin}): expected {allowed(field)}") from None


def allowed(field: msgspec.structs.FieldInfo) -> str:
    """Describe the values that a setting may have."""
    kind = msgspec.inspect.type_info(field.type)
    while isinstance(kind, msgspec.inspect.Metadata | msgspec.inspect.UnionType):
        if isinstance(kind, msgspec.inspect.Metadata) and kind.extra is not None:
            return str(kind.extra["expected"])
        kind = kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind.types[0]  # the second is None
    match kind:
        case msgspec.inspect.LiteralType():
            return "one of " + ", ".join(str(value) for value in kind.values)
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            least = f"above {kind.gt:g}" if kind.gt is not None else f"from {kind.ge}"
            return f"{'a whole' if isinstance(kind, msgspec.inspect.IntType) else 'a'} number {least} to {kind.le:.0f}"
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.DictType():
            return TABLE
        case _:
            return "a text"
