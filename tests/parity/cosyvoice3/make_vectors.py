"""Golden vectors by the official CosyVoice3 modules, on small random checkpoints of ours.

Their environment does not fit the project's, so it gets one of its own, and the two trees that they live in are cloned
beside it; run from the checkout:

    git clone https://github.com/FunAudioLLM/CosyVoice ../CosyVoice && git -C ../CosyVoice checkout ace7c47
    git clone https://github.com/shivammehta25/Matcha-TTS ../Matcha-TTS
    python3.11 -m venv ../official-cosyvoice
    ../official-cosyvoice/bin/pip install torch==2.13.0 transformers==4.51.3 x-transformers==2.11.24 \\
        hyperpyyaml==1.2.3 omegaconf==2.3.1 einops==0.8.2 conformer==0.3.2 diffusers==0.39.0 scipy==1.17.1 \\
        librosa==0.11.0 openai-whisper==20250625 onnxruntime inflect regex safetensors msgspec
    ../official-cosyvoice/bin/pip install --no-deps torchaudio==2.11.0
    ../official-cosyvoice/bin/python -m tests.parity.cosyvoice3.make_vectors \\
        --source ../CosyVoice --matcha ../Matcha-TTS --seed 7

transformers from 4.53 on breaks the official talker's decoding with a cache. Of torchaudio
only Python parts are read. Any seed will do, and ``--shape small``, or ``released`` with 10 GB of memory and patience
(and ``pytest --timeout 3600``); ``--out`` and the variable ``VOICEWIRE_COSYVOICE3_VECTORS`` keep fresh vectors away
from those that are committed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.fakes.cosyvoice3_checkpoint import FIRST_SPECIAL, TEXT_FOLDER, write_cosyvoice3
from tests.fakes.cosyvoice3_dims import SHAPES
from tests.parity.cosyvoice3.cases import (
    DRIVER_PROMPT,
    DRIVER_TOKENS,
    FILL,
    FLOWS,
    HIFT_CUTS,
    HIFT_FRAMES,
    INSTRUCT,
    KEPT_STEPS,
    LIVES,
    NUM_CODES,
    NUM_FORCED,
    NUM_IDS,
    NUM_PROMPT_TOKENS,
    NUM_RAS_ROWS,
    NUM_RAS_SEEDS,
    SOUND_SECONDS,
    TALKS,
    TEXT,
    TEXTS,
    TRANSCRIPT,
    Flow,
    Live,
)
from tests.parity.cosyvoice3.reference_model import Forced, find_official, load, mel_of, official, talk, talk_live

Tensors = dict[str, Tensor]
WEIGHT_FILES = ("llm.pt", "flow.pt", "hift.pt")
EOS = NUM_CODES + 1


def file_sum(folder: Path) -> str:
    """Of the tensors that a test must have before it, whatever container they come in."""
    digest = hashlib.sha256()
    for name in WEIGHT_FILES:
        for key, tensor in sorted(torch.load(folder / name, weights_only=True).items()):
            digest.update(key.encode())
            digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def codes(noise: torch.Generator, count: int) -> Tensor:
    return torch.randint(NUM_CODES, (count,), generator=noise)


def of_talker(llm: Any, noise: torch.Generator) -> Tensors:
    forced, found = Forced(llm), Tensors()
    prompt, said = codes(noise, NUM_PROMPT_TOKENS), codes(noise, NUM_FORCED)
    found |= {"prompt_tokens": prompt, "said": said}
    for case in TALKS:
        speech = prompt if case.with_speech else prompt[:0]
        talk(forced, case.prompt_text, case.text, speech, [*said.tolist(), EOS])
        found[f"{case.name}/prompt"] = forced.fed[0]
        found[f"{case.name}/scores"] = torch.stack([forced.scores[step] for step in KEPT_STEPS])
        found[f"{case.name}/highest"] = torch.stack(forced.scores).argmax(-1)
    for live in LIVES:
        found |= {f"live/{live.name}/{key}": value for key, value in of_live_text(forced, live, prompt, said).items()}
    return found


def of_live_text(forced: Forced, live: Live, prompt: Tensor, said: Tensor) -> Tensors:
    """The rows that were fed, step after step, and their counts. Text comes id by id: of more that come at once the
    official talker leaves some for the end."""
    pieces = [(token,) for token in TEXT]
    ids = said.repeat(9).tolist()
    if live.early is not None:
        ids[live.early] = FILL
    talk_live(forced, INSTRUCT + TRANSCRIPT, pieces, prompt[: live.num_prompt_tokens], ids)
    return {"fed": torch.cat(forced.fed), "counts": torch.tensor([len(rows) for rows in forced.fed])}


def of_ras(noise: torch.Generator) -> Tensors:
    """What is drawn from random scores, some of whose likeliest ids were just heard."""
    draw = official("cosyvoice.utils.common").ras_sampling
    scores = (3 * torch.randn(NUM_RAS_ROWS, NUM_IDS, generator=noise)).half().float()
    scores[::4] *= 3
    ranked = scores.argsort(-1, descending=True)
    histories = codes(noise, NUM_RAS_ROWS * 14).view(NUM_RAS_ROWS, 14)
    histories[1::2, 2:12] = ranked[1::2, :10]
    drawn = torch.zeros(NUM_RAS_ROWS, NUM_RAS_SEEDS, dtype=torch.long)
    for row in range(NUM_RAS_ROWS):
        for seed in range(NUM_RAS_SEEDS):
            torch.manual_seed(seed)
            given = scores[row].log_softmax(-1)
            drawn[row, seed] = draw(given, histories[row].tolist(), 25, top_p=0.8, top_k=25, win_size=10, tau_r=0.1)
    return {"scores": scores.half(), "histories": histories, "drawn": drawn}


class Watched:
    """What a module of the flow gave, in the first call of a run."""

    def __init__(self, module: Any) -> None:
        self.gave: Any = None
        module.register_forward_hook(self._keep)

    def _keep(self, module: Any, given: tuple[Any, ...], gave: Any) -> None:
        if self.gave is None:
            self.gave = gave

    def forget(self) -> None:
        self.gave = None


def of_flow(flow: Any, noise: torch.Generator) -> Tensors:
    found = Tensors()
    before, estimator = Watched(flow.pre_lookahead_layer), Watched(flow.decoder.estimator)
    for case in FLOWS:
        given = flow_input(case, noise)
        for streaming, final in ((True, True), (False, True), (True, False)):
            if not final and case.num_tokens <= 3:
                continue
            before.forget()
            estimator.forget()
            name = f"{case.name}/{'chunk' if streaming else 'full'} {'final' if final else 'open'}"
            found[name] = mel_of(flow, *given.values(), streaming=streaming, final=final)
            if case is FLOWS[0] and final:
                found[f"{name}/v"] = estimator.gave
            if case is FLOWS[0]:
                found[f"{name}/mu"] = before.gave[0]
        found |= {f"{case.name}/{key}": value for key, value in given.items()}
    return found


def flow_input(case: Flow, noise: torch.Generator) -> Tensors:
    return {
        "prompt": codes(noise, case.num_prompt_tokens),
        "prompt_mel": torch.randn(2 * case.num_prompt_tokens, 80, generator=noise),
        "embedding": torch.randn(192, generator=noise),
        "tokens": codes(noise, case.num_tokens),
    }


def of_driver(flow: Any, hift: Any, noise: torch.Generator) -> list[int]:
    """Samples of each chunk that the official driver hands out for tokens that are all there."""
    model = official("cosyvoice.cli.model").CosyVoice3Model(None, flow, hift)
    given = flow_input(Flow("", DRIVER_PROMPT, DRIVER_TOKENS), noise)
    chunks = model.tts(
        source_speech_token=given["tokens"][None].int(),
        flow_prompt_speech_token=given["prompt"][None].int(),
        prompt_speech_feat=given["prompt_mel"][None],
        flow_embedding=given["embedding"][None],
        stream=True,
    )
    return [chunk["tts_speech"].shape[1] for chunk in chunks]


def of_hift(hift: Any, noise: torch.Generator) -> Tensors:
    """Pitch, excitation and PCM in one pass; and what calls that keep all of the mel give out one after the other."""
    mel = torch.randn(1, 80, HIFT_FRAMES, generator=noise)
    pcm, source = hift.inference(mel, finalize=True)
    pieces, num_out = list[Tensor](), 0
    for end in (*HIFT_CUTS, HIFT_FRAMES):
        whole, _ = hift.inference(mel[..., :end], finalize=end == HIFT_FRAMES)
        pieces.append(whole[0, num_out:])
        num_out = whole.shape[1]
    return {
        "mel": mel[0].t(),
        "f0": hift.f0_predictor(mel.double())[0].float(),
        "source": source[0, 0],
        "pcm": pcm[0],
        "pieces": torch.cat(pieces),
        "counts": torch.tensor([len(piece) for piece in pieces]),
    }


def of_sounds(seed: int) -> Tensors:
    """Recordings in whole 16-bit steps, at both rates, and what the official front end makes of them."""
    noise, found = np.random.default_rng(seed), Tensors()
    for name, seconds in SOUND_SECONDS.items():
        for rate in (16000, 24000):
            time_s = np.arange(round(seconds * rate)) / rate
            tone = np.sin(2 * np.pi * 140 * time_s) * (0.3 + 0.2 * np.sin(2 * np.pi * 3 * time_s))
            sound = np.clip(tone + 0.1 * noise.standard_normal(len(time_s)), -1, 1)
            found[f"{name}/{rate}"] = torch.from_numpy(np.round(sound * 32767).astype(np.int16))
        found |= {f"{name}/{key}": value for key, value in features(found, name).items()}
    return found


def features(sounds: Tensors, name: str) -> Tensors:
    narrow, wide = (sounds[f"{name}/{rate}"][None].float() / 32768 for rate in (16000, 24000))
    kaldi = official("torchaudio.compliance.kaldi")
    bank = kaldi.fbank(narrow, num_mel_bins=80, dither=0, sample_frequency=16000)
    mel = official("matcha.utils.audio").mel_spectrogram(wide, 1920, 80, 24000, 480, 1920, 0, None, center=False)
    return {
        "fbank": bank - bank.mean(dim=0, keepdim=True),
        "whisper": official("whisper").log_mel_spectrogram(narrow, n_mels=128)[0],
        "mel": mel[0].t(),
        "resampled": official("torchaudio.functional.functional").resample(wide[0], 24000, 16000),
    }


def of_texts(folder: Path) -> list[list[int]]:
    """Ids by the official tokenizer, on the small vocabulary filled up to the released size with what no text holds."""
    path = folder / TEXT_FOLDER / "vocab.json"
    vocab = json.loads(path.read_text(encoding="utf-8"))
    vocab |= {f"\x00{number}": number for number in range(len(vocab), FIRST_SPECIAL)}
    path.write_text(json.dumps(vocab), encoding="utf-8")
    tokenizer = official("cosyvoice.tokenizer.tokenizer").CosyVoice3Tokenizer(str(folder / TEXT_FOLDER))
    return [tokenizer.encode(text) for text in TEXTS]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="a clone of FunAudioLLM/CosyVoice")
    parser.add_argument("--matcha", type=Path, required=True, help="a clone of shivammehta25/Matcha-TTS")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "vectors")
    args = parser.parse_args()
    find_official(args.source, args.matcha)
    args.out.mkdir(parents=True, exist_ok=True)
    noise = torch.Generator().manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = write_cosyvoice3(Path(name), SHAPES[args.shape], args.seed)
        llm, flow, hift = load(folder)
        checksum, text_ids = file_sum(folder), of_texts(folder)
    parts = {"talker": of_talker(llm, noise), "ras": of_ras(noise), "flow": of_flow(flow, noise)}
    parts |= {"hift": of_hift(hift, noise), "sounds": of_sounds(args.seed)}
    for part, tensors in parts.items():
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, args.out / f"{part}.safetensors")
        print(f"{part}: {len(tensors)} tensors")
    about = {
        "seed": args.seed,
        "shape": args.shape,
        "torch": torch.__version__,
        "checksum": checksum,
        "text_ids": text_ids,
    }
    about |= {"driver_chunks": of_driver(flow, hift, noise)}
    (args.out / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
