"""Anything a client may send, in any order, while contexts live and end: a dialect answers or refuses, never breaks."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.elevenlabs_dialogue import ElevenLabsDialogue
from realtime.protocol.dialects.registry import DIALECT_ROUTES, DialectRoute
from tests.realtime.dialects.chaotic_client import ChaoticClient
from tests.realtime.dialects.dialect_harness import handshake, word
from tests.realtime.dialects.valid_messages import RIGHT

NUM_MESSAGES, NUM_MESSAGES_SLOW = 2_000, 50_000
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


def play(wire: DialectRoute, seed: int, num_messages: int) -> None:
    rng = random.Random(seed)
    client = ChaoticClient(rng, RIGHT.get(wire.path, ()))
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
        check_nothing_is_kept(shell)


def check_nothing_is_kept(shell: Shell) -> None:
    """A dialect remembers the contexts that are open, and no others."""
    if isinstance(shell.dialect, ElevenLabsDialogue):
        parts = {part for spoken in shell.dialect._contexts.values() for part in spoken.parts}
        assert parts == set(shell.open) or (shell.num_closed and not parts)
        return
    for name in ("_contexts", "_turns", "_utterances", "_lines"):
        assert set(getattr(shell.dialect, name, {})) <= set(shell.open)


def named(wire: DialectRoute) -> str:
    return f"{wire.dialect.__name__} {wire.path}"


@pytest.mark.parametrize("wire", DIALECT_ROUTES, ids=named)
def test_a_dialect_never_breaks(wire: DialectRoute) -> None:
    play(wire, 1, NUM_MESSAGES)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wire", DIALECT_ROUTES, ids=named)
def test_a_dialect_never_breaks_at_length(wire: DialectRoute) -> None:
    play(wire, 2, NUM_MESSAGES_SLOW)


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
