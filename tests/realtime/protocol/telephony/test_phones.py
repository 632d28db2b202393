"""Messages of each telephony provider, its signature, and random messages in any order."""

from __future__ import annotations

import base64
import json
import random

import pytest

from realtime.errors import RemoteProtocolError
from realtime.protocol.model import (
    CallerAudioReceived,
    DtmfReceived,
    FlowControl,
    MarkPlayed,
    StreamEnded,
    StreamStarted,
    TelephonyEvent,
    TelephonyFormat,
)
from realtime.protocol.telephony.asterisk import AsteriskDialect
from realtime.protocol.telephony.audiosocket import AudioSocketDialect, frame
from realtime.protocol.telephony.base import TelephonyDialect
from realtime.protocol.telephony.plivo import PlivoDialect
from realtime.protocol.telephony.registry import TELEPHONY_ROUTES, TelephonyRoute
from realtime.protocol.telephony.telnyx import TelnyxDialect
from realtime.protocol.telephony.twilio import TwilioDialect, is_signed, sign
from realtime.protocol.telephony.vonage import VonageDialect

AUDIO = b"\xff\x7f"
PAYLOAD = base64.b64encode(AUDIO).decode()

TWILIO = [
    ('{"event":"connected","protocol":"Call","version":"1.0.0"}', []),
    (
        '{"event":"start","sequenceNumber":"1","streamSid":"MZ1","start":{"accountSid":"AC1","streamSid":"MZ1",'
        '"callSid":"CA1","tracks":["inbound"],"customParameters":{"name":"Ann"},'
        '"mediaFormat":{"encoding":"audio/x-mulaw","sampleRate":8000,"channels":1}}}',
        [StreamStarted("CA1", TelephonyFormat(), {"name": "Ann"})],
    ),
    (
        '{"event":"media","sequenceNumber":"3","streamSid":"MZ1","media":{"track":"inbound","chunk":"2",'
        f'"timestamp":"25","payload":"{PAYLOAD}"}}}}',
        [CallerAudioReceived(AUDIO, 2)],
    ),
    (f'{{"event":"media","streamSid":"MZ1","media":{{"track":"outbound","payload":"{PAYLOAD}"}}}}', []),
    ('{"event":"dtmf","streamSid":"MZ1","dtmf":{"track":"inbound_track","digit":"5"}}', [DtmfReceived("5")]),
    ('{"event":"mark","streamSid":"MZ1","sequenceNumber":"4","mark":{"name":"vw1"}}', [MarkPlayed("vw1")]),
    ('{"event":"stop","streamSid":"MZ1","stop":{"accountSid":"AC1","callSid":"CA1"}}', [StreamEnded()]),
    ('{"event":"something-new","streamSid":"MZ1"}', []),
]
TELNYX = [
    ('{"event":"connected","version":"1.0.0"}', []),
    (
        '{"event":"start","sequence_number":"1","stream_id":"S1","start":{"user_id":"u","call_control_id":"v3:1",'
        '"media_format":{"encoding":"PCMA","sample_rate":8000,"channels":1}}}',
        [StreamStarted("v3:1", TelephonyFormat("alaw"), {})],
    ),
    (
        f'{{"event":"media","sequence_number":"4","stream_id":"S1","media":{{"track":"inbound","chunk":"7",'
        f'"timestamp":"5","payload":"{PAYLOAD}"}}}}',
        [CallerAudioReceived(AUDIO, 7)],
    ),
    ('{"event":"dtmf","stream_id":"S1","dtmf":{"digit":"#"}}', [DtmfReceived("#")]),
    ('{"event":"mark","stream_id":"S1","mark":{"name":"vw1"}}', [MarkPlayed("vw1")]),
    ('{"event":"stop","stream_id":"S1","stop":{"user_id":"u"}}', [StreamEnded()]),
]
PLIVO = [
    (
        '{"sequenceNumber":0,"event":"start","start":{"callId":"C1","streamId":"S1","accountId":"A1",'
        '"tracks":["inbound"],"mediaFormat":{"encoding":"audio/x-l16","sampleRate":16000}},"extra_headers":"{a: b}"}',
        [StreamStarted("C1", TelephonyFormat("pcm_s16le", 16_000), {"extra_headers": "{a: b}"})],
    ),
    (
        f'{{"sequenceNumber":3,"streamId":"S1","event":"media","media":{{"track":"inbound","timestamp":"1",'
        f'"chunk":2,"payload":"{PAYLOAD}"}}}}',
        [CallerAudioReceived(AUDIO, 2)],
    ),
    ('{"event":"dtmf","streamId":"S1","dtmf":{"track":"inbound","digit":"0"}}', [DtmfReceived("0")]),
    ('{"event":"playedStream","streamId":"S1","name":"vw1"}', [MarkPlayed("vw1")]),
    ('{"event":"clearedAudio","streamId":"S1"}', []),
]
VONAGE = [
    (
        '{"event":"websocket:connected","content-type":"audio/l16;rate=16000","uuid":"U1","language":"en"}',
        [StreamStarted("U1", TelephonyFormat("pcm_s16le", 16_000), {"uuid": "U1", "language": "en"})],
    ),
    (b"\x01\x00" * 320, [CallerAudioReceived(b"\x01\x00" * 320)]),
    ('{"event":"websocket:dtmf","digit":"9","duration":260}', [DtmfReceived("9")]),
    ('{"event":"websocket:notify","payload":{"mark":"vw1"}}', [MarkPlayed("vw1")]),
    ('{"event":"websocket:cleared"}', []),
]
ASTERISK = [
    (
        '{"event":"MEDIA_START","connection_id":"W1","channel":"WebSocket/vw/0x1","channel_id":"1.2","format":"slin16",'
        '"optimal_frame_size":640,"ptime":20,"channel_variables":{"EXTEN":"100"}}',
        [StreamStarted("1.2", TelephonyFormat("pcm_s16le", 16_000), {"EXTEN": "100", "channel": "WebSocket/vw/0x1"})],
    ),
    (b"\x01\x00" * 320, [CallerAudioReceived(b"\x01\x00" * 320)]),
    ('{"event":"DTMF_END","digit":"7","channel_id":"1.2"}', [DtmfReceived("7")]),
    ('{"event":"MEDIA_MARK_PROCESSED","correlation_id":"vw1"}', [MarkPlayed("vw1")]),
    ('{"event":"MEDIA_XOFF"}', [FlowControl(True)]),
    ('{"event":"MEDIA_XON"}', [FlowControl(False)]),
    ('{"event":"QUEUE_DRAINED"}', []),
]
UUID = bytes(range(16))
SOUND = b"\x01\x00" * 160
AUDIOSOCKET = [
    (b"\x01\x00\x10" + UUID, []),
    (
        b"\x10\x01\x40" + SOUND,
        [
            StreamStarted("00010203-0405-0607-0809-0a0b0c0d0e0f", TelephonyFormat("pcm_s16le", 8_000), {}),
            CallerAudioReceived(SOUND),
        ],
    ),
    (b"\x10\x01\x40" + SOUND, [CallerAudioReceived(SOUND)]),
    (b"\x03\x00\x015", [DtmfReceived("5")]),
    (b"\x42\x00\x00", []),
    (b"\x00\x00\x00", [StreamEnded()]),
    (b"\xff\x00\x01\x02", [StreamEnded("asterisk_error")]),
]
EXCHANGES = {"twilio": (TwilioDialect, TWILIO), "telnyx": (TelnyxDialect, TELNYX), "plivo": (PlivoDialect, PLIVO)}


def hear(dialect: TelephonyDialect, exchange: list[tuple[str | bytes, list[TelephonyEvent]]]) -> None:
    for message, events in exchange:
        assert list(dialect.receive_message(message)) == events


@pytest.mark.parametrize("name", EXCHANGES)
def test_what_the_provider_says_is_read(name: str) -> None:
    make, exchange = EXCHANGES[name]
    hear(make(), exchange)


def test_vonage_sends_control_as_text_and_audio_as_bytes() -> None:
    hear(VonageDialect("line-1"), VONAGE)


def test_asterisk_sends_control_as_json_and_audio_as_bytes() -> None:
    line = AsteriskDialect()
    hear(line, ASTERISK)
    assert line.send_audio(AUDIO) == AUDIO
    said = [json.loads(message) for message in (line.send_mark("m"), line.send_clear(), line.send_hang_up())]
    assert said == [
        {"command": "MARK_MEDIA", "correlation_id": "m"},
        {"command": "FLUSH_MEDIA"},
        {"command": "HANGUP"},
    ]
    with pytest.raises(RemoteProtocolError, match=r"f\(json\)"):
        AsteriskDialect().receive_message("MEDIA_START connection_id:W1 format:ulaw")


def test_audiosocket_says_all_in_frames() -> None:
    line = AudioSocketDialect()
    hear(line, AUDIOSOCKET)
    assert line.send_audio(SOUND) == b"\x10\x01\x40" + SOUND
    assert (line.send_mark("m"), line.send_clear(), line.send_hang_up()) == (None, None, b"\x00\x00\x00")
    wide = AudioSocketDialect()
    hear(wide, AUDIOSOCKET[:1])
    wide.receive_message(frame(0x12, bytes(640)))
    assert wide.send_audio(bytes(640))[:3] == b"\x12\x02\x80"
    with pytest.raises(RemoteProtocolError, match="16000 Hz and goes on at 8000"):
        wide.receive_message(frame(0x10, SOUND))


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([b"\x10\x01\x40" + SOUND], "before the UUID"),
        ([b"\x01\x00\x02ab"], "16 bytes"),
        ([AUDIOSOCKET[0][0], AUDIOSOCKET[0][0]], "already"),
        ([AUDIOSOCKET[0][0], b"\x17\x00\x02ab"], "96000"),
        ([AUDIOSOCKET[0][0], b"\x10\x00\x03abc"], "3 bytes are no whole number"),
        ([b"\x01\x00\x10abc"], "a frame of 16 bytes has 3"),
        ([b"\x01"], "not a frame"),
        (["text"], "not a frame"),
    ],
)
def test_broken_frames_are_named(frames: list[str | bytes], words: str) -> None:
    line = AudioSocketDialect()
    for one in frames[:-1]:
        line.receive_message(one)
    with pytest.raises(RemoteProtocolError, match=words):
        line.receive_message(frames[-1])


def test_what_we_say_is_what_each_expects() -> None:
    said = {}
    for name, (make, exchange) in EXCHANGES.items():
        dialect = make()
        hear(dialect, exchange)
        said[name] = [
            json.loads(message) for message in (dialect.send_audio(AUDIO), dialect.send_mark("m"), dialect.send_clear())
        ]
    assert said == {
        "twilio": [
            {"event": "media", "streamSid": "MZ1", "media": {"payload": PAYLOAD}},
            {"event": "mark", "streamSid": "MZ1", "mark": {"name": "m"}},
            {"event": "clear", "streamSid": "MZ1"},
        ],
        "telnyx": [
            {"event": "media", "media": {"payload": PAYLOAD}},
            {"event": "mark", "mark": {"name": "m"}},
            {"event": "clear"},
        ],
        "plivo": [
            {
                "event": "playAudio",
                "streamId": "S1",
                "media": {"contentType": "audio/x-l16", "sampleRate": 16_000, "payload": PAYLOAD},
            },
            {"event": "checkpoint", "streamId": "S1", "name": "m"},
            {"event": "clearAudio", "streamId": "S1"},
        ],
    }
    vonage = VonageDialect("line-1")
    assert vonage.send_audio(AUDIO) == AUDIO
    assert json.loads(vonage.send_mark("m")) == {"action": "notify", "payload": {"mark": "m"}}
    assert json.loads(vonage.send_clear()) == {"action": "clear"}


@pytest.mark.parametrize(
    ("dialect", "message", "param"),
    [
        (TwilioDialect(), TWILIO[2][0], "media"),
        (TelnyxDialect(), TELNYX[2][0], "media"),
        (PlivoDialect(), PLIVO[1][0], "media"),
        (VonageDialect("c"), b"\0\0", "media"),
        (TwilioDialect(), TWILIO[1][0].replace("x-mulaw", "x-l16"), "encoding"),
        (TelnyxDialect(), TELNYX[1][0].replace("PCMA", "OPUS"), "encoding"),
        (PlivoDialect(), PLIVO[0][0].replace("16000", "44100"), "encoding"),
        (VonageDialect("c"), VONAGE[0][0].replace("16000", "11025"), "encoding"),
        (VonageDialect("c"), VONAGE[0][0].replace("audio/l16", "audio/opus"), "content-type"),
        (TwilioDialect(), '{"event":"start","streamSid":"MZ1"}', "start"),
        (TwilioDialect(), TWILIO[1][0].replace('"CA1"', '"' + "x" * 300 + '"'), "call_id"),
    ],
)
def test_what_cannot_be_served_is_named(dialect: TelephonyDialect, message: str | bytes, param: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        dialect.receive_message(message)
    assert refused.value.param == param


def test_half_a_sample_is_refused() -> None:
    dialect = VonageDialect("c")
    dialect.receive_message(VONAGE[0][0])
    with pytest.raises(RemoteProtocolError, match="641 bytes"):
        dialect.receive_message(b"\0" * 641)


def test_a_message_holds_no_flood_of_audio() -> None:
    dialect = VonageDialect("c")
    dialect.receive_message(VONAGE[0][0])
    with pytest.raises(RemoteProtocolError, match="at most 2 s"):
        dialect.receive_message(bytes(64_002))


def test_an_error_that_telnyx_reports_ends_the_line() -> None:
    dialect = TelnyxDialect()
    with pytest.raises(RemoteProtocolError, match="100003: invalid_media"):
        dialect.receive_message('{"event":"error","payload":{"code":100003,"title":"invalid_media"},"stream_id":"S1"}')


def test_audio_message_is_json_for_any_stream_id() -> None:
    stream = '"payload":"" \\ \u2028'
    line = TwilioDialect()
    line.receive_message(TWILIO[1][0].replace('"streamSid":"MZ1"', f'"streamSid":{json.dumps(stream)}'))
    for data in (b"", AUDIO, bytes(160)):
        told = json.loads(line.send_audio(data))
        assert told == {
            "event": "media",
            "streamSid": stream,
            "media": {"payload": base64.b64encode(data).decode()},
        }


@pytest.mark.parametrize("dialect", [TwilioDialect(), TelnyxDialect(), PlivoDialect()])
def test_nothing_is_said_before_the_start(dialect: TelephonyDialect) -> None:
    with pytest.raises(RemoteProtocolError, match="before the start"):
        dialect.send_audio(AUDIO)


def test_no_parameters_at_all_are_none() -> None:
    line = TwilioDialect()
    [started] = line.receive_message(TWILIO[1][0].replace('{"name":"Ann"}', "null"))
    assert started.parameters == {}


def test_vonages_keys_are_read_where_older_versions_have_them() -> None:
    line = VonageDialect("c")
    line.receive_message(VONAGE[0][0])
    assert line.receive_message('{"event":"websocket:dtmf","dtmf":{"digit":"4"}}') == [DtmfReceived("4")]


TOKEN = "12345"
URL = "https://example.com/myapp.php?foo=1&bar=2"
FIELDS = {
    "CallSid": "CA1234567890ABCDE",
    "Caller": "+14158675309",
    "Digits": "1234",
    "From": "+14158675309",
    "To": "+18005551212",
}


def test_the_example_of_twilios_documentation() -> None:
    assert sign(TOKEN, "https://mycompany.com/myapp.php?foo=1&bar=2", FIELDS) == "RSOYDt4T1cUTdK1PDd93/VVr8B8="


def test_fields_are_signed_in_the_order_of_their_names() -> None:
    assert sign(TOKEN, URL, dict(reversed(FIELDS.items()))) == sign(TOKEN, URL, FIELDS)


@pytest.mark.parametrize(
    ("signed", "asked"),
    [
        ("wss://voice.example.com/v1/calls/twilio", "wss://voice.example.com/v1/calls/twilio"),
        ("wss://voice.example.com/v1/calls/twilio/", "wss://voice.example.com/v1/calls/twilio"),
        ("wss://voice.example.com:443/v1/calls/twilio", "wss://voice.example.com/v1/calls/twilio"),
        ("wss://voice.example.com/v1/calls/twilio", "wss://voice.example.com:443/v1/calls/twilio"),
    ],
)
def test_spellings_of_one_address_are_the_same(signed: str, asked: str) -> None:
    assert is_signed(TOKEN, asked, sign(TOKEN, signed))


@pytest.mark.parametrize(
    ("token", "url", "fields"),
    [
        ("12346", URL, FIELDS),
        (TOKEN, URL + "3", FIELDS),
        (TOKEN, URL.replace("https", "http"), FIELDS),
        (TOKEN, URL, FIELDS | {"Digits": "1235"}),
        (TOKEN, URL, {}),
    ],
)
def test_anything_else_is_not(token: str, url: str, fields: dict[str, str]) -> None:
    assert is_signed(TOKEN, URL, sign(TOKEN, URL, FIELDS), FIELDS)
    assert not is_signed(token, url, sign(TOKEN, URL, FIELDS), fields)


@pytest.mark.parametrize("signature", ["", "AAAA", "ä", "\udcff", "x" * 10_000])
def test_no_signature_is_none(signature: str) -> None:
    assert not is_signed(TOKEN, URL, signature, FIELDS)


@pytest.mark.parametrize(
    "url", ["wss://host:port/", "wss://host:99999/", "wss://[::1/", "wss://[x]/", "", "//", "wss://:/"]
)
def test_no_address_is_signed_or_breaks_anything(url: str) -> None:
    assert not is_signed(TOKEN, url, sign(TOKEN, URL))


NUM_MESSAGES, NUM_MESSAGES_SLOW = 2_000, 50_000
CORPORA: dict[str, list[str | bytes]] = {
    "twilio": [message for message, _ in TWILIO],
    "telnyx": [message for message, _ in TELNYX],
    "plivo": [message for message, _ in PLIVO],
    "vonage": [message for message, _ in VONAGE],
    "asterisk": [message for message, _ in ASTERISK],
    "audiosocket": [message for message, _ in AUDIOSOCKET],
}
LINES = (*TELEPHONY_ROUTES, TelephonyRoute("audiosocket", lambda _: AudioSocketDialect()))
SPICES = ("null", "-1", "1e400", '""', "{}", "[]", '"\\ud800"', "true", '"x"', "[[[", "\x00", "9" * 40)


def mangled(message: str | bytes, rng: random.Random) -> str | bytes:
    """As it is, cut, spiced, or in the other kind of frame."""
    if isinstance(message, bytes):
        return rng.choice((message, message[: rng.randrange(len(message) + 1)], rng.randbytes(rng.randrange(700))))
    at = rng.randrange(len(message) + 1)
    spiced = message[:at] + rng.choice(SPICES) + message[at + rng.randrange(12) :]
    return rng.choice((message, message, spiced, message[:at], message.encode(), rng.choice(SPICES)))


def check(make: object, name: str, num_messages: int) -> None:
    rng = random.Random(name)
    dialect: TelephonyDialect = make("line")  # type: ignore[operator]
    num_heard = num_refused = 0
    for number in range(num_messages):
        if number % 50 == 0:
            dialect = make("line")  # type: ignore[operator]
        try:
            events = dialect.receive_message(mangled(rng.choice(CORPORA[name]), rng))
        except RemoteProtocolError:
            num_refused += 1
            continue
        num_heard += len(events)
        if dialect.format is not None:
            assert all(
                isinstance(message, str | bytes)
                for message in (dialect.send_audio(b"\0\0"), dialect.send_clear() or "")
            )
        else:
            assert not any(isinstance(event, CallerAudioReceived) for event in events)
    assert num_heard > num_messages / 20
    assert num_refused > num_messages / 20


@pytest.mark.parametrize("phone", LINES, ids=lambda phone: phone.path)
def test_anything_in_any_order(phone: object) -> None:
    check(phone.dialect, phone.path.rpartition("/")[2], NUM_MESSAGES)  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("phone", LINES, ids=lambda phone: phone.path)
def test_much_of_it(phone: object) -> None:
    check(phone.dialect, phone.path.rpartition("/")[2], NUM_MESSAGES_SLOW)  # type: ignore[attr-defined]
