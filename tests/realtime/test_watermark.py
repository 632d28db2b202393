"""The watermark of a server: on by default, by a key that is created once, on every path."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from realtime.config import ConfigError, load_config
from realtime.config_sections import WatermarkSettings
from realtime.protocol import events as ev
from realtime.watermark import default_payload, load_watermark
from sessions.audio.pcm import Pcm, s16le_to_pcm
from sessions.audio.watermark.embedder import Watermark
from tests.realtime.live_server import LiveServer, live_server, speak

TEXT = "Hello there, this is a short reply."
KEY = "a key of this deployment with 32 characters"
WATERMARK = Watermark(KEY.encode(), 7)
STEP = 1 / 32_768


@pytest.fixture
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def test_mark_is_on_by_default_with_a_key_created_once(data_home: Path) -> None:
    first, second = (load_watermark(load_config().watermark) for _ in range(2))
    [file] = (data_home / "voicewire").iterdir()
    assert first == second
    assert first is not None
    assert (file.name, file.stat().st_mode & 0o777) == ("watermark-key", 0o600)
    assert first.key == file.read_bytes().strip()
    assert first.payload == default_payload(first.key)


def test_configured_mark_makes_no_file(data_home: Path) -> None:
    assert load_watermark(WatermarkSettings(key=KEY, payload=7)) == WATERMARK
    assert load_watermark(WatermarkSettings(enabled=False)) is None
    assert not list(data_home.iterdir())


def test_key_that_cannot_be_used_names_the_setting(data_home: Path) -> None:
    with pytest.raises(ConfigError, match=r"watermark\.key has 9 characters, at least 32") as error:
        load_watermark(WatermarkSettings(key="not-shown"))
    assert "not-shown" not in str(error.value)
    (data_home / "voicewire").mkdir()
    (data_home / "voicewire" / "watermark-key").write_text(KEY)
    (data_home / "voicewire" / "watermark-key").chmod(0o644)
    with pytest.raises(ConfigError, match="other users may read it"):
        load_watermark(WatermarkSettings())


def test_speech_is_marked_where_no_key_can_be_stored(data_home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (data_home / "voicewire").write_text("a file where the folder should be")
    first, second = (load_watermark(WatermarkSettings()) for _ in range(2))
    assert first is not None
    assert first != second
    assert "watermark.key can hold it" in caplog.text
    assert first.key.decode() not in caplog.text


async def speak_over_http(live: LiveServer) -> Pcm:
    async with live.http() as http:
        answer = await http.post("/v1/audio/speech", json={"input": TEXT, "response_format": "pcm", "seed": 1})
    return s16le_to_pcm(answer.content)


async def speak_over_native_wire(live: LiveServer) -> Pcm:
    pcm = ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=24_000)
    async with live.session() as client:
        assert client.created.digital_source_type == "trainedAlgorithmicMedia"
        assert client.created.watermark == (live.speech.watermark is not None)
        spoken = await speak(client, TEXT, pace="burst", seed=1, format=pcm)
    return s16le_to_pcm(b"".join(packet for message in spoken.audio for packet in message.packets))


@pytest.mark.parametrize("receive_speech", [speak_over_http, speak_over_native_wire])
async def test_all_speech_is_marked_from_its_first_sample(receive_speech) -> None:
    mark = dict(watermark__enabled=True, watermark__key=KEY, watermark__payload=7)
    async with live_server() as plain, live_server(**mark) as marking:
        unmarked, marked = await asyncio.gather(receive_speech(plain), receive_speech(marking))
    expected = WATERMARK.create_embedder(24_000).push(unmarked)
    assert np.abs(marked - unmarked).max() > 100 * STEP
    assert marked == pytest.approx(expected, abs=3 * STEP)
