"""Measure CosyVoice3 on one device: TTFA, audio seconds per second, real-time factor, time of each part.

    python -m benchmarks.cosyvoice [--shape released|tiny] [--streams 1,16] [--burst 16,64,128] [--seconds 10]

Random weights of the released shape are generated at start. The end of speech is banned, so every request has its full
length. ``--streams``: this number of requests is submitted at the same moment; each is timed to its first chunk at the
engine API. One round is warm-up; at least ``--rounds`` rounds and twelve requests are measured. Percentiles are over
all of them; with twelve requests the 95th is the worst. All requests use one cached voice of 3 s; with
``--new-voices`` each has a voice of its own. ``--burst``: this number of requests without pacing, one warm-up, one
measured. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from msgspec import structs

from benchmarks.random_model import randomize
from engine.api import ClonedVoice, RequestFinished, SamplingParams, SpeechChunk, SpeechRequest
from engine.config import PRECISIONS, EngineConfig
from engine.load import CPU_THREADS, build_engine
from engine.models.base import Family
from engine.models.cosyvoice3.config import BACKBONE_FOLDER, CosyVoice3Config
from engine.models.cosyvoice3.decode_stage import CosyDecodeStage
from engine.models.cosyvoice3.flow import Flow
from engine.models.cosyvoice3.flow_memory import BlockSequence, FlowBlockTask
from engine.models.cosyvoice3.hift import NO_END, Hift
from engine.models.cosyvoice3.model import CosyVoice3
from engine.models.cosyvoice3.settings import CosyVoice3Settings, FlowSettings, VocoderSettings
from engine.models.cosyvoice3.talker import SpeechLM
from engine.models.cosyvoice3.talker_program import make_frames
from engine.models.cosyvoice3.tokenizer import CosyTokenizer
from engine.runtime.warm_up import capture_graphs
from tests.fakes.cosyvoice3_checkpoint import write_cosyvoice3
from tests.fakes.cosyvoice3_dims import TINY

SHAPES = {"released": CosyVoice3Config(), "tiny": TINY}
TOKEN_S = 0.04
PROMPT_TOKENS = 75
EPOCHS = itertools.count()
TEXT = "the quick brown fox jumps over the lazy dog and then it does the same thing all over again "
SETTINGS: dict[str, Any] = dict(loop_limit_frames=100_000, silence_limit_s=1e6, max_queued_requests=4096)


@torch.inference_mode()
def random_parts(
    sizes: CosyVoice3Config, dtype: torch.dtype, device: torch.device, precision: str = "bf16"
) -> tuple[SpeechLM, Flow, Hift]:
    torch.manual_seed(0)
    with device:
        parts = SpeechLM(sizes.talker), Flow(sizes.flow), Hift(sizes.hift)
    for part in parts:
        randomize(part)
    talker, flow, hift = parts
    for name, values in hift.named_parameters():
        if name.endswith("alpha"):
            values.fill_(1.0)
    talker.to(dtype)
    for part in parts:
        part.eval().requires_grad_(False).fuse()
    talker.quantize(precision, device)
    flow.to_compute(dtype)
    return talker, flow, hift


def random_voice(sizes: CosyVoice3Config, seed: int = 1) -> ClonedVoice:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, sizes.flow.vocab_size, (PROMPT_TOKENS, 1), generator=generator)
    mel = torch.randn(2 * PROMPT_TOKENS, sizes.flow.dit.mel_bins, generator=generator)
    embedding = torch.randn(sizes.flow.spk_embed_size, generator=generator)
    return ClonedVoice(
        embedding=embedding.numpy().tobytes(),
        codes=codes.to(torch.int16).numpy().tobytes(),
        num_codebooks=1,
        mel=mel.numpy().tobytes(),
        transcript="what was said in the recording",
    )


class Round(NamedTuple):
    # To the first chunk of each.
    first_s: list[float]
    wall_s: float
    audio_s: float


class Bench:
    """An engine with random weights, and its events with their arrival times."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.device, sizes = torch.device(args.device), SHAPES[args.shape]
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        most = max([*args.streams, *args.burst])
        flow_settings = FlowSettings(graphs=not args.eager, triton_kernels=not args.plain, **args.flow)
        settings = CosyVoice3Settings(flow=flow_settings, vocoder=VocoderSettings(graphs=not args.eager))
        # Requests without pacing get three quarters of the places and slots: all of them begin at once.
        places = -(-most * 4 // 3)
        self.config = EngineConfig(
            max_batch_size=most, max_running_requests=places, max_prefill_positions=args.prefill,
            cosyvoice3=settings,
            triton_kernels=not args.plain, kv_memory_mb=args.kv_mb, precision=args.precision, **SETTINGS,
        )  # fmt: skip
        self.sizes = sizes
        started = time.perf_counter()
        talker, self.flow, self.hift = random_parts(sizes, dtype, self.device, args.precision)
        model = CosyVoice3(sizes, talker, self.tokenizer(sizes))
        self.stage = CosyDecodeStage(self.flow, self.hift, places, settings, self.device, 4)
        if not args.eager:
            self.stage.record()
        family = Family(model, sizes, partial(make_frames, model), make_stage=lambda: self.stage)
        config = structs.replace(self.config, graphs=not args.eager)
        self.engine = build_engine(family, config, dtype, self.device)
        with torch.inference_mode():
            capture_graphs(self.engine.runner.graph_keys)
        self.ready_s = time.perf_counter() - started
        self.voice = None if args.new_voices else random_voice(sizes)

    @staticmethod
    def tokenizer(sizes: CosyVoice3Config) -> CosyTokenizer:
        with tempfile.TemporaryDirectory() as folder:
            write_cosyvoice3(Path(folder))
            return CosyTokenizer.from_folder(Path(folder) / BACKBONE_FOLDER, sizes.talker.text_vocab_size, True)

    def speak(self, num_streams: int, seconds: float) -> Round:
        """Submit all requests at the same moment."""
        num_tokens = int(seconds / TOKEN_S)
        requests = {epoch: self.request(epoch, num_tokens) for epoch in (next(EPOCHS) for _ in range(num_streams))}
        start = time.perf_counter()
        for epoch, request in requests.items():
            self.engine.requests.submit(request, epoch)
        first: dict[int, float] = {}
        num_samples, ends = 0, 0
        while ends < num_streams:
            self.engine.step()
            events, self.engine.requests.events = self.engine.requests.events, []
            now = time.perf_counter() - start
            for epoch, event in events:
                if isinstance(event, SpeechChunk):
                    first.setdefault(epoch, now)
                elif isinstance(event, RequestFinished):
                    assert event.error is None, event.error
                    ends += 1
                    num_samples += event.num_samples
        audio_s = num_samples / self.stage.sample_rate
        assert abs(audio_s - num_streams * num_tokens * TOKEN_S) < 0.3 * num_streams * num_tokens * TOKEN_S, audio_s
        return Round([first[epoch] for epoch in requests], now, audio_s)

    def request(self, epoch: int, num_tokens: int) -> SpeechRequest:
        return SpeechRequest(
            request_id=f"r{epoch}",
            text=(TEXT * (num_tokens // 200 + 1))[: max(16, num_tokens // 2)],
            text_closed=True,
            voice=self.voice or random_voice(self.sizes, seed=2 + epoch),
            max_frames=num_tokens,
            sampling=SamplingParams(seed=epoch, min_new_tokens=num_tokens),
        )

    # -- parts alone ---------------------------------------------------------------------------------------------

    def time_ms(self, work: Callable[[], None], times: int = 20) -> float:
        for _ in range(2):
            work()
        self.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            work()
        self.synchronize()
        return 1000 * (time.perf_counter() - start) / times

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @torch.inference_mode()
    def split(self, sizes: list[int], num_blocks: int) -> dict[str, dict[int, float]]:
        """Milliseconds of a talker step, an ODE step after ``num_blocks`` blocks, and a block in the vocoder."""
        found: dict[str, dict[int, float]] = {"talker_ms": {}, "ode_step_ms": {}, "vocoder_ms": {}}
        runner = self.engine.runner
        for size in sizes:
            if hasattr(runner, "frames"):
                found["talker_ms"][size] = self.time_ms(lambda size=size: runner.frames.replay(size))
            cells = self.cells(size, num_blocks)
            found["ode_step_ms"][size] = self.time_ms(lambda cells=cells: self.ode_step(cells))
            found["vocoder_ms"][size] = sum(self.vocoder_ms(min(32, size - start)) for start in range(0, size, 32))
        return found

    def vocoder_ms(self, num_rows: int) -> float:
        slots = [slot for _ in range(num_rows) if (slot := self.stage.reserve()) is not None]
        mel, ends = torch.randn(len(slots), self.sizes.hift.mel_bins, 50, device=self.device), [NO_END] * len(slots)
        spent_ms = self.time_ms(lambda: drop(self.stage.vocoder.decode(slots, mel, ends)), 5)
        for slot in slots:
            self.stage.release(slot)
        self.stage.release_quarantined()
        return spent_ms

    def cells(self, size: int, num_blocks: int) -> list[FlowBlockTask]:
        num_pages = self.stage.memory.pool.num_blocks
        tables = [[1 + (i * num_blocks + j) % num_pages for j in range(num_blocks)] for i in range(size)]
        frames = self.sizes.flow.dit.block_frames
        return [
            FlowBlockTask(BlockSequence([]), i + 1, num_blocks - 1, frames, table) for i, table in enumerate(tables)
        ]

    def ode_step(self, cells: list[FlowBlockTask]) -> None:
        for start in range(0, len(cells), self.config.cosyvoice3.flow.max_blocks_per_step):
            some = cells[start : start + self.config.cosyvoice3.flow.max_blocks_per_step]
            for cell in some:
                cell.step %= self.stage.shape.steps
            self.stage.runner.advance(some, 1)


def drop(_: object) -> None:
    pass


def percentile(values: list[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def make_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="released")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--streams", type=numbers, default=[1, 16])
    parser.add_argument("--burst", type=numbers, default=[16, 64, 128])
    parser.add_argument("--split", type=numbers, default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefill", type=int, default=1024, help="prompt positions in one step")
    parser.add_argument("--kv-mb", type=int, default=8192)
    parser.add_argument("--precision", default="bf16", choices=PRECISIONS, help="of the talker's weights")
    parser.add_argument("--new-voices", action="store_true", help="each request uses a new voice")
    parser.add_argument("--eager", action="store_true", help="run without CUDA graphs")
    parser.add_argument("--plain", action="store_true", help="run without fused kernels")
    parser.add_argument("--flow", type=json.loads, default={}, help="more settings of the flow, as JSON")
    return parser


def main() -> None:
    args = make_parser(__doc__).parse_args()
    if args.device == "cpu":
        torch.set_num_threads(CPU_THREADS)
    bench = Bench(args)
    result: dict[str, Any] = {"shape": args.shape, "device": args.device, "ready_s": round(bench.ready_s, 1)}
    result |= {"seconds": args.seconds, "prefill": args.prefill, "new_voices": args.new_voices}
    result["precision"] = args.precision
    print(f"ready after {bench.ready_s:.1f} s, {bench.stage.memory.pool.num_blocks} pages", flush=True)
    for count in args.streams:
        bench.speak(count, args.seconds)
        rounds = [bench.speak(count, args.seconds) for _ in range(max(args.rounds, -(-12 // count)))]
        first = [value for one in rounds for value in one.first_s]
        factor = sum(one.wall_s for one in rounds) / sum(one.audio_s for one in rounds)
        result[f"streams_{count}"] = found = {
            "ttfa_p50_ms": 1000 * percentile(first, 0.5), "ttfa_p95_ms": 1000 * percentile(first, 0.95),
            "num_requests": len(first), "real_time_factor": factor * count, "audio_s_per_s": 1 / factor,
        }  # fmt: skip
        print(f"{count:4} streams: " + ", ".join(f"{k} {v:.4g}" for k, v in found.items()), flush=True)
    for count in args.burst:
        bench.speak(count, args.seconds)
        one = bench.speak(count, args.seconds)
        result[f"burst_{count}_audio_s_per_s"] = one.audio_s / one.wall_s
        print(f"{count:4} at once: {one.audio_s / one.wall_s:.0f} audio-s/s", flush=True)
    result["split"] = bench.split(args.split, min(10, bench.stage.memory.pool.num_blocks))
    for name, by_size in result["split"].items():
        print(f"{name}: " + ", ".join(f"{size}: {ms:.3f}" for size, ms in by_size.items()), flush=True)
    if bench.device.type == "cuda":
        result["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    print(json.dumps(result))


if __name__ == "__main__":
    main()
