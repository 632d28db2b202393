"""Settings of brokers and devices."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct


class SettingsSection(Struct, frozen=True, kw_only=True):
    """A group of settings; each field says in its ``Meta`` what it is and how far it may go."""


class MqttSettings(SettingsSection, frozen=True):
    host: Annotated[str | None, Meta(description="MQTT 5 broker to speak through; without it there is no MQTT.")] = None
    port: Annotated[int, Meta(ge=1, le=65_535, description="The broker's port; usually 8883 with TLS.")] = 1_883
    tls: Annotated[bool, Meta(description="Whether the broker is spoken to over TLS.")] = False
    tls_ca: Annotated[str | None, Meta(description="File of authorities to trust; by default the system's.")] = None
    tls_certificate: Annotated[str | None, Meta(description="File with our certificate, if the broker asks.")] = None
    tls_key: Annotated[str | None, Meta(description="File with that certificate's private key.")] = None
    username: Annotated[str | None, Meta(description="Who we are at the broker.")] = None
    password: Annotated[str | None, Meta(description="And its password; best in the environment.")] = None
    topic_prefix: Annotated[
        str,
        Meta(pattern=r"\A[^+#/$]+(/[^+#/]+)*\Z", max_length=256, description="What all topics begin with."),
    ] = "voice/v1"
    share_group: Annotated[
        str, Meta(pattern=r"\A[^+#/]+\Z", max_length=64, description="Servers of one group share the work.")
    ] = "tts"
    server_name: Annotated[
        Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:-]+\Z", max_length=32)] | None,
        Meta(description="Our name there; by default the machine's."),
    ] = None
    default_key_name: Annotated[
        str | None, Meta(description="Name of the API key that sessions belong to; by default the first.")
    ] = None
    calls_enabled: Annotated[
        bool, Meta(description="Whether agents at the broker hear of that key's calls and speak into them.")
    ] = False
    lead_ms: Annotated[int, Meta(ge=100, le=600_000, description="Audio sent ahead of what is played.")] = 2_000
    max_sessions: Annotated[int, Meta(ge=1, le=100_000, description="Open sessions and texts spoken at once.")] = 1_000

    # Constants.
    # Seconds between pings; a silent broker counts as lost after twice as long.
    keepalive_s: ClassVar[int] = 15
    # For every answer of the broker.
    response_timeout_s: ClassVar[float] = 5.0
    # Read and write all packets of a loop iteration at once (docs/experiments/mqtt.md).
    batch_io: ClassVar[bool] = True
    # Pause before the first reconnect, doubled with every try up to the second value.
    retry_min_s: ClassVar[float] = 0.25
    retry_max_s: ClassVar[float] = 15.0
    max_sessions_per_client: ClassVar[int] = 64
    # Received messages that wait to be processed; more are dropped.
    max_queued_messages: ClassVar[int] = 10_000
    # The same of one session; more end it.
    max_queued_per_session: ClassVar[int] = 1_000


class WyomingSettings(SettingsSection, frozen=True):
    enabled: Annotated[bool, Meta(description="Whether there is a port for Wyoming (Home Assistant).")] = False
    port: Annotated[int, Meta(ge=0, le=65_535, description="That port; 0 takes a free one.")] = 10_200
    host: Annotated[str, Meta(description="Address of that port, which has no keys: whoever reaches it may speak.")] = (
        "127.0.0.1"
    )
    default_key_name: Annotated[
        str | None, Meta(description="Name of the API key that its texts belong to; by default the first.")
    ] = None

    # Constants.
    # Open connections.
    max_connections: ClassVar[int] = 64
    # Samples a second.
    sample_rate: ClassVar[int] = 24_000


class XiaozhiSettings(SettingsSection, frozen=True):
    bitrate: Annotated[int, Meta(ge=6_000, le=510_000, description="Bits a second of Opus.")] = 32_000
    mqtt_enabled: Annotated[bool, Meta(description="Whether there are ports for devices that speak MQTT and UDP.")] = (
        False
    )
    mqtt_udp_host: Annotated[str, Meta(description="Address of both ports.")] = "127.0.0.1"
    mqtt_port: Annotated[int, Meta(ge=0, le=65_535, description="TCP port for MQTT; 0 takes a free one.")] = 1_884
    udp_port: Annotated[int, Meta(ge=0, le=65_535, description="UDP port for audio; 0 takes a free one.")] = 8_884
    udp_public_host: Annotated[
        str | None, Meta(description="Where devices send their audio; by default the address they came to.")
    ] = None

    # Constants.
    # Silence after which a device is told that the speech has ended.
    end_of_speech_delay_ms: ClassVar[int] = 300
    # Devices on these ports.
    max_devices: ClassVar[int] = 1_000
    # UDP packets taken from a device; more are dropped.
    max_packets_per_s: ClassVar[int] = 100
