"""Opus: the encoder and decoder, its library, and Ogg pages."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import dataclasses
import importlib
import io
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from sessions.audio import opus_library
from sessions.audio.formats.ogg_opus import OggOpusMuxer, ogg_crc
from sessions.audio.formats.registry import opus_settings
from sessions.audio.opus import (
    MAX_PACKET_MS,
    PACKET_MS,
    SAMPLE_RATES,
    OpusApplication,
    OpusDecoder,
    OpusEncoder,
    OpusError,
    OpusPacket,
    OpusSettings,
    decode_all,
)
from sessions.audio.opus_library import USE_SYSTEM_LIBRARY, OpusUnavailable, describe, load_opuslib
from sessions.audio.pcm import Pcm, s16le_to_pcm
from sessions.audio.provenance import vorbis_comments
from sessions.config import AudioFormat
from sessions.errors import UnsupportedFormat
from sessions.sample_scale import OPUS_PREROLL_MS
from tests.sessions.audio.signals import noise, pieces, speech_like
from tests.vectors import VECTORS

LOW_DELAY = OpusApplication.LOW_DELAY
ANY_SETTINGS = st.builds(
    OpusSettings,
    sample_rate=st.sampled_from(SAMPLE_RATES),
    packet_ms=st.sampled_from(PACKET_MS),
    application=st.sampled_from(OpusApplication),
    complexity=st.integers(0, 10),
    bitrate=st.sampled_from([6_000, 24_000, 128_000, 510_000]),
    vbr=st.booleans(),
    dtx=st.booleans(),
)


def encode(chunks: list[Pcm], settings: OpusSettings) -> list[OpusPacket]:
    encoder = OpusEncoder(settings)
    return [packet for chunk in chunks for packet in encoder.push(chunk)] + encoder.flush()


def snr_db(signal: Pcm, copy: Pcm) -> float:
    return float(10 * np.log10(np.sum(signal**2) / np.sum((copy - signal) ** 2)))


@given(ANY_SETTINGS, st.integers(0, 6_000))
def test_decoded_is_as_long_as_what_was_pushed(settings: OpusSettings, num_samples: int) -> None:
    packets = encode([noise(num_samples)], settings)
    assert decode_all(packets, settings).size == num_samples
    assert all(packet.num_samples == settings.packet_samples for packet in packets)
    assert [packet.start_sample for packet in packets] == [
        index * settings.packet_samples for index in range(len(packets))
    ]
    assert all(packet.padding_samples == 0 for packet in packets[:-1])
    assert sum(packet.num_samples for packet in packets) < num_samples + settings.pre_skip_samples + (
        settings.packet_samples if packets else 1
    )


@hypothesis_settings(max_examples=20)
@given(st.integers(0, 3_000).map(noise), ANY_SETTINGS, st.data())
def test_any_cut_gives_the_same_packets(signal: Pcm, settings: OpusSettings, data: st.DataObject) -> None:
    assert encode(data.draw(pieces(signal)), settings) == encode([signal], settings)


@pytest.mark.parametrize("sample_rate", SAMPLE_RATES)
def test_every_sample_is_in_its_place(sample_rate: int) -> None:
    """Three clicks, one of them at the very end, come out where they went in."""
    signal = np.zeros(sample_rate // 5, np.float32)
    clicks = [sample_rate // 50, sample_rate // 10, signal.size - 3]
    for click in clicks:
        signal[click : click + 2] = 0.8
    settings = OpusSettings(sample_rate=sample_rate, bitrate=128_000, application=LOW_DELAY, complexity=10)
    decoded = decode_all(encode([signal], settings), settings)
    for click in clicks:
        around = slice(click - sample_rate // 100, click + sample_rate // 100)
        assert abs(np.argmax(np.abs(decoded[around])) - sample_rate // 100) <= 1


@pytest.mark.parametrize(
    ("sample_rate", "application", "bitrate", "min_snr_db", "min_correlation"),
    [
        (8_000, "voip", 16_000, 9, 0.93),
        (16_000, "voip", 24_000, 11, 0.95),
        (24_000, "voip", 24_000, 4, 0.80),  # high-passed, and up to 0.05 ms out of phase in this mode
        (24_000, "audio", 32_000, 10, 0.95),
        (24_000, "audio", 64_000, 16, 0.98),
        (48_000, "audio", 32_000, 9, 0.94),
        (24_000, "restricted_lowdelay", 32_000, 10, 0.95),
    ],
)
def test_speech_survives(sample_rate, application, bitrate, min_snr_db, min_correlation) -> None:
    speech = speech_like(2 * sample_rate, sample_rate, 1)
    settings = OpusSettings(sample_rate=sample_rate, application=OpusApplication(application), bitrate=bitrate)
    decoded = decode_all(encode([speech], settings), settings)
    assert snr_db(speech, decoded) > min_snr_db
    assert np.corrcoef(speech, decoded)[0, 1] > min_correlation


@pytest.mark.parametrize("complexity", [0, 5, 10])
@pytest.mark.parametrize("vbr", [True, False])
def test_bitrate_is_kept(complexity: int, vbr: bool) -> None:
    settings = OpusSettings(bitrate=24_000, complexity=complexity, vbr=vbr)
    packets = encode([speech_like(72_000, 24_000, 1)], settings)
    bits_per_s = 8 * sum(len(packet.data) for packet in packets) / (len(packets) * 0.02)
    assert bits_per_s == pytest.approx(24_000, rel=0.2 if vbr else 0.001)


def test_silence_stays_silence_and_dtx_hardly_sends_it() -> None:
    silence = np.zeros(48_000, np.float32)
    for dtx, max_bytes in ((False, 60), (True, 10)):
        settings = OpusSettings(dtx=dtx)
        packets = encode([silence], settings)
        assert np.abs(decode_all(packets, settings)).max() < 1e-4
        assert np.mean([len(packet.data) for packet in packets]) < max_bytes


def test_fec_recovers_lost_packets_better_than_concealment() -> None:
    speech = speech_like(96_000, 24_000, 2)
    settings = OpusSettings(sample_rate=24_000, inband_fec=True, expected_loss_percent=20)
    packets = encode([speech], settings)
    reference = decode_all(packets, settings)
    kept = slice(0, reference.size)
    recovered = decode_with_loss(packets, settings, use_fec=True)[kept]
    concealed = decode_with_loss(packets, settings, use_fec=False)[kept]
    assert recovered.size == concealed.size == reference.size
    assert snr_db(reference, recovered) > snr_db(reference, concealed) + 3


def decode_with_loss(packets: list[OpusPacket], settings: OpusSettings, use_fec: bool) -> Pcm:
    """Every fifth packet lost."""
    opuslib = load_opuslib()
    decoder, out = opuslib.Decoder(settings.sample_rate, 1), []
    for index, packet in enumerate(packets):
        is_lost = index % 5 == 3 and index + 1 < len(packets)
        # Of a lost packet: the copy that the next one carries, or nothing.
        data = packets[index + is_lost].data if use_fec or not is_lost else None
        pcm = np.empty(packet.num_samples, np.float32)
        into = pcm.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        opuslib.api.decoder.libopus_decode_float(
            decoder.decoder_state, data, len(data or b""), into, pcm.size, int(is_lost and use_fec)
        )
        out.append(pcm)
    return np.concatenate(out)[settings.pre_skip_samples :]


@pytest.mark.parametrize("application", list(OpusApplication))
def test_new_decoder_converges_within_the_preroll(application: OpusApplication) -> None:
    settings = OpusSettings(application=application)
    num_preroll = int(OPUS_PREROLL_MS / settings.packet_ms)
    for seed in range(3):
        packets = encode([speech_like(96_000, 24_000, seed)], settings)
        kept = OpusDecoder(24_000)
        whole = np.concatenate([kept.decode(packet.data) for packet in packets])
        for at in range(num_preroll, len(packets) - 10, 7):
            new = OpusDecoder(24_000)
            pcm = np.concatenate([new.decode(packet.data) for packet in packets[at - num_preroll : at + 10]])
            end = (at + 10) * settings.packet_samples
            error = pcm[num_preroll * settings.packet_samples :] - whole[at * settings.packet_samples : end]
            assert np.mean(error**2) < 1e-4 * np.mean(whole**2)


def test_packets_of_the_vector_decode_to_its_pcm() -> None:
    vector = json.loads((VECTORS / "audio" / "opus_24k.json").read_text())
    decoder = OpusDecoder(vector["sample_rate"], vector["pre_skip_samples"])
    decoded = np.concatenate([decoder.decode(base64.b64decode(packet)) for packet in vector["packets_base64"]])
    expected = s16le_to_pcm(base64.b64decode(vector["pcm_s16le_base64"]))
    assert decoded.size - vector["padding_samples"] == expected.size
    assert np.abs(decoded[: expected.size] - expected).max() < 2 / 32_768


@given(st.integers(0, 3_000), st.integers(0, 3_000))
def test_flush_brings_all_out_and_more_may_follow(first: int, second: int) -> None:
    settings = OpusSettings(complexity=0)
    encoder = OpusEncoder(settings)
    until_flush = encoder.push(noise(first)) + encoder.flush()
    assert encoder.flush() == []
    assert decode_all(until_flush, settings).size == first
    padded = until_flush[-1].padding_samples + settings.pre_skip_samples if until_flush else 0
    packets = until_flush + encoder.push(noise(second)) + encoder.flush()
    added_before = padded if second else 0
    assert decode_all(packets, settings).size == first + added_before + second


def test_nothing_pushed_makes_no_packet_and_no_encoder() -> None:
    encoder = OpusEncoder(OpusSettings())
    assert encoder.push(noise(0)) == encoder.flush() == []
    assert encoder.push(noise(479)) == []
    assert encoder._encoder is None
    assert len(encoder.push(noise(1))) == 1


@pytest.mark.parametrize("packet", [b"", b"\xff", b"\xff\xff\xff", b"\x03\x00"])
def test_broken_packets_are_refused(packet: bytes) -> None:
    with pytest.raises(OpusError, match="got 0" if not packet else f"packet of {len(packet)} bytes"):
        OpusDecoder(24_000).decode(packet)


@given(st.binary(max_size=100))
def test_any_bytes_decode_or_raise_the_documented_error(packet: bytes) -> None:
    with contextlib.suppress(OpusError):
        assert OpusDecoder(24_000).decode(packet).size <= 24_000 * MAX_PACKET_MS // 1000


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("sample_rate", 44_100, "sample_rate must be one of 8000, 12000, 16000, 24000, 48000; got 44100"),
        ("packet_ms", 30, "packet_ms must be one of 2.5, 5, 10, 20, 40, 60, 80, 100, 120; got 30"),
        ("bitrate", 5_999, "bitrate must be between 6000 and 510000, got 5999"),
        ("complexity", 11, "complexity must be between 0 and 10, got 11"),
        ("application", "music", "application must be one of voip, audio, restricted_lowdelay; got music"),
        ("expected_loss_percent", 0, "expected_loss_percent must be between 1 and 100, got 0"),
    ],
)
def test_settings_out_of_range_name_field_limit_and_value(field: str, value: object, message: str) -> None:
    with pytest.raises(UnsupportedFormat, match=message) as caught:
        dataclasses.replace(OpusSettings(), **{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(("packet_ms", "application"), [(5, OpusApplication.VOIP), (20, LOW_DELAY)])
def test_fec_where_there_is_none_is_refused(packet_ms: float, application: OpusApplication) -> None:
    with pytest.raises(UnsupportedFormat, match="inband_fec needs packet_ms of at least 10"):
        OpusSettings(inband_fec=True, packet_ms=packet_ms, application=application)


@pytest.mark.parametrize(
    ("audio", "application"),
    [
        (AudioFormat(), OpusApplication.VOIP),
        (AudioFormat(bitrate=96_000), OpusApplication.VOIP),
        (AudioFormat(application="audio"), OpusApplication.VOIP),
        (AudioFormat(application="audio", bitrate=64_000), OpusApplication.AUDIO),
        (AudioFormat(application="audio", bitrate=64_000, fec=True), OpusApplication.VOIP),
    ],
)
def test_which_application_is_taken(audio: AudioFormat, application: OpusApplication) -> None:
    assert opus_settings(audio).application is application


@pytest.mark.parametrize(
    ("audio", "complexity"),
    [
        (AudioFormat(application="audio", bitrate=76_000), 0),
        (AudioFormat(application="audio", bitrate=75_999), 5),
        (AudioFormat(application="audio", bitrate=76_000, fec=True), 5),
        (AudioFormat(bitrate=76_000), 5),
        (AudioFormat(application="audio", bitrate=76_000, complexity=3), 3),
    ],
)
def test_which_complexity_is_taken(audio: AudioFormat, complexity: int) -> None:
    assert opus_settings(audio).complexity == complexity


def test_its_packets_hold_every_sample_in_its_place() -> None:
    settings = opus_settings(AudioFormat(application="audio", bitrate=64_000))
    pcm = np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000).astype(np.float32) * 0.3 + noise(24_000) * 0.001
    encoder = OpusEncoder(settings)
    heard = decode_all(encoder.push(pcm) + encoder.flush(), settings)
    assert heard.size == pcm.size
    assert np.abs(heard - pcm)[2_400:].mean() < 0.02


@pytest.fixture
def fresh_load(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(USE_SYSTEM_LIBRARY, "0")
    load_opuslib.cache_clear()
    yield
    load_opuslib.cache_clear()


def test_describe_gives_path_and_version() -> None:
    library = describe()
    assert Path(library.path).name.startswith("libopus")
    assert library.version.startswith("libopus")


ROUND_TRIP = """
import numpy as np
from sessions.audio.opus import OpusEncoder, OpusSettings, decode_all
from sessions.audio.opus_library import describe

samples = 0.5 * np.sin(np.arange(24_000) * 2 * np.pi * 440 / 24_000).astype(np.float32)
encoder = OpusEncoder(OpusSettings())
decoded = decode_all([*encoder.push(samples), *encoder.flush()], encoder.settings)
print(describe().path, decoded.size, np.corrcoef(samples, decoded)[0, 1])
"""


def test_system_library_is_chosen_by_environment() -> None:
    if find_library("opus") is None:
        pytest.skip("no system libopus here; on Debian: apt install libopus0")
    environment = os.environ | {USE_SYSTEM_LIBRARY: "1"}
    command = [sys.executable, "-c", ROUND_TRIP]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    path, num_samples, likeness = shown.split()
    assert path == find_library("opus")
    assert int(num_samples) == 24_000
    assert float(likeness) > 0.9


def test_falls_back_to_the_system_library(fresh_load: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real_import = importlib.import_module

    def without_bundled(name: str) -> object:
        asked.append(os.environ[USE_SYSTEM_LIBRARY])
        if asked[-1] != "1":
            raise RuntimeError("Bundled Opus library not found")
        return real_import(name)

    monkeypatch.setattr(opus_library.importlib, "import_module", without_bundled)
    assert load_opuslib().OK == 0
    assert asked == ["0", "1"]


def test_missing_library_error_names_the_package(fresh_load: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> object:
        raise OSError("libopus.so: cannot open shared object file")

    monkeypatch.setattr(opus_library.importlib, "import_module", nothing)
    with pytest.raises(OpusUnavailable, match=r"opuslib-next-bundled.*apt install libopus0"):
        load_opuslib()


@dataclass(frozen=True)
class Page:
    flags: int
    granule: int
    sequence: int
    packets: list[bytes]


def slow_crc(data: bytes) -> int:
    register = 0
    for byte in data:
        register ^= byte << 24
        for _ in range(8):
            register = (register << 1) ^ (0x04C11DB7 if register & 0x80000000 else 0)
            register &= 0xFFFFFFFF
    return register


def read_pages(stream: bytes) -> list[Page]:
    pages = []
    at = 0
    while at < len(stream):
        magic, _, flags, granule, _, sequence, crc, num_segments = struct.unpack_from("<4sBBqIIIB", stream, at)
        assert magic == b"OggS"
        lengths = stream[at + 27 : at + 27 + num_segments]
        end = at + 27 + num_segments + sum(lengths)
        assert crc == slow_crc(stream[at : at + 22] + bytes(4) + stream[at + 26 : end])
        pages.append(Page(flags, granule, sequence, packets_of(lengths, stream[at + 27 + num_segments : end])))
        at = end
    assert at == len(stream)
    return pages


def packets_of(lengths: bytes, body: bytes) -> list[bytes]:
    packets, size, at = [], 0, 0
    for length in lengths:
        size += length
        if length < 255:
            packets.append(body[at : at + size])
            at, size = at + size, 0
    assert at == len(body)
    return packets


def muxed(chunks: list[Pcm], settings: OpusSettings) -> bytes:
    encoder, muxer = OpusEncoder(settings), OggOpusMuxer(settings)
    out = [muxer.headers()]
    out.extend(muxer.push(encoder.push(chunk)) for chunk in chunks)
    out.append(muxer.finish(encoder.flush()))
    return b"".join(out)


@given(st.binary(max_size=300))
def test_crc_equals_the_slow_one(data: bytes) -> None:
    assert ogg_crc(data) == slow_crc(data)


def test_crc_of_a_known_page() -> None:
    assert ogg_crc(b"123456789") == 0x89A1897F


@hypothesis_settings(max_examples=20)
@given(st.integers(1, 3_000), st.sampled_from(SAMPLE_RATES), st.sampled_from(PACKET_MS), st.data())
def test_pages_hold_every_packet_and_end_where_the_sound_ends(
    num_samples: int, sample_rate: int, packet_ms: float, data: st.DataObject
) -> None:
    settings = OpusSettings(sample_rate=sample_rate, packet_ms=packet_ms)
    signal = noise(num_samples)
    encoder = OpusEncoder(settings)
    packets = encoder.push(signal) + encoder.flush()
    pages = read_pages(muxed(data.draw(pieces(signal)), settings))
    assert [packet for page in pages[2:] for packet in page.packets] == [packet.data for packet in packets]
    assert [page.sequence for page in pages] == list(range(len(pages)))
    assert [page.flags for page in pages] == [2, *[0] * (len(pages) - 2), 4]
    assert pages[-1].granule == (num_samples + settings.pre_skip_samples) * 48_000 // sample_rate


def test_headers_have_pre_skip_and_rate() -> None:
    settings = OpusSettings(sample_rate=24_000)
    head, tags = read_pages(OggOpusMuxer(settings).headers())
    assert head.packets == [b"OpusHead" + struct.pack("<BBHIhB", 1, 1, 312, 24_000, 0, 0)]
    assert tags.packets == [b"OpusTags" + vorbis_comments()]
    assert vorbis_comments().startswith(b"\x09\x00\x00\x00voicewire\x02\x00\x00\x00")
    assert head.granule == tags.granule == 0


@pytest.mark.parametrize("sample_rate", SAMPLE_RATES)
@pytest.mark.parametrize("num_samples", [1, 159, 960, 9_601])
def test_another_reader_finds_every_sample(sample_rate: int, num_samples: int) -> None:
    settings = OpusSettings(sample_rate=sample_rate)
    speech = speech_like(sample_rate, sample_rate, 4)[:num_samples]
    read, rate = soundfile.read(io.BytesIO(muxed([speech], settings)), dtype="float32")
    assert rate == sample_rate
    assert read.size == speech.size
    encoder = OpusEncoder(settings)
    assert read == pytest.approx(decode_all(encoder.push(speech) + encoder.flush(), settings), abs=1e-4)


def test_large_packets_and_full_pages() -> None:
    """Lengths around multiples of 255, and more than one page takes."""
    sizes = [254, 255, 256, 509, 510, 511, *[1_275] * 300, 7]
    packets = [OpusPacket(480 * i, 480, bytes([i % 251]) * size) for i, size in enumerate(sizes)]
    muxer = OggOpusMuxer(OpusSettings())
    pages = read_pages(muxer.push(packets[:100]) + muxer.finish(packets[100:]))
    assert [packet for page in pages for packet in page.packets] == [packet.data for packet in packets]
    assert pages[-1].granule == 480 * len(packets) * 2
    assert len(pages) == 8


def test_nothing_spoken_is_an_empty_stream() -> None:
    pages = read_pages(muxed([np.zeros(0, np.float32)], OpusSettings()))
    assert [page.flags for page in pages] == [2, 0, 4]
    assert pages[2].packets == []
    assert pages[2].granule == 0


def test_each_push_gives_its_pages_at_once() -> None:
    settings = OpusSettings()
    encoder, muxer = OpusEncoder(settings), OggOpusMuxer(settings)
    for _ in range(3):
        packets = encoder.push(noise(1_920))
        (page,) = read_pages(muxer.push(packets))
        assert page.packets == [packet.data for packet in packets]
