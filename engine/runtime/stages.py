"""What a family hands over to be run by a pipelined engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from engine.config import EngineConfig
from engine.memory.kv_cache import PagedKV
from engine.memory.prefix_cache import PrefixCache
from engine.models.base import SpeechModel
from engine.runtime.graph_decode_stage import GraphDecodeStage
from engine.runtime.graph_runner import GraphRunner


class GraphStageFactories(NamedTuple):
    """The decode stage, and a maker of the runner over an engine's own cache."""

    decode: GraphDecodeStage
    make_runner: Callable[[SpeechModel, PagedKV, PrefixCache, EngineConfig], GraphRunner]
