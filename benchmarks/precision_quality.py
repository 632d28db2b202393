"""Compare the speech of a voice by the precision of its weights: runaways, lengths and codes.

    python -m benchmarks.precision_quality texts --num 10000 > TEXTS      the fixed sentences, then generated ones
    python -m benchmarks.precision_quality speak FOLDER --texts TEXTS [--precision bf16,fp8,rounded,int4]
        [--batch 512] [--device auto] [--dtype auto]
    python -m benchmarks.precision_quality compare FOLDER --texts TEXTS   again, from the files of ``speak``

``speak`` writes the codes of every reply to FOLDER/PRECISION.npz, for ``precision_words`` to judge. All precisions
speak the same texts with the same seeds. ``rounded`` has weights of talker and predictor rounded to fp8 and computes
in bf16: the arithmetic of one or two rows, where ``fp8`` is that of ``--batch`` rows. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.api import (
    FinishReason,
    RequestFinished,
    SamplingParams,
    SpeechChunk,
    SpeechEngine,
    SpeechRequest,
    TextLayout,
)
from engine.launch import EMBEDDED_VOICE, create_engine

PRECISIONS = ("bf16", "fp8", "rounded", "int4")
VOICES = ("clara", "edwin")
SEED = 40_000
# Of the generated sentences; training used others.
TEXT_SEED = 917
# Times the expected length.
LONG, TWICE = 1.3, 2.0
# Frames beyond the expected length that a runaway has: single letters are long for their characters.
MIN_EXCESS_FRAMES = 25
# Frames at the beginning of a reply whose codes are compared.
NUM_FIRST_FRAMES = 10
# Of the requests on their way, beside those of a step.
AHEAD = 1.125

Frames = npt.NDArray[np.int16]


class Replies(NamedTuple):
    """One reply for each text: ``frames`` [T, K] of codes, and the reason or error that ended it."""

    frames: list[Frames]
    reasons: list[str]

    def save(self, path: Path) -> None:
        ends = np.cumsum([len(frames) for frames in self.frames])
        np.savez_compressed(path, codes=np.concatenate(self.frames), ends=ends, reasons=np.array(self.reasons))

    @staticmethod
    def load(path: Path) -> Replies:
        file = np.load(path)
        return Replies(np.split(file["codes"], file["ends"][:-1]), file["reasons"].tolist())

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.array([len(frames) for frames in self.frames])


def generate_texts(num_texts: int) -> Iterator[str]:
    from training.held_out import read_sentences
    from training.text import TextSettings, TextSource

    fixed = read_sentences()
    yield from fixed[:num_texts]
    source = TextSource(TextSettings(seed=TEXT_SEED))
    yield from (source.sentence(number) for number in range(num_texts - len(fixed)))


def make_request(number: int, text: str) -> SpeechRequest:
    """Both voices in both layouts take turns."""
    return SpeechRequest(
        request_id=f"text-{number}", voice=VOICES[number % 2], language="english", text=text, text_closed=True,
        layout=TextLayout.FULL if number % 4 < 2 else TextLayout.STREAMING, chunk_frames=(8,),
        sampling=SamplingParams(seed=SEED + number),
    )  # fmt: skip


def engine_settings(batch: int) -> dict[str, Any]:
    """Steps of ``batch`` rows whatever runs, and no refusal: one client may have half of all burst requests."""
    return dict(
        max_batch_size=batch, fixed_batch_rows=batch, max_running_requests=2 * batch, max_queued_requests=2 * batch
    )


async def speak(engine: SpeechEngine, number: int, text: str) -> tuple[Frames, str]:
    codes, reason = b"", "no end"
    async for event in engine.submit(make_request(number, text)):
        if isinstance(event, SpeechChunk):
            codes += event.codes
        elif isinstance(event, RequestFinished):
            reason = event.error.code if event.error else str(event.reason)
    return np.frombuffer(codes, np.int16).reshape(-1, engine.info.num_codebooks), reason


async def speak_all(engine: SpeechEngine, texts: Sequence[str], batch: int, limit_s: float) -> Replies:
    """Speak the texts, or as many of the first ones as are begun within ``limit_s``."""
    found: dict[int, tuple[Frames, str]] = {}
    left, end_s = iter(enumerate(texts)), time.monotonic() + limit_s

    async def work() -> None:
        for number, text in left:
            found[number] = await speak(engine, number, text)
            if time.monotonic() > end_s:
                break

    await asyncio.gather(*(work() for _ in range(int(AHEAD * batch))))
    frames, reasons = zip(*(found[number] for number in sorted(found)), strict=True)
    return Replies(list(frames), list(reasons))


async def speak_with(folder: Path | None, precision: str, args: argparse.Namespace, texts: Sequence[str]) -> Replies:
    engine = create_engine(
        folder, device=args.device, dtype=args.dtype, precision=precision, **engine_settings(args.batch)
    )
    begun_s = time.monotonic()
    await engine.start()
    started_s = time.monotonic()
    try:
        found = await speak_all(engine, texts, args.batch, args.limit_s)
    finally:
        await engine.aclose()
    start_s, spoken_s = started_s - begun_s, time.monotonic() - started_s
    print(f"started in {start_s:.1f} s, {len(found.frames)} replies in {spoken_s:.1f} s", flush=True)
    return found


def round_weights(source: Path, folder: Path) -> Path:
    """Copy a checkpoint with the products of its layers rounded to fp8 and back, as ``precision = "fp8"`` does."""
    import torch
    from safetensors.torch import load_file, save_file

    from engine.weights.quantize import quantize

    shutil.copytree(source, folder)
    for path in folder.glob("model*.safetensors"):
        tensors = load_file(path)
        for name, value in tensors.items():
            if ".layers." in name and value.dim() == 2:
                tensors[name] = quantize(value.to(torch.bfloat16)).dequantize(torch.bfloat16).to(value.dtype)
        save_file(tensors, path)
    return folder


def is_cut(reasons: Sequence[str]) -> npt.NDArray[np.bool_]:
    return np.array([reason != FinishReason.STOP for reason in reasons])


def expected_lengths(texts: Sequence[str], usual: Replies) -> npt.NDArray[np.float64]:
    """Fit the usual frames to the characters, by voice and layout, of replies that were not cut."""
    chars, found = np.array([len(text) for text in texts]), np.zeros(len(texts))
    groups = np.arange(len(texts)) % 4
    for group in range(4):
        rows = groups == group
        whole = rows & ~is_cut(usual.reasons)
        found[rows] = np.polyval(np.polyfit(chars[whole], usual.lengths[whole], 1), chars[rows])
    return np.maximum(found, 1)


def first_difference(one: Frames, other: Frames) -> int:
    """Number of the first frame that is not the same in both."""
    size = min(len(one), len(other))
    differs = (one[:size] != other[:size]).any(1)
    return int(differs.argmax()) if differs.any() else size


def compare(replies: Replies, usual: Replies, expected: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Count runaways of one precision, and compare lengths and codes with the ``usual`` one's."""
    ratios, to_usual = replies.lengths / expected, replies.lengths / np.maximum(usual.lengths, 1)
    is_long = (ratios > TWICE) & (replies.lengths > expected + MIN_EXCESS_FRAMES)
    agreed = [first_difference(one, other) for one, other in zip(replies.frames, usual.frames, strict=True)]
    first = [
        (a[:NUM_FIRST_FRAMES, 0], b[:NUM_FIRST_FRAMES, 0]) for a, b in zip(replies.frames, usual.frames, strict=True)
    ]
    equal = [(a[: len(b)] == b[: len(a)]).mean() for a, b in first if len(a) and len(b)]
    return {
        "num_texts": len(expected),
        "reasons": dict(Counter(replies.reasons)),
        "runaways": int((is_cut(replies.reasons) | is_long).sum()),
        "above_1.3_expected": int((ratios > LONG).sum()),
        "above_2_expected": int((ratios > TWICE).sum()),
        "below_half_expected": int((ratios < 1 / TWICE).sum()),
        "above_1.3_usual": int((to_usual > LONG).sum()),
        "above_2_usual": int((to_usual > TWICE).sum()),
        "mean_length_ratio": round(float(replies.lengths.sum() / usual.lengths.sum()), 4),
        "longest_frames": int(replies.lengths.max()),
        "seconds": round(float(replies.lengths.sum()) * 0.08),
        "median_equal_frames": float(np.median(agreed)),
        "equal_code0_of_first_frames": round(float(np.mean(equal)), 4),
    }


def compare_all(folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Compare with bf16 the texts that all files have."""
    found = {name: Replies.load(path) for name in PRECISIONS if (path := folder / f"{name}.npz").exists()}
    size = min(len(texts), *(len(replies.frames) for replies in found.values()))
    found = {name: Replies(frames[:size], reasons[:size]) for name, (frames, reasons) in found.items()}
    expected = expected_lengths(texts[:size], found["bf16"])
    return {name: compare(replies, found["bf16"], expected) for name, replies in found.items()}


def speak_precisions(args: argparse.Namespace, texts: Sequence[str]) -> None:
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for precision in args.precision:
            folder = round_weights(EMBEDDED_VOICE, Path(scratch) / "voice") if precision == "rounded" else None
            used = "bf16" if precision == "rounded" else precision
            print(precision, end=": ", flush=True)
            asyncio.run(speak_with(folder, used, args, texts)).save(args.folder / f"{precision}.npz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("texts", "speak", "compare"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("precision"))
    parser.add_argument("--texts", type=Path, help="one text per line")
    parser.add_argument("--num", type=int, default=10_000)
    parser.add_argument("--precision", type=lambda text: text.split(","), default=PRECISIONS)
    parser.add_argument("--batch", type=int, default=512, help="rows of every step")
    parser.add_argument("--limit-s", type=float, default=3_600, help="begin no text of a precision after this")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="of arithmetic; auto is fp32 on a CPU, whatever the precision")
    args = parser.parse_args()
    if args.action == "texts":
        print("\n".join(generate_texts(args.num)))
        return
    texts = args.texts.read_text(encoding="utf-8").splitlines()[: args.num]
    if args.action == "speak":
        speak_precisions(args, texts)
    if not (args.folder / "bf16.npz").exists():
        return
    report = compare_all(args.folder, texts)
    for name, row in report.items():
        print(name, *(f"{key} {value}" for key, value in row.items()), sep="\n    ")
    print(json.dumps({"benchmark": "precision_quality", "batch": args.batch, "precisions": report}))


if __name__ == "__main__":
    main()
