"""Judge what ``precision_quality speak`` wrote: words by two recognizers, and DNSMOS, precision against precision.

    python -m benchmarks.precision_words FOLDER --texts TEXTS [--num 500] [--jobs 2] [--mos] [--bigram]
    [--listener training/state/listener.safetensors]

Codes become speech on the CPU. FOLDER/judged.jsonl gets a line for each reply; what it holds is not judged again, so
the program can be stopped. Needs the dependency group ``training``. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.precision_quality import PRECISIONS, Frames, Replies
from engine.launch import EMBEDDED_VOICE
from engine.models.qwen3_tts.codec_decoder import CodecFront
from engine.models.qwen3_tts.config import read_config
from engine.models.qwen3_tts.load import load_codec

RATE_HZ = 24_000
NUM_RESAMPLINGS = 2_000
# Replies that a process is given at a time: it then makes few of the language models.
CHUNK = 20
# Rates: errors of a reply, and of how many they are.
RATES = {
    "phones_wrong": ("phone_errors", "phones"),
    "words_missing": ("missing", "words"),
    "words_repeated": ("repeated", "words"),
    "words_wrong_bigram": ("bigram_errors", "bigram_words"),
}
MEANS = ("mos_overall", "mos_p808")


class Judge:
    """Judges replies; ``listener``, ``bigram`` and ``mos`` choose how."""

    def __init__(self, texts: Sequence[str], listener: Path | None, bigram: bool, mos: bool) -> None:
        self._texts, self._weights, self._bigram, self._mos = tuple(texts), listener, bigram, mos

    def __call__(self, number: int, frames: Frames) -> dict[str, float]:
        from training.asr_judge import hear_one, to_16k

        text, found = self._texts[number], {}
        signal = to_16k(render(frames), RATE_HZ)
        if self._weights is not None:
            heard = load_listener(self._weights).judge(text, signal)
            found |= {"phones": heard.phones, "phone_errors": heard.errors, "words": heard.words}
            found |= {"missing": heard.missing, "repeated": heard.repeated}
        if self._bigram:
            words = hear_one(text, signal, self._texts)
            found |= {"bigram_words": words.words, "bigram_errors": words.errors}
        if self._mos:
            from training import mos
            from training.acoustics import without_outer_silence

            opinion = mos.rate(without_outer_silence(signal))
            found |= {"mos_overall": opinion.overall, "mos_p808": opinion.p808}
        return found


@cache
def load_listener(weights: Path) -> Any:
    from training.phoneme_judge import PhoneJudge

    return PhoneJudge(weights)


@cache
def load_embedded_codec() -> CodecFront:
    return load_codec(EMBEDDED_VOICE, read_config(EMBEDDED_VOICE), torch.float32, torch.device("cpu"))


@torch.inference_mode()
def render(frames: Frames) -> npt.NDArray[np.float32]:
    """Frames [T, K] -> PCM at ``RATE_HZ``."""
    codes = torch.from_numpy(frames.astype(np.int64).T)[None]
    pcm: npt.NDArray[np.float32] = load_embedded_codec()(codes)[0].numpy()
    return pcm


def read_judged(path: Path) -> dict[tuple[int, str], dict[str, float]]:
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else iter(())
    return {(row["number"], row["precision"]): row for row in rows}


def judge_all(args: argparse.Namespace, texts: Sequence[str], replies: dict[str, Replies]) -> None:
    """All precisions of a text before the next text; texts of one language model after each other."""
    path = args.folder / "judged.jsonl"
    done = read_judged(path)
    due = [(n, name) for n in range(len(texts)) for name in replies if (n, name) not in done]
    if args.bigram:
        due.sort(key=language_model_of(texts))
    judge = Judge(texts, args.listener, args.bigram, args.mos)
    context = multiprocessing.get_context("spawn")
    frames = [replies[name].frames[number] for number, name in due]
    with (
        ProcessPoolExecutor(args.jobs, context, torch.set_num_threads, (1,)) as pool,
        path.open("a") as file,
    ):
        for (number, name), row in zip(due, pool.map(judge, (n for n, _ in due), frames, chunksize=CHUNK), strict=True):
            file.write(json.dumps({"number": number, "precision": name, **row}) + "\n")
            file.flush()


def language_model_of(texts: Sequence[str]) -> Callable[[tuple[int, str]], int]:
    from training.asr_judge import group_number

    found = {text: group_number(text, texts) for text in texts}
    return lambda one: found[texts[one[0]]]


Columns = dict[str, npt.NDArray[np.float64]]


def rate(columns: Columns, metric: str, chosen: npt.NDArray[np.int64] | slice) -> float:
    """Percent for a rate, else the mean."""
    if metric in MEANS:
        return float(columns[metric][chosen].mean())
    errors, total = RATES[metric]
    return float(100 * columns[errors][chosen].sum() / max(1, columns[total][chosen].sum()))


def summarize(judged: dict[tuple[int, str], dict[str, float]], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Each precision against the first over the texts that all have; the error is that of resampled texts."""
    numbers = sorted({number for number, _ in judged})
    whole = [number for number in numbers if all((number, name) in judged for name in names)]
    keys = [key for key in judged[whole[0], names[0]] if key not in ("number", "precision")]
    table = {name: {key: np.array([judged[n, name][key] for n in whole]) for key in keys} for name in names}
    metrics = [name for name, (errors, _) in RATES.items() if errors in keys] + [name for name in MEANS if name in keys]
    draws = np.random.default_rng(0).integers(0, len(whole), (NUM_RESAMPLINGS, len(whole)))
    usual = table[names[0]]
    for name in names:
        found: dict[str, Any] = {"precision": name, "num_texts": len(whole)}
        for metric in metrics:
            value, before = (rate(columns, metric, slice(None)) for columns in (table[name], usual))
            spread = [rate(table[name], metric, draw) - rate(usual, metric, draw) for draw in draws]
            more, error = round(value - before, 3), round(float(np.std(spread)), 3)
            found[metric] = {"value": round(value, 3), "more": more, "error": error}
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--num", type=int, default=500)
    parser.add_argument("--listener", type=Path)
    parser.add_argument("--bigram", action="store_true", help="add pocketsphinx with models of the texts")
    parser.add_argument("--mos", action="store_true", help="add DNSMOS")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    texts = args.texts.read_text(encoding="utf-8").splitlines()[: args.num]
    names = [name for name in PRECISIONS if (args.folder / f"{name}.npz").exists()]
    judge_all(args, texts, {name: Replies.load(args.folder / f"{name}.npz") for name in names})
    rows = list(summarize(read_judged(args.folder / "judged.jsonl"), names))
    for row in rows:
        print(*(f"{key} {value}" for key, value in row.items()), sep="\n    ")
    print(json.dumps({"benchmark": "precision_words", "rows": rows}))


if __name__ == "__main__":
    main()
