"""A model by the name it has on the hub, brought to a folder. No torch."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from engine.errors import CheckpointError

HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
FILES = ["*.json", "*.safetensors", "*merges.txt"]
COSYVOICE3_FILES = ["cosyvoice3.yaml", "llm.pt", "flow.pt", "hift.pt", "campplus.onnx", "speech_tokenizer_v3.onnx"]
# A checkpoint has one of them.
CONFIG_FILES = ("config.json", "cosyvoice3.yaml")
# Initial values that other files of that folder replace.
UNUSED = ["CosyVoice-BlankEN/*.safetensors"]

log = logging.getLogger(__name__)


def resolve_folder(model: Path) -> Path:
    """The folder ``model``, or what the hub has under OWNER/NAME or OWNER/NAME@REVISION.

    Raises ``CheckpointError`` when there is no such folder and the hub does not give the model, or is out of reach.
    """
    named = HUB_ID.fullmatch(str(model))
    if model.exists() or named is None:
        return model
    repo = named["repo"]
    log.info("%s is not a local directory; downloading from the hub", model)
    try:
        folder = _fetch(repo, named["revision"])
    except Exception as error:  # the hub's client raises its own, its HTTP library's and the system's
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason'}"
        raise CheckpointError(f"{model} is no folder here, and the hub did not give it: {reason}") from None
    if named["revision"] is None:
        commit = folder.name  # the hub's client names the folder of a snapshot after its commit
        log.warning(
            "%s is not pinned to a revision; the hub gave commit %s, pin it with %s@%s", repo, commit, repo, commit
        )
    return folder


def check_folder(folder: Path) -> None:
    """Raise ``CheckpointError`` for a folder that holds no checkpoint."""
    if not any((folder / name).exists() for name in CONFIG_FILES):
        raise CheckpointError(f"{folder} has no {CONFIG_FILES[0]}; it is no checkpoint folder")


def _fetch(repo: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    wanted = [*FILES, *COSYVOICE3_FILES]
    return Path(snapshot_download(repo, revision=revision, allow_patterns=wanted, ignore_patterns=UNUSED))
