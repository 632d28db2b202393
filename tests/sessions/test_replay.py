"""Another gateway goes on with a response from what its client has kept: no sample differs, no word is lost or said
twice."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from engine.api import InvalidRequest
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.audio.watermark.embedder import Watermark
from sessions.checkpoint import Checkpoint, EarlyCut, Replay
from sessions.config import AudioFormat, Encoding, SpeechSettings
from sessions.events import CheckpointAdded, FlushCompleted, ResponseAudio, ResponseStatus, ResponseWordTimes
from sessions.registry import SessionRegistry
from sessions.response import Response
from tests.fakes.engine import FakeScript
from tests.sessions.conftest import LIMITS, RecordingEngine, ResponseRecord, assert_all_free, reading_task

pytestmark = pytest.mark.virtual_time

SCRIPT = FakeScript(draws_codes=True, ms_per_char=60.0)
WORDS = "one two, three. Four five six! Seven, eight nine ten eleven. Twelve? thirteen fourteen. ".split(" ")
FORMATS = [
    AudioFormat(encoding=Encoding.PCM_S16LE, sample_rate=16_000),
    AudioFormat(encoding=Encoding.PCM_S16LE, sample_rate=24_000),
    AudioFormat(encoding=Encoding.MULAW, sample_rate=8_000),
    AudioFormat(encoding=Encoding.OPUS, sample_rate=24_000),
]


@dataclass
class Writer:
    """What a client writes, and when: words and flushes (empty), each after a wait in seconds."""

    steps: list[tuple[float, str]]
    ends: bool = True
    num_done: int = 0
    # Before each step that is done again; ``None`` does them at once, in the longest pieces.
    wait_again_s: float | None = 0.0

    @classmethod
    def from_seed(cls, chance: random.Random) -> Writer:
        waits = chance.choice([(0.0,), (0.0, 0.1, 0.4), (0.0, 0.0, 0.2, 3.0)])
        steps = [(chance.choice(waits), f"{chance.choice(WORDS)} ") for _ in range(chance.randint(1, 40))]
        for _ in range(chance.randint(0, 3)):
            steps.insert(chance.randint(0, len(steps)), (chance.choice(waits), ""))
        return cls(steps, wait_again_s=chance.choice([None, 0.0, 1.5]))

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.steps)

    async def write(self, response: Response) -> None:
        """Write again what was done before, then go on."""
        steps = [(self.wait_again_s or 0.0, text) for _, text in self.steps[: self.num_done]]
        if self.wait_again_s is None:
            pieces = itertools.groupby((text for _, text in steps), key=bool)
            steps = [(0.0, joined) for is_text, texts in pieces for joined in (["".join(texts)] if is_text else texts)]
        num_again = len(steps)
        for number, (wait_s, text) in enumerate(steps + self.steps[self.num_done :]):
            await asyncio.sleep(wait_s)
            if response.is_done:
                return
            response.push_text(text) if text else response.flush()
            self.num_done += number >= num_again
        response.end_input()


@dataclass
class ReplayClient:
    """What it has received from all gateways."""

    checkpoints: list[str] = field(default_factory=list)
    packets: list[bytes] = field(default_factory=list)
    num_samples: int = 0
    words: list[str] = field(default_factory=list)
    flushes: list[FlushCompleted] = field(default_factory=list)

    def receive(self, record: ResponseRecord, num_events: int, discard_samples: int = 0) -> None:
        for event in record.events[:num_events]:
            match event:
                case ResponseAudio():
                    self._receive_audio(event)
                case CheckpointAdded():
                    assert event.index == len(self.checkpoints)
                    self.checkpoints.append(event.data)
                case ResponseWordTimes():
                    self.words += [word.text for word in event.words]
                case FlushCompleted():
                    self.flushes.append(event)

    def _receive_audio(self, event: ResponseAudio) -> None:
        """Keep the decoder: packets of the preroll are skipped."""
        at, size = event.start_sample, event.num_samples // len(event.packets)
        for packet in event.packets:
            if at >= self.num_samples:
                assert at == self.num_samples, "a gap"
                self.packets.append(packet)
                self.num_samples += size
            at += size

    def replay(self, **changes: object) -> Replay:
        position = dict(
            received_samples=self.num_samples, received_flushes=len(self.flushes), received_words=len(self.words)
        )
        return Replay.from_checkpoints(self.checkpoints, 50_000, **position | changes)  # type: ignore[arg-type]


class DyingGateway:
    def __init__(
        self, settings: SpeechSettings, script: FakeScript = SCRIPT, watermark: Watermark | None = None
    ) -> None:
        self.settings, self.engine, self.watermark = settings, RecordingEngine(), watermark
        self.engine.script = script

    async def speak(self, writer: Writer, replay: Replay | None = None, for_s: float = 1e6) -> ResponseRecord:
        """Speak to the end, or until the gateway dies."""
        await self.engine.start()
        registry = SessionRegistry(self.engine, LIMITS, make_aligner=UniformAligner, watermark=self.watermark)
        response = registry.create().create_response(settings=self.settings, replay=replay)
        record, reading = reading_task(response)
        record.check = lambda event: None  # type: ignore[method-assign]
        writing = asyncio.create_task(writer.write(response))
        await asyncio.wait([reading], timeout=for_s)
        writing.cancel()
        await registry.aclose()
        await asyncio.wait([writing, reading])
        assert_all_free(self.engine)
        await self.engine.aclose()
        return record


@pytest.mark.parametrize("seed", [*range(24), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(24, 60))])
async def test_cut_reply_goes_on_with_the_same_samples(seed: int) -> None:
    chance = random.Random(seed)
    settings = SpeechSettings(
        format=chance.choice(FORMATS),
        lead_ms=chance.choice([None, 200, 2_000]),
        word_times=True,
        checkpoints=True,
        speed=chance.choice([1.0, 1.0, 1.3]),
    )
    writer, client = Writer.from_seed(chance), ReplayClient()
    # The mark follows from the key and the position in the response.
    watermark = Watermark(b"k" * 32, seed) if seed % 2 else None
    replay: Replay | None = None
    is_over = False
    while not is_over:
        life_s = chance.choice([chance.uniform(0, 12), 1e6])
        script = replace(SCRIPT, chunk_frames=chance.choice([1, 3]), real_time_factor=chance.choice([0.05, 0.3]))
        gateway = DyingGateway(settings, script, watermark)
        record = await gateway.speak(writer, replay, life_s)
        is_over = record.done.status is ResponseStatus.COMPLETED
        num_events = len(record.events) if is_over else chance.randint(0, len(record.events) - 1)
        client.receive(record, num_events)
        replay = client.replay()
        known = map(Checkpoint.decode, client.checkpoints)
        requests = gateway.engine.requests
        assert all(requests[one.segment].text_closed == one.is_text_closed for one in known)
    spoken = " ".join(gateway.engine.texts)
    assert spoken.split() == writer.text.split()
    assert client.words == writer.text.split()
    assert [flush.flush for flush in client.flushes] == list(range(sum(not text for _, text in writer.steps)))
    # Made from the checkpoints alone, it is the same from its first sample on.
    whole = ReplayClient()
    again = await DyingGateway(settings, watermark=watermark).speak(
        replace(writer, num_done=len(writer.steps)), client.replay(received_samples=0)
    )
    whole.receive(again, len(again.events))
    assert whole.packets == client.packets
    assert again.done.audio_samples == record.done.audio_samples
    assert not whole.checkpoints


@pytest.mark.parametrize("audio", FORMATS, ids=str)
async def test_reply_of_which_only_the_end_is_unknown_ends(audio: AudioFormat) -> None:
    settings = SpeechSettings(format=audio, lead_ms=None, checkpoints=True)
    writer, client = Writer([(0.0, "one two three. ")]), ReplayClient()
    record = await DyingGateway(settings).speak(writer)
    client.receive(record, len(record.events) - 1)
    again = await DyingGateway(settings).speak(writer, client.replay())
    assert again.done.status is ResponseStatus.COMPLETED
    assert again.done.audio_samples == record.done.audio_samples <= client.num_samples


@pytest.mark.parametrize("encoding", [Encoding.PCM_S16LE, Encoding.OPUS])
async def test_received_and_heard_audio_count_after_the_cut(encoding: Encoding) -> None:
    """The lead is kept, and heard text follows the position of the listener."""
    settings = SpeechSettings(format=AudioFormat(encoding=encoding, sample_rate=24_000), checkpoints=True)
    writer, client = (
        Writer([(0.0, "one two three four five six seven eight nine ten eleven twelve. " * 3)]),
        ReplayClient(),
    )
    record = await DyingGateway(settings).speak(writer, for_s=4.0)
    client.receive(record, len(record.events) - 1)
    assert 5.5 < client.num_samples / 24_000 < 6.5
    heard = []
    for replay, wait_s in ((None, 4.5), (client.replay(played_ms=4_000.0), 0.5)):
        async with speaking(settings, writer, replay) as (response, again):
            await asyncio.sleep(wait_s)
            ahead_s = (again.audio[-1].start_sample + again.audio[-1].num_samples) / 24_000 - 4.5
            assert 1.7 < ahead_s < 2.2, "the lead of 2 s counts from what was played"
            heard.append(response.heard(4_500.0))
            response.cancel(4_500.0)
    assert heard[0] == heard[1] == again.done.heard
    assert len(heard[0].text) > 60


@asynccontextmanager
async def speaking(
    settings: SpeechSettings, writer: Writer, replay: Replay | None
) -> AsyncIterator[tuple[Response, ResponseRecord]]:
    """A response that is cancelled in the context."""
    gateway = DyingGateway(settings)
    await gateway.engine.start()
    registry = SessionRegistry(gateway.engine, LIMITS, make_aligner=UniformAligner)
    response = registry.create().create_response(settings=settings, replay=replay)
    record, reading = reading_task(response)
    record.check = lambda event: None  # type: ignore[method-assign]
    await writer.write(response)
    try:
        yield response, record
    finally:
        response.cancel()
        await reading
        await registry.aclose()
        await gateway.engine.aclose()


def checkpoint(
    segment: int = 0, codes: bytes = b"\1\0", cuts: Sequence[EarlyCut] = (), is_complete: bool = False
) -> str:
    return Checkpoint(segment, False, is_complete, codes, tuple(cuts)).encode()


@pytest.mark.parametrize(
    ("checkpoints", "found"),
    [
        (["?"], r"checkpoints\[0\] is not valid"),
        (["AAAA"], r"checkpoints\[0\] is not valid: Expected `array`"),
        ([checkpoint(), checkpoint(2)], r"checkpoints\[1\] is not valid: it is of segment 2; 1 were known"),
        ([checkpoint(), checkpoint(1)], "it is of segment 1"),
        ([checkpoint(is_complete=True), checkpoint()], "it is of segment 0"),
        ([checkpoint(-1)], "it is of segment -1"),
        ([checkpoint(cuts=[EarlyCut(-1, 0)])], r"cut \(-1, 0\) follows \(0, 0\)"),
        ([checkpoint(cuts=[EarlyCut(5, 1)]), checkpoint(cuts=[EarlyCut(4, 1)])], r"cut \(4, 1\) follows \(5, 1\)"),
        ([checkpoint(cuts=[EarlyCut(5, 1), EarlyCut(6, 0)])], r"cut \(6, 0\) follows \(5, 1\)"),
        ([checkpoint(cuts=[EarlyCut(1_001, 0)])], "the limit is 1000"),
    ],
)
def test_forged_checkpoints_are_refused(checkpoints: list[str], found: str) -> None:
    with pytest.raises(InvalidRequest, match=found) as caught:
        Replay.from_checkpoints(checkpoints, 1_000)
    assert caught.value.param == "checkpoints"


async def test_position_behind_the_end_fails_the_response() -> None:
    settings = SpeechSettings(format=FORMATS[0], checkpoints=True)
    writer = Writer([(0.0, "one two three.")])
    record = await DyingGateway(settings).speak(writer, Replay(received_samples=10**6))
    assert record.done.error is not None
    assert record.done.error.param == "received_samples"


async def test_checkpoints_of_another_text_end_in_one_terminal_event() -> None:
    """A lie changes no more than the liar's own sound."""
    settings, client = SpeechSettings(format=FORMATS[0], checkpoints=True), ReplayClient()
    record = await DyingGateway(settings).speak(Writer([(0.0, "one two three. Four five six. Seven.")]))
    client.receive(record, len(record.events))
    for text in ("x", "a much longer text. " * 9):
        other = await DyingGateway(settings).speak(Writer([(0.0, text)]), client.replay(received_samples=0))
        assert other.done.status is ResponseStatus.COMPLETED
