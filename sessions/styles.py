"""What the settings make of text: what reads it, and the settings of parts with another voice, language or rate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from engine.api import EngineInfo, InvalidRequest, SpeechError, UnknownVoice
from sessions.config import Markup, SpeechSettings
from sessions.languages import known_language
from sessions.text.dead_air import DeadAirRule
from sessions.text.lexicons.reader import LexiconReader
from sessions.text.segmenter import SegmenterSettings
from sessions.text.ssml.inline import InlineForms
from sessions.text.ssml.items import MarkupParser
from sessions.text.ssml.parser import MAX_EMOTION_CHARS, MarkupContext, SsmlParser
from sessions.text.ssml.speaker_lines import SpeakerLines
from sessions.text.ssml.style import SpeechStyle
from sessions.text.ssml.tokens import MarkupTokenizer, PlainTokenizer, TagTokenizer
from sessions.text_track import TextTrack
from sessions.validation import resolve_settings

if TYPE_CHECKING:
    from sessions.checkpoint import EarlyCut
    from sessions.session_services import SessionServices
    from sessions.timeline import ResponseTimeline

# The instruction of a style, behind those of the response.
EMOTION = "Tone of voice: {}."


class StyleResolver:
    """Finds voices once, when settings or text name them: what is stored or deleted later changes nothing."""

    def __init__(self, settings: SpeechSettings, key: str, services: SessionServices) -> None:
        """Raises ``UnknownVoice`` as ``resolve_speakers`` does."""
        self._settings = settings
        self._key = key
        self._services = services
        # Settings with another voice, by its name.
        self._by_voice = resolve_speakers(settings, key, services)
        self._prefetch(self._by_voice)

    @property
    def context(self) -> MarkupContext:
        return MarkupContext(
            language=self._settings.language,
            has_voice=self._find_voice,
            find_language=self._find_language,
            takes_emotion=self._takes_emotion,
            reads_phonemes=reads_phonemes(self._settings, self._services.engine.info),
            speakers=self._settings.speakers,
        )

    def settings_for(self, style: SpeechStyle) -> SpeechSettings:
        """Return the settings of a segment; ``speed`` is that of its playback."""
        base = self._settings if style.voice is None else self._by_voice[style.voice]
        language = base.language if style.language is None else style.language
        instruct = base.instruct if not style.emotion else self._instruct(style.emotion)
        return replace(base, language=language, speed=base.speed * style.speed, instruct=instruct)

    def _instruct(self, emotion: str) -> str:
        if self._services.engine.info.instructions:  # one at a time
            return emotion
        return f"{self._settings.instruct} {EMOTION.format(emotion)}".strip()

    def _takes_emotion(self, emotion: str) -> bool:
        info = self._services.engine.info
        if info.instructions:
            return emotion in info.instructions
        num_free = self._services.limits.max_instruct_chars - len(self._settings.instruct)
        return info.takes_instruct and num_free > len(EMOTION) + MAX_EMOTION_CHARS

    def _find_voice(self, name: str) -> bool:
        """Reads the file of a stored voice, as the start of a response does."""
        if name in self._by_voice:
            return True
        try:
            settings = resolve_settings(with_voice(self._settings, name), self._key, self._services)
        except SpeechError:
            return False
        self._by_voice[name] = settings
        self._prefetch([name])
        return True

    def _prefetch(self, names: Iterable[str]) -> None:
        if built_in := [name for name in names if self._by_voice[name].clone is None]:
            self._services.engine.prefetch_voices(built_in)

    def _find_language(self, name: str) -> str | None:
        return known_language(name, self._services.engine.info.languages)


def with_voice(settings: SpeechSettings, name: str) -> SpeechSettings:
    """The same settings with another voice, and without speakers."""
    return replace(settings, voice=name, clone=None, speakers={})


def resolve_speakers(settings: SpeechSettings, key: str, services: SessionServices) -> dict[str, SpeechSettings]:
    """Return the settings of each voice that ``speakers`` names. Raises ``UnknownVoice``."""
    by_voice: dict[str, SpeechSettings] = {}
    for label, name in settings.speakers.items():
        if name in by_voice:
            continue
        try:
            by_voice[name] = resolve_settings(with_voice(settings, name), key, services)
        except InvalidRequest as error:
            raise UnknownVoice(f"speakers: {label!r} has no voice: {error}", "speakers") from None
    return by_voice


def normalizes_text(settings: SpeechSettings, info: EngineInfo) -> bool:
    return info.normalize_text if settings.normalize_text is None else settings.normalize_text


def reads_phonemes(settings: SpeechSettings, info: EngineInfo) -> bool:
    """Return whether phonemes reach the model as they are; the normalizer would change them."""
    return info.reads_phonemes and not normalizes_text(settings, info)


def create_text_track(
    settings: SpeechSettings,
    styles: StyleResolver | None,
    info: EngineInfo,
    timeline: ResponseTimeline,
    cuts: Iterable[EarlyCut],
) -> TextTrack:
    """Return the text of a response, which makes the ``cuts`` again."""
    return TextTrack(
        timeline,
        normalizes_text(settings, info),
        _segmenter_settings(info.max_text_tokens, reads_phonemes(settings, info)),
        DeadAirRule(enabled=settings.avoid_dead_air),
        create_parser(settings, styles, info),
        cuts,
    )


@cache
def _segmenter_settings(max_tokens: int, keeps_phonemes: bool) -> SegmenterSettings:
    return SegmenterSettings(max_segment_tokens=max_tokens, reads_phonemes=keeps_phonemes)


def create_parser(settings: SpeechSettings, styles: StyleResolver | None, info: EngineInfo) -> MarkupParser | None:
    """Return what reads the text before it is normalized; ``None`` if nothing is to be read."""
    if styles is None and not settings.lexicons:
        return None
    parser = SsmlParser(None if styles is None else styles.context, create_tokenizer(settings))
    if not settings.lexicons:
        return parser
    return LexiconReader(parser, settings.lexicons, settings.language, reads_phonemes(settings, info))


def create_tokenizer(settings: SpeechSettings) -> TagTokenizer:
    tokenizer: TagTokenizer = MarkupTokenizer() if settings.markup is Markup.SSML else PlainTokenizer()
    if settings.inline_forms:
        tokenizer = InlineForms(settings.inline_forms, tokenizer)
    return SpeakerLines(tokenizer, settings.speakers) if settings.speakers else tokenizer
