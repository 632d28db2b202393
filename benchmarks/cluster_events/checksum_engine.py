"""An engine process with the real scheduler and a fake model, whose samples follow from seed and text.

python -m benchmarks.cluster_events.checksum_engine ADDRESS
"""

from __future__ import annotations

import signal
import sys
import threading
from types import SimpleNamespace

import torch
from torch import Tensor

from engine.address import EngineAddress
from engine.config import EngineConfig
from engine.host import EngineHost
from engine.listener import EngineListener
from engine.load import build_engine_info
from engine.models.base import DecodeStage
from engine.models.qwen3_tts.codec_decoder import CodecState
from engine.runtime.call_planner import DECODE_BATCHING_SLACK_S
from engine.runtime.codec_runners import make_eager_stage
from engine.runtime.engine import Engine
from tests.fakes.qwen_checksum import FRAME_SAMPLES, NUM_CODES, QwenChecksumTalker, RunningSumCodec

SAMPLE_RATE, SAMPLES = 24_000, 1_920
CONFIG = EngineConfig(
    num_blocks=8_192,
    max_batch_size=256,
    max_running_requests=256,
    admission_utilization=1e6,  # no request is refused on busy cores
    lead_step_interval_s=0.08,
)


class AudibleCodec(RunningSumCodec):
    """At the rate of a voice."""

    config = SimpleNamespace(sample_rate=SAMPLE_RATE, frame_samples=SAMPLES, codebook_size=NUM_CODES)

    def forward(self, codes: Tensor, state: CodecState | None = None) -> Tensor:
        return super().forward(codes, state)[:, ::FRAME_SAMPLES].repeat_interleave(SAMPLES, dim=1)


def make_stage() -> DecodeStage:
    return make_eager_stage(AudibleCodec(), CONFIG.max_running_requests, DECODE_BATCHING_SLACK_S)


def main() -> None:
    torch.set_num_threads(1)
    model = QwenChecksumTalker()
    info = build_engine_info(model, make_stage(), CONFIG, normalize_text=False)
    host = EngineHost(lambda: Engine(model, make_stage(), CONFIG), info, CONFIG, fingerprint="checksum")
    host.start()
    listener = EngineListener(EngineAddress.parse(sys.argv[1]))
    threading.Thread(target=host.serve, args=(listener,), daemon=True).start()
    print(f"engine {listener.address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
