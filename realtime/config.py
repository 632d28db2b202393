"""The settings of the server with defaults and ranges, from a TOML file, the environment and flags.

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

from realtime.integration_config import (
    Address,
    AgentSettings,
    HostPort,
    MqttSettings,
    SettingsSection,
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


class ListenSettings(SettingsSection, frozen=True):
    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")] = 8765
    gateways: Annotated[
        int,
        Meta(
            ge=0,
            le=256,
            description="Processes for sockets and Opus; 0: by the cores beside a GPU, else one "
            "(docs/guides/deployment.md).",
        ),
    ] = 0
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
        float, Meta(gt=0, le=300, description="Time for a complete request; then the connection is closed.")
    ] = 10.0
    ping_interval_s: Annotated[float, Meta(gt=0, le=3_600, description="Interval of WebSocket pings.")] = 20.0
    drain_timeout_s: Annotated[
        float, Meta(ge=0, le=3_600, description="Time after SIGTERM for active responses to end.")
    ] = 30.0
    page: Annotated[str | None, Meta(description="Folder of the web client; by default the installed one.")] = None

    # Constants.
    # Time for the client to complete a close.
    close_timeout_s: ClassVar[float] = 2.0
    # Connections that wait to be accepted.
    backlog: ClassVar[int] = 2_048
    # Parse short WebSocket messages without the general parser.
    fast_frame_parser: ClassVar[bool] = True
    # The system's send buffer of a connection.
    send_buffer_bytes: ClassVar[int] = 65_536
    # Unsent bytes in that buffer above which writes wait.
    tcp_notsent_lowat_bytes: ClassVar[int] = 16_384
    # Bytes buffered per connection above which writes wait.
    write_buffer_bytes: ClassVar[int] = 16_384

    @property
    def ping_timeout_s(self) -> float:
        """Time after which an unanswered ping ends the connection."""
        return self.ping_interval_s


class LimitSettings(SettingsSection, frozen=True):
    max_connections: Annotated[int, Meta(ge=1, le=100_000, description="Maximum of open WebSocket connections.")] = (
        5_000
    )
    max_connections_per_key: Annotated[
        int, Meta(ge=0, le=100_000, description="The same per API key; 0: half, or all for the only key.")
    ] = 0
    max_active_responses: Annotated[int, Meta(ge=1, le=100_000, description="Maximum of concurrent responses.")] = 2_048
    max_active_responses_per_key: Annotated[
        int, Meta(ge=0, le=100_000, description="The same per API key; 0: half, or all for the only key.")
    ] = 0
    max_message_bytes: Annotated[
        int, Meta(ge=1_024, le=16_777_216, description="Maximum size of a message or body.")
    ] = 262_144
    max_response_chars: Annotated[int, Meta(ge=1, le=10_000_000, description="Maximum text of a response.")] = 50_000
    max_http_response_bytes: Annotated[
        int, Meta(ge=1_024, le=2_147_483_647, description="Maximum audio of an HTTP response that is not streamed.")
    ] = 67_108_864
    encoder_threads: Annotated[
        Annotated[int, Meta(ge=0, le=256)] | None,
        Meta(
            description="Threads for Opus, MP3, AAC, FLAC and time stretching in each process; 0 uses the event loop. "
            "Unset: 1, or 0 with several gateways."
        ),
    ] = None
    max_lead_ms: Annotated[int, Meta(ge=100, le=600_000, description="Maximum lead that a client may set.")] = 60_000
    idle_timeout_s: Annotated[
        float, Meta(gt=0, le=86_400, description="Maximum time of a session without events and speech.")
    ] = 600.0
    max_session_duration_s: Annotated[float, Meta(gt=0, le=604_800, description="Maximum duration of a session.")] = (
        86_400.0
    )
    resume_grace_s: Annotated[
        float,
        Meta(ge=0, le=600, description="Time for which a session outlives a lost connection; 0: not at all."),
    ] = 30.0
    text_timeout_s: Annotated[
        float, Meta(gt=0, le=3_600, description="Maximum time that a response waits for text.")
    ] = 60.0
    reader_timeout_s: Annotated[
        float, Meta(gt=0, le=600, description="Maximum time that due audio waits for a slow client.")
    ] = 10.0
    engine_timeout_s: Annotated[
        float, Meta(gt=0, le=600, description="Maximum time without audio from the engine.")
    ] = 30.0

    # Refused messages after which a connection is closed.
    max_errors_per_connection: ClassVar[int] = 100
    # Retry hint for refused clients.
    retry_after_ms: ClassVar[int] = 1_000
    # Concurrent responses of a session.
    max_active_responses_per_session: ClassVar[int] = 8
    # Maximum text of a POST /v1/audio/speech.
    max_speech_request_chars: ClassVar[int] = 4_096
    # Maximum audio per message, if the lead is long.
    max_audio_message_ms: ClassVar[int] = 240
    # Send the first packet of a response before the rest of its chunk is encoded.
    flush_first_packet: ClassVar[bool] = True
    # Process one chunk per event loop iteration, even if several are ready.
    one_chunk_per_loop_iteration: ClassVar[bool] = True
    # Exclude objects that exist at the start from garbage collections.
    gc_freeze_on_start: ClassVar[bool] = True
    # Error of the engine's playback position above which it is corrected.
    playback_tolerance_ms: ClassVar[int] = 10
    # Time after which a query of the heard text is answered with an estimate.
    heard_text_timeout_ms: ClassVar[int] = 1_000
    # Ended responses of a session that can still be queried.
    max_retained_responses: ClassVar[int] = 4
    # Speech kept per process for alignment on demand; 0 aligns all speech at once.
    max_alignment_backlog_mb: ClassVar[int] = 512
    # Overload duration after which the server refuses handshakes.
    overload_grace_s: ClassVar[float] = 2.0

    @property
    def max_http_connections(self) -> int:
        """HTTP connections, and those without a completed handshake."""
        return self.max_connections


class SpeechDefaults(SettingsSection, frozen=True):
    voice: Annotated[str | None, Meta(description="Default voice; unset: the first of the checkpoint.")] = None
    language: Annotated[str, Meta(description="Default language.")] = "auto"
    encoding: Annotated[Literal["opus", "pcm_s16le", "mulaw", "alaw"], Meta(description="Default audio encoding.")] = (
        "opus"
    )
    sample_rate: Annotated[int, Meta(ge=8_000, le=48_000, description="Default sample rate in Hz.")] = 24_000
    bitrate: Annotated[int, Meta(ge=6_000, le=510_000, description="Default bitrate of Opus in bit/s.")] = 64_000
    opus_application: Annotated[
        Literal["voip", "audio"],
        Meta(
            description="Tuning of Opus from 64 kbit/s on: `audio` sounds as good as `voip` with half the bits, for a "
            "third of the CPU time. Below it is always `voip`."
        ),
    ] = "audio"
    response_format: Annotated[
        Literal["mp3", "wav", "pcm", "opus", "aac", "flac"],
        Meta(description="Format of `POST /v1/audio/speech` for requests without `response_format`."),
    ] = "mp3"
    lead_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="Default lead: audio sent ahead of playback, in ms.")
    ] = 2_000
    avoid_dead_air: Annotated[bool, Meta(description="Close a segment early when text is late.")] = True

    # Constant.
    # ``letters`` aligns text and audio; ``even`` divides the audio evenly.
    aligner: ClassVar[str] = "letters"


class EngineSettings(SettingsSection, frozen=True):
    model: Annotated[
        str | None,
        Meta(description="Checkpoint folder, or OWNER/NAME of a model on the hub; by default the embedded voice."),
    ] = None
    options: Annotated[dict[str, Any], Meta(description="[Engine options](engine-options.md).")] = {}  # noqa: RUF012  a Struct copies it
    addresses: Annotated[
        str | None,
        Meta(
            description="Engines of `voicewire engine` to use: `unix:/path` and `tcp://host:port` with commas between "
            "them, or `file:/path` with one a line. Unset: the server starts its own."
        ),
    ] = None
    tls_certificate: Annotated[
        str | None, Meta(description="File with the certificate chain for TCP between server and engines.")
    ] = None
    tls_key: Annotated[str | None, Meta(description="File with the private key of that certificate.")] = None
    tls_ca: Annotated[
        str | None, Meta(description="File with the CA that has signed the certificates of servers and engines.")
    ] = None


class AuthSettings(SettingsSection, frozen=True):
    keys_file: Annotated[str | None, Meta(description="TOML file of API keys (docs/guides/deployment.md).")] = None
    api_keys: Annotated[str | None, Meta(description="API keys as `name:key,name:key`; best in the environment.")] = (
        None
    )
    token_secret: Annotated[
        str | None,
        Meta(description="Secret that signs browser tokens, best in the environment; by default one in a file."),
    ] = None
    max_token_ttl_s: Annotated[int, Meta(ge=1, le=86_400, description="Maximum lifetime of a browser token.")] = 3_600


class DialectSettings(SettingsSection, frozen=True):
    lead_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="Default lead on vendors' wires, whose clients expect bursts.")
    ] = 10_000
    voice_aliases: Annotated[dict[str, str], Meta(description="Maps vendors' voice ids to voices of the server.")] = {}  # noqa: RUF012

    # Constants.
    # Open contexts per connection on a vendor's wire.
    max_contexts_per_connection: ClassVar[int] = 256
    # Connections that authenticate with their first message and have not sent it.
    max_unauthenticated_connections: ClassVar[int] = 256


class CallSettings(SettingsSection, frozen=True):
    agent: Annotated[
        Literal["external", "builtin"],
        Meta(description="Which agent answers calls and xiaozhi devices: a program of yours, or the built-in one."),
    ] = "external"
    twilio_auth_token: Annotated[
        str | None, Meta(description="Auth token of Twilio; only streams with its signature are accepted.")
    ] = None
    public_url: Annotated[
        str | None, Meta(description="URL of this server for Twilio, such as `https://voice.example.com`.")
    ] = None
    default_key_name: Annotated[
        str | None, Meta(description="Name of the API key of calls without a key; by default the first.")
    ] = None
    audiosocket: Annotated[
        HostPort | None,
        Meta(description="Address for Asterisk's AudioSocket, which has no authentication; unset turns it off."),
    ] = None
    lead_ms: Annotated[int, Meta(ge=40, le=10_000, description="Audio sent ahead of playback to callers, in ms.")] = 200
    barge_in: Annotated[bool, Meta(description="Interrupt the reply when the caller speaks.")] = True
    vad_threshold: Annotated[float, Meta(ge=0.2, le=1, description="Minimum speech probability.")] = 0.55
    vad_min_speech_ms: Annotated[int, Meta(ge=32, le=2_000, description="Minimum speech that interrupts.")] = 32
    echo_return_loss_db: Annotated[
        float, Meta(ge=0, le=120, description="Minimum attenuation of returned playout.")
    ] = 20.0

    # Constants.
    # Audio generated ahead of what is sent.
    generation_lead_ms: ClassVar[int] = 480
    # Audio between marks.
    mark_interval_ms: ClassVar[int] = 1_000
    # Delay after which a missing mark counts as played.
    mark_timeout_s: ClassVar[float] = 5.0
    # Timeout of a command that another gateway carries out.
    remote_command_timeout_s: ClassVar[float] = 5.0
    # Replies of a call that have not been played.
    max_pending_replies: ClassVar[int] = 64
    # Marks per reply.
    max_marks_per_reply: ClassVar[int] = 256
    # Unsent events per agent.
    max_queued_events: ClassVar[int] = 4_096
    # Silence after which speech may begin again.
    vad_min_silence_ms: ClassVar[int] = 320
    # Relative to full scale; lower levels are silence.
    vad_min_level_db: ClassVar[float] = -50.0
    # Windows less than this above the noise floor skip inference; 0 infers all.
    vad_noise_margin_db: ClassVar[float] = 3.0


class VoiceStoreSettings(SettingsSection, frozen=True):
    folder: Annotated[
        str | None, Meta(description="Folder of stored voices; by default voicewire/voices in the user's data folder.")
    ] = None
    max_voices: Annotated[int, Meta(ge=0, le=1_000_000, description="Maximum of stored voices.")] = 10_000
    max_voices_per_key: Annotated[int, Meta(ge=0, le=1_000_000, description="The same per API key.")] = 1_000
    max_upload_bytes: Annotated[
        int,
        Meta(ge=1_024, le=268_435_456, description="Maximum size of a recording: uploaded, fetched, or in a data URI."),
    ] = 10_485_760
    allow_url_fetch: Annotated[bool, Meta(description="Accept URLs of recordings.")] = True
    allow_plain_http_fetch: Annotated[bool, Meta(description="Accept such URLs without TLS.")] = False
    allowed_private_networks: Annotated[
        str | None, Meta(description="Private networks from which recordings are fetched: `10.0.0.0/8,fd00::/8`.")
    ] = None

    # Constants.
    # Concurrent uploads.
    max_concurrent_uploads: ClassVar[int] = 16
    # Recordings fetched and encoded concurrently.
    max_concurrent_encodings: ClassVar[int] = 4
    # Timeout of an upload.
    upload_timeout_s: ClassVar[float] = 60.0
    # Timeout of decoding a recording.
    decode_timeout_s: ClassVar[float] = 10.0
    # Timeout of a fetch.
    fetch_timeout_s: ClassVar[float] = 10.0
    # Maximum of redirects.
    max_fetch_redirects: ClassVar[int] = 3


class WatermarkSettings(SettingsSection, frozen=True):
    enabled: Annotated[
        bool, Meta(description="Put an inaudible watermark into all speech (docs/reference/watermark.md).")
    ] = True
    key: Annotated[
        str | None,
        Meta(description="Secret key of the watermark, best in the environment; by default one in a file."),
    ] = None
    payload: Annotated[
        Annotated[int, Meta(ge=0, le=4_294_967_295)] | None,
        Meta(description="32 bits in the watermark that `voicewire detect` reads; by default from the key."),
    ] = None


class LogSettings(SettingsSection, frozen=True):
    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="Minimum level of log lines.")] = (
        "info"
    )
    format: Annotated[Literal["json", "text"], Meta(description="`json`, one object per line, or `text`.")] = "json"
    usage_file: Annotated[
        str | None, Meta(description="File to which a JSON line is appended for each reply that ended, for billing.")
    ] = None


class DebugConfig(SettingsSection, frozen=True):
    """Overrides of constants for tests and benchmarks; refused unless ``VOICEWIRE_DEBUG`` is 1."""

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
    fixed = {name for name, kind in section.__annotations__.items() if str(kind).startswith("ClassVar[")}
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
