"""Voices: from a recording, from ``spk2info.pt`` or from a client, prepared for both stages (spec 1, 6.3).

The two networks are the released ONNX files, run on the CPU, threads asleep when idle. Features are pcm [T] in fp32 in,
fp32 frames out, on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.api import ClonedVoice, ReferenceAudio
from engine.errors import CheckpointError, EngineError, InvalidRequest
from engine.layers.mel_filters import mel_filters
from engine.memory.lru_cache import VoiceCache
from engine.models.cosyvoice3.config import CosyVoice3Config, FlowConfig
from engine.models.cosyvoice3.tokenizer import END_OF_PROMPT, CosyTokenizer
from engine.weights.torch_pickle import check_size, read_object

MEL_FFT, MEL_HOP, MEL_RATE = 1920, 480, 24_000
# Of the speech tokenizer and the speaker network.
ENCODER_RATE = 16_000
WHISPER_FFT, WHISPER_HOP, WHISPER_BINS = 400, 160, 128
FBANK_FRAME, FBANK_HOP, FBANK_FFT, FBANK_BINS = 400, 160, 512, 80
FBANK_LOW_HZ = 20.0
PRE_EMPHASIS = 0.97
ROLL_OFF, FILTER_ZEROS = 0.99, 6


def resample(pcm: Tensor, rate_in: int, rate_out: int) -> Tensor:
    """A sinc under a Hann window, six zeros wide, ceil(T * out / in) samples."""
    common = math.gcd(rate_in, rate_out)
    step_in, step_out = rate_in // common, rate_out // common
    if step_in == step_out:
        return pcm
    cut_off = min(step_in, step_out) * ROLL_OFF
    width = math.ceil(FILTER_ZEROS * step_in / cut_off)
    places = torch.arange(-width, width + step_in, dtype=torch.float64) / step_in
    phases = torch.arange(0, -step_out, -1, dtype=torch.float64) / step_out
    times = ((phases[:, None] + places) * cut_off).clamp(-FILTER_ZEROS, FILTER_ZEROS)
    window = (times * math.pi / FILTER_ZEROS / 2).cos() ** 2
    kernel = (torch.sinc(times) * window * cut_off / step_in).float()
    padded = F.pad(pcm, (width, width + step_in))
    out = F.conv1d(padded[None, None], kernel[:, None], stride=step_in)[0].T.flatten()
    return out[: math.ceil(step_out * len(pcm) / step_in)]


def flow_mel(pcm: Tensor, bins: int) -> Tensor:
    """24 kHz -> [T // 480, bins], natural logarithm of magnitudes."""
    padding = (MEL_FFT - MEL_HOP) // 2
    padded = F.pad(pcm[None, None], (padding, padding), mode="reflect")[0, 0]
    spectrum = torch.stft(
        padded, MEL_FFT, MEL_HOP, window=torch.hann_window(MEL_FFT), center=False, return_complex=True
    )
    magnitude = torch.view_as_real(spectrum).pow(2).sum(-1).add(1e-9).sqrt()
    return (mel_filters(bins, MEL_RATE, MEL_FFT) @ magnitude).clamp(min=1e-5).log().T.contiguous()


def whisper_mel(pcm: Tensor) -> Tensor:
    """16 kHz -> [128, T // 160], as Whisper hears it."""
    window = torch.hann_window(WHISPER_FFT)
    spectrum = torch.stft(pcm, WHISPER_FFT, WHISPER_HOP, window=window, return_complex=True)
    power = spectrum[:, :-1].abs() ** 2
    mel = (mel_filters(WHISPER_BINS, ENCODER_RATE, WHISPER_FFT) @ power).clamp(min=1e-10).log10()
    return (torch.maximum(mel, mel.max() - 8.0) + 4.0) / 4.0


def speaker_fbank(pcm: Tensor) -> Tensor:
    """16 kHz -> [frames, 80], as Kaldi's filter banks, less their mean over time."""
    frames = pcm.unfold(0, FBANK_FRAME, FBANK_HOP)
    frames = frames - frames.mean(dim=1, keepdim=True)
    before = F.pad(frames[:, None], (1, 0), mode="replicate")[:, 0, :-1]
    window = torch.hann_window(FBANK_FRAME, periodic=False) ** 0.85
    power = torch.fft.rfft((frames - PRE_EMPHASIS * before) * window, FBANK_FFT).abs() ** 2
    energies = power[:, : FBANK_FFT // 2] @ kaldi_filters().T
    fbank = energies.clamp(min=torch.finfo(torch.float32).eps).log()
    return fbank - fbank.mean(dim=0, keepdim=True)


def kaldi_filters() -> Tensor:
    """Triangles that are straight on the mel scale, over 20 Hz to half the rate: [80, FFT / 2]."""

    def mel(hz: Tensor) -> Tensor:
        return 1127.0 * (1.0 + hz / 700.0).log()

    low, high = mel(torch.tensor([FBANK_LOW_HZ, ENCODER_RATE / 2], dtype=torch.float64))
    edges = low + (high - low) / (FBANK_BINS + 1) * torch.arange(FBANK_BINS + 2, dtype=torch.float64)
    places = mel(torch.arange(FBANK_FFT // 2, dtype=torch.float64) * ENCODER_RATE / FBANK_FFT)
    left, center, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (places - left) / (center - left), (right - places) / (right - center)
    return torch.minimum(rising, falling).clamp(min=0).float()


# A prompt of 15 more than whole blocks leaves the flow's first block ten tokens short, so that sound can leave after 13
# (spec 4.8).
FLOW_REST, BLOCK_TOKENS = 15, 25
# Two seconds of a recording are never cut into.
MIN_TRIMMED_TOKENS = 50


@dataclass(frozen=True, slots=True, eq=False)
class VoicePrompt:
    """Equal keys are equal voices. ``tokens`` [P], ``mel`` [2P, bins] and ``embedding`` [S] are for the flow, on the
    CPU; ``speech_ids`` is all of the recording, for the talker."""

    key: bytes
    tokens: Tensor
    mel: Tensor
    embedding: Tensor
    transcript_ids: tuple[int, ...] = ()
    speech_ids: tuple[int, ...] = ()

    @property
    def has_transcript(self) -> bool:
        return bool(self.transcript_ids and self.speech_ids)


def make_prompt(
    key: bytes, codes: list[int], mel: Tensor, embedding: Tensor, transcript_ids: list[int], trims: bool
) -> VoicePrompt:
    """``trims``: leave the beginning of the recording from the flow, so that its first block is short."""
    kept = trimmed_tokens(len(codes)) if trims else len(codes)
    ratio = len(mel) // len(codes) if codes else 0
    return VoicePrompt(
        key=key + bytes([trims]),
        tokens=torch.tensor(codes[len(codes) - kept :], dtype=torch.int64),
        mel=mel[len(mel) - ratio * kept :].float().contiguous(),
        embedding=embedding.float(),
        transcript_ids=tuple(transcript_ids),
        speech_ids=tuple(codes),
    )


def trimmed_tokens(num_tokens: int) -> int:
    kept = num_tokens - (num_tokens - FLOW_REST) % BLOCK_TOKENS
    return kept if kept >= MIN_TRIMMED_TOKENS else num_tokens


def transcript_text(transcript: str) -> str:
    """Return a transcript without the instruction that the official code puts before it."""
    return transcript.split(END_OF_PROMPT)[-1].strip()


class CosyVoiceCache(VoiceCache[VoicePrompt]):
    """``encode`` turns a transcript to ids."""

    def __init__(self, mel_bins: int, encode: Callable[[str], list[int]], max_voices: int, trims: bool) -> None:
        super().__init__(max_voices)
        self._mel_bins, self._encode, self._trims = mel_bins, encode, trims

    def prepare(self, key: bytes, voice: ClonedVoice) -> VoicePrompt:
        codes = np.frombuffer(voice.codes, np.int16)
        mel = np.frombuffer(voice.mel, np.float32).reshape(-1, self._mel_bins)
        transcript = transcript_text(voice.transcript) if len(codes) else ""
        return make_prompt(
            key,
            codes.tolist(),
            torch.from_numpy(mel.copy()),
            torch.from_numpy(np.frombuffer(voice.embedding, np.float32).copy()),
            self._encode(transcript) if transcript else [],
            self._trims,
        )


FILE = "spk2info.pt"
MAX_BYTES = 256 * 2**20
MAX_VOICES = 1_000
MAX_NAME_CHARS = 200
FIELDS = ("flow_prompt_speech_token", "prompt_speech_feat", "flow_embedding")
WHOLE_NUMBERS = (torch.int16, torch.int32, torch.int64)
NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def read_saved_voices(
    folder: Path, config: FlowConfig, tokenizer: CosyTokenizer, trims: bool
) -> dict[str, VoicePrompt]:
    """By name in lower case; none where there is no file. Raises ``CheckpointError`` naming voice and field."""
    path = folder / FILE
    if not path.exists():
        return {}
    saved = read_object(path, MAX_BYTES)
    if not isinstance(saved, dict) or len(saved) > MAX_VOICES:
        raise CheckpointError(f"{path}: expected at most {MAX_VOICES} voices by name")
    if any(len(str(name)) > MAX_NAME_CHARS for name in saved) or len({str(n).lower() for n in saved}) < len(saved):
        raise CheckpointError(f"{path}: two voices share a name, or one has more than {MAX_NAME_CHARS} characters")
    return {
        str(name).lower(): _voice(f"{path}: {name}", entry, config, tokenizer, trims) for name, entry in saved.items()
    }


def _voice(where: str, entry: Any, config: FlowConfig, tokenizer: CosyTokenizer, trims: bool) -> VoicePrompt:
    if not isinstance(entry, Mapping):
        raise CheckpointError(f"{where} is {type(entry).__name__}, expected a mapping")
    tokens, mel, embedding = (_tensor(where, entry, field) for field in FIELDS)
    tokens, embedding = tokens.flatten(), embedding.flatten()
    mel = mel.reshape(-1, mel.shape[-1]) if mel.dim() > 1 else mel
    count = min(len(tokens), len(mel) // config.token_mel_ratio)
    wanted = {
        "flow_prompt_speech_token": tokens.dtype in WHOLE_NUMBERS and count > 0,
        "prompt_speech_feat": mel.dim() == 2 and mel.shape[-1] == config.dit.mel_bins and mel.dtype in NUMBERS,
        "flow_embedding": len(embedding) == config.spk_embed_size and embedding.dtype in NUMBERS,
    }
    if bad := next((field for field, fits in wanted.items() if not fits), None):
        raise CheckpointError(f"{where}: {bad} has shape {list(entry[bad].shape)} and type {entry[bad].dtype}")
    ids = tokens[:count].tolist()
    if not all(0 <= i < config.vocab_size for i in ids):
        raise CheckpointError(f"{where}: flow_prompt_speech_token must lie in 0..{config.vocab_size - 1}")
    if not (torch.isfinite(mel).all() and torch.isfinite(embedding).all()):
        raise CheckpointError(f"{where}: holds numbers that are not finite")
    transcript = _transcript(where, entry, tokenizer)
    mel = mel[: config.token_mel_ratio * count]
    return make_prompt(where.encode(), ids, mel, embedding, transcript, trims)


def _tensor(where: str, entry: Mapping[str, Any], field: str) -> Tensor:
    value = entry.get(field)
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_nested:
        raise CheckpointError(f"{where}: {field} is {type(value).__name__}, expected a tensor")
    check_size(value, f"{where}: {field}", MAX_BYTES)
    if value.dim() == 0 or value.numel() == 0:
        raise CheckpointError(f"{where}: {field} has shape {list(value.shape)}, and so holds nothing")
    return value


def _transcript(where: str, entry: Mapping[str, Any], tokenizer: CosyTokenizer) -> list[int]:
    """Ids of what is said: kept as ids, with or without the instruction in front, or as text; or not at all."""
    value = entry.get("prompt_text", "")
    if isinstance(value, str):
        return tokenizer.encode_text(transcript_text(value))
    if not isinstance(value, Tensor) or value.dtype not in WHOLE_NUMBERS:
        raise CheckpointError(f"{where}: prompt_text is {type(value).__name__}, expected ids or text")
    check_size(value, f"{where}: prompt_text", MAX_BYTES)
    ids = [int(i) for i in value.flatten().tolist()]
    if bad := next((i for i in ids if not 0 <= i <= tokenizer.last_id), None):
        raise CheckpointError(f"{where}: prompt_text holds {bad}; ids lie in 0..{tokenizer.last_id}")
    ends = [place for place, i in enumerate(ids) if i == tokenizer.end_of_prompt]
    return ids[ends[-1] + 1 :] if ends else ids


SPEECH_FILE, SPEAKER_FILE = "speech_tokenizer_v3.onnx", "campplus.onnx"
ENCODERS = (SPEECH_FILE, SPEAKER_FILE)
MISSING_ENCODER_NOTE = "recordings cannot be listened to; named voices and voices that were encoded before work"


def missing_encoders(folder: Path) -> list[str]:
    return [name for name in ENCODERS if not (folder / name).exists()]


class CosyVoiceEncoder:
    def __init__(self, folder: Path, config: CosyVoice3Config, num_threads: int = 2) -> None:
        self.config = config
        self.speech = OnnxModel(folder / SPEECH_FILE, num_inputs=2, num_threads=num_threads)
        self.speaker = OnnxModel(folder / SPEAKER_FILE, num_inputs=1, num_threads=num_threads)

    @torch.inference_mode()
    def __call__(self, sample: ReferenceAudio) -> ClonedVoice:
        """Encode a voice. Raises ``InvalidRequest`` for an unusable recording."""
        pcm = torch.from_numpy(np.frombuffer(sample.pcm, np.float32).copy())
        heard = resample(pcm, self.config.sample_rate, ENCODER_RATE)
        codes, mel = self.aligned(self.tokens(heard), flow_mel(pcm, self.config.flow.dit.mel_bins))
        return ClonedVoice(
            embedding=self.embedding(heard).tobytes(),
            codes=codes.astype(np.int16).tobytes(),
            num_codebooks=1,
            transcript=sample.transcript,
            mel=mel.numpy().tobytes(),
        )

    def tokens(self, heard: Tensor) -> Any:
        """16 kHz -> ids [num_tokens]."""
        mel = whisper_mel(heard)
        length = np.array([mel.shape[1]], np.int32)
        tokens = np.asarray(self.speech.run(mel[None].numpy(), length)).reshape(-1)
        num_codes = self.config.flow.vocab_size
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < num_codes):
            raise EngineError(f"{SPEECH_FILE} gave {tokens.min()}..{tokens.max()}; codes lie in 0..{num_codes - 1}")
        return tokens

    def embedding(self, heard: Tensor) -> Any:
        vector = np.asarray(self.speaker.run(speaker_fbank(heard)[None].numpy()), np.float32).reshape(-1)
        if vector.size != self.config.flow.spk_embed_size:
            raise EngineError(f"{SPEAKER_FILE} gave {vector.size} numbers, not {self.config.flow.spk_embed_size}")
        if not np.isfinite(vector).all():
            raise InvalidRequest("audio gives no finite speaker embedding", "audio")
        return vector

    def aligned(self, tokens: Any, mel: Tensor) -> tuple[Any, Tensor]:
        """Cut ids and frames to the same duration."""
        ratio = self.config.flow.token_mel_ratio
        count = min(len(tokens), len(mel) // ratio)
        if count == 0:
            raise InvalidRequest("audio is too short: it has no whole speech token", "audio")
        return tokens[:count], mel[: ratio * count].contiguous()


class OnnxModel:
    """An ONNX file. Raises ``CheckpointError`` for one that is none, or that asks for something else."""

    def __init__(self, path: Path, num_inputs: int, num_threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.name = path.name
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its own kinds, one for each of a dozen reasons, share no base
            raise CheckpointError(f"{path}: cannot be read as ONNX: {_first_line(error)}") from None
        self._inputs = [entry.name for entry in self._session.get_inputs()]
        if len(self._inputs) != num_inputs:
            raise CheckpointError(f"{path}: takes {len(self._inputs)} inputs, expected {num_inputs}")

    def run(self, *values: Any) -> Any:
        """The first output."""
        try:
            return self._session.run(None, dict(zip(self._inputs, values, strict=True)))[0]
        except Exception as error:  # as above
            raise EngineError(f"{self.name} failed: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
