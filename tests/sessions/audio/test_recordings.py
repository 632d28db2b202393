"""Whatever bytes are uploaded: a recording at our rate, or a refusal that gives the reason."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import InvalidRequest
from sessions.audio.recordings.decode import InvalidRecording, decode_recording
from sessions.audio.recordings.sandbox import MODULE, DecodeLimits, _environment, decode_in_subprocess
from sessions.audio.wav import wav_file
from tests.sessions.audio.signals import CONTAINERS, flac_bomb, float_wav, recording, tone, wav_that_lies

RATE = 24_000


def loudest_hz(pcm: np.ndarray) -> float:
    return float(np.fft.rfftfreq(pcm.size, 1 / RATE)[np.abs(np.fft.rfft(pcm)).argmax()])


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("source_rate", [8_000, 48_000])
def test_every_kind_and_rate_becomes_ours(kind: str, source_rate: int) -> None:
    pcm = decode_recording(recording(kind, [tone(1.5, source_rate)], source_rate), RATE, 30)
    assert pcm.dtype == np.float32
    assert pcm.size / RATE == pytest.approx(1.5, abs=0.15)
    assert loudest_hz(pcm) == pytest.approx(440, abs=2)
    assert np.sqrt(np.mean(pcm**2)) == pytest.approx(0.5 / 2**0.5, abs=0.03)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_stereo_is_mixed_into_one(kind: str) -> None:
    left, right = tone(1, 48_000, 300), tone(1, 48_000, 1_000)
    pcm = decode_recording(recording(kind, [left, right], 48_000), RATE, 30)
    spectrum = np.abs(np.fft.rfft(pcm[: RATE // 2]))
    assert 0.5 < spectrum[150] / spectrum[500] < 2
    assert np.sqrt(np.mean(pcm**2)) == pytest.approx(0.25, abs=0.03), "the mean of both"


@pytest.mark.parametrize("channels", [3, 6])
def test_more_channels_too(channels: int) -> None:
    data = bytearray(wav_file(np.repeat(tone(1, 16_000), channels), 16_000))
    data[22:24] = channels.to_bytes(2, "little")
    data[32:34] = (2 * channels).to_bytes(2, "little")
    assert decode_recording(bytes(data), RATE, 30).size == RATE


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "audio is empty"),
        (b"this is not audio, it is a sentence", "neither of wav, flac, mp3, ogg or m4a"),
        (b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n", "neither of"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "neither of"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "cannot be decoded"),
        (b"fLaC" + bytes(100), "cannot be decoded"),
        (b"OggS" + bytes(100), "cannot be decoded"),
        (b"\0\0\0\x18ftypM4A " + bytes(100), "cannot be decoded|holds no audio"),
        (b"\xff\xfb" + bytes(500), "cannot be decoded|no sound at all"),
        (wav_file(np.zeros(0, np.float32), 8_000), "no sound at all"),
        (float_wav(np.array([0.1, np.nan, 0.2] * 9_000, np.float32), 16_000), "no numbers"),
        (float_wav(np.array([0.1, np.inf] * 9_000, np.float32), 16_000), "no numbers"),
        (wav_file(tone(31, 8_000), 8_000), "longer than 30 s"),
        (flac_bomb(40), "longer than 30 s"),
    ],
)
def test_what_is_no_recording_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRecording, match=words):
        decode_recording(data, RATE, 30)


@pytest.mark.parametrize(("tag", "words"), [(0x9999, "coded as an unknown codec"), (0x11, "coded as adpcm_ima_wav")])
def test_a_codec_that_is_not_ours_is_refused(tag: int, words: str) -> None:
    data = bytearray(wav_file(tone(1, 16_000), 16_000))
    data[20:22] = tag.to_bytes(2, "little")
    with pytest.raises(InvalidRecording, match=words):
        decode_recording(bytes(data), RATE, 30)


def test_a_bomb_is_small_and_never_unpacked() -> None:
    bomb = flac_bomb(60)
    assert len(bomb) < 60 * 8_000 * 2 / 50
    with pytest.raises(InvalidRecording, match="longer than 1 s"):
        decode_recording(bomb, RATE, 1)


def test_a_header_that_lies_is_no_harm() -> None:
    assert decode_recording(wav_that_lies(2**31), 8_000, 30).size == 100


def test_what_a_codec_fills_up_is_cut_off() -> None:
    pcm = decode_recording(recording("mp3", [tone(2, 44_100)], 44_100), RATE, 2.0)
    assert pcm.size == 2 * RATE


@settings(max_examples=150)
@given(st.sampled_from(sorted(CONTAINERS)), st.data())
def test_damage_is_a_refusal_or_still_a_recording(kind: str, data: st.DataObject) -> None:
    whole = bytearray(SMALL[kind])
    for _ in range(data.draw(st.integers(0, 8))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    try:
        pcm = decode_recording(bytes(whole[:cut]), RATE, 1)
    except InvalidRecording:
        return
    assert 0 < pcm.size <= RATE


SMALL = {kind: recording(kind, [tone(0.2, 16_000)], 16_000) for kind in CONTAINERS}


async def test_a_child_decodes_for_us() -> None:
    pcm = await decode_in_subprocess(SMALL["flac"], RATE, DecodeLimits())
    np.testing.assert_array_equal(pcm, decode_recording(SMALL["flac"], RATE, 30))


async def test_child_imports_nothing_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "av.py").write_text("raise SystemExit('a stranger')")
    (tmp_path / "sessions.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    assert (await decode_in_subprocess(SMALL["wav"], RATE, DecodeLimits())).size > 0


async def test_refusal_by_child_process_is_reported() -> None:
    with pytest.raises(InvalidRequest, match=r"longer than 0\.05 s"):
        await decode_in_subprocess(SMALL["wav"], RATE, DecodeLimits(max_s=0.05))
    with pytest.raises(InvalidRequest, match="neither of"):
        await decode_in_subprocess(b"hello", RATE, DecodeLimits())


async def test_a_child_without_memory_is_no_harm() -> None:
    with pytest.raises(InvalidRequest, match="cannot be decoded"):
        await decode_in_subprocess(SMALL["wav"], RATE, DecodeLimits(memory_bytes=20_000_000))


async def test_a_child_that_is_late_or_not_wanted_any_more_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessions.audio.recordings.sandbox.MODULE", "tests.sessions.audio.hanging_decoder")
    with pytest.raises(InvalidRequest, match=r"longer than 0\.2 s"):
        await decode_in_subprocess(SMALL["wav"], RATE, DecodeLimits(timeout_s=0.2))
    task = asyncio.create_task(decode_in_subprocess(SMALL["wav"], RATE, DecodeLimits()))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_child_can_write_no_file(tmp_path: Path) -> None:
    arguments = ["8000", "1", "5", "2000000000"]
    code = f"import {MODULE} as child; child.main({arguments}); open({str(tmp_path / 'x')!r}, 'w').write('x')"
    subprocess.run([sys.executable, "-c", code], input=b"", env=_environment(), capture_output=True, check=False)
    assert (tmp_path / "x").stat().st_size == 0
