"""Flow, vocoder and talker over CUDA graphs and kernels against the slow forms. Without CUDA the same runs eagerly."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.api import ClonedVoice, RequestFinished, SamplingParams, SpeechChunk, SpeechRequest
from engine.config import EngineConfig
from engine.load import load_engine
from engine.models.base import Pcm
from engine.models.cosyvoice3.config import DitConfig, FlowConfig, HiftConfig
from engine.models.cosyvoice3.decode_stage import CosyDecodeStage
from engine.models.cosyvoice3.flow import Flow
from engine.models.cosyvoice3.hift import Hift
from engine.models.cosyvoice3.hift_source import HarmonicSource
from engine.models.cosyvoice3.settings import CosyVoice3Settings, FlowSettings, VocoderSettings
from tests.engine.models.cosyvoice3.flow_fixtures import ClearVocoder, Voice, fill
from tests.fakes.cosyvoice3_checkpoint import hift_tensors
from tests.fakes.cosyvoice3_reference import mel_of_tokens, pcm_of_mel

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CONFIG = FlowConfig(
    vocab_size=60, pre_lookahead_hidden=32, dit=DitConfig(dim=64, depth=4, heads=2, head_dim=32, conv_pos_groups=4)
)
HIFT = HiftConfig(base_channels=32, f0_channels=16)
LEAST_SNR_DB = {torch.float32: 60.0, torch.bfloat16: 22.0}


@pytest.fixture(autouse=True)
def exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


def voice_of(num_tokens: int) -> Voice:
    generator = torch.Generator().manual_seed(num_tokens)
    tokens = torch.randint(0, CONFIG.vocab_size, (num_tokens,), generator=generator)
    return Voice(tokens, torch.randn(2 * num_tokens, 80, generator=generator), torch.randn(192, generator=generator))


def flows(dtype: torch.dtype) -> tuple[Flow, Flow]:
    """The slow one on the CPU in fp32, and the other."""
    slow = fill(Flow(CONFIG))
    fast = copy.deepcopy(slow).to(DEVICE)
    for flow in (slow, fast):
        flow.fuse()
    fast.to_compute(dtype)
    return slow, fast


def hift() -> Hift:
    made = Hift(HIFT)
    made.m_source = HarmonicSource(HIFT, 12)
    made.load_state_dict(hift_tensors(HIFT, seed=5))
    made = made.to(DEVICE).requires_grad_(False)
    made.fuse()
    return made


def snr_db(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(10 * torch.log10(wanted.square().mean() / (found - wanted).square().mean()))


def speak(stage: CosyDecodeStage, voices: list[Voice], utterances: list[list[int]], late: int) -> list[Pcm]:
    """All at once; ``late`` tokens of each come when the first ones are worked on."""
    slots = []
    for voice, tokens in zip(voices, utterances, strict=True):
        slot = stage.reserve()
        assert slot is not None
        stage.prime(slot, voice.reference(f"{len(voice.tokens)}"))
        for token in tokens[:-late]:
            stage.feed(slot, [token])
        slots.append(slot)
    heard: dict[int, list[Pcm]] = {slot: [] for slot in slots}
    for count in range(100_000):
        if count == 7:
            for slot, tokens in zip(slots, utterances, strict=True):
                for token in tokens[-late:]:
                    stage.feed(slot, [token])
                stage.finalize(slot)
        for chunk in stage.step({}):
            assert chunk.error is None
            heard[chunk.slot].append(chunk.pcm)
        if count > 7 and not any(stage.num_pending(slot) for slot in slots):
            break
    for slot in slots:
        stage.release(slot)
    stage.release_quarantined()
    return [np.concatenate(heard[slot]) for slot in slots]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("graphs", "fused"), [(False, False), (True, False), (True, True)])
def test_the_mel_of_many_rows_is_that_of_one_pass(dtype: torch.dtype, graphs: bool, fused: bool) -> None:
    slow, fast = flows(dtype)
    flow_settings = FlowSettings(memory_mb=256, graphs=graphs, triton_kernels=fused, max_blocks_per_step=6)
    settings = CosyVoice3Settings(flow=flow_settings, vocoder=VocoderSettings(graphs=False))
    stage = CosyDecodeStage(fast, hift(), 4, settings, DEVICE, 3)
    stage.record()
    voices = [voice_of(count) for count in (65, 31, 65, 12)]
    utterances = [[(7 * i * (k + 3)) % CONFIG.vocab_size for i in range(40 + 31 * k)] for k in range(4)]
    for _ in range(2):
        stage.vocoder = ClearVocoder(80)  # type: ignore[assignment]
        for pcm, voice, tokens in zip(speak(stage, voices, utterances, 9), voices, utterances, strict=True):
            wanted = mel_of_tokens(slow, torch.tensor(tokens), voice.tokens, voice.mel, voice.embedding, True)
            found = torch.from_numpy(pcm).view(-1, 480)[:, :80]
            assert found.shape == wanted.shape
            assert snr_db(found, wanted) > LEAST_SNR_DB[dtype]


@pytest.mark.parametrize("graphs", [False, True])
def test_the_vocoder_of_many_rows_is_that_of_one_pass(graphs: bool) -> None:
    """Through the whole stage: what each row says of its own mel. Phase adds up, so mel and PCM come of one device."""
    _, fast = flows(torch.float32)
    settings = CosyVoice3Settings(flow=FlowSettings(memory_mb=256), vocoder=VocoderSettings(graphs=graphs))
    vocoder = hift()
    stage = CosyDecodeStage(fast, vocoder, 4, settings, DEVICE, 3)
    stage.record()
    mels: dict[int, list[torch.Tensor]] = {}
    push = stage.vocoder.push_each

    def noting(slots: list[int], pieces: list[torch.Tensor], final: list[bool]) -> list[torch.Tensor]:
        for slot, piece in zip(slots, pieces, strict=True):
            mels.setdefault(slot, []).append(piece)
        return push(slots, pieces, final)

    stage.vocoder.push_each = noting  # type: ignore[method-assign, assignment]
    voices = [voice_of(count) for count in (65, 12, 65)]
    utterances = [[(5 * i * (k + 2)) % CONFIG.vocab_size for i in range(60 + 31 * k)] for k in range(3)]
    spoken = speak(stage, voices, utterances, 9)
    for pcm, pieces in zip(spoken, mels.values(), strict=True):
        with torch.inference_mode():
            wanted = pcm_of_mel(vocoder, torch.cat(pieces).t()[None])[0].cpu()
        assert len(pcm) == len(wanted)
        assert snr_db(torch.from_numpy(pcm), wanted) > 40


def test_the_engine_says_the_same_over_graphs_as_without(folder: Path) -> None:
    said = [speech(folder, graphs, fused) for graphs, fused in ((False, False), (True, False), (True, True))]
    for other in said[1:]:
        assert [len(pcm) for pcm in other] == [len(pcm) for pcm in said[0]]


def speech(folder: Path, graphs: bool, fused: bool) -> list[Pcm]:
    settings = CosyVoice3Settings(
        flow=FlowSettings(memory_mb=256, graphs=graphs, triton_kernels=fused), vocoder=VocoderSettings(graphs=graphs)
    )
    config = EngineConfig(
        kv_memory_mb=64,
        max_batch_size=4,
        max_running_requests=4,
        graphs=graphs,
        triton_kernels=fused,
        cosyvoice3=settings,
    )
    engine = load_engine(folder, config, DEVICE.type, "float32", is_embedded=False).make_engine()
    generator = torch.Generator().manual_seed(3)
    voice = ClonedVoice(
        embedding=torch.randn(192, generator=generator).numpy().tobytes(),
        codes=torch.randint(0, 6561, (40, 1), generator=generator).to(torch.int16).numpy().tobytes(),
        num_codebooks=1,
        mel=torch.randn(80, 80, generator=generator).numpy().tobytes(),
        transcript="hello there",
    )
    for i in range(3):
        text, sampling = "some words to say"[: 8 + 4 * i], SamplingParams(seed=5 + i, min_new_tokens=30)
        request = SpeechRequest(
            request_id=f"r{i}", text=text, text_closed=True, voice=voice if i else None, sampling=sampling
        )
        engine.requests.submit(request, i)
    pcm: dict[int, list[Pcm]] = {0: [], 1: [], 2: []}
    while engine.has_work:
        engine.step()
    for epoch, event in engine.requests.events:
        if isinstance(event, SpeechChunk):
            pcm[epoch].append(event.pcm)
        elif isinstance(event, RequestFinished):
            assert event.error is None, event.error
    return [np.concatenate(pieces) for pieces in pcm.values()]
