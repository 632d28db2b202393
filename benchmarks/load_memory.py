"""Measure the memory of a loaded checkpoint relative to its weights: after loading, and at the peak.

    python -m benchmarks.load_memory --model FOLDER
    python -m benchmarks.load_memory --shape released-0.6b --dtype bfloat16

A shape is written as a random checkpoint first. The last line is JSON. On CUDA the device's memory is read, on the CPU
that of the process (Linux).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig
from engine.load import choose_device, choose_dtype, load_family
from engine.models.base import Family
from engine.models.qwen3_tts.config import read_config
from engine.models.qwen3_tts.load import parts
from tests.fakes import checkpoints

LISTENING = ("speaker encoder", "codec encoder")
RELEASED: dict[str, Any] = {
    "talker": dict(hidden=1024, intermediate=3072, layers=28, heads=16, kv_heads=8, head_dim=128, text_hidden=2048),
    "predictor": dict(hidden=1024, intermediate=3072, layers=5, heads=16, kv_heads=8, head_dim=128),
    "codec": dict(hidden=512, intermediate=1024, layers=8, heads=16, kv_heads=16, head_dim=64),
    "codec_sizes": dict(codebook_dim=512, latent_dim=1024, decoder_dim=1536, sliding_window=72),
    "rates": ([8, 5, 4, 3], [2, 2]),
    "books": 16,
    "codes": 2048,
    "size": "0b6",
    "encoder": {},
    "speaker": {},
    "text_rows": 151_936,
}
SHAPES = {
    "half": RELEASED
    | {
        "talker": RELEASED["talker"] | {"hidden": 512, "intermediate": 1536, "layers": 14, "text_hidden": 512},
        "predictor": RELEASED["predictor"] | {"hidden": 512, "intermediate": 1536},
        "text_rows": 20_000,
    },
    "released-0.6b": RELEASED,
    "released-1.7b": RELEASED | {"size": "1b7", "talker": RELEASED["talker"] | {"hidden": 2048, "intermediate": 6144}},
}


def weight_bytes(folder: Path, dtype: torch.dtype, with_encoders: bool) -> int:
    """Bytes of the weights that the engine needs: encoders in fp32, all others in ``dtype``."""
    total = 0
    for part in parts(read_config(folder)):
        if part.name in LISTENING and not with_encoders:
            continue
        size = 4 if part.name in LISTENING else dtype.itemsize
        total += size * sum(tensor.numel() for tensor in part.module.state_dict().values())
    return total


def status_bytes(field: str) -> int:
    """Memory of this process, from Linux's /proc."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def own_bytes(device: torch.device) -> int:
    """Memory without mapped files, whose pages the system can drop."""
    gc.collect()
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return status_bytes("RssAnon")


def grown_at_most(device: torch.device, before: int) -> int:
    """Memory growth up to the peak; on the CPU with the mapped pages of the files."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) - before
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def measure(folder: Path, device: torch.device, dtype: torch.dtype, with_encoders: bool) -> dict[str, Any]:
    config = EngineConfig(voice_encoders=with_encoders)
    before = own_bytes(device)
    before_peak = before if device.type == "cuda" else status_bytes("VmRSS")
    begun_s = time.monotonic()
    family: Family = load_family(folder, config, device, dtype)
    seconds = time.monotonic() - begun_s
    loaded, peak = own_bytes(device) - before, grown_at_most(device, before_peak)
    weights = weight_bytes(folder, dtype, with_encoders and family.encode_voice is not None)
    return {
        "model": family.model.name,
        "device": device.type,
        "dtype": str(dtype).removeprefix("torch."),
        "encoders": family.encode_voice is not None,
        "weights_mb": round(weights / 1e6, 1),
        "loaded_mb": round(loaded / 1e6, 1),
        "peak_mb": round(peak / 1e6, 1),
        "loaded_by_weights": round(loaded / weights, 3),
        "peak_by_weights": round(peak / weights, 3),
        "seconds": round(seconds, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--task", default="base")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--no-encoders", action="store_true")
    args = parser.parse_args()
    device = choose_device(args.device)
    dtype = choose_dtype(args.dtype, device)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as room:
        load_code(Path(room) / "tiny", device, dtype)
        folder = args.model or write_shape(Path(room) / "shape", SHAPES[args.shape], args.task)
        found = measure(folder, device, dtype, not args.no_encoders)
    for name, value in found.items():
        print(f"{name:>18}  {value}")
    print(json.dumps(found))


def load_code(folder: Path, device: torch.device, dtype: torch.dtype) -> None:
    """Import and set up code first, so that it does not count as part of a checkpoint."""
    load_family(checkpoints.write_checkpoint(folder, task="base"), EngineConfig(), device, dtype)


def write_shape(folder: Path, shape: dict[str, Any], task: str) -> Path:
    """Write a checkpoint in a separate process, whose memory is not counted."""
    import multiprocessing

    child = multiprocessing.get_context("spawn").Process(
        target=checkpoints.write_checkpoint, args=(folder, shape, 0, task, torch.bfloat16)
    )
    child.start()
    child.join()
    if child.exitcode:
        raise SystemExit("the checkpoint could not be written")
    return folder


if __name__ == "__main__":
    main()
