"""Settings of the server by section, with defaults, ranges and descriptions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct


class SettingsSection(Struct, frozen=True, kw_only=True):
    """A group of settings. The ``Meta`` of each field has its description and its range."""


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
    # Submit the first request of a response with its first text, before that is a whole word.
    prepare_requests: ClassVar[bool] = True
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
    bitrate: Annotated[int, Meta(ge=6_000, le=510_000, description="Default bitrate of Opus in bit/s.")] = 76_000
    opus_application: Annotated[
        Literal["voip", "audio"],
        Meta(
            description="Tuning of Opus from 64 kbit/s on: at 76 kbit/s `audio` sounds as good as `voip` at 32 kbit/s, "
            "for a fifth of the CPU time. Below 64 kbit/s it is always `voip`."
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
    options: Annotated[dict[str, Any], Meta(description="[Engine options](engine-options.md).")] = {}
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
    voice_aliases: Annotated[dict[str, str], Meta(description="Maps vendors' voice ids to voices of the server.")] = {}

    # Constants.
    # Open contexts per connection on a vendor's wire.
    max_contexts_per_connection: ClassVar[int] = 256
    # Connections that authenticate with their first message and have not sent it.
    max_unauthenticated_connections: ClassVar[int] = 256


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

    constants: Annotated[dict[str, Any], Meta(description="Values by section and name.")] = {}
    engine: Annotated[dict[str, Any], Meta(description="Constants of the engine.")] = {}
