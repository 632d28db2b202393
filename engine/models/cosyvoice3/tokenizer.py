"""Text to ids: Qwen2's byte pairs, and the tokens that CosyVoice3 adds: sounds, phonemes, pinyin (spec 6.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import CheckpointError
from engine.memory.lru_cache import LruCache
from engine.text.tokenizer import BytePairTokenizer, IncrementalTokenizer
from engine.text.tokenizer_files import read_json, read_merges, read_vocab

if TYPE_CHECKING:
    from engine.text.tokenizer import IncrementalEncoder

MAX_CACHED_INSTRUCTS = 64
END_OF_TEXT = "<|endoftext|>"
END_OF_PROMPT = "<|endofprompt|>"
# They separate the parts of a prompt; text must not contain them.
STRUCTURE = (END_OF_TEXT, "<|im_start|>", "<|im_end|>", END_OF_PROMPT)
END_OF_SYSTEM = "<|endofsystem|>"

SOUNDS = (
    "[breath] <strong> </strong> [noise] [laughter] [cough] [clucking] [accent] [quick_breath] <laughter> </laughter> "
    "[hissing] [sigh] [vocalized-noise] [lipsmack] [mn]"
).split()

_VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW".split()
_CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH".split()
# Of CMU's dictionary.
PHONEMES = sorted([*_CONSONANTS, *(vowel + stress for vowel in _VOWELS for stress in ("", "0", "1", "2"))])

# Initials, and finals with their tones.
PINYIN = (
    "a ai an ang ao b c ch d e ei en eng f g h i ian in ing iu ià iàn iàng iào iá ián iáng iáo iè ié iòng ióng iù iú "
    "iā iān iāng iāo iē iě iōng iū iǎ iǎn iǎng iǎo iǒng iǔ j k l m n o ong ou p q r s sh t u uang ue un uo uà uài uàn "
    "uàng uá uái uán uáng uè ué uì uí uò uó uā uāi uān uāng uē uě uī uō uǎ uǎi uǎn uǎng uǐ uǒ vè w x y z zh à ài àn "
    "àng ào á ái án áng áo è èi èn èng èr é éi én éng ér ì ìn ìng í ín íng ò òng òu ó óng óu ù ùn ú ún ā āi ān āng āo "
    "ē ēi ēn ēng ě ěi ěn ěng ěr ī īn īng ō ōng ōu ū ūn ǎ ǎi ǎn ǎng ǎo ǐ ǐn ǐng ǒ ǒng ǒu ǔ ǔn ǘ ǚ ǜ"
).split()

# What a text may hold to say more than letters can.
CONTROLS = (*SOUNDS, *(f"[{name}]" for name in (*PHONEMES, *PINYIN)))
SPECIAL_TOKENS = (
    *STRUCTURE,
    *SOUNDS,
    END_OF_SYSTEM,
    *(f"[{name}]" for name in (*PHONEMES, *PINYIN)),
)


# Begins every instruction the model was trained on, and is all of the usual one.
ASSISTANT = "You are a helpful assistant."
MAX_CONTROL_CHARS = max(map(len, CONTROLS))
CONTROL_PATTERN = re.compile("|".join(map(re.escape, sorted(CONTROLS, key=len, reverse=True))))
CONTROL_STARTS = frozenset(control[:end] for control in CONTROLS for end in range(1, len(control)))


class CosyTokenizer(BytePairTokenizer):
    """``special_ids`` by content. In text only controls are known, and only with ``reads_controls``: what parts a
    prompt is just letters there.
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        merges: list[tuple[str, str]],
        special_ids: Mapping[str, int],
        reads_controls: bool = True,
    ) -> None:
        super().__init__(vocab, merges)
        self.special_ids, self.reads_controls = dict(special_ids), reads_controls
        self.end_of_prompt = special_ids[END_OF_PROMPT]
        self.last_id = max(*vocab.values(), *special_ids.values())
        self._instructs: LruCache[list[int]] = LruCache(MAX_CACHED_INSTRUCTS)

    @classmethod
    def from_folder(cls, folder: Path, text_vocab_size: int, reads_controls: bool = True) -> CosyTokenizer:
        """Read a tokenizer. Raises ``CheckpointError`` naming the file and the key that is wrong."""
        vocab = read_vocab(folder / "vocab.json")
        merges = read_merges(folder / "merges.txt", vocab)
        ids = _special_ids(read_json(folder / "tokenizer_config.json"), vocab)
        for content, value in (*vocab.items(), *ids.items()):
            if not 0 <= value < text_vocab_size:
                raise CheckpointError(
                    f"{folder.name}: {content!r} has the id {value}, outside the text table of {text_vocab_size}"
                )
        return cls(vocab, merges, ids, reads_controls)

    def encode_text(self, text: str) -> list[int]:
        """A whole text, controls read."""
        return [i for part in split_controls(text) for i in self.encode_part(part)] if self.reads_controls else (
            self.encode(text)
        )  # fmt: skip

    def encode_part(self, part: str) -> list[int]:
        """A control, or text without any."""
        return [self.special_ids[part]] if part in _CONTROLS else self.encode(part)

    def instruct_ids(self, instruct: str) -> list[int]:
        """All that stands in front of a transcript or a text: an instruction, or the usual sentence, and its end."""
        ids = self._instructs.get(instruct)
        if ids is None:
            sentence = f"{ASSISTANT} {instruct.strip()}" if instruct.strip() else ASSISTANT
            ids = [*self.encode(sentence), self.end_of_prompt]
            self._instructs.put(instruct, ids)
        return ids

    def incremental(self) -> IncrementalEncoder:
        return ControlTokenEncoder(self) if self.reads_controls else IncrementalTokenizer(self)


_CONTROLS = frozenset(CONTROLS)


def split_controls(text: str) -> Iterator[str]:
    """Controls, and what stands between them."""
    start = 0
    for found in CONTROL_PATTERN.finditer(text):
        if found.start() > start:
            yield text[start : found.start()]
        yield found[0]
        start = found.end()
    if start < len(text):
        yield text[start:]


class ControlTokenEncoder:
    """One text in pieces. However it is cut, all returned ids in a row are ``encode_text`` of the text in one piece,
    white space at its start left out.
    """

    def __init__(self, tokenizer: CosyTokenizer) -> None:
        self._tokenizer = tokenizer
        self._words = IncrementalTokenizer(tokenizer)
        # The beginning, perhaps, of a control.
        self._held = ""

    def push(self, text: str) -> list[int]:
        text = self._held + text
        open_chars = _open_chars(text)
        self._held = text[len(text) - open_chars :]
        return self._consume(text[: len(text) - open_chars])

    def finish(self) -> list[int]:
        """Returns the remaining ids; nothing may be pushed afterwards."""
        rest, self._held = self._held, ""
        return [*self._consume(rest), *self._words.finish()]

    def _consume(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in split_controls(text):
            if part in _CONTROLS:
                ids += [*self._words.finish(), self._tokenizer.special_ids[part]]
                self._words = IncrementalTokenizer(self._tokenizer, keeps_start=True)
            else:
                ids += self._words.push(part)
        return ids


def _open_chars(text: str) -> int:
    """Characters at the end that a control may begin with."""
    starts = range(max(0, len(text) - MAX_CONTROL_CHARS + 1), len(text))
    return next((len(text) - start for start in starts if text[start:] in CONTROL_STARTS), 0)


def _special_ids(tokenizer_config: Mapping[str, Any], vocab: Mapping[str, int]) -> dict[str, int]:
    """Those that the file names, and behind them the others in their order."""
    added = tokenizer_config.get("added_tokens_decoder", {})
    ids: dict[str, int] = {}
    for key, entry in added.items() if isinstance(added, dict) else ():
        if not re.fullmatch(r"[0-9]{1,9}", key) or not isinstance(entry, dict):
            raise CheckpointError(f"tokenizer_config.json: added_tokens_decoder holds {key!r}, which is no id")
        ids[str(entry.get("content"))] = int(key)
    following = max(max(vocab.values()), *ids.values(), -1) + 1
    for content in SPECIAL_TOKENS:
        if content not in ids:
            ids[content] = vocab.get(content, following)
            following += content not in vocab
    return {content: ids[content] for content in SPECIAL_TOKENS}
