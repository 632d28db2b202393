from __future__ import annotations

import itertools
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import (
    CheckpointError,
    ClonedVoice,
    EngineInfo,
    FinishReason,
    InvalidRequest,
    ReferenceAudio,
    RequestTimings,
    SamplingParams,
    SpeechChunk,
    SpeechRequest,
)
from engine.command_sockets import CommandSockets
from engine.config import EngineConfig
from engine.gateway_connection import (
    MAX_UNSENT_BYTES,
    READ_AHEAD_BYTES,
    WRITE_TOGETHER_BYTES,
    GatewayConnection,
    MessageSplitter,
    read_messages,
)
from engine.host import EPOCH_BITS, MAX_READ_PAUSE_S, EngineHost, encoding_error, load_host
from engine.ipc import (
    LENGTH,
    MAX_MESSAGE_BYTES,
    CancelEncodeVoice,
    CancelRequest,
    Command,
    EncodeVoice,
    EndRequestInput,
    EventsMessage,
    IpcError,
    Message,
    PushRequestText,
    SubmitRequest,
    VoiceEncoded,
    decode_command,
    decode_message,
    encode,
    frame_message,
    unpack_events,
)
from engine.loop import MAX_WAITING_SAMPLES
from engine.runtime.request import RequestReleased
from engine.runtime.runner import StepTimings

INFO = EngineInfo("fake", 24000, 1920, (), ("auto",), 100, False, can_encode=True)
SECOND = np.full(24_000, 0.1, np.float32).tobytes()


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The engine's end of a connection, and the gateway's."""
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def gateway(sockets: tuple[socket.socket, socket.socket]) -> Iterator[GatewayConnection]:
    gateway = GatewayConnection(1, sockets[0])
    yield gateway
    gateway.close_when_sent()


@pytest.fixture
def host(gateway: GatewayConnection) -> EngineHost:
    host = EngineHost(cast(Any, None), INFO, EngineConfig())
    host.gateways[1] = gateway
    return host


@pytest.fixture
def sent(host: EngineHost) -> list[Command]:
    """What the loop is told."""
    sent: list[Command] = []
    host.loop.send = sent.append  # type: ignore[method-assign]
    return sent


def test_only_what_is_submitted_counts_as_active(
    gateway: GatewayConnection, host: EngineHost, sent: list[Command]
) -> None:
    host._execute_command(gateway, SubmitRequest(7, SpeechRequest(request_id="r")))
    assert gateway.active == {7}
    submitted = sent[0]
    assert isinstance(submitted, SubmitRequest)
    host.deliver([(submitted.epoch, RequestReleased("r"))])
    for late in (CancelRequest(7), EndRequestInput(7), PushRequestText(7, "x")):
        host._execute_command(gateway, late)
    assert gateway.active == set()


def test_a_gateway_that_does_not_read_is_cut_off(gateway: GatewayConnection) -> None:
    for _ in range(70):
        gateway.send(bytes(MAX_UNSENT_BYTES // 64))
    with pytest.raises(BrokenPipeError):
        gateway.connection.send(b"x")


@pytest.mark.parametrize(
    "fields",
    [
        dict(lead_ms=-1),
        dict(sampling=SamplingParams(temperature=2.5)),
        dict(sampling=SamplingParams(seed=-1)),
        dict(chunk_frames=(3,)),
        dict(text="a" * 20_001),
    ],
)
def test_bad_request_ends_alone_before_it_reaches_the_loop(
    gateway: GatewayConnection,
    host: EngineHost,
    sent: list[Command],
    sockets: tuple[socket.socket, socket.socket],
    fields: dict[str, Any],
) -> None:
    host._execute_command(gateway, SubmitRequest(7, SpeechRequest(request_id="r", **fields)))
    assert not sent
    assert not gateway.active
    message = decode_message(next(read_messages(sockets[1]))[0])
    assert isinstance(message, EventsMessage)
    (_, end), (_, released) = unpack_events(message, b"")
    assert (end.reason, end.error.code) == (
        FinishReason.ERROR,
        "request_too_long" if "text" in fields else "invalid_request",
    )  # type: ignore[union-attr]
    assert released == RequestReleased("r")


@pytest.mark.parametrize("epoch", [-1, 0, 3 << EPOCH_BITS | 7])
def test_no_gateway_speaks_for_another(
    gateway: GatewayConnection, host: EngineHost, sent: list[Command], epoch: int
) -> None:
    with pytest.raises(ValueError, match=f"epoch is {epoch}"):
        host._execute_command(gateway, CancelRequest(epoch))
    assert not sent


def test_an_epoch_is_one_request(gateway: GatewayConnection, host: EngineHost, sent: list[Command]) -> None:
    host._execute_command(gateway, SubmitRequest(7, SpeechRequest(request_id="r")))
    with pytest.raises(ValueError, match="epoch 7 is in use"):
        host._execute_command(gateway, SubmitRequest(7, SpeechRequest(request_id="again")))
    assert len(sent) == 1


def test_what_is_sent_counts_no_more_as_unsent(
    gateway: GatewayConnection, sockets: tuple[socket.socket, socket.socket]
) -> None:
    message, num_messages = [bytes(100)] * 8, 20_000
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        reading = threading.Thread(target=read, args=(sockets[1], 800 * num_messages))
        reading.start()
        for _ in range(num_messages):
            gateway.send(*message)
        reading.join()
    finally:
        sys.setswitchinterval(interval_s)
    gateway._unsent.put(None)
    gateway.writing.join()
    assert gateway._num_unsent_bytes == 0


def test_first_chunk_is_sent_without_the_writing_thread(
    gateway: GatewayConnection, host: EngineHost, sockets: tuple[socket.socket, socket.socket]
) -> None:
    gateway._unsent.put(None)
    gateway.writing.join()
    sockets[1].setblocking(False)
    num_received = []
    for timings in (RequestTimings(0, 0, 0, 0), None, RequestTimings(0, 0, 0, 0)):
        host.deliver([(1 << EPOCH_BITS | 7, SpeechChunk("r", 0, np.zeros(9, np.float32), timings=timings))])
        with suppress(BlockingIOError):
            num_received.append(len(sockets[1].recv(2**16)))
    # The second is no first chunk; the third must not overtake it.
    assert len(num_received) == 1
    assert gateway._num_unsent_bytes == pytest.approx(2 * num_received[0], rel=0.5)


def test_messages_are_whole_whoever_sends_them(
    gateway: GatewayConnection, sockets: tuple[socket.socket, socket.socket]
) -> None:
    """Of half of them the socket takes a part at once, while another thread queues the others."""
    messages = [bytes([number]) * 300_000 for number in range(200)]
    whole = b"".join(messages)

    def send(start: int) -> None:
        for message in messages[start::2]:
            gateway.send(message[:7], message[7:], at_once=start == 0)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as executor:
            reading = executor.submit(read, sockets[1], len(whole))
            assert list(executor.map(send, range(2))) == [None, None]
            found = reading.result()
    finally:
        sys.setswitchinterval(interval_s)
    starts = range(0, len(found), 300_000)
    assert sorted(found[start : start + 300_000] for start in starts) == messages


def test_what_waits_to_be_sent_is_sent_together(gateway: GatewayConnection) -> None:
    gateway.close_when_sent()
    gateway.writing.join()
    messages = [[b"a", b"b"], [b"c"], [b"d"]]
    for message in messages:
        gateway._unsent.put(message)
    gateway._unsent.get()  # what told the thread to end
    assert gateway._pop_unsent() == [b"a", b"b", b"c", b"d"]
    gateway._unsent.put([b"e"])
    gateway._unsent.put(None)
    assert gateway._pop_unsent() == [b"e"]
    assert gateway._pop_unsent() == []


def test_little_is_sent_together_where_much_waits(gateway: GatewayConnection) -> None:
    """What is being sent counts as unsent, and a gateway that reads must not be cut off for it."""
    gateway.close_when_sent()
    gateway.writing.join()
    gateway._unsent.get()
    for _ in range(40):
        gateway._unsent.put([bytes(2**18)])
    assert sum(map(len, gateway._pop_unsent())) == WRITE_TOGETHER_BYTES


def test_priority_holds_within_a_message(host: EngineHost, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[None] = []
    obeyed: list[object] = []
    monkeypatch.setattr(EngineHost, "_read_pause_s", property(lambda _: pauses.append(None)))
    monkeypatch.setattr(EngineHost, "_execute_command", lambda _, gateway, command: obeyed.append(command))
    ours, theirs = socket.socketpair()
    host.gateways[2] = GatewayConnection(2, ours)
    attending = threading.Thread(target=host._serve_gateway, args=(host.gateways[2],))
    with theirs:
        attending.start()
        theirs.sendall(encode(EncodeVoice(1, ReferenceAudio(pcm=20 * SECOND, transcript="long"))))
        theirs.shutdown(socket.SHUT_WR)
        attending.join()
    assert len(obeyed) == len(pauses) == 1


@given(st.lists(st.binary(max_size=40), max_size=12), st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_messages_are_read_whole_however_they_come(messages: list[bytes], cuts: list[int]) -> None:
    ours, theirs = socket.socketpair()
    data, cut = b"".join(frame_message(message) for message in messages), itertools.cycle(cuts)
    found: list[bytes] = []
    reading = read_messages(ours)
    with ours, theirs:
        while data:
            num_whole, size = len(found), next(cut)
            theirs.sendall(data[:size])
            data = data[size:]
            found += next(reading)
            assert found[:num_whole] == messages[:num_whole]
        theirs.shutdown(socket.SHUT_WR)
        assert list(reading) == []
    assert found == messages


def test_a_message_that_is_too_long_is_not_waited_for(sockets: tuple[socket.socket, socket.socket]) -> None:
    sockets[1].sendall(LENGTH.pack(MAX_MESSAGE_BYTES + 1))
    with pytest.raises(ValueError, match=f"{MAX_MESSAGE_BYTES + 1} bytes; the limit is {MAX_MESSAGE_BYTES}"):
        next(read_messages(sockets[0]))


@pytest.mark.parametrize(
    ("command_reads_per_step", "step_s", "pause_s"), [(4, 0.004, 0.001), (4, 60.0, MAX_READ_PAUSE_S), (0, 0.004, 0.0)]
)
def test_commands_are_read_a_few_times_a_step(command_reads_per_step: int, step_s: float, pause_s: float) -> None:
    host = EngineHost(cast(Any, None), INFO, EngineConfig(command_reads_per_step=command_reads_per_step))
    host.loop.engine = cast(Any, SimpleNamespace(times=StepTimings(last_s=step_s)))
    assert host._read_pause_s == 0, "nobody steps: what comes is looked at in no time"
    host.loop.is_stepping = True
    assert host._read_pause_s == pause_s


@pytest.mark.parametrize(
    ("data", "cancelled"),
    [(frame_message(b"no command"), {7, 8}), (LENGTH.pack(MAX_MESSAGE_BYTES + 1), {7}), (b"", {7})],
    ids=["no command", "too long", "end"],
)
def test_gateway_that_ends_or_breaks_the_protocol_is_forgotten(
    gateway: GatewayConnection,
    host: EngineHost,
    sent: list[Command],
    sockets: tuple[socket.socket, socket.socket],
    data: bytes,
    cancelled: set[int],
) -> None:
    host.loop.sockets = CommandSockets()
    host.loop.sockets.add(sockets[0], lambda: host._read_gateway(gateway, sockets[0], splitter))
    splitter, (first, second) = MessageSplitter(), (SpeechRequest(request_id=name) for name in "ab")
    sockets[1].sendall(encode(SubmitRequest(7, first)) + encode(SubmitRequest(8, second))[:-3])
    assert host.loop.sockets.poll(0.0)
    assert [type(command) for command in sent] == [SubmitRequest]
    if data:
        sockets[1].sendall(encode(SubmitRequest(8, second))[-3:] + data)
    else:
        sockets[1].close()
    assert host.loop.sockets.poll(1.0)
    epochs = {command.epoch for command in sent if isinstance(command, CancelRequest)}
    assert epochs == {1 << EPOCH_BITS | epoch for epoch in cancelled}
    assert not host.gateways
    assert sockets[0].fileno() == -1
    assert not host.loop.sockets.poll(0.0), "it is not looked at any more"
    following = socket.socketpair()  # one of them has the number of the one that was closed
    for end in following:
        host.loop.sockets.add(end, lambda: None)
        end.close()
    host.loop.sockets.close()


def test_text_that_is_no_utf8_is_an_invalid_message() -> None:
    valid = encode(PushRequestText(1, "abcd"))[LENGTH.size :]
    assert decode_command(valid) == PushRequestText(1, "abcd")
    with pytest.raises(IpcError, match="not UTF-8"):
        decode_command(valid.replace(b"abcd", b"ab\xff\xfe"))


@pytest.mark.parametrize("has_thread", [False, True])
@pytest.mark.parametrize(
    ("error", "level"),
    [(ValueError("what a client said"), logging.ERROR), (IpcError("epoch is 0"), logging.WARNING)],
    ids=["internal error", "invalid message"],
)
def test_error_in_a_command_ends_its_gateway_and_is_logged(
    gateway: GatewayConnection,
    host: EngineHost,
    sockets: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    has_thread: bool,
    error: Exception,
    level: int,
) -> None:
    def fail(command: Command) -> None:
        if not isinstance(command, CancelRequest):
            raise error

    monkeypatch.setattr(host.loop, "send", fail)
    sockets[1].sendall(encode(SubmitRequest(7, SpeechRequest(request_id="r"))))
    if has_thread:
        host._serve_gateway(gateway)
    else:
        host.loop.sockets = CommandSockets()
        host.loop.sockets.add(sockets[0], lambda: host._read_gateway(gateway, sockets[0], MessageSplitter()))
        host.loop.sockets.poll(1.0)
        host.loop.sockets.close()
    assert not host.gateways
    (record,) = caplog.records
    assert record.levelno == level
    for part in ("ValueError", "in fail"):
        assert (part in record.getMessage()) == (level == logging.ERROR)
    assert "what a client said" not in caplog.text


def test_internal_error_in_a_check_is_logged_without_its_message(
    gateway: GatewayConnection,
    host: EngineHost,
    sent: list[Command],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(host, "info", object())
    host._execute_command(gateway, SubmitRequest(7, SpeechRequest(request_id="r", text="what a client said")))
    assert not sent
    (record,) = caplog.records
    assert "AttributeError" in record.getMessage()
    assert "in check_request" in record.getMessage()
    assert "has no attribute" not in caplog.text


def test_gateways_of_the_engines_thread_are_closed_with_it(
    gateway: GatewayConnection, host: EngineHost, sent: list[Command], sockets: tuple[socket.socket, socket.socket]
) -> None:
    host.on_exit = lambda error: None
    host.on_engine_exit(RuntimeError("no memory"))
    assert not host.gateways
    assert sockets[0].fileno() == -1


def test_long_message_is_read_within_one_look_for_commands(
    gateway: GatewayConnection, host: EngineHost, sent: list[Command], sockets: tuple[socket.socket, socket.socket]
) -> None:
    host.loop.sockets, splitter = CommandSockets(), MessageSplitter()
    host.loop.sockets.add(sockets[0], lambda: host._read_gateway(gateway, sockets[0], splitter))
    gateway.active.add(7)
    message = encode(PushRequestText(7, "word " * 20_000))
    assert len(message) > READ_AHEAD_BYTES
    sockets[1].sendall(message)
    host.loop._read_command()
    assert [type(command) for command in sent] == [PushRequestText]
    host.loop.sockets.close()


def test_wait_for_sockets_ends_when_woken() -> None:
    sockets = CommandSockets()
    assert not sockets.poll(0.001)
    waking = threading.Timer(0.01, sockets.wake)
    waking.start()
    assert sockets.poll(60.0)
    waking.join()
    for _ in range(100_000):
        sockets.wake()
    while sockets.poll(0.0):
        pass
    sockets.close()
    sockets.wake()


def read(connection: socket.socket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        data += connection.recv(1 << 20)
    return bytes(data)


def test_abandoned_recording_leaves_the_queue(gateway: GatewayConnection) -> None:
    gate, heard = threading.Event(), list[str]()

    def encode_voice(sample: ReferenceAudio) -> ClonedVoice:
        gate.wait()
        heard.append(sample.transcript)
        return ClonedVoice(embedding=b"")

    host = EngineHost(cast(Any, None), INFO, EngineConfig(), encode_voice)
    for number in range(3):
        host._execute_command(gateway, EncodeVoice(number, ReferenceAudio(pcm=SECOND, transcript=str(number))))
    host._execute_command(gateway, CancelEncodeVoice(1))
    host._execute_command(gateway, CancelEncodeVoice(99))
    assert set(gateway.encodings) == {0, 2}
    gate.set()
    assert host.encoding is not None
    host.encoding._executor.shutdown(wait=True)
    assert heard == ["0", "2"]
    assert gateway.encodings == {}


def test_recording_of_an_invalid_size_takes_no_place_in_the_queue(
    gateway: GatewayConnection, sockets: tuple[socket.socket, socket.socket]
) -> None:
    gate = threading.Event()

    def encode_voice(sample: ReferenceAudio) -> ClonedVoice:
        gate.wait()
        return ClonedVoice(embedding=b"")

    host = EngineHost(cast(Any, None), INFO, EngineConfig(), encode_voice)
    for number in range(MAX_WAITING_SAMPLES):
        host._execute_command(gateway, EncodeVoice(number, ReferenceAudio(pcm=SECOND)))
    answers = list[Message]()
    for sample in (ReferenceAudio(pcm=SECOND[:-1]), ReferenceAudio(pcm=b""), ReferenceAudio(pcm=31 * SECOND)):
        host._execute_command(gateway, EncodeVoice(99, sample))
        answers += map(decode_message, next(read_messages(sockets[1])))
    queued = set(gateway.encodings)
    gate.set()
    assert host.encoding is not None
    host.encoding.close()
    assert queued == set(range(MAX_WAITING_SAMPLES))
    for answer in answers:
        assert isinstance(answer, VoiceEncoded)
        assert answer.error is not None
        assert (answer.number, answer.error.code, answer.error.param) == (99, "invalid_request", "audio")


def test_recording_is_checked_on_the_encoding_thread() -> None:
    checked_on = list[str]()

    def encode_voice(sample: ReferenceAudio) -> ClonedVoice:
        checked_on.append(threading.current_thread().name)
        return ClonedVoice(embedding=b"")

    host = EngineHost(cast(Any, None), INFO, EngineConfig(), encode_voice)
    assert host.encoding is not None
    good, bad = (host.encoding.submit(ReferenceAudio(pcm=pcm, transcript="a")) for pcm in (SECOND, b""))
    assert good.result(60.0) == ClonedVoice(embedding=b"")
    assert isinstance(bad.exception(60.0), InvalidRequest)
    assert len(checked_on) == 1
    host.encoding.close()


def test_refused_recording_error_names_its_field() -> None:
    answer = encoding_error(3, InvalidRequest("audio is odd", "audio"))
    assert (answer.number, answer.error.code, answer.error.param) == (3, "invalid_request", "audio")


def test_folder_without_checkpoint_is_refused_before_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "engine.load", None)  # imports torch
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load_host({"folder": str(tmp_path)}, EngineConfig())
