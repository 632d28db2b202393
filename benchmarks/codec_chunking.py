"""Compare the codec's reconstruction decoded in chunks of 1, 2, 4 and 8 frames with one pass, on speech.

    python -m benchmarks.codec_chunking [--model FOLDER] [--every 10]

For each chunk size: the largest difference of samples from the one pass, and the seam scores of
tests/audio/seam_report.py at the borders of chunks (1 means that borders equal all other places). The last line is
JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.codec_roundtrip import CodecCopies
from benchmarks.voice_metrics import read_tasks
from engine.models.qwen3_tts.codec_decoder import CodecDecoder
from tests.audio.seam_report import seam_report
from training.settings import FRAME_SAMPLES, SAMPLE_RATE

CHUNK_FRAMES = (1, 2, 4, 8)


@torch.inference_mode()
def decode_in_chunks(decoder: CodecDecoder, codes: Tensor, chunk_frames: int) -> Tensor:
    """Decode codes [1, K, T] to PCM [T * frame_samples], with state carried from chunk to chunk."""
    state = decoder.new_state(1)
    return torch.cat([decoder(part, state)[0] for part in codes.split(chunk_frames, dim=2)])


def measure(decoder: CodecDecoder, spoken: Sequence[Tensor], chunk_frames: int) -> dict[str, float]:
    """Measure all sentences back to back, to have enough seams."""
    with torch.inference_mode():
        whole = torch.cat([decoder(codes)[0] for codes in spoken])
    pieces = torch.cat([decode_in_chunks(decoder, codes, chunk_frames) for codes in spoken])
    starts = pairwise(np.cumsum([0, *(codes.shape[2] for codes in spoken)]).tolist())
    seams = [frame for first, last in starts for frame in range(first + chunk_frames, last, chunk_frames)]
    report = seam_report(pieces.numpy(), [frame * FRAME_SAMPLES for frame in seams], SAMPLE_RATE)
    return {
        "chunk_frames": chunk_frames,
        "seams": len(seams),
        "max_difference": float((pieces - whole).abs().max()),
        "jump_ratio": round(report.jump_ratio, 3),
        "spectral_ratio": round(report.spectral_ratio, 3),
        "inaudible": report.passes,
    }


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Measure the seams of the streaming codec on speech.")
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: the embedded voice")
    parser.add_argument("--encoder", type=Path, required=True, help="weights of the encoder")
    parser.add_argument("--every", type=int, default=10, help="use every n-th sentence only")
    options = parser.parse_args(arguments)
    copies = CodecCopies(options.model, options.encoder)
    codec, (tasks, _) = copies.codec(), read_tasks(options.every)
    rows = []
    for setting in copies.settings:
        spoken = list(copies.codes(codec, tasks, setting))
        for chunk_frames in CHUNK_FRAMES:
            rows.append({"voice": setting.voice} | measure(codec.decoder, spoken, chunk_frames))
            print(*(f"{name} {value}" for name, value in rows[-1].items()), sep="  ", flush=True)
    print(json.dumps({"benchmark": "codec_seams", "num_sentences": len(tasks), "rows": rows}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
