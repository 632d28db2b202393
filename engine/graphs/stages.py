"""What a family hands over to be run by a pipelined engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from engine.cache.kv_cache import PagedKV
from engine.cache.prefix_cache import PrefixCache
from engine.config import EngineConfig
from engine.graphs.decode_stage import GraphDecodeStage
from engine.graphs.graph_runner import GraphRunner
from engine.models.base import SpeechModel


class GraphStageFactories(NamedTuple):
    """The decode stage, and a maker of the runner over an engine's own cache."""

    decode: GraphDecodeStage
    make_runner: Callable[[SpeechModel, PagedKV, PrefixCache, EngineConfig], GraphRunner]
