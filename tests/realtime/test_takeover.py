"""An engine dies under a reply, which goes on at another engine behind the same gateway."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.cluster_events.checksum_engine import CONFIG, make_stage
from benchmarks.cluster_events.engines import FAKE_TEXT
from engine.client import EngineClient
from engine.launch import EngineThread
from engine.load import LoadedCheckpoint, build_engine_info
from engine.models.base import DecodedAudio, DecodeStage
from engine.pool import EnginePool
from engine.runtime.engine import Engine
from realtime.protocol import events as ev
from tests.fakes.qwen_checksum import QwenChecksumTalker
from tests.realtime.live_server import LiveServer, live_server, speak

WATERMARK = {"watermark__enabled": True, "watermark__key": "a key of this deployment with 32 characters"}
# More than a period of the mark.
NUM_FRAMES = 100


class EngineKiller:
    """Ends the engine that makes the next ``steps_left`` steps of decoding, for good."""

    def __init__(self) -> None:
        self.steps_left: int | None = None

    def make_engine(self) -> EngineClient:
        model, is_dead = QwenChecksumTalker(), False

        def guard(stage: DecodeStage) -> DecodeStage:
            step = stage.step

            def step_or_fail(slack_s: Mapping[int, float], wanted_frames: Mapping[int, int]) -> list[DecodedAudio]:
                nonlocal is_dead
                if self.steps_left is not None:
                    self.steps_left -= 1
                if self.steps_left == 0:
                    self.steps_left, is_dead = None, True
                    raise RuntimeError("the device is gone")
                return step(slack_s, wanted_frames)

            stage.step = step_or_fail  # type: ignore[method-assign]
            return stage

        def make() -> Engine:
            if is_dead:
                raise RuntimeError("the device is gone")
            return Engine(model, guard(make_stage()), CONFIG)

        def load() -> LoadedCheckpoint:
            info = build_engine_info(model, make_stage(), CONFIG, normalize_text=False)
            return LoadedCheckpoint(info, make, CONFIG)

        return EngineClient(EngineThread(load, CONFIG))


async def speak_pcm(live: LiveServer) -> bytes:
    pcm = ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=24_000)
    async with live.session() as client:
        spoken = await speak(client, FAKE_TEXT, seed=5, format=pcm, instruct=f"stop@{NUM_FRAMES}")
    assert spoken.done.status == "completed"
    return b"".join(packet for message in spoken.audio for packet in message.packets)


async def test_watermark_goes_on_at_another_engine() -> None:
    killer = EngineKiller()
    pool = EnginePool([killer.make_engine() for _ in range(2)])
    async with live_server(EnginePool([killer.make_engine()])) as plain, live_server(pool, **WATERMARK) as marking:
        unmarked, whole = await speak_pcm(plain), await speak_pcm(marking)
        killer.steps_left = NUM_FRAMES // 3
        cut = await speak_pcm(marking)
        assert killer.steps_left is None
        assert sum(client.is_alive for client in pool.clients) == 1
    assert cut == whole != unmarked
