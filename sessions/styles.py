"""Settings of the parts of a response whose markup changes voice, language or rate."""

from __future__ import annotations

from dataclasses import replace

from engine.api import SpeechError
from sessions.config import SpeechSettings
from sessions.languages import known_language
from sessions.session_services import SessionServices
from sessions.text.ssml.parser import MAX_EMOTION_CHARS, MarkupContext
from sessions.text.ssml.style import SpeechStyle
from sessions.validation import resolve_settings

# The instruction of a style, behind those of the response.
EMOTION = "Tone of voice: {}."


class StyleResolver:
    """Finds voices once, when the text names them: what is stored or deleted later changes nothing."""

    def __init__(self, settings: SpeechSettings, key: str, services: SessionServices) -> None:
        self._settings = settings
        self._key = key
        self._services = services
        # Settings with another voice, by its name.
        self._by_voice: dict[str, SpeechSettings] = {}

    @property
    def context(self) -> MarkupContext:
        num_free = self._services.limits.max_instruct_chars - len(self._settings.instruct)
        takes_emotion = self._services.engine.info.takes_instruct and num_free > len(EMOTION) + MAX_EMOTION_CHARS
        return MarkupContext(self._settings.language, self._find_voice, self._find_language, takes_emotion)

    def settings_for(self, style: SpeechStyle) -> SpeechSettings:
        """Return the settings of a segment; ``speed`` is that of its playback."""
        base = self._settings if style.voice is None else self._by_voice[style.voice]
        language = base.language if style.language is None else style.language
        emotion = EMOTION.format(style.emotion) if style.emotion else ""
        instruct = f"{base.instruct} {emotion}".strip()
        return replace(base, language=language, speed=base.speed * style.speed, instruct=instruct)

    def _find_voice(self, name: str) -> bool:
        """Reads the file of a stored voice, as the start of a response does."""
        try:
            wanted = replace(self._settings, voice=name, clone=None)
            settings = resolve_settings(wanted, self._key, self._services)
        except SpeechError:
            return False
        self._by_voice[name] = settings
        if settings.clone is None:
            self._services.engine.prefetch_voices([name])
        return True

    def _find_language(self, name: str) -> str | None:
        return known_language(name, self._services.engine.info.languages)
