"""Dialects alone, beside their recorded exchanges: parsing, limits, and any message in any order."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect, DialectRoute
from realtime.protocol.dialects.deepgram import DeepgramDialect
from realtime.protocol.dialects.elevenlabs import ElevenLabsMultiStream
from realtime.protocol.dialects.inworld import InworldDialect
from realtime.protocol.dialects.openai_common import is_beta
from realtime.protocol.dialects.openai_conversation import MAX_CHARS, MAX_ITEMS, MAX_PARTS, MAX_TOTAL_PARTS
from realtime.protocol.dialects.openai_realtime import OpenAIRealtimeDialect
from realtime.protocol.dialects.parsing import with_sentence_space
from realtime.protocol.dialects.protobuf import ProtobufField, decode, encode
from realtime.protocol.dialects.registry import DIALECT_ROUTES
from tests.realtime.dialects.chaotic_client import AT_LENGTH, ChaoticClient
from tests.realtime.dialects.dialect_harness import REQUEST_ID, DialectHarness, failed, handshake, word
from tests.realtime.dialects.exchange import messages_of


@pytest.mark.parametrize(
    ("before", "text", "told"),
    [
        ("How are you?", "It is nice.", " It is nice."),
        ("Stop.", "then go on", " then go on"),
        ('He said "no."', "She left.", " She left."),
        ("Wait…", "What?", " What?"),
        ("How are you? ", "It is nice.", "It is nice."),
        ("How are you?", " It is nice.", " It is nice."),
        ("Hello,", "there.", "there."),
        ("3.", "14", "14"),
        ("example.", "com", "com"),
        ("Wait.", "..", ".."),
        ("Wait.", ". . so", ". . so"),
        ("", "Hello.", "Hello."),
        ("Hello.", "", ""),
        ("」", "次", "次"),
    ],
)
def test_sentences_get_a_space_and_tokens_do_not(before: str, text: str, told: str) -> None:
    assert with_sentence_space(before, text) == told


def test_context_timeout_is_clamped() -> None:
    asked = ({"inactivity_timeout": "180"}, {"inactivity_timeout": "999"}, {})
    dialects = [ElevenLabsMultiStream(handshake({"voice_id": "zoe"}, **query)) for query in asked]
    assert [dialect.context_timeout_s for dialect in dialects] == [180, 180, 20]


def test_handshake_is_answered_with_the_request_id() -> None:
    assert DeepgramDialect(handshake(model="aura-2-thalia-en")).headers() == {"dg-request-id": REQUEST_ID}


def test_refused_handshake_has_a_status() -> None:
    error = failed("c", "internal_error").error
    assert error is not None
    assert InworldDialect.reject_handshake(error, 500)[0]["code"] == 13


def test_browsers_ask_for_the_beta_in_a_subprotocol() -> None:
    offered = ("realtime", "openai-insecure-api-key.KEY", "openai-beta.realtime-v1")
    assert is_beta(replace(handshake(), subprotocols=offered))
    assert not is_beta(replace(handshake(), subprotocols=offered[:2]))


INNER = {"flag": ProtobufField(1, "bool"), "ratio": ProtobufField(15, "float"), "name": ProtobufField(16, "string")}
OUTER = {
    "number": ProtobufField(2, "int"),
    "data": ProtobufField(3, "bytes"),
    "inner": ProtobufField(500, INNER),
    "many": ProtobufField(5, INNER, repeated=True),
}
INNER_EXAMPLE = {"flag": True, "ratio": 0.5, "name": "x"}
INNERS = st.fixed_dictionaries(
    {"flag": st.booleans(), "ratio": st.floats(width=32, allow_nan=False), "name": st.text()}
)


@example({"number": 128, "data": b"", "inner": INNER_EXAMPLE, "many": [INNER_EXAMPLE]})
@given(
    st.fixed_dictionaries(
        {
            "number": st.integers(-(2**63), 2**63 - 1),
            "data": st.binary(max_size=300),
            "inner": INNERS,
            "many": st.lists(INNERS, min_size=1, max_size=3),
        }
    )
)
def test_protocol_buffers_come_back_as_they_went(message):
    data = encode(message, OUTER)
    assert decode(data, OUTER) == message
    assert decode(data, {}) == {}
    for end in range(len(data)):
        try:
            decode(data[:end], OUTER)
        except RemoteProtocolError:
            continue


def play() -> DialectHarness:
    return DialectHarness(OpenAIRealtimeDialect(handshake(model="gpt-realtime")))


def user(text: str, **fields: object) -> dict:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **fields}


def test_session_instructions_alone_are_an_error():
    wire = play()
    wire.say(type="session.update", session={"instructions": "You are a pirate."})
    with pytest.raises(RemoteProtocolError, match="instructions") as refused:
        wire.say(type="response.create")
    assert refused.value.code == "response_input_empty"


def test_item_of_too_many_parts_is_refused():
    wire = play()
    item = user("x", id="mine") | {"content": [{}] * (MAX_PARTS + 1)}
    with pytest.raises(RemoteProtocolError, match=r"item\.content has 257 parts, at most 256"):
        wire.say(type="conversation.item.create", item=item)
    with pytest.raises(RemoteProtocolError, match=r"response\.input\.content has 257 parts, at most 256"):
        wire.say(type="response.create", response={"input": [item]})
    with pytest.raises(RemoteProtocolError, match=r"response\.input has 257 items, at most 256"):
        wire.say(type="response.create", response={"input": [user("x")] * (MAX_ITEMS + 1)})
    assert not wire.dialect._conversation._items


@given(
    sizes=st.lists(st.tuples(st.integers(0, MAX_PARTS), st.sampled_from([0, 1, 900, 250_000])), max_size=40),
    in_type=st.booleans(),
)
def test_items_hold_a_bounded_number_of_parts_and_characters(sizes: list[tuple[int, int]], in_type: bool):
    """Empty parts count, and so do the names of their types."""
    wire = play()
    for num_parts, num_chars in sizes:
        texts = ["x" * (num_chars // num_parts if num_parts else 0)] * num_parts
        content = [{"type": text} if in_type else {"type": "input_text", "text": text} for text in texts]
        wire.say(type="conversation.item.create", item=user("") | {"content": content})
        items = list(wire.dialect._conversation._items.values())
        parts = [part for item in items for part in item["content"]]
        assert len(parts) <= MAX_TOTAL_PARTS
        kept = sum(len(part["text"] or "") + len(part["type"]) for part in parts)
        assert len(items) == 1 or kept <= MAX_CHARS


def test_old_items_are_forgotten():
    wire = play()
    for number in range(MAX_ITEMS + 10):
        wire.say(type="conversation.item.create", item=user("x", id=f"i{number}"))
    assert len(wire.dialect._conversation._items) == MAX_ITEMS
    wire.say(type="conversation.item.create", item=user("y" * MAX_CHARS))
    assert len(wire.dialect._conversation._items) == 1


SUBPROTOCOLS = {"/ws": ("rime.v1.json", "rime.v1.binary")}


class Shell:
    """What the contexts of a dialect may do, at random: speak, flush, end, in any order the real ones can."""

    def __init__(self, dialect: Dialect, rng: random.Random) -> None:
        self.dialect = dialect
        self._rng = rng
        # Context -> how much audio it was told of.
        self.open: dict[str, float] = {}
        self.num_closed = 0

    def carry_out(self, intents: list[model.DialectCommand]) -> None:
        for intent in intents:
            match intent:
                case model.SendMessage(message=message):
                    assert isinstance(message, str | bytes)
                case model.OpenContext(context=context, options=wish):
                    assert context not in self.open
                    assert isinstance(wish, model.SpeechOptions)
                    self.open[context] = 0.0
                    self.tell(model.ContextOpened(context, self._rng.choice(((), ("a warning",)))))
                    if context in self.open and self._rng.random() < 0.05:
                        self.end(context, "failed")
                case model.CancelContext(context=context) if context in self.open:
                    self.end(context, "cancelled")
                case model.EndContext(context=context) if context in self.open and self._rng.random() < 0.3:
                    self.end(context, "completed")
                case model.QueryHeard(context=context):
                    self.tell(model.HeardReported(context, "Hello", self._rng.choice(("", " there.")), 40.0))
                case model.CloseConnection() | model.AbortRequest():
                    self.num_closed += 1

    def tell(self, event: model.DialectEvent) -> None:
        self.carry_out(list(self.dialect.send_event(event)))

    def live(self) -> None:
        """Something becomes of a context."""
        if not self.open:
            return
        context = self._rng.choice(list(self.open))
        start_ms = self.open[context]
        match self._rng.randrange(6):
            case 0 | 1:
                self.open[context] += 80.0
                self.tell(model.ContextAudio(context, b"\0\0", start_ms, start_ms + 80.0))
            case 2:
                self.tell(
                    model.ContextWords(context, (word("Hi,", start_ms, start_ms + 50.0), word("5", 60, 70, "five")))
                )
            case 3:
                self.tell(model.ContextFlushed(context, start_ms))
            case 4:
                self.tell(model.ContextIdle(context))
            case 5 if self._rng.random() < 0.3:
                self.end(context, self._rng.choice(("completed", "failed")))

    def end(self, context: str, status: model.Status) -> None:
        codes = ("overloaded", "text_timeout", "engine_dead", "limit_exceeded")
        error = ErrorInfo(code=self._rng.choice(codes), message="what happened") if status == "failed" else None
        audio_ms = self.open.pop(context)
        self.tell(model.ContextEnded(context, status, audio_ms, "Hello", " there.", audio_ms / 2, error))


def play_at_random(wire: DialectRoute, seed: int, num_messages: int) -> None:
    rng = random.Random(seed)
    client = ChaoticClient(rng, messages_of(wire.path))
    query = {"model": "flux-zoe-en", "sync_alignment": rng.choice(("true", "false"))}
    shell: Shell | None = None
    for _ in range(num_messages):
        if shell is None or shell.num_closed or wire.transport == "http":
            offered = SUBPROTOCOLS.get(wire.path, ())
            greeting = replace(
                handshake({"voice_id": "zoe"}, **query, format=rng.choice(("Pcm", "PcmMessagePack", "OggOpus"))),
                subprotocols=(rng.choice(offered),) if offered else (),
                headers=rng.choice(({}, {"openai-beta": "realtime=v1"})),
            )
            shell = Shell(wire.dialect(greeting), rng)
            shell.carry_out(list(shell.dialect.start()))
        message = client.message()
        try:
            shell.carry_out(list(shell.dialect.receive_message(message)))
        except RemoteProtocolError as error:
            told = ErrorInfo(code=error.code, message=str(error))
            shell.carry_out(list(shell.dialect.send_error(told, None if shell.dialect.forgiving else 1008)))
        shell.live()
        check_contexts_are_open(shell)


def check_contexts_are_open(shell: Shell) -> None:
    left = set(shell.dialect.open_contexts) - set(shell.open)
    assert not left, f"{type(shell.dialect).__name__} holds state of contexts that have ended: {left}"


def named(wire: DialectRoute) -> str:
    return f"{wire.dialect.__name__} {wire.path}"


@AT_LENGTH
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wire", DIALECT_ROUTES, ids=named)
def test_a_dialect_never_breaks(wire: DialectRoute, num_messages: int) -> None:
    play_at_random(wire, 1, num_messages)


@pytest.mark.parametrize("wire", DIALECT_ROUTES, ids=named)
@pytest.mark.parametrize(
    "make", [lambda rng: rng.randbytes(8).hex(), lambda rng: rng.choice(("", "-1", "nan", "99999999999", "é"))]
)
def test_handshakes_are_served_or_refused(wire: DialectRoute, make: Callable[[random.Random], str]) -> None:
    rng = random.Random(3)
    names = ("output_format", "seed", "inactivity_timeout", "encoding", "sample_rate", "model", "speed", "container")
    for _ in range(200):
        query = {name: make(rng) for name in rng.sample(names, rng.randint(1, 4))}
        with suppress(RemoteProtocolError):
            assert isinstance(wire.dialect(handshake({"voice_id": "zoe"}, **query)), Dialect)
