"""What is one token of CosyVoice3's text by itself, in the order of its ids (spec 6.1)."""

from __future__ import annotations

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
