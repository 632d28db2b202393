"""Settings of brokers, phone calls, devices and the agent."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from msgspec import Meta

from realtime.config_sections import SettingsSection

_PORT = r"(?:6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[0-5]?\d{1,4})"
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[^\s@/:\[\]]+)"
HostPort = Annotated[
    str, Meta(pattern=rf"\A{_HOST}:{_PORT}\Z", extra={"expected": "an address HOST:PORT; port 0 takes a free one"})
]
BrokerUrl = Annotated[
    str,
    Meta(
        pattern=rf"\Amqtts?://(?:[^\s@/:]+@)?{_HOST}(?::{_PORT})?\Z",
        extra={"expected": "mqtt://USER@HOST:PORT, or mqtts for TLS; user and port may be left out"},
    ),
]
HttpUrl = Annotated[
    str, Meta(pattern=rf"\Ahttps?://{_HOST}(?::{_PORT})?(?:/[^\s?#]*)?\Z", extra={"expected": "an http or https URL"})
]
BROKER_PORTS = {"mqtt": 1_883, "mqtts": 8_883}


class Address(NamedTuple):
    host: str
    port: int


class BrokerAddress(NamedTuple):
    host: str
    port: int
    tls: bool
    username: str | None


def parse_address(text: str) -> Address:
    """Parse a ``HostPort``."""
    host, _, port = text.rpartition(":")
    return Address(host.strip("[]"), int(port))


def parse_broker_url(url: str) -> BrokerAddress:
    """Parse a ``BrokerUrl``."""
    parts = urlsplit(url)
    username = unquote(parts.username) if parts.username else None
    return BrokerAddress(
        parts.hostname or "", parts.port or BROKER_PORTS[parts.scheme], parts.scheme == "mqtts", username
    )


class MqttSettings(SettingsSection, frozen=True):
    url: Annotated[BrokerUrl | None, Meta(description="MQTT 5 broker, `mqtts` for TLS; unset turns MQTT off.")] = None
    tls_ca: Annotated[str | None, Meta(description="File of trusted CA certificates; by default the system's.")] = None
    tls_certificate: Annotated[str | None, Meta(description="File with the client certificate chain.")] = None
    tls_key: Annotated[str | None, Meta(description="File with the private key of the client certificate.")] = None
    password: Annotated[
        str | None, Meta(description="Password of the user in `mqtt.url`; best in the environment.")
    ] = None
    topic_prefix: Annotated[
        str,
        Meta(pattern=r"\A[^+#/$]+(/[^+#/]+)*\Z", max_length=256, description="Prefix of all topics."),
    ] = "voice/v1"
    share_group: Annotated[
        str,
        Meta(
            pattern=r"\A[^+#/]+\Z",
            max_length=64,
            description="Group of servers that share the sessions.",
        ),
    ] = "tts"
    server_name: Annotated[
        Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:-]+\Z", max_length=32)] | None,
        Meta(description="Name of this server in topics; by default the host name."),
    ] = None
    default_key_name: Annotated[
        str | None, Meta(description="Name of the API key of MQTT sessions; by default the first.")
    ] = None
    calls_enabled: Annotated[bool, Meta(description="Publish the calls of that key, and accept commands for them.")] = (
        False
    )
    lead_ms: Annotated[int, Meta(ge=100, le=600_000, description="Audio sent ahead of playback, in ms.")] = 2_000
    max_sessions: Annotated[int, Meta(ge=1, le=100_000, description="Maximum of sessions and texts.")] = 1_000

    # Constants.
    # Seconds between pings; a silent broker counts as lost after twice this time.
    keepalive_s: ClassVar[int] = 15
    # Timeout of every response of the broker.
    response_timeout_s: ClassVar[float] = 5.0
    # Pause before the first reconnect, doubled with every attempt up to the maximum.
    retry_min_s: ClassVar[float] = 0.25
    retry_max_s: ClassVar[float] = 15.0
    max_sessions_per_client: ClassVar[int] = 64
    # Received messages that wait to be processed; more are dropped.
    max_queued_messages: ClassVar[int] = 10_000
    # The same for one session; more end it.
    max_queued_per_session: ClassVar[int] = 1_000


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


class AgentSettings(SettingsSection, frozen=True):
    llm_url: Annotated[
        HttpUrl | None,
        Meta(description="OpenAI-compatible API of a language model, `http://HOST:PORT/v1`; turns the agent on."),
    ] = None
    llm_model: Annotated[
        str | None, Meta(description="Name of the language model; by default the first that its server lists.")
    ] = None
    stt_url: Annotated[
        HttpUrl | None,
        Meta(description="OpenAI-compatible API of a recognizer; unset: the agent reads typed text only."),
    ] = None
    stt_model: Annotated[str, Meta(description="Name of the recognizer's model.")] = "whisper-1"
    file: Annotated[
        str | None, Meta(description="TOML file with the agent's instructions and tools (docs/guides/agent.md).")
    ] = None

    # Constants.
    # Timeout of a connection to either server.
    connect_timeout_s: ClassVar[float] = 3.0
    # Maximum time until a first token, which a server may need to load the model.
    first_token_timeout_s: ClassVar[float] = 45.0
    # Maximum time between tokens.
    token_timeout_s: ClassVar[float] = 10.0
    # Maximum time of a whole answer, thoughts included.
    max_answer_s: ClassVar[float] = 300.0
    # Time without a first token after which a phrase is spoken, and then again.
    wait_phrase_after_s: ClassVar[float] = 3.0
    wait_phrase_every_s: ClassVar[float] = 10.0
    # Timeout of a transcription.
    stt_timeout_s: ClassVar[float] = 15.0
    # Further attempts where the server could not be reached, or was not able to answer.
    num_retries: ClassVar[int] = 1
    retry_pause_s: ClassVar[float] = 0.25
    # Maximum length of an answer; the rest is dropped.
    max_answer_chars: ClassVar[int] = 8_000
    # Tool calls of an answer, and the arguments of each.
    max_tool_calls: ClassVar[int] = 16
    max_argument_chars: ClassVar[int] = 32_000
    # The newest part of a conversation that the language model receives.
    max_history_chars: ClassVar[int] = 24_000
    # Concurrent answers of a session.
    max_answers_per_session: ClassVar[int] = 8
    # Audio of a spoken turn.
    max_turn_s: ClassVar[int] = 60
    # Spoken turns of a session that wait for their transcripts.
    max_pending_transcripts: ClassVar[int] = 4


class WyomingSettings(SettingsSection, frozen=True):
    address: Annotated[
        HostPort | None,
        Meta(description="Address for Wyoming (Home Assistant), which has no authentication; unset turns it off."),
    ] = None
    default_key_name: Annotated[
        str | None, Meta(description="Name of the API key of Wyoming requests; by default the first.")
    ] = None

    # Constants.
    # Open connections.
    max_connections: ClassVar[int] = 64
    # Hz.
    sample_rate: ClassVar[int] = 24_000


class XiaozhiSettings(SettingsSection, frozen=True):
    bitrate: Annotated[int, Meta(ge=6_000, le=510_000, description="Opus bitrate in bit/s.")] = 32_000
    mqtt: Annotated[
        HostPort | None, Meta(description="TCP address for devices that use MQTT and UDP; unset turns it off.")
    ] = None
    udp: Annotated[HostPort, Meta(description="UDP address for the audio of these devices.")] = "127.0.0.1:8884"
    udp_public_host: Annotated[
        str | None, Meta(description="Host to which devices send audio; by default that of their connection.")
    ] = None

    # Constants.
    # Silence after which a device is notified of the end of speech.
    end_of_speech_delay_ms: ClassVar[int] = 300
    # Devices on these ports.
    max_devices: ClassVar[int] = 1_000
    # UDP packets accepted from a device; more are dropped.
    max_packets_per_s: ClassVar[int] = 100
