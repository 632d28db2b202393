"""Every setting of the server, with its default and its range: a TOML file, then the environment, then flags.

A setting ``limits.max_connections`` is ``max_connections`` under ``[limits]`` in the file, the variable
``VOICEWIRE_LIMITS_MAX_CONNECTIONS``, and the flag ``--set limits.max_connections=N``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from realtime.integration_config import MqttSettings, SettingsSection, WyomingSettings, XiaozhiSettings

ENVIRONMENT_PREFIX = "VOICEWIRE_"
SECRETS = frozenset({"auth.api_keys", "auth.token_secret", "calls.twilio_auth_token", "mqtt.password"})


class ConfigError(Exception):
    """A setting that cannot be used; the message names the setting, where it came from, its value and its range."""


class ListenSettings(SettingsSection, frozen=True):
    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")] = 8765
    gateways: Annotated[
        int, Meta(ge=1, le=256, description="Processes for sockets and Opus (docs/guides/deployment.md).")
    ] = 1
    tls_certificate: Annotated[str | None, Meta(description="File with the certificate chain; turns TLS on.")] = None
    tls_key: Annotated[str | None, Meta(description="File with the certificate's private key.")] = None
    tls_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(description="Second port, for TLS; `listen.port` is plain then. 0 takes a free one."),
    ] = None
    tls_host: Annotated[str | None, Meta(description="Address of the second port; by default that of the first.")] = (
        None
    )
    handshake_timeout_s: Annotated[
        float, Meta(gt=0, le=300, description="A connection that has sent no whole request by then is closed.")
    ] = 10.0
    ping_interval_s: Annotated[float, Meta(gt=0, le=3_600, description="Between WebSocket pings.")] = 20.0
    drain_timeout_s: Annotated[
        float, Meta(ge=0, le=3_600, description="After SIGTERM, for responses that are still being spoken.")
    ] = 30.0
    page: Annotated[str | None, Meta(description="Folder of the page; by default the one that was installed.")] = None

    # Constants.
    # Time that a client has for its part of a close.
    close_timeout_s: ClassVar[float] = 2.0
    # Connections that the system holds until they are accepted.
    backlog: ClassVar[int] = 2_048
    # Whether short messages of WebSockets go past the general parser.
    fast_frame_parser: ClassVar[bool] = True
    # The system's send buffer of a connection.
    send_buffer_bytes: ClassVar[int] = 65_536
    # Unsent bytes in that buffer above which writing waits.
    tcp_notsent_lowat_bytes: ClassVar[int] = 16_384
    # Bytes this process holds for a connection before writing waits.
    write_buffer_bytes: ClassVar[int] = 16_384

    @property
    def ping_timeout_s(self) -> float:
        """An unanswered ping ends the connection after this."""
        return self.ping_interval_s


class LimitSettings(SettingsSection, frozen=True):
    max_connections: Annotated[int, Meta(ge=1, le=100_000, description="Open WebSocket connections.")] = 5_000
    max_connections_per_key: Annotated[
        int, Meta(ge=0, le=100_000, description="Of them with one API key; 0: half, and all if it is the only key.")
    ] = 0
    max_active_responses: Annotated[int, Meta(ge=1, le=100_000, description="Responses spoken at once.")] = 512
    max_active_responses_per_key: Annotated[
        int, Meta(ge=0, le=100_000, description="Of them with one API key; 0: half, and all if it is the only key.")
    ] = 0
    max_message_bytes: Annotated[int, Meta(ge=1_024, le=16_777_216, description="Of one message or body.")] = 262_144
    max_response_chars: Annotated[int, Meta(ge=1, le=10_000_000, description="Text of one response.")] = 50_000
    max_http_response_bytes: Annotated[
        int, Meta(ge=1_024, le=2_147_483_647, description="Audio of one HTTP answer that is not streamed.")
    ] = 67_108_864
    encoder_threads: Annotated[
        int, Meta(ge=0, le=256, description="Threads for Opus, MP3, AAC, FLAC and changes of speed; 0 has none.")
    ] = 1
    max_lead_ms: Annotated[int, Meta(ge=100, le=600_000, description="The largest lead a client may ask for.")] = 60_000
    idle_timeout_s: Annotated[float, Meta(gt=0, le=86_400, description="Without an event and without speech.")] = 600.0
    max_session_duration_s: Annotated[float, Meta(gt=0, le=604_800, description="The oldest a session may become.")] = (
        86_400.0
    )
    text_timeout_s: Annotated[float, Meta(gt=0, le=3_600, description="A response waits for text so long.")] = 60.0
    reader_timeout_s: Annotated[float, Meta(gt=0, le=600, description="Due audio waits to be taken so long.")] = 10.0
    engine_timeout_s: Annotated[float, Meta(gt=0, le=600, description="The engine may be silent so long.")] = 20.0

    # Refused messages after which a connection is closed.
    max_errors_per_connection: ClassVar[int] = 100
    # Pause that refused clients are asked to make.
    retry_after_ms: ClassVar[int] = 1_000
    # Of them in one session.
    max_active_responses_per_session: ClassVar[int] = 8
    # Text of one POST /v1/audio/speech.
    max_speech_request_chars: ClassVar[int] = 4_096
    # Audio in one message, where so much is ready and the lead is long.
    max_audio_message_ms: ClassVar[int] = 240
    # The first packet of a response leaves before the rest of its chunk is encoded.
    flush_first_packet: ClassVar[bool] = True
    # Chunks that come together are made into packets one in each turn of the event loop.
    one_chunk_per_loop_iteration: ClassVar[bool] = True
    # What is there at the start is left out of Python's garbage collections.
    gc_freeze_on_start: ClassVar[bool] = True
    # The engine hears of the listener's place when it is off by more.
    playback_tolerance_ms: ClassVar[int] = 10
    # What was heard is told after so long, if only roughly.
    heard_text_timeout_ms: ClassVar[int] = 1_000
    # Ended responses of a session that can still be asked about.
    max_retained_responses: ClassVar[int] = 4
    # Speech kept in a process to find words in, should somebody ask; 0 finds them as they sound.
    max_alignment_backlog_mb: ClassVar[int] = 512
    # Overloaded for so long, the server refuses handshakes too.
    overload_grace_s: ClassVar[float] = 2.0

    @property
    def max_http_connections(self) -> int:
        """HTTP connections, and those without a completed handshake."""
        return self.max_connections


class SpeechDefaults(SettingsSection, frozen=True):
    voice: Annotated[str | None, Meta(description="Voice; by default the checkpoint's first.")] = None
    language: Annotated[str, Meta(description="Language.")] = "auto"
    encoding: Annotated[Literal["opus", "pcm_s16le", "mulaw", "alaw"], Meta(description="How audio is coded.")] = "opus"
    sample_rate: Annotated[int, Meta(ge=8_000, le=48_000, description="Samples a second.")] = 24_000
    bitrate: Annotated[int, Meta(ge=6_000, le=510_000, description="Bits a second of Opus.")] = 32_000
    opus_application: Annotated[
        Literal["voip", "audio"],
        Meta(description="What Opus is tuned for: `audio` is a third of the work, and as good from 64,000 bits on."),
    ] = "voip"
    response_format: Annotated[
        Literal["mp3", "wav", "pcm", "opus", "aac", "flac"],
        Meta(description="Format of `POST /v1/audio/speech` for requests without `response_format`."),
    ] = "mp3"
    lead_ms: Annotated[int, Meta(ge=100, le=600_000, description="Audio sent ahead of what is played.")] = 2_000
    avoid_dead_air: Annotated[bool, Meta(description="Close a segment early when text is late.")] = True

    # Constant.
    # Word times are found in the audio (``letters``); ``even`` shares it evenly.
    aligner: ClassVar[str] = "letters"


class EngineSettings(SettingsSection, frozen=True):
    model: Annotated[
        str | None,
        Meta(description="Checkpoint folder, or OWNER/NAME of a model on the hub; by default the embedded voice."),
    ] = None
    options: Annotated[dict[str, Any], Meta(description="Handed to the engine as they are.")] = {}  # noqa: RUF012  a Struct copies it


class AuthSettings(SettingsSection, frozen=True):
    keys_file: Annotated[str | None, Meta(description="TOML file of API keys (docs/guides/deployment.md).")] = None
    api_keys: Annotated[str | None, Meta(description="API keys as `name:key,name:key`; best in the environment.")] = (
        None
    )
    token_secret: Annotated[
        str | None,
        Meta(description="Secret that signs browser tokens, best in the environment; by default one in a file."),
    ] = None
    max_token_ttl_s: Annotated[int, Meta(ge=1, le=86_400, description="The longest a browser token may be valid.")] = (
        3_600
    )


class DialectSettings(SettingsSection, frozen=True):
    lead_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="Lead on vendors' wires, whose clients expect bursts.")
    ] = 10_000
    voice_aliases: Annotated[
        dict[str, str], Meta(description="Vendors' voice ids, and the voices of ours that speak for them.")
    ] = {}  # noqa: RUF012

    # Constants.
    # Open contexts of a connection on a vendor's wire.
    max_contexts_per_connection: ClassVar[int] = 256
    # Connections whose key is still to come, in their first message.
    max_unauthenticated_connections: ClassVar[int] = 256


class CallSettings(SettingsSection, frozen=True):
    twilio_auth_token: Annotated[
        str | None, Meta(description="Twilio's auth token: lines that it signed are let in, and no others.")
    ] = None
    public_url: Annotated[
        str | None, Meta(description="What Twilio calls this server, such as `https://voice.example.com`.")
    ] = None
    default_key_name: Annotated[
        str | None, Meta(description="Name of the API key that lines without a key belong to; by default the first.")
    ] = None
    audiosocket_enabled: Annotated[bool, Meta(description="Whether there is a port for Asterisk's AudioSocket.")] = (
        False
    )
    audiosocket_port: Annotated[int, Meta(ge=0, le=65_535, description="That port; 0 takes a free one.")] = 9_092
    audiosocket_host: Annotated[
        str, Meta(description="Address of that port, which has no keys: whoever reaches it is a caller.")
    ] = "127.0.0.1"
    lead_ms: Annotated[int, Meta(ge=40, le=10_000, description="Audio sent ahead of what the caller has heard.")] = 200
    barge_in: Annotated[bool, Meta(description="Whether the caller's voice interrupts.")] = True
    vad_threshold: Annotated[float, Meta(ge=0.2, le=1, description="How likely sound has to be speech.")] = 0.55
    vad_min_speech_ms: Annotated[int, Meta(ge=32, le=2_000, description="For so long, to interrupt.")] = 32
    echo_return_loss_db: Annotated[
        float, Meta(ge=0, le=120, description="Our own voice comes back quieter by at least so much.")
    ] = 20.0

    # Constants.
    # Audio that is made ahead of what is sent.
    generation_lead_ms: ClassVar[int] = 480
    # Audio between marks on the line.
    mark_interval_ms: ClassVar[int] = 1_000
    # A mark so late counts as heard, by our clock.
    mark_timeout_s: ClassVar[float] = 5.0
    # For a command that another gateway obeys, whose call it is.
    remote_command_timeout_s: ClassVar[float] = 5.0
    # Replies of a call that are not heard yet.
    max_pending_replies: ClassVar[int] = 64
    # Marks of a reply.
    max_marks_per_reply: ClassVar[int] = 256
    # Events that may wait for an agent.
    max_queued_events: ClassVar[int] = 4_096
    # Silence after which speech may begin again.
    vad_min_silence_ms: ClassVar[int] = 320
    # Of full scale; what is quieter is silence.
    vad_min_level_db: ClassVar[float] = -50.0
    # Sound less above a line's noise is nobody, and is not looked at. 0: all is.
    vad_noise_margin_db: ClassVar[float] = 3.0


class VoiceStoreSettings(SettingsSection, frozen=True):
    folder: Annotated[
        str | None, Meta(description="Where voices are stored; by default voicewire/voices in the user's data folder.")
    ] = None
    max_voices: Annotated[int, Meta(ge=0, le=1_000_000, description="Voices stored.")] = 10_000
    max_voices_per_key: Annotated[int, Meta(ge=0, le=1_000_000, description="Of them by one API key.")] = 1_000
    max_upload_bytes: Annotated[
        int, Meta(ge=1_024, le=268_435_456, description="Of a recording: uploaded, fetched, or in a data URI.")
    ] = 10_485_760
    allow_url_fetch: Annotated[bool, Meta(description="Whether requests may name a recording by its address.")] = True
    allow_plain_http_fetch: Annotated[bool, Meta(description="Whether such an address may be plain http.")] = False
    allowed_private_networks: Annotated[
        str | None, Meta(description="Networks that are asked although they are not public: `10.0.0.0/8,fd00::/8`.")
    ] = None

    # Constants.
    # Recordings that arrive at once.
    max_concurrent_uploads: ClassVar[int] = 16
    # Recordings fetched and listened to at once.
    max_concurrent_encodings: ClassVar[int] = 4
    # For a recording to arrive.
    upload_timeout_s: ClassVar[float] = 60.0
    # For a recording to be decoded.
    decode_timeout_s: ClassVar[float] = 10.0
    # For a recording to be fetched.
    fetch_timeout_s: ClassVar[float] = 10.0
    # Redirects that are followed.
    max_fetch_redirects: ClassVar[int] = 3


class LogSettings(SettingsSection, frozen=True):
    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="Least severe to write.")] = "info"
    format: Annotated[Literal["json", "text"], Meta(description="`json`, one object a line, or `text`.")] = "json"


class DebugConfig(SettingsSection, frozen=True):
    """Other values for constants, for tests and benchmarks; refused unless ``VOICEWIRE_DEBUG`` is 1."""

    constants: Annotated[dict[str, Any], Meta(description="Values by section and name.")] = {}  # noqa: RUF012
    engine: Annotated[dict[str, Any], Meta(description="Constants of the engine.")] = {}  # noqa: RUF012


class ServerConfig(Struct, frozen=True, kw_only=True):
    listen: ListenSettings = ListenSettings()
    limits: LimitSettings = LimitSettings()
    speech: SpeechDefaults = SpeechDefaults()
    engine: EngineSettings = EngineSettings()
    auth: AuthSettings = AuthSettings()
    dialects: DialectSettings = DialectSettings()
    voices: VoiceStoreSettings = VoiceStoreSettings()
    calls: CallSettings = CallSettings()
    mqtt: MqttSettings = MqttSettings()
    wyoming: WyomingSettings = WyomingSettings()
    xiaozhi: XiaozhiSettings = XiaozhiSettings()
    log: LogSettings = LogSettings()
    debug: DebugConfig = DebugConfig()

    def __post_init__(self) -> None:
        for section, values in self.debug.constants.items():
            msgspec.structs.force_setattr(self, section, replace_constants(getattr(self, section), values))


def replace_constants(section: SettingsSection, values: Mapping[str, object]) -> SettingsSection:
    """Return ``section`` as an instance of a subclass with other constants."""
    kind = type(section)
    if unknown := values.keys() - constants_of(kind).keys():
        raise ConfigError(f"debug.constants: {kind.__name__} has no constant {min(unknown)!r}")
    changed: type[SettingsSection] = type(kind.__name__, (kind,), dict(values))
    return changed(**msgspec.structs.asdict(section))


def constants_of(section: type[SettingsSection]) -> Mapping[str, object]:
    """Return constants by name; what is derived from a setting has a property as its value."""
    fixed = {name for name, kind in section.__annotations__.items() if str(kind).startswith("ClassVar[")}
    return {name: value for name, value in vars(section).items() if name in fixed or isinstance(value, property)}


TABLE = "a table"
# Settings of earlier versions that now follow another one.
DERIVED = {
    "listen.ping_timeout_s": "listen.ping_interval_s",
    "limits.max_http_connections": "limits.max_connections",
}


class RawSetting(NamedTuple):
    """One setting as it came."""

    name: str
    value: object
    origin: str
    # Whether all values of this origin are text, which then may stand for numbers and booleans.
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
    for name in (*settings(), *constants(), *DERIVED):
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
        shown = "..." if setting.name in SECRETS else repr(setting.value)
        raise ConfigError(f"{setting.name} = {shown} ({setting.origin}): expected {allowed(field)}") from None


def allowed(field: msgspec.structs.FieldInfo) -> str:
    """The values a setting may have, in words."""
    kind = msgspec.inspect.type_info(field.type)
    while isinstance(kind, msgspec.inspect.Metadata | msgspec.inspect.UnionType):
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
