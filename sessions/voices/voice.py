"""A stored voice: the model's input for it, and its description."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from engine.api import InvalidRequest

if TYPE_CHECKING:
    from engine.api import ClonedVoice

# The owner of voices that every key may speak with: those that the operator added.
SHARED = ""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
MAX_CONSENT_CHARS = 2_000
MAX_DESCRIPTION_CHARS = 2_000
MAX_TRANSCRIPT_CHARS = 2_000


class VoiceManifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about a stored voice but its numbers."""

    name: str
    # Name of the API key that added it.
    owner: str = SHARED
    # Name of the checkpoint that encoded the recording, or for which the embedding was made.
    model: str = ""
    # Seconds since 1970.
    created_s: int = 0
    # Consent of the speaker: a statement, or the place of one.
    consent: str = ""
    description: str = ""
    # Transcript of the recording; voices with a transcript are cloned in context.
    transcript: str = ""
    # ``audio``, ``embedding`` or ``blend``.
    source: str = ""
    # Length of the recording.
    sample_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StoredVoice:
    manifest: VoiceManifest
    clone: ClonedVoice


def check_name(name: str) -> None:
    """Check the name of a voice; raises ``InvalidRequest``."""
    if not NAME.fullmatch(name):
        rule = "1 to 64 letters, digits, '.', '_' and '-', of ASCII, the first a letter or digit"
        raise InvalidRequest(f"name must be {rule}; is {name[:80]!r}", "name")


def check_manifest(manifest: VoiceManifest) -> None:
    """Check the fields of a manifest; raises ``InvalidRequest``, which names the field."""
    check_name(manifest.name)
    if not manifest.consent.strip():
        raise InvalidRequest("consent is empty: say how the speaker agreed to this voice", "consent")
    for field, limit in (
        ("consent", MAX_CONSENT_CHARS),
        ("description", MAX_DESCRIPTION_CHARS),
        ("transcript", MAX_TRANSCRIPT_CHARS),
    ):
        if (num_chars := len(getattr(manifest, field))) > limit:
            raise InvalidRequest(f"{field} has {num_chars} characters, at most {limit} are allowed", field)
