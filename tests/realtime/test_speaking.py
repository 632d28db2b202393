"""What a well-behaved client meets, over a real socket."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import numpy as np
import pytest

from realtime.protocol import events as ev
from sessions.audio.opus import OpusDecoder
from sessions.events import HeardText
from sessions.response import Response
from tests.fakes.engine import FakeScript
from tests.realtime.live_server import LiveServer, SpokenResponse, close_code, hear, next_of, speak

TEXT = "Hello there, this is a short reply. It has two sentences."


def num_samples(message: ev.AudioMessage, sample_rate: int) -> int:
    if message.kind is ev.AudioKind.OPUS:
        return len(message.packets) * sample_rate // 50
    return sum(map(len, message.packets)) // (2 if message.kind is ev.AudioKind.PCM_S16LE else 1)


def check_order(spoken: SpokenResponse) -> None:
    """Sequences count from 0, and messages abut."""
    rate = spoken.created.format.sample_rate
    lengths = [num_samples(message, rate) for message in spoken.audio]
    starts = [0, *itertools.accumulate(lengths)]
    assert [message.sequence for message in spoken.audio] == list(range(len(spoken.audio)))
    assert [message.sample_time for message in spoken.audio] == starts[:-1]
    assert {message.response for message in spoken.audio} <= {spoken.created.response}


async def test_first_event_lists_server_capabilities(live: LiveServer) -> None:
    async with live.session() as client:
        created = client.created
    assert (created.protocol, created.model, created.voices) == ("voicewire.v1", "fake", ("ada", "ben"))
    assert created.session_id
    assert (created.resume_token, created.resume_grace_s) == ("", 0)
    assert created.settings.format == ev.NativeAudioFormat(
        encoding="opus", sample_rate=24_000, bitrate=76_000, fec=False, packet_loss_percent=10, dtx=False
    )
    assert created.limits.max_active_responses == 8


async def test_text_token_by_token_becomes_opus(live: LiveServer) -> None:
    async with live.session() as client:
        await client.send(ev.ResponseCreate(response_id="r", settings=ev.NativeSpeechSettings(pace="burst")))
        for character in TEXT:
            await client.send(ev.TextAppend(response_id="r", text=character))
        await client.send(ev.TextEnd(response_id="r"))
        spoken = await hear(client)
    check_order(spoken)
    audio = spoken.created.format
    assert (audio.encoding, audio.sample_rate, audio.pre_skip_samples) == ("opus", 24_000, 156)
    assert spoken.done.status == "completed"
    decoder = OpusDecoder(24_000, audio.pre_skip_samples)
    pcm = np.concatenate([decoder.decode(packet) for message in spoken.audio for packet in message.packets])
    assert 0 <= pcm.size - spoken.done.audio_samples < 960
    assert np.abs(pcm).max() > 0.1


async def test_audio_arrives_while_text_is_still_arriving(live: LiveServer) -> None:
    async with live.session() as client:
        await client.send(ev.ResponseCreate(response_id="r"))
        await client.send(ev.TextAppend(response_id="r", text="Hello there, "))
        assert isinstance(await next_of(client, ev.AudioMessage), ev.AudioMessage)
        await client.send(ev.TextAppend(response_id="r", text="and goodbye."))
        await client.send(ev.TextEnd(response_id="r"))
        assert (await hear(client)).done.status == "completed"


@pytest.mark.parametrize(
    ("encoding", "rate", "kind"),
    [
        ("opus", 48_000, ev.AudioKind.OPUS),
        ("pcm_s16le", 24_000, ev.AudioKind.PCM_S16LE),
        ("pcm_s16le", 48_000, ev.AudioKind.PCM_S16LE),
        ("mulaw", 8_000, ev.AudioKind.MULAW),
        ("alaw", 8_000, ev.AudioKind.ALAW),
    ],
)
async def test_every_format(live: LiveServer, encoding: str, rate: int, kind: ev.AudioKind) -> None:
    async with live.session() as client:
        spoken = await speak(client, TEXT, format=ev.NativeAudioFormat(encoding=encoding, sample_rate=rate))
    check_order(spoken)
    assert {message.kind for message in spoken.audio} == {kind}
    told = spoken.created.format
    assert (told.encoding, told.sample_rate) == (encoding, rate)
    assert sum(num_samples(m, rate) for m in spoken.audio) >= spoken.done.audio_samples + told.pre_skip_samples
    assert spoken.done.audio_ms == pytest.approx(1000 * spoken.done.audio_samples / rate)


async def test_concurrent_responses_are_distinguished(live: LiveServer) -> None:
    async with live.session() as client:
        for response_id in ("a", "b"):
            await client.send(ev.ResponseCreate(response_id=response_id, text=TEXT, end=True))
        messages = [*(await hear(client)).messages, *(await hear(client)).messages]
    numbers = {m.response_id: m.response for m in messages if isinstance(m, ev.ResponseCreated)}
    assert numbers == {"a": 1, "b": 2}
    assert {m.response for m in messages if isinstance(m, ev.AudioMessage)} == {1, 2}
    assert {m.response_id for m in messages if isinstance(m, ev.ResponseDone)} == {"a", "b"}


async def test_the_server_names_a_reply_that_the_client_did_not(live: LiveServer) -> None:
    async with live.session() as client:
        await client.send(ev.ResponseCreate(text=TEXT, end=True))
        spoken = await hear(client)
    assert spoken.created.response_id == spoken.done.response_id != ""


async def test_settings_of_the_session_hold_for_later_replies(live: LiveServer) -> None:
    async with live.session() as client:
        await client.send(
            ev.SessionUpdate(
                settings=ev.NativeSpeechSettings(voice="ben", format=ev.NativeAudioFormat(encoding="mulaw"))
            )
        )
        updated = await next_of(client, ev.SessionUpdated)
        assert updated.settings.voice == "ben"
        spoken = await speak(client, TEXT)
    assert spoken.created.format.encoding == "mulaw"
    assert live.engine.requests[-1].voice == "ben"


async def test_a_flush_speaks_what_is_there_and_is_answered(live: LiveServer) -> None:
    async with live.session() as client:
        await client.send(
            ev.ResponseCreate(response_id="r", settings=ev.NativeSpeechSettings(pace="burst"), text="Hello")
        )
        await client.send(ev.TextFlush(response_id="r"))
        flushed = await next_of(client, ev.TextFlushed)
        assert flushed.flush == 0
        assert flushed.end_sample > 0
        await client.send(ev.TextEnd(response_id="r"))
        assert (await hear(client)).done.status == "completed"


async def test_cancel_ends_audio_and_reports_heard_text(live: LiveServer) -> None:
    live.engine.script_next(FakeScript(ms_per_char=60.0, first_chunk_s=0.01, real_time_factor=0.5))
    async with live.session() as client:
        await client.send(ev.ResponseCreate(response_id="r", text=TEXT, end=True))
        for _ in range(6):
            await next_of(client, ev.AudioMessage)
        await client.send(ev.ResponseCancel(response_id="r", played_ms=400))
        spoken = await hear(client)
        assert spoken.done.status == "cancelled"
        heard = spoken.done.heard
        assert heard is not None
        assert heard.text + heard.remaining == TEXT
        assert "" < heard.text < TEXT
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(client)


async def test_what_was_heard_can_be_asked_after_the_end(live: LiveServer) -> None:
    async with live.session() as client:
        spoken = await speak(client, TEXT)
        await client.send(ev.ResponseCancel(response_id="r", played_ms=spoken.done.audio_ms / 2))
        heard = await next_of(client, ev.ResponseHeard)
    assert isinstance(heard, ev.ResponseHeard)
    assert heard.heard.text + heard.heard.remaining == TEXT
    assert "" < heard.heard.text < TEXT


@pytest.mark.parametrize("forgotten", [False, True])
async def test_heard_text_is_as_of_query_with_slow_alignment(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch, forgotten: bool
) -> None:
    recall = Response.query_heard

    async def recall_slowly(response: Response, played_ms: float | None = None) -> HeardText:
        heard = await recall(response, played_ms)
        await asyncio.sleep(0.4)
        if forgotten:
            (session,) = live.speech.registry._sessions.values()
            session._responses.pop(response.response_id).discard_timeline()
        return heard

    monkeypatch.setattr(Response, "query_heard", recall_slowly)
    async with live.session() as client:
        await speak(client, TEXT)
        await client.send(ev.ResponseCancel(response_id="r", played_ms=300))
        if forgotten:
            error = await next_of(client, ev.ErrorEvent)
            assert error.code == "unknown_response"
        else:
            heard = await next_of(client, ev.ResponseHeard)
            assert heard.heard.played_ms == pytest.approx(300, abs=50)


async def test_a_paced_reply_stays_within_its_lead(live: LiveServer) -> None:
    async with live.session() as client:
        settings = ev.NativeSpeechSettings(pace="lead", lead_ms=300)
        await client.send(ev.ResponseCreate(response_id="r", settings=settings, text=TEXT, end=True))
        begun_s = received_s = 0.0
        async for message in client:
            if isinstance(message, ev.AudioMessage):
                now_s = asyncio.get_running_loop().time()
                begun_s = begun_s or now_s
                received_s += len(message.packets) * 0.02
                assert received_s - (now_s - begun_s) <= 0.3 + 0.08 + 0.02
            if isinstance(message, ev.ResponseDone):
                break
        assert received_s > 0.6


async def test_goodbye_lets_the_last_reply_end(live: LiveServer) -> None:
    async with live.session() as client:
        await client.send(ev.ResponseCreate(response_id="r", text=TEXT))
        await client.send(ev.SessionClose())
        assert (await hear(client)).done.status == "completed"
        assert await close_code(client) == 1000


async def test_goodbye_without_a_reply_closes_at_once(live: LiveServer) -> None:
    async with live.session() as client:
        await client.send(ev.SessionClose())
        assert await close_code(client) == 1000


async def test_word_times_are_sent_on_request(live: LiveServer) -> None:
    async with live.session() as client:
        spoken = await speak(client, TEXT, word_times=True)
        silent = await speak(client, TEXT, "other")
    words = [word for message in spoken.messages if isinstance(message, ev.ResponseWords) for word in message.words]
    assert [TEXT[word.raw_start : word.raw_end] for word in words] == TEXT.split()
    times = [time for word in words for time in (word.start_ms, word.end_ms)]
    assert times == sorted(times)
    assert times[-1] <= spoken.done.audio_ms
    assert spoken.created.settings.word_times
    assert not any(isinstance(message, ev.ResponseWords) for message in silent.messages)


async def test_markup_controls_speech_on_request(live: LiveServer) -> None:
    text = 'One.<break time="1s"/><mark name="here"/>Two <blink>three</blink>.'
    async with live.session() as client:
        spoken = await speak(client, text, markup="ssml", word_times=True)
        plain = await speak(client, text, "other")
    events = {type(message): message for message in spoken.messages}
    mark, warning = events[ev.ResponseMark], events[ev.ResponseWarning]
    assert (mark.name, warning.code, warning.element) == ("here", "unknown_element", "blink")
    assert text[warning.raw_start :].startswith("<blink>")
    assert mark.sample == round(mark.time_ms * 24) + spoken.created.format.pre_skip_samples
    assert 1_000 < mark.time_ms < spoken.done.audio_ms
    words = words_of(spoken)
    assert [word.text for word in words] == ["One.", "Two", "three"]
    assert all(text[word.raw_start : word.raw_end] == word.text for word in words)
    assert spoken.created.settings.markup == "ssml"
    assert plain.created.settings.markup is None
    assert not {ev.ResponseMark, ev.ResponseWarning} & {type(message) for message in plain.messages}


async def test_words_name_their_speakers(live: LiveServer) -> None:
    text = "Ann: Did you?\nBen: I did. Tom: no."
    async with live.session() as client:
        spoken = await speak(client, text, speakers={"Ann": "ada", "Ben": "ben"}, word_times=True)
        plain = await speak(client, text, "other", word_times=True)
        refused = ev.NativeSpeechSettings(speakers={"Ann": "nobody"})
        await client.send(ev.ResponseCreate(response_id="bad", settings=refused, text=text))
        error = await next_of(client, ev.ErrorEvent)
        await client.send(ev.SessionUpdate(settings=refused))
        other = await next_of(client, ev.ErrorEvent)
    assert [(word.speaker, word.text) for word in words_of(spoken)] == [
        *(("Ann", word) for word in ("Did", "you?")),
        *(("Ben", word) for word in ("I", "did.", "Tom:", "no.")),
    ]
    assert [request.voice for request in live.engine.requests][:2] == ["ada", "ben"]
    assert all(text[word.raw_start : word.raw_end] == word.text for word in words_of(spoken))
    assert all(word.speaker is msgspec.UNSET for word in words_of(plain))
    assert spoken.created.settings.speakers == {"Ann": "ada", "Ben": "ben"}
    assert plain.created.settings.speakers is None
    assert [(one.code, one.param) for one in (error, other)] == [("unknown_voice", "speakers")] * 2


def words_of(spoken: SpokenResponse) -> list[ev.WordTiming]:
    return [word for message in spoken.messages if isinstance(message, ev.ResponseWords) for word in message.words]
