"""Sessions, whole texts and calls through a real broker."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiomqtt
import pytest

from realtime.app import create_app
from realtime.cli import main
from realtime.config import ConfigError, load_config
from realtime.errors import LocalProtocolError
from realtime.mqtt.connection import Publication
from realtime.mqtt.publishers import MqttCallBridge
from realtime.protocol.mqtt.topics import Topics
from realtime.protocol.telephony import model
from sessions.audio.opus import OpusDecoder
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.calls import twilio_simulator
from tests.realtime.calls.test_sockets import dial
from tests.realtime.live_server import LiveServer, until
from tests.realtime.mqtt.mqtt_client import Json, Mosquitto, MqttTestClient, bridge_of, bridged, client, ready

TEXT = "Hello there, how are you today?"
SLOW = FakeScript(ms_per_char=60.0, real_time_factor=0.4)
PCM = {"encoding": "pcm_s16le", "sample_rate": 24_000}


def text(words: str, **more: object) -> dict[str, object]:
    return {"t": "text", "d": words, **more}


END, CLOSE, CANCEL = {"t": "end"}, {"t": "close"}, {"t": "cancel"}


async def test_two_replies_of_a_session(broker: Mosquitto, live: LiveServer) -> None:
    async with client(broker) as agent:
        session = await agent.open(word_times=True, lead_ms=0)
        assert session.answer["digital_source_type"] == "trainedAlgorithmicMedia"
        await session.say(
            *(text(f"{word} ") for word in TEXT.split()), {"t": "flush"}, text("Fine. "), END, text("And?")
        )
        assert (await session.told("started"))["reply"] == 0
        words = [mark["text"] for mark in (await session.told("marks"))["words"]]
        assert (await session.told("seg_done"))["seg"] == 0
        done = await session.told("done")
        assert (done["reply"], done["status"], done["error"]) == (0, "completed", None)
        assert done["heard"].split() == [*TEXT.split(), "Fine."]
        assert words[0] == "Hello"
        await session.say(END, CLOSE)
        assert (await session.told("done"))["reply"] == 1
        assert (await session.told("closed"))["reason"] == "close"
        check_packets(session.sounds(0), done["audio_ms"])
        assert session.sounds(1)[-1].last


def check_packets(sounds: list, audio_ms: float) -> None:
    """Numbers without a gap, times that abut, packets of 60 ms for one decoder, and an empty one at last."""
    assert [int(one.user["seq"]) for one in sounds] == list(range(len(sounds)))
    assert [one.last for one in sounds] == [False] * (len(sounds) - 1) + [True]
    assert sounds[-1].payload == b""
    decoder = OpusDecoder(24_000)
    lengths_ms = [decoder.decode(one.payload).size / 24 for one in sounds[:-1]]
    assert set(lengths_ms) == {60.0}
    assert abs(sum(lengths_ms) - audio_ms) < 70
    starts_ms = [float(one.user["ts"]) for one in sounds]
    assert starts_ms == sorted(starts_ms)
    assert float(sounds[-1].user["ts"]) == pytest.approx(audio_ms, abs=1)
    assert {one.properties["ContentType"] for one in sounds} == {"audio/opus"}
    assert not any(one.properties.get("retain") for one in sounds)


async def test_cancel_stops_and_reports_heard_text(broker: Mosquitto) -> None:
    async with bridged(broker, FakeSpeechEngine(SLOW)), client(broker) as agent:
        session = await agent.open(lead_ms=1_000)
        await session.say(text(TEXT * 10), END, text("This waits."))
        await agent.next_on(session.audio, lambda heard: heard.user["seq"] == "10")
        await session.say({"t": "cancel", "played_ms": 450})
        done = [await session.told("done"), await session.told("done")]
        spoken = next(one for one in done if one["reply"] == 0)
        waiting = next(one for one in done if one["reply"] == 1)
        assert (spoken["status"], waiting["status"]) == ("cancelled", "cancelled")
        assert (TEXT * 10).startswith(spoken["heard"])
        assert 0 < len(spoken["heard"]) < 40
        assert spoken["heard"] + spoken["remaining"] == TEXT * 10
        num_sounds = len(session.sounds(0))
        await session.say(text("Next."), END)
        assert (await session.told("done"))["reply"] == 2
        assert len(session.sounds(0)) == num_sounds, "nothing of it after its end"
        await session.say({"t": "cancel", "played_ms": 50}, {"t": "ping", "d": "x"})
        assert (await session.told("heard"))["reply"] == 2
        assert await session.told("pong") == {"t": "pong", "d": "x"}
        await session.say({"t": "leave"})
        assert (await session.told("closed"))["reason"] == "leave"


async def test_duplicate_message_is_ignored_and_lost_one_ends_reply(broker: Mosquitto, live: LiveServer) -> None:
    async with client(broker) as agent:
        session = await agent.open(lead_ms=0)
        await session.say(text("One, ", seq=0), text("One, ", seq=0), text("two.", seq=1), {**END, "seq": 2})
        assert (await session.told("done"))["heard"] == "One, two."
        await session.say(text("Three, ", seq=3), text("five, ", seq=5), text("six.", seq=6), {**END, "seq": 7})
        error = (await session.told("error"))["error"]
        assert (error["param"], error["message"]) == ("seq", "seq is 5, expected 4: messages were lost")
        assert (await session.told("done"))["status"] == "cancelled"
        await session.say(text("Seven.", seq=8), {**END, "seq": 9})
        assert (await session.told("done"))["heard"] == "Seven."


async def test_a_will_and_a_goodbye_end_what_a_client_has_open(broker: Mosquitto) -> None:
    async with bridged(broker, FakeSpeechEngine(SLOW)) as live, client(broker) as other:
        theirs = await other.open()
        will = aiomqtt.Will("voice/v1/c/weak/gone", b"", 1)
        async with client(broker, "weak", will=will) as agent:
            for _ in range(3):
                session = await agent.open()
                await session.say(text(TEXT * 10))
            await agent.ask("voice/v1/say", {"text": TEXT * 20})
            await until(lambda: live.speech.num_active_responses == 4)
            await agent.die()
        await until(lambda: live.speech.registry.statistics().num_sessions == 1)
        await theirs.say(text("I am still here."), END)
        assert (await theirs.told("done"))["status"] == "completed"


async def test_a_will_at_the_inbox_of_a_session_of_ones_own_name(broker: Mosquitto) -> None:
    async with bridged(broker, FakeSpeechEngine(SLOW)) as live:
        will = aiomqtt.Will("voice/v1/s/frail/mine/in", json.dumps({"t": "leave"}).encode(), 1)
        async with client(broker, "frail", will=will) as agent:
            session = await agent.open(sid="mine")
            assert session.inbox == "voice/v1/s/frail/mine/in"
            await session.say(text(TEXT * 10))
            await until(lambda: live.speech.num_active_responses == 1)
            await agent.die()


async def test_one_text_one_answer(broker: Mosquitto, live: LiveServer) -> None:
    async with client(broker) as agent:
        await agent.ask("voice/v1/say", {"text": TEXT, "format": PCM}, tag=b"first")
        last = await agent.next_on(agent.answers, lambda heard: heard.last)
        assert last.json["status"] == "completed"
        assert last.properties["CorrelationData"] == b"first"
        pcm = [one for one in agent.heard if one.properties["ContentType"] == "audio/pcm"]
        num_samples = sum(len(struct.unpack(f"<{len(one.payload) // 2}h", one.payload)) for one in pcm)
        assert num_samples / 24 == pytest.approx(last.json["audio_ms"], abs=1)
        assert {one.properties["CorrelationData"] for one in pcm} == {b"first"}
        await agent.ask("voice/v1/say", {"text": "x" * 5_000})
        refused = await agent.next_on(agent.answers, lambda heard: heard.last)
        assert refused.json["error"]["code"] == "request_too_long"
        await agent.ask("voice/v1/say", {"text": TEXT, "voice": "nobody", "format": {"encoding": "mulaw"}})
        assert (await agent.next_on(agent.answers, lambda heard: heard.last)).json["status"] == "completed"


WRONG_OPENS = (
    (b"\xff\xfe", "malformed_json", None),
    (b"[1]", "invalid_event", None),
    (b'{"v": 2}', "invalid_event", "v"),
    (b'{"sid": "a/b"}', "invalid_event", "sid"),
    (b'{"sid": "#"}', "invalid_event", "sid"),
    (b'{"colour": 1}', "invalid_event", "colour"),
    (b'{"format": {"encoding": "mp3"}}', "invalid_event", "format.encoding"),
    (b'{"format": {"sample_rate": 12345}}', "unsupported_format", "sample_rate"),
    (b'{"format": {"packet_ms": 30}}', "invalid_event", "format.packet_ms"),
    (b'{"lead_ms": -1}', "invalid_event", "lead_ms"),
    (b'{"seed": 18446744073709551616}', "invalid_event", "seed"),
    (b" " * 300_000, "message_too_big", None),
)


async def test_an_open_that_is_wrong_is_refused(broker: Mosquitto, live: LiveServer) -> None:
    async with client(broker) as agent:
        for content, code, param in WRONG_OPENS:
            error = await agent.refused(content)
            assert (error["code"], error["param"]) == (code, param), content[:40]


async def test_messages_within_a_session_that_are_wrong(broker: Mosquitto) -> None:
    async with (
        bridged(broker, limits__max_errors_per_connection=6, limits__max_message_bytes=2_000),
        client(broker) as agent,
    ):
        session = await agent.open()
        for wrong, code in (
            (b"{", "malformed_json"),
            (b'{"t": "shout"}', "unknown_event"),
            (b'{"t": "text"}', "invalid_event"),
            (b'{"t": "cancel", "played_ms": -5}', "invalid_event"),
            (b'{"type": "text", "d": "of another wire"}', "unknown_event"),
        ):
            await agent.client.publish(session.inbox, wrong, 1)
            assert (await session.told("error"))["error"]["code"] == code
        await session.say(text("Still here."), END)
        assert (await session.told("done"))["status"] == "completed"
        await agent.client.publish(session.inbox, b"{", 1)
        assert [(await session.told("error"))["error"]["code"] for _ in range(2)] == [
            "malformed_json",
            "too_many_errors",
        ]
        assert (await session.told("closed"))["reason"] == "too_many_errors"
        big = await agent.open()
        await big.say(text("x" * 3_000))
        assert (await big.told("error"))["error"]["code"] == "message_too_big"
        assert (await big.told("closed"))["reason"] == "message_too_big"


async def test_nothing_is_published_where_a_client_points(broker: Mosquitto, live: LiveServer) -> None:
    async with client(broker) as agent, client(broker) as witness:
        await witness.client.subscribe("#", qos=1)
        for elsewhere in ("alarm/off", "voice/v1/open", f"voice/v1/c/{agent.name}/rsp/deep", "voice/v1/c//rsp"):
            await agent.ask("voice/v1/open", {}, answers=elsewhere)
        await agent.client.publish("voice/v1/open", b"{}", 1)  # MQTT 3 has no response topic at all
        await agent.open()
        await until(lambda: refusals(live) == 5)
        assert not [one.topic for one in witness.heard if one.topic.startswith("alarm")]


def refusals(live: LiveServer) -> float:
    found = live.speech.metrics._registry.get_sample_value("voicewire_refusals_total", {"code": "invalid_event"})
    return found or 0.0


async def test_retained_garbage_is_not_listened_to(broker: Mosquitto) -> None:
    places = ("voice/v1/open", "voice/v1/say", "voice/v1/c/x/gone", "voice/v1/s/x/left/in", "voice/v1/calls/w/c/in")
    async with client(broker, "x") as agent:
        for topic in places:
            await agent.client.publish(topic, b'{"t": "text", "d": "left behind"}', 1, retain=True)
        async with bridged(broker) as live:
            session = await agent.open(sid="left")
            await session.say({"t": "ping"})
            await session.told("pong")
            assert live.speech.num_active_responses == 0
            assert not live.engine.requests
            await session.say({"t": "leave"})
        for topic in places:
            await agent.client.publish(topic, b"", 1, retain=True)


async def test_limits(broker: Mosquitto) -> None:
    limits = {"mqtt__max_sessions": 3, "mqtt__max_sessions_per_client": 2, "limits__retry_after_ms": 250}
    async with bridged(broker, **limits) as live, client(broker) as one, client(broker) as two:
        await one.open(sid="a")
        assert (await one.refused(b'{"sid": "a"}'))["code"] == "duplicate_response"
        last = await one.open()
        error = await one.refused(b"{}")
        assert (error["code"], error["message"]) == ("limit_exceeded", "mqtt.max_sessions_per_client is 2")
        assert (error["retryable"], error["retry_after_ms"]) == (True, 250)
        await two.open()
        assert (await two.refused(b"{}"))["message"] == "mqtt.max_sessions is 3"
        await last.say({"t": "leave"})
        await last.told("closed")
        await until(lambda: live.speech.num_connections == 2)
        await two.open()


async def test_a_flood_of_messages_ends_the_session_and_no_other(broker: Mosquitto) -> None:
    async with bridged(broker, mqtt__max_queued_per_session=16) as live, client(broker) as agent:
        calm = await agent.open()
        session = await agent.open()
        bridge = bridge_of(live).handler
        assert bridge is not None
        link = bridge.sessions.find_transport(session.inbox)
        assert link is not None
        for _ in range(20):  # as they come from the broker in one go
            link.on_message(b'{"t": "ping"}')
        assert (await session.told("closed"))["reason"] == "limit_exceeded"
        heavy = await agent.open()
        link = bridge.sessions.find_transport(heavy.inbox)
        assert link is not None
        for _ in range(5):
            link.on_message(b" " * 262_144)
        assert (await heavy.told("closed"))["reason"] == "limit_exceeded"
        await calm.say(text("All is well."), END)
        assert (await calm.told("done"))["status"] == "completed"


async def test_idle_timeout_and_shutdown_are_reported(broker: Mosquitto) -> None:
    async with client(broker) as agent:
        async with bridged(broker, limits__idle_timeout_s=0.3):
            session = await agent.open()
            assert (await session.told("error"))["error"]["code"] == "idle_timeout"
            assert (await session.told("closed"))["reason"] == "idle_timeout"
        async with bridged(broker) as live, bridged(broker) as other:
            session = await agent.open()
            mine, its = (live, other) if session.answer["worker"] == bridge_of(live).worker else (other, live)
            mine.speech.draining = True
            assert (await session.told("closed"))["reason"] == "draining"
            await until(lambda: mine.speech.num_connections == 0)
            await agent.client.subscribe(status := f"voice/v1/status/{bridge_of(mine).worker}", 1)
            await agent.next_on(status, lambda heard: heard.json["state"] == "draining")
            for _ in range(4):
                again = await agent.open()
                assert again.answer["worker"] == bridge_of(its).worker, "who is about to stop stands aside"
                await again.say({"t": "leave"})
            mine.speech.draining = False


async def test_two_servers_share_the_work(broker: Mosquitto) -> None:
    async with bridged(broker) as one, bridged(broker) as other, client(broker) as agent:
        sessions = [await agent.open(lead_ms=0) for _ in range(8)]
        workers = [session.answer["worker"] for session in sessions]
        assert {workers.count(bridge_of(live).worker) for live in (one, other)} == {4}
        for session in sessions:
            await session.say(text("One "), text("server "), text("hears "), text("all "), text("of it."), END)
            assert (await session.told("done"))["heard"] == "One server hears all of it."


async def test_the_status_of_a_server(broker: Mosquitto) -> None:
    async with client(broker) as watcher:
        await watcher.client.subscribe("voice/v1/status/+", qos=1)
        async with bridged(broker, mqtt__server_name="kitchen") as live:
            topic = f"voice/v1/status/{bridge_of(live).worker}"
            assert bridge_of(live).worker.startswith("kitchen-")
            status = await watcher.next_on(topic)
            assert status.json == {"state": "online", "sessions": 0, "max_sessions": 1_000}
        gone = await watcher.next_on(topic)
        assert gone.payload == b"", "nothing is left of one that ended well"


async def test_say_speaks_through_a_broker(broker: Mosquitto, live: LiveServer, tmp_path: Path) -> None:
    wav = tmp_path / "speech.wav"
    url = f"mqtt://127.0.0.1:{broker.port}"
    command = [sys.executable, "-m", "realtime.cli", "say", "-", "-o", str(wav), "--mqtt", url, "--seed", "5"]
    command += ["--instruct", "Softly.", "--sampling", "temperature=0.5", "--sampling", "top_k=20"]
    saying = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stderr=PIPE)
    _, told = await saying.communicate(TEXT.encode())
    assert saying.returncode == 0, told
    assert wav.stat().st_size > 48_000
    assert b"completed" in told
    request = live.engine.requests[-1]
    sampling = (request.sampling.seed, request.sampling.temperature, request.sampling.top_k)
    assert (request.instruct, sampling) == ("Softly.", (5, 0.5, 20))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "mqtt://", "mqtt://host:port", "nonsense"])
def test_say_names_a_wrong_address(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", TEXT, "-o", str(tmp_path / "x.wav"), "--mqtt", url]) == 1
    assert "broker" in capsys.readouterr().err


def test_unknown_owner_is_named() -> None:
    config = load_config(flags={"mqtt.url": "mqtt://127.0.0.1", "mqtt.default_key_name": "nobody"})
    with pytest.raises(ConfigError, match=r"mqtt\.default_key_name = 'nobody'"):
        create_app(config, FakeSpeechEngine())


async def test_session_name_of_two_clients_gives_two_sessions(broker: Mosquitto, live: LiveServer) -> None:
    async with client(broker) as one, client(broker) as other:
        first, second = await one.open(sid="s"), await other.open(sid="s")
        await first.say(text("Only here."), END)
        assert (await first.told("done"))["heard"] == "Only here."
        await second.say({"t": "ping"})
        await second.told("pong")
        assert not second.sounds(0)
        await ready(live)
        assert isinstance(other, MqttTestClient)


async def told(agent: MqttTestClient, kind: str) -> Json:
    heard = await agent.next_on_any(lambda one: one.topic.endswith("/ev") and one.json.get("type") == kind)
    return {**heard.json, "topic": heard.topic}


async def command(agent: MqttTestClient, call: Json, **said: object) -> None:
    await agent.client.publish(call["topic"].removesuffix("ev") + "in", json.dumps(said), 1)


async def test_an_agent_speaks_into_a_call(broker: Mosquitto) -> None:
    async with bridged(broker, mqtt__calls_enabled=True) as live, client(broker) as agent:
        async with dial(live, "/v1/calls/twilio") as line:
            await line.send(twilio_simulator.connected())
            await line.send(twilio_simulator.start())
            call = await told(agent, "call.connected")
            assert call["topic"] == f"voice/v1/calls/{bridge_of(live).worker}/{call['call_id']}/ev"
            await command(agent, call, type="say", text="Hello, you.", reply_id="a")
            assert (await told(agent, "reply.accepted"))["reply_id"] == "a"
            assert json.loads(await line.recv())["event"] == "media"
            await line.send(twilio_simulator.dtmf("5"))
            assert (await told(agent, "call.dtmf"))["digit"] == "5"
            await command(agent, call, type="interrupt")
            assert (await told(agent, "reply.interrupted"))["cause"] == "agent"
            await command(agent, call, type="say")
            await command(agent, call, type="shout")
            assert (await told(agent, "error"))["code"] == "invalid_event"
            await command(agent, call, type="hang_up")
            assert (await told(agent, "call.hung_up"))["reason"] == "agent"
            assert [json.loads(message)["event"] async for message in line]
        await command(agent, call, type="interrupt")
        assert (await told(agent, "error"))["code"] == "unknown_call"
        await agent.client.publish(call["topic"].removesuffix("ev") + "in", b"x" * 300_000, 1)
        assert (await told(agent, "error"))["code"] in {"message_too_big", "unknown_call"}


async def test_calls_are_not_published_without_setting(broker: Mosquitto, live: LiveServer) -> None:
    async with client(broker) as agent, dial(live, "/v1/calls/twilio") as line:
        await line.send(twilio_simulator.connected())
        await line.send(twilio_simulator.start())
        await until(lambda: live.speech.num_connections == 1)
        session = await agent.open()
        await session.say({"t": "ping"})
        await session.told("pong")
        assert not [one.topic for one in agent.heard if "/calls/" in one.topic]


async def test_call_event_above_broker_limit_affects_nothing_else() -> None:
    refused: list[str] = []
    said: list[Publication] = []
    metrics = SimpleNamespace(refused=refused.append)
    server = SimpleNamespace(config=SimpleNamespace(mqtt=SimpleNamespace(max_queued_per_session=1)), metrics=metrics)

    async def publish(publication: Publication) -> None:
        said.append(publication)
        raise LocalProtocolError("the broker takes 100 bytes in a message, this one has 101")

    line = cast(Any, SimpleNamespace(publish=publish))
    desk = MqttCallBridge(
        cast(Any, server), cast(Any, None), cast(Any, None), line, Topics("voicewire", "servers"), "worker"
    )
    await asyncio.wait_for(desk._publish("call", model.CallDtmf(call_id="call", digit="1")), 1)
    assert said
    assert refused == ["internal_error"]
