"""What the official CosyVoice3 modules and this engine are both given. No torch."""

from __future__ import annotations

from dataclasses import dataclass

END_OF_PROMPT = 151646
NUM_CODES, FILL, NUM_IDS = 6561, 6564, 6761
# Speech ids that the talker is made to say.
NUM_FORCED = 20
# Those whose log probabilities are kept whole.
KEPT_STEPS = (0, 1, 10, NUM_FORCED)
INSTRUCT = (500, 17, 3, END_OF_PROMPT)
TRANSCRIPT = tuple(range(40, 59))
TEXT = tuple(range(300, 323))
NUM_PROMPT_TOKENS = 37
PLAIN_PROMPT, PROMPTED_TEXT = "You are a helpful assistant.<|endofprompt|>", "The quick brown fox: 13 years, isn't it?"
TEXTS = (
    "Hello, world! How are you today?",
    PLAIN_PROMPT + PROMPTED_TEXT,
    "今天天气很好，我们去公园散步吧。[breath]Sure.[laughter]",
    "<strong>报道[j][ǐ]予</strong>, [AA1][ZH] done\n\n  twice",
)


@dataclass(frozen=True)
class Talk:
    """One layout of the talker's prompt; text before the text to speak, and the recording's speech or not."""

    name: str
    prompt_text: tuple[int, ...]
    text: tuple[int, ...]
    with_speech: bool


TALKS = (
    Talk("zero shot", INSTRUCT + TRANSCRIPT, TEXT, with_speech=True),
    Talk("instruct", INSTRUCT, TEXT, with_speech=False),
    Talk("cross-lingual", (), INSTRUCT + TEXT, with_speech=False),
)


@dataclass(frozen=True)
class Live:
    """Live text behind a recording. ``early`` is a place where more text is asked for before its time."""

    name: str
    num_prompt_tokens: int
    early: int | None = None


LIVES = (Live("open block", 37), Live("early wish", 37, early=3), Live("short recording", 11))


@dataclass(frozen=True)
class Flow:
    """Tokens behind a recording through the flow."""

    name: str
    num_prompt_tokens: int
    num_tokens: int


FLOWS = (Flow("long", 32, 71), Flow("whole blocks", 50, 28), Flow("no recording", 0, 30), Flow("few", 12, 2))
DRIVER_TOKENS, DRIVER_PROMPT = 130, 32

NUM_RAS_ROWS, NUM_RAS_SEEDS = 16, 12
HIFT_FRAMES = 110
HIFT_CUTS = (9, 30, 31, 80)
# Lengths of recordings whose features are compared.
SOUND_SECONDS = {"brief": 0.53, "uneven": 1.6137}
