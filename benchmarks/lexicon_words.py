"""Measure how many entries of a lexicon are spoken as their alias, by a recognizer with a closed grammar.

Each entry has a product code or a name of two words as its text, and three words as its alias. The grammar is that of
all aliases: a list of ten words at each of the three places, 1,000 phrases. Texts of ten entries, with a mark and a
break at each, are spoken by the embedded voice; the marks say where the speech of each entry is. An entry counts if the
recognizer, pocketsphinx, finds all three words. Beside it stands the same for 20 entries without the lexicon.

    python -m benchmarks.lexicon_words [--entries 1000] [--voice clara] [--teacher] [--limit 0.99]

With --teacher, the teacher of the voice speaks the aliases instead. A word belongs in the lists only if the recognizer
finds it in 99 % of the teacher's 100 phrases with it: else the recognizer is measured, not the voice. ``unfit`` names
the words below.

Exits with 1 below the limit. The last line is JSON. Needs the dependency group ``training``, and for --teacher the
packages of training/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
from pocketsphinx import Decoder

from engine.api import SamplingParams, SpeechEngine
from engine.launch import create_engine
from sessions.config import AudioFormat, Encoding, Markup, SpeechSettings
from sessions.events import MarkReached, ResponseAudio, ResponseFinished, ResponseStatus
from sessions.registry import SessionRegistry
from sessions.text.lexicons.lexicon import Lexicon, LexiconEntry
from training import teachers
from training.asr_judge import BEAMS, EDGE_SILENCE_S, PEAK, RATE_HZ, to_16k
from training.settings import SAMPLE_RATE

SEED = 11
ALIAS_WORDS = (
    "ancient broken clever distant empty gentle hungry little modern wooden".split(),
    "yellow purple orange silver green black golden crimson white scarlet".split(),
    "basket camera dragon window garden hammer island mountain pencil bottle".split(),
)
MAX_ENTRIES = 1_000
ENTRIES_PER_TEXT = 10
CONCURRENT_TEXTS = 8
NUM_CONTROLS = 20
PAUSE_MS = 300
# Share of the teacher's phrases with a word in which it is found.
MIN_SHARE = 0.99

Pcm = npt.NDArray[np.int16]


def build_entries(number: int) -> list[LexiconEntry]:
    """Return entries with texts and aliases of their own."""
    draw = Random(SEED)
    aliases = [" ".join(words) for words in itertools.product(*ALIAS_WORDS)]
    draw.shuffle(aliases)
    codes = draw.sample(range(1_000, 10_000), number)
    texts = [f"KX{code}" if code % 2 else f"Model {code}" for code in codes]
    return [LexiconEntry(text=text, alias=alias) for text, alias in zip(texts, aliases[:number], strict=True)]


def text_of(entries: Sequence[LexiconEntry]) -> str:
    return "".join(f'<mark name="{at}"/>{one.text}.<break time="{PAUSE_MS}ms"/>' for at, one in enumerate(entries))


class ClosedGrammar:
    """Finds the likeliest of all aliases in speech."""

    def __init__(self) -> None:
        places = " ".join(f"({' | '.join(words)})" for words in ALIAS_WORDS)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "aliases.gram"
            path.write_text(f"#JSGF V1.0;\ngrammar aliases;\npublic <alias> = {places};\n")
            self._decoder = Decoder(samprate=RATE_HZ, loglevel="FATAL", lm=None, jsgf=str(path), **BEAMS)

    def find(self, pcm: Pcm, rate_hz: int) -> str:
        signal = to_16k(pcm, rate_hz)
        edge = np.zeros(round(EDGE_SILENCE_S * RATE_HZ), np.float32)
        loud = signal * (PEAK / float(np.abs(signal).max(initial=1e-6)))
        samples = np.concatenate([edge, loud, edge])
        self._decoder.start_utt()
        self._decoder.process_raw((samples * 32767).astype(np.int16).tobytes(), full_utt=True)
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        return hypothesis.hypstr if hypothesis else ""


async def speak(registry: SessionRegistry, settings: SpeechSettings, entries: Sequence[LexiconEntry]) -> list[Pcm]:
    """Return the speech of each entry."""
    response = registry.create(settings=settings).create_response(text=text_of(entries), text_closed=True)
    packets, starts = [], []
    async for event in response:
        match event:
            case ResponseAudio():
                packets += event.packets
            case MarkReached():
                starts.append(event.sample)
            case ResponseFinished():
                assert event.status is ResponseStatus.COMPLETED, event.error
    pcm = np.frombuffer(b"".join(packets), np.int16)
    assert len(starts) == len(entries)
    return np.split(pcm, starts[1:])


async def speak_all(engine: SpeechEngine, settings: SpeechSettings, entries: Sequence[LexiconEntry]) -> list[list[Pcm]]:
    registry, turns = SessionRegistry(engine), asyncio.Semaphore(CONCURRENT_TEXTS)

    async def speak_one(some: Sequence[LexiconEntry]) -> list[Pcm]:
        async with turns:
            return await speak(registry, settings, some)

    starts = range(0, len(entries), ENTRIES_PER_TEXT)
    try:
        return list(await asyncio.gather(*(speak_one(entries[at : at + ENTRIES_PER_TEXT]) for at in starts)))
    finally:
        await registry.aclose()


async def measure(entries: Sequence[LexiconEntry], voice: str) -> dict[str, object]:
    engine = create_engine(None, device="cpu", process=False)
    await engine.start()
    plain = SpeechSettings(
        voice=voice,
        format=AudioFormat(encoding=Encoding.PCM_S16LE),
        lead_ms=None,
        markup=Markup.SSML,
        sampling=SamplingParams(seed=SEED),
    )
    with_lexicon = replace(plain, lexicons=(Lexicon.from_entries(entries, "en"),))
    try:
        spoken = await speak_all(engine, with_lexicon, entries)
        control = await speak_all(engine, plain, entries[:NUM_CONTROLS])
        rate_hz = engine.info.sample_rate
    finally:
        await engine.aclose()
    grammar = ClosedGrammar()
    wrong = find_wrong(grammar, entries, spoken, rate_hz)
    control_wrong = find_wrong(grammar, entries[:NUM_CONTROLS], control, rate_hz)
    return {
        "entries": len(entries),
        "voice": voice,
        "right": 1 - len(wrong) / len(entries),
        "without_lexicon": 1 - len(control_wrong) / len(entries[:NUM_CONTROLS]),
        "wrong": wrong,
    }


def find_wrong(
    grammar: ClosedGrammar, entries: Sequence[LexiconEntry], spoken: Sequence[Sequence[Pcm]], rate_hz: int
) -> dict[str, str]:
    """Return what was found in place of an alias."""
    found = [grammar.find(pcm, rate_hz) for some in spoken for pcm in some]
    return {entry.alias: words for entry, words in zip(entries, found, strict=True) if words != entry.alias}


def measure_teacher(entries: Sequence[LexiconEntry], voice: str) -> dict[str, object]:
    """Return how often the aliases are found in the teacher's speech, and the words that do not fit the lists."""
    spoken = [teachers.synthesize(f"{entry.alias}.", teachers.TEACHERS[voice]).pcm for entry in entries]
    wrong = find_wrong(ClosedGrammar(), entries, [spoken], SAMPLE_RATE)
    return {
        "entries": len(entries),
        "teacher": teachers.TEACHERS[voice],
        "right": 1 - len(wrong) / len(entries),
        "unfit": find_unfit(entries, wrong),
        "wrong": wrong,
    }


def find_unfit(entries: Sequence[LexiconEntry], wrong: Mapping[str, str]) -> dict[str, float]:
    """Return each word that is found in fewer than ``MIN_SHARE`` of its aliases, with this share."""
    spoken = Counter(word for entry in entries for word in entry.alias.split())
    missed = Counter(word for alias, found in wrong.items() for word in set(alias.split()) - set(found.split()))
    return {word: 1 - missed[word] / number for word, number in spoken.items() if 1 - missed[word] / number < MIN_SHARE}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=MAX_ENTRIES, choices=range(1, MAX_ENTRIES + 1), metavar="N")
    parser.add_argument("--voice", choices=["clara", "edwin"], default="clara")
    parser.add_argument("--teacher", action="store_true")
    parser.add_argument("--limit", type=float, default=0.99)
    args = parser.parse_args()
    entries = build_entries(args.entries)
    result = measure_teacher(entries, args.voice) if args.teacher else asyncio.run(measure(entries, args.voice))
    print(json.dumps(result))
    right = result["right"]
    assert isinstance(right, float)
    return int(right < args.limit)


if __name__ == "__main__":
    sys.exit(main())
