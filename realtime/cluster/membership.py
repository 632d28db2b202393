"""What a gateway gets from its cluster in place of its own parts."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from realtime.auth import Authenticator
from realtime.cluster.leased_counters import LeasedUsageCounters, leased_limits
from realtime.cluster.link import ClusterLink
from realtime.cluster.replicated_stores import ReplicatedLexiconStore, ReplicatedVoiceStore
from realtime.config import ServerConfig
from sessions.admission import UsageCounters
from sessions.lexicon_store import LEXICON_FOLDER, LexiconStore
from sessions.owned_files import voices_folder
from sessions.voices.store import VoiceStore


@dataclass(frozen=True, slots=True)
class ClusterMembership:
    """``context`` renews the leases. Outside a cluster it does nothing, and the stores are ``None``."""

    counters: UsageCounters
    context: AbstractAsyncContextManager[None]
    voices: VoiceStore | None = None
    lexicons: LexiconStore | None = None


def join_cluster(config: ServerConfig, keys: Authenticator, counters: UsageCounters) -> ClusterMembership:
    if (link := ClusterLink.from_environment(os.environ)) is None:
        return ClusterMembership(counters, nullcontext())
    leased = LeasedUsageCounters(counters, leased_limits(config.limits, keys))
    folder, voices = voices_folder(config.voices.folder), config.voices
    return ClusterMembership(
        leased,
        link.open(leased),
        ReplicatedVoiceStore(folder, link, voices.max_voices, voices.max_voices_per_key),
        ReplicatedLexiconStore(folder / LEXICON_FOLDER, link),
    )
