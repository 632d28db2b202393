"""Test vectors: what a test reads as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent


def read_lines(name: str) -> list[Any]:
    """The values of a JSONL file, one a line."""
    return [json.loads(line) for line in (VECTORS / name).read_text(encoding="utf-8").split("\n") if line]
