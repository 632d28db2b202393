"""Which clients are run, with which services and in which modes: each in an environment of its own.

``tests/sdk/run`` makes the environments. What a client prints and keeps of its turns is in ``clients/turns.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "clients"
ENVIRONMENTS = Path(os.environ.get("VOICEWIRE_SDK_ENVS", ROOT / ".sdk-envs"))
KEY = "a-key-of-enough-characters"
RUN_TIMEOUT_S = 150


class Client(NamedTuple):
    environment: str
    program: str
    # And the modes of each.
    services: dict[str, tuple[str, ...]]
    # Its packages make ``wss`` of every address.
    needs_tls: bool = False


CLIENTS = {
    "pipecat": Client(
        "pipecat",
        "pipecat_client.py",
        {
            "elevenlabs": ("sentence", "token", "interrupt"),
            "elevenlabs_dialogue": ("sentence", "interrupt"),
            "elevenlabs_http": ("sentence",),
            "cartesia": ("sentence", "token", "interrupt"),
            "cartesia_http": ("sentence",),
            "deepgram": ("sentence", "token", "interrupt"),
            "deepgram_http": ("sentence",),
            "deepgram_flux": ("token", "interrupt"),
            "native": ("token", "interrupt", "tail", "second", "early", "lost"),
            "openai": ("sentence",),
            "realtime": ("items",),
            "rime": ("sentence", "token", "interrupt"),
            "rime_v1": ("sentence", "token", "interrupt"),
            "rime_v1_json": ("token",),
            "inworld": ("sentence", "token", "interrupt"),
        },
    ),
    "livekit": Client(
        "livekit",
        "livekit_client.py",
        {
            "native": ("stream", "cancel", "synthesize", "tail", "early", "lost", "session"),
            "elevenlabs": ("stream", "cancel", "synthesize"),
            "elevenlabs_pcm": ("stream", "cancel"),
            "elevenlabs_opus": ("stream",),
            "elevenlabs_v3": ("stream", "cancel", "synthesize"),
            "cartesia": ("stream", "cancel", "synthesize"),
            "deepgram": ("stream", "cancel", "synthesize"),
            "deepgram_v2": ("stream", "cancel", "synthesize"),
            "openai": ("synthesize",),
            "openai_tts1": ("synthesize",),
            "realtime": ("items", "interrupt"),
            "rime": ("stream", "cancel"),
            "rime_v1": ("stream", "cancel"),
            "inworld": ("stream", "cancel", "synthesize"),
        },
    ),
    "vendor": Client(
        "sdks",
        "vendor_client.py",
        {
            "elevenlabs": ("realtime", "realtime_mp3", "stream", "convert", "timestamps", "timestamps_whole", "voices"),
            "cartesia": ("websocket", "flush", "cancel", "contexts", "bytes", "sse", "float", "voices"),
            "deepgram": ("v1", "clear", "http", "v2", "v2_interrupt"),
        },
    ),
    "realtime": Client("sdks", "realtime_client.py", {"openai": ("items", "tokens", "interrupt")}),
    "native": Client("pipecat", "native_client.py", {"native": ("begins", "refused", "gone")}),
    "kyutai": Client("kyutai", "kyutai_client.py", {"kyutai": ("words", "interrupt")}),
    "agents": Client("agents", "agents_client.py", {"voice": ("pipeline",), "realtime": ("items", "interrupt")}),
    "litellm": Client(
        "litellm",
        "litellm_client.py",
        {"openai": ("speech", "aspeech", "instructions"), "elevenlabs": ("speech",)},
    ),
    "realtimetts": Client("realtimetts", "realtimetts_client.py", {"openai": ("mp3", "pcm", "instructions")}),
    "wyoming-openai": Client("wyoming", "wyoming_openai_client.py", {"openai": ("whole", "streamed", "instructions")}),
    "open-webui": Client("applications", "open_webui_client.py", {"openai": ("speech", "user")}),
    "vendor-js": Client(
        "node",
        "vendor_client.mjs",
        {
            "elevenlabs": ("stream", "timestamps"),
            "cartesia": ("websocket", "cancel", "bytes"),
            "deepgram": ("v1", "clear", "v2", "v2_interrupt"),
        },
        needs_tls=True,
    ),
    "livekit-js": Client(
        "node",
        "livekit_client.mjs",
        {
            "elevenlabs": ("stream", "cancel", "synthesize"),
            "elevenlabs_defaults": ("stream",),
            "cartesia": ("stream", "cancel"),
            "deepgram": ("stream", "cancel"),
            "inworld": ("stream", "cancel", "synthesize"),
            "openai": ("synthesize",),
            "realtime": ("items", "interrupt"),
        },
    ),
    "agents-js": Client("node", "agents_client.mjs", {"realtime": ("items", "interrupt")}),
    "speech-js": Client(
        "node",
        "speech_client.mjs",
        {
            "ai-sdk": ("speech", "instructions"),
            "mastra": ("speech", "instructions"),
            "librechat": ("openai", "localai", "elevenlabs"),
            "jambonz": ("whisper", "deepgram"),
        },
    ),
    "speech-js-tls": Client("node", "speech_client.mjs", {"jambonz": ("elevenlabs",)}, needs_tls=True),
    "realtime-js": Client("node", "realtime_client.mjs", {"openai": ("items", "tokens", "interrupt")}, needs_tls=True),
}
TIMED = {
    ("pipecat", "elevenlabs"),
    ("pipecat", "elevenlabs_dialogue"),
    ("pipecat", "elevenlabs_http"),
    ("pipecat", "cartesia"),
    ("livekit", "elevenlabs"),
    ("livekit", "elevenlabs_pcm"),
    ("livekit", "elevenlabs_opus"),
    ("livekit", "elevenlabs_v3"),
    ("livekit", "cartesia"),
    ("livekit", "native"),
    ("pipecat", "native"),
    ("livekit", "rime"),
    ("livekit", "inworld"),
    ("pipecat", "rime"),
    ("pipecat", "inworld"),
    ("kyutai", "kyutai"),
    ("livekit-js", "elevenlabs"),
    ("livekit-js", "elevenlabs_defaults"),
    ("livekit-js", "cartesia"),
    ("livekit-js", "inworld"),
}
TIMED_MODES = {"websocket", "flush", "cancel", "contexts", "timestamps", "timestamps_whole"}


class Run(NamedTuple):
    client: str
    service: str
    mode: str

    @property
    def is_timed(self) -> bool:
        """Whether it tells the times of words."""
        if self.client.startswith("vendor"):
            return self.mode in TIMED_MODES
        return (self.client, self.service) in TIMED and self.mode != "synthesize"

    def speak(self, url: str, **variables: str) -> dict[str, Any]:
        """What the client printed. ``url`` begins with ``http``; ``variables`` are put into its environment."""
        client = CLIENTS[self.client]
        environment = existing_environment(client.environment)
        if client.environment == "node":
            with node_folder(environment) as folder:
                return _printed(["node", Path(folder) / client.program, *self._arguments(url)], variables)
        python = environment / "bin" / "python"
        return _printed([python, PROGRAMS / client.program, *self._arguments(url)], variables)

    def _arguments(self, url: str) -> tuple[str, str, str]:
        return self.service, url, self.mode


def existing_environment(name: str) -> Path:
    """Its folder, or skip the test."""
    environment, missing = ENVIRONMENTS / name, ENVIRONMENTS / f"{name}.missing"
    if missing.exists():
        pytest.skip(missing.read_text().strip())
    if not environment.exists():
        pytest.skip(f"no environment {name}: tests/sdk/run makes it")
    if name == "node" and shutil.which("node") is None:
        pytest.skip("node is not installed")
    return environment


def node_folder(environment: Path) -> tempfile.TemporaryDirectory[str]:
    """The programs beside the packages, where node looks for them."""
    folder = tempfile.TemporaryDirectory(prefix="voicewire-sdk-")
    for program in PROGRAMS.glob("*.mjs"):
        shutil.copy(program, folder.name)
    (Path(folder.name) / "node_modules").symlink_to(environment / "node_modules")
    return folder


def all_runs(needs_tls: bool) -> list[Run]:
    return [
        Run(name, service, mode)
        for name, client in CLIENTS.items()
        if client.needs_tls == needs_tls
        for service, modes in client.services.items()
        for mode in modes
    ]


def _printed(command: list[str | Path], variables: dict[str, str]) -> dict[str, Any]:
    """The last line."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False, env=os.environ | variables
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]
