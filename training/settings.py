"""Every number of the embedded voice in one place: sizes of the model, lengths of the stages, batches, rates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

SAMPLE_RATE = 24_000
# Of flite's speech.
SOURCE_RATE = 16_000
FRAME_SAMPLES = 1_920
# Phone labels come every 10 ms, codec frames every 80 ms.
LABELS_PER_FRAME = 8


@dataclass(frozen=True)
class Sizes:
    """What the model costs. Chosen by timing random weights on one CPU thread before any training."""

    text_vocab: int = 2_048
    text_hidden: int = 256
    hidden: int = 320
    intermediate: int = 896
    layers: int = 6
    heads: int = 5
    kv_heads: int = 1
    head_dim: int = 64
    code_groups: int = 8
    codebook: int = 512
    predictor_hidden: int = 320
    predictor_intermediate: int = 768
    predictor_layers: int = 1
    predictor_heads: int = 5
    codebook_dim: int = 128
    latent: int = 256
    decoder: int = 128
    decoder_transformer: int = 256
    decoder_intermediate: int = 512
    decoder_layers: int = 2
    decoder_heads: int = 4
    decoder_window: int = 12
    encoder_channels: int = 256
    encoder_blocks: int = 6
    # Of the engine's ``SourceFilterDecoder``: orders of its cepstra, and blocks at 100 Hz; 0: a ``CodecDecoder``.
    pulse_cepstra: int = 0
    noise_cepstra: int = 0
    control_blocks: int = 0
    upsampling_ratios: tuple[int, ...] = (2, 2)
    upsample_rates: tuple[int, ...] = (8, 5, 4, 3)
    # Where the speech that is learned from ends: encoder and spectral losses see no more.
    max_hz: float = 8_000.0


@dataclass(frozen=True)
class CodecTraining:
    autoencode_s: float = 80.0
    quantise_s: float = 170.0
    # When resumed: how long encoder and codebooks go on learning before they are fixed.
    refine_s: float = 330.0
    refining_rate: float = 6e-4
    batch: int = 96
    crop_frames: int = 20
    latent_noise: float = 0.05
    learning_rate: float = 8e-4
    phone_weight: float = 1.0
    commitment_weight: float = 0.25
    mel_weight: float = 15.0
    kmeans_latents: int = 200_000
    kmeans_rounds: int = 20
    silenced_share: float = 0.2
    save_every_s: float = 90.0
    least_audio_h: float = 0.3
    max_audio_h: float = 120.0
    # Of the source-filter codec: its length, and of how many held-out sentences one is copied.
    graphed_s: float = 540.0
    every_sentence: int = 20


@dataclass(frozen=True)
class TalkerTraining:
    # The pipeline gives what is left of its time.
    train_s: float = 1_200.0
    frames_per_step: int = 24_000
    # Frames of a step that the predictor learns from, drawn at random.
    predictor_frames: int = 8_000
    max_positions: int = 448
    bucket_positions: int = 32
    # How often each utterance is encoded, each time at another offset; from the second on, words are cut anew too.
    encodings: int = 2
    # Chance that the tokenizer skips a merge in those.
    merge_dropout: float = 0.1
    max_offset_ms: int = 80
    dropout: float = 0.03
    max_corruption: float = 0.35
    random_share: float = 0.4
    phone_weight: float = 0.3
    learning_rate: float = 1.5e-3
    warmup_steps: int = 300
    # When resumed.
    resumed_learning_rate: float = 1e-3
    resumed_warmup_steps: int = 600
    weight_decay: float = 0.05
    ema_decay: float = 0.999
    log_every_s: float = 20.0
    save_every_s: float = 120.0
    refresh_every_s: float = 30.0
    least_audio_h: float = 3.0
    # Of 24 kHz speech, 43 GB on the GPU.
    max_audio_h: float = 250.0
    listen_sentences: int = 200
    listen_frames: int = 320
    # Kept free at the end, for listening.
    closing_s: float = 40.0


@dataclass(frozen=True)
class Sampling:
    temperature: float = 0.3
    top_k: int = 30
    repetition_penalty: float = 1.0
    predictor_temperature: float = 0.3
    predictor_top_k: int = 30
    max_new_tokens: int = 512


@dataclass(frozen=True)
class Settings:
    sizes: Sizes = field(default_factory=Sizes)
    codec: CodecTraining = field(default_factory=CodecTraining)
    talker: TalkerTraining = field(default_factory=TalkerTraining)
    sampling: Sampling = field(default_factory=Sampling)
    speakers: tuple[str, ...] = ("clara", "edwin")
    # Each speaker's, by the names of ``flite.py``, or of ``teachers.py`` where ``source_rate`` is 24 kHz.
    teachers: tuple[str, ...] = ("slt", "rms")
    source_rate: int = SOURCE_RATE
    synthesis_workers: int = 12
    seed: int = 1


# The shipped voice: clara learns from a teacher with a full band; a vocoder makes the wave.
FULL_BAND = Settings(
    sizes=Sizes(
        latent=256,
        decoder_layers=3,
        upsampling_ratios=(2, 2, 2),
        upsample_rates=(240,),
        pulse_cepstra=160,
        noise_cepstra=100,
        control_blocks=2,
        max_hz=12_000.0,
    ),
    codec=replace(CodecTraining(), batch=64, crop_frames=16, learning_rate=1e-3),
    teachers=("slt-hts", "slt-hts-low"),
    source_rate=SAMPLE_RATE,
    # Odd: with an even number, each worker speaks one voice alone.
    synthesis_workers=13,
)

TOY = Settings(
    sizes=Sizes(
        text_vocab=512, text_hidden=16, hidden=32, intermediate=32, layers=1, heads=2, head_dim=16,
        code_groups=3, codebook=8,
        predictor_hidden=16, predictor_intermediate=16, predictor_layers=1, predictor_heads=1, codebook_dim=16,
        latent=16, decoder=32, decoder_transformer=16, decoder_intermediate=16, decoder_layers=1, decoder_heads=1,
        decoder_window=4, encoder_channels=16, encoder_blocks=1,
    ),
    codec=replace(
        CodecTraining(), autoencode_s=0.1, quantise_s=0.1, refine_s=0.1, graphed_s=0.2, every_sentence=100,
        batch=2, crop_frames=4,
        kmeans_latents=64, kmeans_rounds=2, max_audio_h=0.02, save_every_s=1.0, least_audio_h=0.001,
    ),
    talker=replace(
        TalkerTraining(), train_s=2.0, frames_per_step=200, predictor_frames=50, warmup_steps=2,
        least_audio_h=0.001, max_audio_h=0.02, log_every_s=1.0, save_every_s=1.0, listen_sentences=3,
        listen_frames=8, closing_s=0.5,
    ),
    synthesis_workers=1,
)  # fmt: skip

# What makes sizes full-band; all else may be small.
_OF_FULL_BAND = ("max_hz", "pulse_cepstra", "noise_cepstra", "control_blocks", "upsampling_ratios", "upsample_rates")


def choose_settings(*, toy: bool, full_band: bool) -> Settings:
    if not full_band:
        return TOY if toy else Settings()
    if not toy:
        return FULL_BAND
    sizes = replace(TOY.sizes, **{name: getattr(FULL_BAND.sizes, name) for name in _OF_FULL_BAND})
    return replace(TOY, sizes=sizes, teachers=FULL_BAND.teachers, source_rate=FULL_BAND.source_rate)
