"""Letters that a model of English text reads as given phonemes: one syllable after the other, with hyphens between.

The spellings of rimes were chosen by measurement (docs/experiments/phonemes.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sessions.text.phonemes.alphabets import CONSONANTS, VOWELS

_LETTERS = {"JH": "j", "K": "k", "HH": "h", "DH": "th"}
# Consonants that begin a syllable together.
_CLUSTERS = frozenset(
    tuple(cluster.split())
    for cluster in (
        "P L, P R, B L, B R, T R, T W, D R, D W, K L, K R, K W, G L, G R, G W, F L, F R, TH R, S P, S T, S K, S M, "
        "S N, S L, S W, SH R, S F, HH Y, M Y, B Y, P Y, K Y, F Y, V Y, S P L, S P R, S T R, S K R, S K W"
    ).split(", ")
)
_MAX_CLUSTER = 3
_NO_ONSET = frozenset(["NG"])
# They have a consonant behind them, where one follows.
_CHECKED = frozenset("AE EH IH UH AA".split())

# By vowel and the consonants behind it.
_RIMES = {
    vowel: dict(rime.split("=") for rime in rimes.split())
    for vowel, rimes in {
        "AA": "-=ah R=aar N=onn L=ahl K=ok M=omm T=ott P=op S=aass D=odd B=ob G=ahg NG=ahng Z=oz F=aaf JH=odge V=aav "
        "SH=aash CH=otch TH=aath K+S=oks R+T=art R+K=ark N+Z=onz P+S=ops R+D=aard T+S=ots G+Z=ogs N+T=ontt R+Z=arz "
        "M+P=omp B+Z=obs",
        "AE": "-=a N=ann K=ak L=al M=am S=ass T=att P=app D=ad G=ag B=ab NG=ang F=af SH=ash V=av CH=atch R=ehr JH=adge "
        "TH=ath Z=az N+D=and K+S=aks K+T=akt NG+K=ank S+T=ast T+S=ats N+S=ance N+Z=ans M+Z=ams D+Z=adz P+T=apt "
        "P+S=aps F+T=aft N+T=ant M+P=amp",
        "AH": "-=uh N=un L=ul S=us M=um Z=uz D=ud T=utt B=ub K=uck NG=ung P=up G=ug JH=udge F=uf SH=ush TH=uth V=uv "
        "CH=uch N+Z=uns S+T=ust L+Z=ulz N+T=unt L+D=uld T+S=uts M+Z=umz N+S=unce N+D=und NG+K=unk K+S=uks M+P=ump "
        "K+T=ukt P+S=ups F+T=uft D+Z=udz",
        "AO": "-=aw R=or L=aul N=awn Z=aws NG=ong D=awd F=off T=awt G=aug K=auk S=oss TH=awth R+D=ord R+N=orn R+T=ort "
        "R+Z=aurz L+Z=aulz L+D=auld R+S=orss R+M=orm S+T=ost N+T=aunt L+T=ault R+K=ork",
        "AW": "-=ow N=ounn T=out S=ous D=oud L=owl Z=ows TH=outh CH=ouch R=ower N+D=ound T+S=outs N+Z=ounz",
        "AY": "-=igh Z=ize D=ide N=ine T=ite M=ime L=ile K=ike P=ipe R=ire V=ive F=ife S=yce DH=ithe B=ibe Z+D=ized "
        "T+S=ights N+Z=ines N+D=ined D+Z=ides L+D=iled M+Z=imes L+Z=iles",
        "EH": "-=eh N=en R=ehr L=ell K=eck S=ehs D=ehd T=et M=emm P=epp V=ehve G=eg F=ef Z=ez JH=edge SH=esh B=ebb "
        "TH=eth CH=etch NG=eng S+T=est K+S=eks N+T=ent T+S=ets N+D=end D+Z=edz R+Z=ehrs K+T=ekt L+D=eld M+P=emp "
        "L+Z=elz P+T=ept N+S=ence L+T=elt N+CH=ench N+Z=enz",
        "ER": "-=ur Z=urz D=urd N=urn T=urt K=erk G=urg M=urm TH=urth S=urss L=url CH=urch V=urv F=urf JH=urge B=urb "
        "P=urp S+T=urst",
        "EY": "-=ay T=ayt N=ane L=ail D=ayd Z=aze K=ayk S=ayss M=ame CH=eytch TH=eyth P=eyp JH=eyj V=ayv B=eyb F=eyf "
        "R=ayr G=eyg T+S=ayts L+Z=aylz N+Z=aynz K+S=ayks S+T=ayst M+Z=aimz N+JH=aynge",
        "IH": "-=ih NG=ing N=in K=ik S=iss Z=iz D=id L=il M=ihm T=it SH=ish V=ivv R=ear G=ig P=ip F=if JH=ihge B=ib "
        "CH=itch TH=ith S+T=ist K+S=iks NG+Z=ings N+D=ind T+S=its N+Z=inz L+Z=ilz P+S=ips NG+K=ink N+T=int F+T=ift "
        "L+D=ild K+T=ikt V+Z=ivz",
        "IY": "-=ee Z=eaz N=een D=eed L=iel T=eet S=eece M=iem K=eek V=iev P=iep CH=eech F=ief SH=eash G=ieg TH=eeth "
        "DH=eethe JH=eaj N+Z=eanz T+S=eets D+Z=eedz S+T=eest L+D=eeld M+Z=iemz L+Z=eelz",
        "OW": "-=oh Z=oze L=ole N=oan D=ode T=ote M=ome S=ohce K=oke P=ope V=ove B=oeb TH=oath CH=oach SH=oash G=oeg "
        "S+T=oast L+D=olde N+Z=oenz D+Z=odes L+Z=oles T+S=oats P+S=oaps L+T=olte",
        "OY": "-=oy D=oyd N=oyn Z=oyz L=oyl S=oyss T=oyt NG=oyng N+T=oynt",
        "UH": "-=u R=oor D=ood K=ook L=ull T=oot SH=ush D+Z=oodz R+Z=oorz",
        "UW": "-=oo Z=ooz N=oon D=ude T=oot L=ool S=ooss M=ume P=oup TH=ooth K=oock F=oof B=oob V=oov JH=ouj T+S=oots "
        "M+Z=oomz N+Z=oonz L+Z=oolz",
    }.items()
}
# Syllables that are read otherwise by the spelling of their rime.
_EXCEPTIONS = {
    tuple(syllable.replace("+", " ").split()): letters
    for syllable, letters in (
        exception.split("=")
        for exception in (
            "K+AH=cuh AH+S+T=uste AA+K=ahk TH+IY=thie G+IY=ghee S+IH+S=sis JH+IH+Z=jihz F+AH+L=fuhl P+AH+L=puhl "
            "W+AO+R=wore S+T+AO+R=store CH+AA+R=char P+EH+P=pep W+EY+Z=ways S+T+R+AH=struhh G+IH+NG=gihng F+L+AW=flau "
            "R+AW=rau G+R+AW=grau G+EH+R=gair K+W+IY=quie JH+AH+Z=juhz D+UH+R=dure Y+UH+R=yure AY=ai B+AY=bai "
            "K+W+AY=quy P+IH+R=peer T+IH+R=teer B+IH+R=beer K+L+IH+R=kleer W+IH+R=weer AH+K+S=ux"
        ).split()
    )
}
# Each as in ``SpelledPhonemes.inline``, and what one may begin with.
_NAMES = [*CONSONANTS, *(vowel + stress for vowel in VOWELS for stress in ("", *"012"))]
INLINE_PHONEMES = frozenset(f"[{name}]" for name in _NAMES)
PHONEME_STARTS = frozenset(phoneme[:end] for phoneme in INLINE_PHONEMES for end in range(1, len(phoneme)))


class SpelledPhonemes(NamedTuple):
    """Phonemes as text of a request."""

    # For models that read letters alone.
    letters: str
    # For those of ``EngineInfo.reads_phonemes``.
    inline: str

    @classmethod
    def from_phonemes(cls, phonemes: Sequence[str]) -> SpelledPhonemes:
        """Spell phonemes of CMU's dictionary."""
        return cls(respell(phonemes), "".join(f"[{phoneme}]" for phoneme in phonemes))

    def text_for(self, reads_phonemes: bool) -> str:
        return self.inline if reads_phonemes else self.letters


def respell(phonemes: Sequence[str]) -> str:
    """Return letters for phonemes of CMU's dictionary."""
    return "-".join(map(_spell, _syllables([phoneme.rstrip("012") for phoneme in phonemes])))


def _syllables(phonemes: Sequence[str]) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Return onset and rime of each; consonants without a vowel are one onset."""
    places = [index for index, phoneme in enumerate(phonemes) if phoneme in VOWELS]
    if not places:
        return [(phonemes, ())]
    syllables = []
    start = 0
    for vowel, following in zip(places, [*places[1:], None], strict=True):
        end = len(phonemes) if following is None else following - _onset_size(phonemes[vowel:following])
        syllables.append((phonemes[start:vowel], phonemes[vowel:end]))
        start = end
    return syllables


def _onset_size(between: Sequence[str]) -> int:
    """Return how many consonants behind a vowel begin the next syllable."""
    consonants = tuple(between[1:])
    size = 1 if consonants and consonants[-1] not in _NO_ONSET else 0
    for longer in range(2, min(_MAX_CLUSTER, len(consonants)) + 1):
        if consonants[-longer:] in _CLUSTERS:
            size = longer
    return size - 1 if size and between[0] in _CHECKED and size == len(consonants) else size


def _spell(syllable: tuple[Sequence[str], Sequence[str]]) -> str:
    onset, rime = syllable
    exception = _EXCEPTIONS.get((*onset, *rime))
    if exception is not None:
        return exception
    if tuple(onset[1:]) == ("Y",) and rime and rime[0] in ("UW", "AH"):
        return _spell_letters(onset[:1]) + "ew" + _spell_letters(rime[1:])
    letters = _spell_letters(onset).replace("kw", "qu")
    return letters + _spell_rime(rime[0], rime[1:]) if rime else letters


def _spell_letters(consonants: Sequence[str]) -> str:
    return "".join(_LETTERS.get(phoneme, phoneme.lower()) for phoneme in consonants)


def _spell_rime(vowel: str, coda: Sequence[str]) -> str:
    """The longest known beginning, and a letter for each consonant behind it."""
    for size in range(len(coda), -1, -1):
        known = _RIMES[vowel].get("+".join(coda[:size]) or "-")
        if known is not None:
            return known + _spell_letters(coda[size:])
    raise AssertionError(vowel)
