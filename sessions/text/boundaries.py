"""Find where sentences and clauses end, character by character."""

from __future__ import annotations

from enum import IntEnum

from sessions.text.lexicon import ABBREVIATIONS, NUMBERED_ABBREVIATIONS

_WIDE_SENTENCE_MARKS = "。！？．｡؟۔।॥։።។"
_SENTENCE_MARKS = ".!?…‽" + _WIDE_SENTENCE_MARKS
_WIDE_CLAUSE_MARKS = "、，；：،؛—"
_CLAUSE_MARKS = ",;:–" + _WIDE_CLAUSE_MARKS
_CLOSERS = "\"'”’»›)]}*_」』）】》〉］"
_AROUND_WORD = _CLOSERS + "“‘«‹([{¿¡„"
_LINE_BREAKS = "\n\u2028\u2029"
# Characters of the word before a mark that are kept, to detect abbreviations.
_MAX_WORD_CHARS = 24

_OTHER_ABBREVIATIONS = (
    "Dr. St. Jr. Sr. Ave. dept. Fr. Hr. Nr. Str. bzw. ca. evtl. ggf. inkl. sog. vgl. Mme. Mlle. av. Sra. Srta. "
    "Ud. Uds. pág. Dott. Sig. ul. im. Jan. Feb. Mar. Apr. Aug. Sept. Oct. Nov. Dec."
).split()
_NEVER_LAST = frozenset(
    word for word in (*ABBREVIATIONS, *NUMBERED_ABBREVIATIONS, *_OTHER_ABBREVIATIONS) if word.endswith(".")
) - {"No.", "no.", "min.", "max.", "al."}
_MAX_LIST_NUMBER_DIGITS = 3


class Boundary(IntEnum):
    """Kinds of boundaries, from weakest to strongest."""

    NOTHING = 0
    WORD = 1
    CLAUSE = 2
    SENTENCE = 3


class BoundaryDetector:
    """Classify boundaries from the characters in order; ``boundary_before`` takes a visible character."""

    def __init__(self) -> None:
        self._mark = Boundary.NOTHING
        self._mark_needs_space = True
        self._gap = False
        self._num_breaks = 0
        self._word = ""
        self._word_begins_line = True

    @property
    def possible(self) -> Boundary:
        """The strongest ending that what comes after this white space can reveal; another line break may."""
        return max(self._mark, Boundary.SENTENCE if self._num_breaks else Boundary.WORD)

    def push_space(self, character: str) -> None:
        self._gap = True
        self._num_breaks += character in _LINE_BREAKS

    def skip_words(self, words: str, following: str) -> None:
        """Record words, each with a space behind it, and the beginning of another, without finding boundaries."""
        if words:
            self._gap, self._num_breaks = True, 0
        if not following:
            return
        self._begin_word()
        self._word = (self._word + following)[-_MAX_WORD_CHARS:]
        if last := following.rstrip(_CLOSERS)[-1:]:
            self._record_mark(last)

    def boundary_before(self, character: str) -> Boundary:
        """Return the boundary in front of this visible character."""
        ending = self._ending_before(character)
        self._begin_word()
        self._word = (self._word + character)[-_MAX_WORD_CHARS:]
        self._record_mark(character)
        return ending

    def _begin_word(self) -> None:
        if self._gap:
            self._word_begins_line = self._num_breaks > 0
            self._mark, self._word, self._gap, self._num_breaks = Boundary.NOTHING, "", False, 0

    def _ending_before(self, character: str) -> Boundary:
        if self._gap:
            return max(self._confirmed(character), Boundary.WORD, _of_breaks(self._num_breaks))
        goes_on = self._mark_needs_space or character in _CLOSERS or _mark_of(character) is not Boundary.NOTHING
        return Boundary.NOTHING if goes_on else self._mark

    def _confirmed(self, character: str) -> Boundary:
        """A sentence goes on after a mark if a small letter follows or an abbreviation stands before."""
        if self._mark is not Boundary.SENTENCE or not self._mark_needs_space:
            return self._mark
        if character.islower():
            return Boundary.CLAUSE
        return Boundary.WORD if self._is_abbreviation(character) else Boundary.SENTENCE

    def _is_abbreviation(self, next_character: str) -> bool:
        word = self._word.strip(_AROUND_WORD)
        letters = word.rstrip(".")
        if not word.endswith(".") or word.endswith(".."):
            return False
        if letters.isdigit():
            return self._word_begins_line and len(letters) <= _MAX_LIST_NUMBER_DIGITS
        is_initials = all(len(part) == 1 and part.isalpha() for part in letters.split("."))
        is_numbered = word in NUMBERED_ABBREVIATIONS and next_character.isdigit()
        return word in _NEVER_LAST or is_numbered or (is_initials and letters != "I")

    def _record_mark(self, character: str) -> None:
        mark = _mark_of(character)
        if mark is not Boundary.NOTHING:
            self._mark = mark
            self._mark_needs_space = character not in _WIDE_SENTENCE_MARKS + _WIDE_CLAUSE_MARKS
        elif character not in _CLOSERS:
            self._mark = Boundary.NOTHING
            self._mark_needs_space = True


def strongest_boundary(text: str) -> Boundary:
    """Return the strongest boundary in a text, or at its end as far as is known."""
    detector, strongest = BoundaryDetector(), Boundary.NOTHING
    for character in text:
        if character.isspace():
            detector.push_space(character)
        else:
            strongest = max(strongest, detector.boundary_before(character))
    return max(strongest, detector.possible)


def _mark_of(character: str) -> Boundary:
    if character in _SENTENCE_MARKS:
        return Boundary.SENTENCE
    return Boundary.CLAUSE if character in _CLAUSE_MARKS else Boundary.NOTHING


def _of_breaks(num_breaks: int) -> Boundary:
    """A line ends at least a clause, a paragraph a sentence."""
    if num_breaks == 0:
        return Boundary.NOTHING
    return Boundary.CLAUSE if num_breaks == 1 else Boundary.SENTENCE
