from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api import InvalidRequest
from realtime.config import (
    REPLACED,
    ConfigError,
    ServerConfig,
    allowed,
    constants,
    constants_of,
    environment_name,
    load_config,
    settings,
)
from realtime.config_sections import SettingsSection
from realtime.engine_factory import engine_options
from realtime.integration_config import parse_address, parse_broker_url

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def write(folder: Path, text: str) -> Path:
    path = folder / "voicewire.toml"
    path.write_text(text)
    return path


def test_nothing_given_is_the_defaults() -> None:
    assert load_config() == ServerConfig()


def test_flags_go_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[listen]\nport = 1\ndrain_timeout_s = 1\nhost = 'h'\n[engine.options]\nnum_slots = 4")
    environment = {"VOICEWIRE_LISTEN_PORT": "2", "VOICEWIRE_LISTEN_DRAIN_TIMEOUT_S": "2", "VOICEWIRE_OTHER": "x"}
    config = load_config(file, environment, {"listen.port": "3", "speech.avoid_dead_air": "false"})
    assert (config.listen.port, config.listen.drain_timeout_s, config.listen.host) == (3, 2, "h")
    assert config.speech.avoid_dead_air is False
    assert config.engine.options == {"num_slots": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[listen]\nport = 70000", "listen.port = 70000 ({file}): expected a whole number from 0 to 65535"),
        ("[listen]\nport = '80'", "listen.port = '80' ({file}): expected a whole number from 0 to 65535"),
        ("[limits]\nidle_timeout_s = 0", "limits.idle_timeout_s = 0 ({file}): expected a number above 0 to 86400"),
        ("[log]\nlevel = 'loud'", "log.level = 'loud' ({file}): expected one of debug, error, info, warning"),
        ("[speech]\navoid_dead_air = 1", "speech.avoid_dead_air = 1 ({file}): expected true or false"),
        ("[listen]\nprt = 1", "listen.prt ({file}) is no setting"),
        ("[lists]\nport = 1", "lists.port ({file}) is no setting"),
        ("port = 1", "{file}: port stands outside of a [section]"),
        ('api_keys = "agent:secret"', "{file}: api_keys stands outside of a [section]"),
        ("[listen", "{file}: "),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_with_its_value_and_range(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert str(error.value).startswith(message.format(file=file))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        load_config(tmp_path / "nowhere.toml")


def test_numbers_come_out_of_text_only_where_all_is_text() -> None:
    assert load_config(environment={"VOICEWIRE_LIMITS_IDLE_TIMEOUT_S": "2.5"}).limits.idle_timeout_s == 2.5
    with pytest.raises(ConfigError, match="VOICEWIRE_LIMITS_MAX_ERRORS_PER_CONNECTION"):
        load_config(environment={"VOICEWIRE_LIMITS_MAX_ERRORS_PER_CONNECTION": "many"})


def test_no_message_shows_a_key() -> None:
    with pytest.raises(ConfigError) as error:
        load_config(flags={"auth.api_keys": 12345})
    assert "12345" not in str(error.value)


def test_every_default_is_within_its_range() -> None:
    for name, field in settings().items():
        if field.default not in (None, msgspec.NODEFAULT):
            load_config(flags={name: field.default})


@pytest.mark.parametrize(("name", "field"), list(settings().items()))
def test_configuration_page_matches_settings(name: str, field: object) -> None:
    assert setting_line(name, field) in PAGE.read_text()


def setting_line(name: str, field: object) -> str:
    shown = "" if field.default in (None, msgspec.NODEFAULT) else f"`{json_word(field.default)}`"
    about = field.type.__metadata__[-1].description
    return f"| `{name}` | {shown} | {allowed(field)} | {about} |"


def json_word(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        *(
            (name, value, "an address HOST:PORT")
            for name in ("calls.audiosocket", "xiaozhi.udp")
            for value in ("9092", "127.0.0.1", "127.0.0.1:65536", "::1:9092", "http://host:80", "a b:1", "host:")
        ),
        *(
            ("mqtt.url", value, "mqtt://USER@HOST:PORT")
            for value in (
                "broker",
                "http://broker",
                "mqtt://",
                "mqtt://user:password@broker",
                "mqtt://broker:70000",
                "mqtt://broker/topic",
            )
        ),
    ],
)
def test_malformed_addresses_are_refused(setting: str, value: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting} = .*: expected {wanted}"):
        load_config(flags={setting: value})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:65535", ("::1", 65_535)),
        ("a.example.com:9092", ("a.example.com", 9_092)),
    ],
)
def test_addresses_are_parsed(text: str, address: tuple[str, int]) -> None:
    assert load_config(flags={"wyoming.address": text}).wyoming.address == text
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://broker", ("broker", 1_883, False, None)),
        ("mqtts://server%40home@broker", ("broker", 8_883, True, "server@home")),
        ("mqtt://server@[::1]:1884", ("::1", 1_884, False, "server")),
    ],
)
def test_broker_urls_are_parsed(url: str, address: tuple[object, ...]) -> None:
    assert load_config(flags={"mqtt.url": url}).mqtt.url == url
    assert parse_broker_url(url) == address


def test_names_in_the_environment() -> None:
    assert environment_name("limits.max_response_chars") == "VOICEWIRE_LIMITS_MAX_RESPONSE_CHARS"


def test_entries_of_a_table_are_set_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "voicewire.toml"
    file.write_text("[engine.options]\nmax_batch_size = 4\ndevice = 'cpu'\n")
    flags = {
        "engine.options.max_batch_size": "8",
        "engine.options.graphs": "false",
        "engine.options.decode_device": "cuda:1",
        "engine.options.cosyvoice3.talker.graphs": "true",
        "dialects.voice_aliases.abc": "clara",
    }
    config = load_config(file, flags=flags)
    assert config.engine.options == {
        "max_batch_size": 8,
        "device": "cpu",
        "graphs": False,
        "decode_device": "cuda:1",
        "cosyvoice3": {"talker": {"graphs": True}},
    }
    assert config.dialects.voice_aliases == {"abc": "clara"}


def test_table_in_the_environment_is_an_inline_table() -> None:
    config = load_config(environment={"VOICEWIRE_ENGINE_OPTIONS": "{max_batch_size = 2}"})
    assert config.engine.options == {"max_batch_size": 2}
    with pytest.raises(ConfigError, match=r"engine\.options.*expected a table"):
        load_config(environment={"VOICEWIRE_ENGINE_OPTIONS": "2"})


MAX_SETTINGS = 93  # of the server; grows with features only
DEBUG = {"VOICEWIRE_DEBUG": "1"}


def test_server_has_no_more_settings_than_its_ceiling() -> None:
    assert len(settings()) <= MAX_SETTINGS


@pytest.mark.parametrize("name", sorted({*constants(), *REPLACED}))
def test_former_setting_is_refused_and_names_what_replaces_it(name: str, tmp_path: Path) -> None:
    section, _, field = name.partition(".")
    value = "20" if name in REPLACED else json.dumps(constants()[name])
    wanted = f"set {REPLACED[name]}, " if name in REPLACED else "it is always .*; remove it"
    sources: list[dict[str, Any]] = [
        {"file": write(tmp_path, f"[{section}]\n{field} = {value}")},
        {"environment": {environment_name(name): value}},
        {"flags": {name: value}},
    ]
    for source in sources:
        with pytest.raises(ConfigError, match=f"{name} .* is no setting any more: {wanted}"):
            load_config(**source)


def test_debug_replaces_constants_here_and_in_gateways() -> None:
    flags = {"debug.constants.limits.flush_first_packet": "false", "debug.constants.calls.mark_timeout_s": 0.5}
    config = load_config(environment=DEBUG, flags=flags)
    copy = msgspec.structs.replace(config, listen=msgspec.structs.replace(config.listen, gateways=2))
    for each in (config, copy, msgspec.json.decode(msgspec.json.encode(config), type=ServerConfig)):
        assert (each.limits.flush_first_packet, each.calls.mark_timeout_s) == (False, 0.5)
    assert load_config().limits.flush_first_packet is True


def test_section_without_settings_has_no_constants() -> None:
    class EmptySettings(SettingsSection, frozen=True):
        pass

    assert constants_of(EmptySettings) == {}


def test_debug_is_refused_in_production_and_with_unknown_names() -> None:
    with pytest.raises(ConfigError, match="VOICEWIRE_DEBUG=1"):
        load_config(flags={"debug.constants.limits.flush_first_packet": "false"})
    with pytest.raises(ConfigError, match="LimitSettings has no constant 'max_connections'"):
        load_config(environment=DEBUG, flags={"debug.constants.limits.max_connections": 1})


def test_constants_of_the_engine_are_replaced_by_debug_only() -> None:
    flags = {
        "engine.options.cosyvoice3.talker.weights": "llm.pt",
        "debug.engine.cosyvoice3.talker.max_tokens": "8",
        "debug.engine.block_size": "4",
    }
    talker = {"weights": "llm.pt", "max_tokens": 8}
    options = engine_options(load_config(environment=DEBUG, flags=flags))
    assert options == {"block_size": 4, "cosyvoice3": {"talker": talker}}
    with pytest.raises(InvalidRequest, match="block_size is a constant of the engine, 16: remove the option"):
        engine_options(load_config(flags={"engine.options.block_size": "4"}))
    with pytest.raises(ConfigError, match="VOICEWIRE_DEBUG=1"):
        load_config(flags={"debug.engine.block_size": "4"})
