"""The instructions that the model was trained on (spec 2.3), each by its sentence and by a short name. No torch."""

from __future__ import annotations

from engine.errors import InvalidRequest
from engine.models.cosyvoice3.special_tokens import END_OF_PROMPT
from engine.models.cosyvoice3.tokenizer import ASSISTANT

_DIALECTS = {
    "cantonese": "广东",
    "northeastern": "东北",
    "gansu": "甘肃",
    "guizhou": "贵州",
    "henan": "河南",
    "hubei": "湖北",
    "hunan": "湖南",
    "jiangxi": "江西",
    "minnan": "闽南",
    "ningxia": "宁夏",
    "shanxi": "山西",
    "shaanxi": "陕西",
    "shandong": "山东",
    "shanghai": "上海",
    "sichuan": "四川",
    "tianjin": "天津",
    "yunnan": "云南",
}
INSTRUCTS = {name: f"请用{place}话表达。" for name, place in _DIALECTS.items()} | {
    "loud": "Please say a sentence as loudly as possible.",
    "soft": "Please say a sentence in a very soft voice.",
    "slow": "请用尽可能慢地语速说一句话。",
    "fast": "请用尽可能快地语速说一句话。",
    "happy": "请非常开心地说一句话。",
    "sad": "请非常伤心地说一句话。",
    "angry": "请非常生气地说一句话。",
    "peppa": "我想体验一下小猪佩奇风格，可以吗？",
    "robot": "你可以尝试用机器人的方式解答吗？",
}
MARKS = " .。!！?？"


def known_sentence(instruct: str, takes_any: bool = False) -> str:
    """The sentence behind a name, or the sentence itself, also when it comes with all that stands around it.

    Raises ``InvalidRequest`` for one that the model does not know.
    """
    bare = instruct.strip().removesuffix(END_OF_PROMPT).strip().removeprefix(ASSISTANT).strip()
    if not bare:
        return ""
    if bare.lower() in INSTRUCTS:
        return INSTRUCTS[bare.lower()]
    for sentence in INSTRUCTS.values():
        if bare.rstrip(MARKS) == sentence.rstrip(MARKS):
            return sentence
    if takes_any:
        return bare
    known = ", ".join(INSTRUCTS)
    raise InvalidRequest(f"instruct is {bare[:80]!r}, which the model does not know; known: {known}", "instruct")
