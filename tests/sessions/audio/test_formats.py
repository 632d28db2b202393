"""Every format: the same bytes however the sound is cut, and the sound comes back."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.audio.formats.registry import RATES, check_rate, codec_delay_samples, is_cpu_intensive, stream_encoder
from sessions.audio.g711 import alaw_to_pcm, mulaw_to_pcm
from sessions.audio.pcm import Pcm, float_to_s16, pcm_to_s16le, s16_to_float, within_full_scale
from sessions.audio.provenance import id3_tag
from sessions.config import AudioFormat, Encoding
from sessions.errors import UnsupportedFormat
from tests.sessions.audio.signals import DEMUXERS, decode, pieces, speech_like

STREAMS = [encoding for encoding in Encoding if encoding is not Encoding.OPUS]
# Samples that a decoder puts out before the first that was pushed.
LOSSY_DELAYS = {Encoding.MP3: 1_105, Encoding.AAC: 1_024, Encoding.OGG_OPUS: 0}
ALL_RATES = [(encoding, rate) for encoding in STREAMS for rate in RATES[encoding]]


def audio_format(encoding: Encoding, sample_rate: int = 24_000) -> AudioFormat:
    return AudioFormat(encoding=encoding, sample_rate=sample_rate, bitrate=min(64_000, 6 * sample_rate))


def encoded(audio: AudioFormat, *sounds: Pcm) -> bytes:
    encoder = stream_encoder(audio)
    return b"".join(encoder.push(sound) for sound in sounds) + encoder.finish()


@pytest.fixture(autouse=True)
def same_serial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ogg streams draw a number, so that they can be told apart; here all have the same."""
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)


@pytest.mark.parametrize("encoding", STREAMS)
def test_any_cut_gives_the_same_bytes(encoding: Encoding) -> None:
    signal = speech_like(8_000, 16_000, seed=3)
    whole = encoded(audio_format(encoding, 16_000), signal)

    @settings(max_examples=10)
    @given(pieces(signal))
    def check(cut: list[Pcm]) -> None:
        assert encoded(audio_format(encoding, 16_000), *cut) == whole

    check()


@pytest.mark.parametrize("rate", RATES[Encoding.WAV])
def test_what_loses_nothing_gives_every_sample_back(rate: int) -> None:
    signal = speech_like(rate // 3, rate, seed=1)
    for encoding in (Encoding.WAV, Encoding.FLAC):
        decoded, decoded_rate = decode(encoded(audio_format(encoding, rate), signal), encoding)
        assert decoded_rate == rate
        np.testing.assert_array_equal(decoded, s16_to_float(float_to_s16(signal)))


def test_raw_samples_match_their_header() -> None:
    signal = speech_like(2_000, 8_000, seed=2)
    data = {encoding: encoded(audio_format(encoding), signal) for encoding in STREAMS if encoding not in DEMUXERS}
    np.testing.assert_array_equal(np.frombuffer(data[Encoding.PCM_F32LE], "<f4"), signal)
    assert data[Encoding.PCM_S16LE] == pcm_to_s16le(signal)
    for encoding, decoder in ((Encoding.MULAW, mulaw_to_pcm), (Encoding.ALAW, alaw_to_pcm)):
        assert np.abs(decoder(data[encoding]) - signal).max() < 0.02


@pytest.mark.parametrize(("encoding", "rate"), [(e, rate) for e, rate in ALL_RATES if e in LOSSY_DELAYS])
def test_what_loses_something_keeps_the_speech_in_its_place(encoding: Encoding, rate: int) -> None:
    signal = speech_like(rate // 2, rate, seed=4)
    decoded, decoded_rate = decode(encoded(audio_format(encoding, rate), signal), encoding)
    factor, delay = decoded_rate // rate, LOSSY_DELAYS[encoding]
    assert decoded_rate == (48_000 if encoding is Encoding.OGG_OPUS else rate)
    surplus = decoded.size // factor - signal.size - delay
    assert 0 <= surplus <= (0 if encoding is Encoding.OGG_OPUS else codec_delay_samples(audio_format(encoding, rate)))
    places = [decoded[(delay * factor + shift) :: factor][: signal.size] for shift in range(factor)]
    assert max(likeness(place, signal) for place in places) > 0.9


def likeness(one: Pcm, other: Pcm) -> float:
    size = min(one.size, other.size)
    return float(np.corrcoef(one[:size], other[:size])[0, 1])


@pytest.mark.parametrize(("encoding", "rate"), [(e, rate) for e, rate in ALL_RATES if e in DEMUXERS])
def test_held_text_is_bounded_by_the_table(encoding: Encoding, rate: int) -> None:
    """As much silence as that behind the speech, and all of the speech can be heard before the stream has ended."""
    audio = audio_format(encoding, rate)
    encoder = stream_encoder(audio)
    for num_samples in (rate // 4, rate // 4 + 77):
        signal = np.concatenate(
            [speech_like(num_samples, rate, seed=5), np.zeros(codec_delay_samples(audio), np.float32)]
        )
        encoder = stream_encoder(audio)
        data = encoder.push(signal)
        decoded, decoded_rate = decode(data, encoding)
        assert decoded.size * rate // decoded_rate >= num_samples + LOSSY_DELAYS.get(encoding, 0)


@pytest.mark.parametrize("encoding", DEMUXERS)
def test_another_reader_agrees(encoding: Encoding) -> None:
    if encoding is Encoding.AAC:
        pytest.skip("libsndfile reads no AAC")
    signal = speech_like(12_000, 24_000, seed=6)
    data = encoded(audio_format(encoding), signal)
    ours, our_rate = decode(data, encoding)
    if encoding is Encoding.FLAC:
        data = with_length(data, ours.size)
    read, rate = soundfile.read(io.BytesIO(data), frames=ours.size, dtype="float32")
    first, second = ours[:: our_rate // 24_000], read[:: rate // 24_000]
    assert min(first.size, second.size) >= signal.size
    lags = range(-1_200, 1_200)
    assert max(likeness(first[2_000:8_000], second[2_000 + lag : 8_000 + lag]) for lag in lags) > 0.95


def with_length(flac: bytes, num_samples: int) -> bytes:
    """libsndfile reads no FLAC of unknown length: the low 36 bits of these eight bytes tell it."""
    return flac[:18] + (int.from_bytes(flac[18:26], "big") | num_samples).to_bytes(8, "big") + flac[26:]


@pytest.mark.parametrize("encoding", STREAMS)
def test_no_sound_at_all_is_a_stream_too(encoding: Encoding) -> None:
    data = encoded(audio_format(encoding))
    assert data == encoded(audio_format(encoding), np.zeros(0, np.float32))
    assert bool(data) == (encoding in {Encoding.WAV, Encoding.FLAC, Encoding.OGG_OPUS})


@pytest.mark.parametrize("encoding", STREAMS)
def test_what_is_no_number_is_silence(encoding: Encoding) -> None:
    strange = np.tile(np.array([np.nan, np.inf, -np.inf, 3.0], np.float32), 1_000)
    tame = np.tile(np.array([0, 1, -1, 1], np.float32), 1_000)
    np.testing.assert_array_equal(within_full_scale(strange), tame)
    assert encoded(audio_format(encoding), strange) == encoded(audio_format(encoding), tame)


@given(st.sampled_from(STREAMS), st.integers(-1, 100_000))
def test_rates_are_taken_or_refused_by_name(encoding: Encoding, rate: int) -> None:
    if rate in RATES[encoding]:
        return check_rate(AudioFormat(encoding=encoding, sample_rate=rate))
    with pytest.raises(UnsupportedFormat, match=f"sample_rate of {encoding} must be one of 8000.* is {rate}") as caught:
        stream_encoder(AudioFormat(encoding=encoding, sample_rate=rate))
    assert caught.value.param == "sample_rate"
    return None


@pytest.mark.parametrize(
    ("encoding", "rate", "bitrate", "limits"),
    [
        (Encoding.MP3, 8_000, 65_000, "8000 and 64000"),
        (Encoding.MP3, 22_050, 161_000, "8000 and 160000"),
        (Encoding.MP3, 44_100, 31_999, "32000 and 320000"),
        (Encoding.MP3, 48_000, 320_001, "32000 and 320000"),
        (Encoding.AAC, 8_000, 48_001, "8000 and 48000"),
        (Encoding.AAC, 48_000, -1, "8000 and 288000"),
        (Encoding.OGG_OPUS, 24_000, 5_999, "6000 and 510000"),
    ],
)
def test_bitrates_have_their_limits(encoding: Encoding, rate: int, bitrate: int, limits: str) -> None:
    with pytest.raises(UnsupportedFormat, match=f"bitrate.* between {limits}, got {bitrate}") as caught:
        stream_encoder(AudioFormat(encoding=encoding, sample_rate=rate, bitrate=bitrate))
    assert caught.value.param == "bitrate"


@pytest.mark.parametrize("bitrate", [32_000, 64_000, 96_000, 128_000, 192_000, 320_000])
def test_mp3_is_as_large_as_its_bitrate(bitrate: int) -> None:
    signal = speech_like(44_100, 44_100, seed=7)
    data = encoded(AudioFormat(encoding=Encoding.MP3, sample_rate=44_100, bitrate=bitrate), signal)
    assert len(data) - len(id3_tag()) == pytest.approx(bitrate / 8, rel=0.06)


def test_bare_opus_is_no_stream() -> None:
    with pytest.raises(UnsupportedFormat, match="ogg_opus"):
        stream_encoder(AudioFormat())


def test_samples_alone_cost_nothing() -> None:
    assert {encoding for encoding in Encoding if not is_cpu_intensive(encoding)} == {
        Encoding.PCM_S16LE,
        Encoding.PCM_F32LE,
        Encoding.MULAW,
        Encoding.ALAW,
        Encoding.WAV,
    }
