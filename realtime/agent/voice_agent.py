"""The built-in agent of a server: its language model and its recognizer, shared by all conversations."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from realtime.agent.agent_conversation import AgentConversation
from realtime.agent.agent_file import load_agent_file
from realtime.agent.backend import Backend, BackendFailed
from realtime.agent.language_model import LanguageModel
from realtime.agent.recognizer import Recognizer
from realtime.calls.connection import barge_in_settings
from realtime.config import ConfigError, ServerConfig
from realtime.protocol.agent_turns import AgentAbility
from realtime.tracing import SpanRecorder
from sessions.metrics import Metrics
from sessions.vad.scheduler import VadScheduler
from sessions.vad.turns import PlayoutLevelDb, no_playout

log = logging.getLogger("voicewire.agent")

# Variables with the API keys of the two servers.
LLM_KEY = "VOICEWIRE_AGENT_LLM_KEY"
STT_KEY = "VOICEWIRE_AGENT_STT_KEY"


class VoiceAgent:
    """Made by ``load_agent``. Call ``aclose``."""

    def __init__(
        self,
        config: ServerConfig,
        llm_url: str,
        environment: Mapping[str, str],
        metrics: Metrics,
        vad_scheduler: VadScheduler,
        tracer: SpanRecorder,
    ) -> None:
        file, settings = load_agent_file(config.agent.file), config.agent
        self.settings, self.phrases = settings, file.phrases
        self.metrics, self.vad_scheduler, self.tracer = metrics, vad_scheduler, tracer
        self.vad_settings = barge_in_settings(config.calls)
        timeout_s = settings.connect_timeout_s
        llm = Backend("language model", "llm_failed", llm_url, environment.get(LLM_KEY, ""), timeout_s)
        self.model = LanguageModel(llm, settings, file)
        self.recognizer: Recognizer | None = None
        if settings.stt_url is not None:
            stt = Backend("recognizer", "stt_failed", settings.stt_url, environment.get(STT_KEY, ""), timeout_s)
            self.recognizer = Recognizer(stt, settings, file.language)

    @property
    def ability(self) -> AgentAbility:
        return "text" if self.recognizer is None else "audio"

    def open_conversation(self, playout_level_db: PlayoutLevelDb = no_playout) -> AgentConversation:
        """``playout_level_db``: level of the speech whose echo the user's audio may hold."""
        return AgentConversation(self, playout_level_db)

    async def start(self) -> None:
        """Log a warning if the language model does not answer: it may be started later."""
        try:
            await self.model.check()
        except BackendFailed as error:
            log.warning("agent is not ready", extra={"code": error.code, "reason": str(error)})

    async def aclose(self) -> None:
        await self.model.aclose()
        if self.recognizer is not None:
            await self.recognizer.aclose()


def load_agent(
    config: ServerConfig,
    environment: Mapping[str, str],
    metrics: Metrics,
    vad_scheduler: VadScheduler,
    tracer: SpanRecorder,
) -> VoiceAgent | None:
    """Return the agent; ``None`` without ``agent.llm_url``. Raises ``ConfigError``."""
    if config.agent.llm_url is not None:
        return VoiceAgent(config, config.agent.llm_url, environment, metrics, vad_scheduler, tracer)
    for name in ("stt_url", "file"):
        if getattr(config.agent, name) is not None:
            raise ConfigError(f"agent.{name} needs agent.llm_url (--llm)")
    return None
