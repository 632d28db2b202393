"""Configuration files of checkpoints: typed values out of JSON, and errors that name file, key and value. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError


class Section:
    """One mapping of a JSON file; reads typed values and names file and key when one is missing or wrong."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, Mapping):
            raise CheckpointError(f"{where} is {type(values).__name__}; it must be an object")
        self.values, self.where = values, where

    def get(self, key: str, kind: type | tuple[type, ...]) -> Any:
        if key not in self.values:
            raise CheckpointError(f"{self.where} has no key {key!r}")
        value = self.values[key]
        if isinstance(value, bool) is not (kind is bool) or not isinstance(value, kind):
            raise CheckpointError(f"{self.where}: {key!r} is {value!r}; its type must be {kind}")
        return value

    def positive(self, key: str) -> int:
        value: int = self.get(key, int)
        if value <= 0:
            raise CheckpointError(f"{self.where}: {key!r} is {value}; it must be positive")
        return value

    def number(self, key: str) -> float:
        return float(self.get(key, (int, float)))

    def positives(self, key: str) -> tuple[int, ...]:
        values = self.get(key, list)
        if not values or any(not isinstance(v, int) or v <= 0 for v in values):
            raise CheckpointError(f"{self.where}: {key!r} is {values!r}; it must list positive integers")
        return tuple(values)

    def section(self, key: str) -> Section:
        return Section(self.get(key, Mapping), f"{self.where}: {key}")

    def fixed(self, key: str, *known: object) -> None:
        """A key that may be there, with one of the values that are built."""
        value = self.values.get(key, known[0])
        if value not in known:
            wanted = ", ".join(map(repr, known))
            raise CheckpointError(f"{self.where}: {key!r} is {value!r}; what is built here: {wanted}")


def read_json(path: Path) -> Section:
    """Raises ``CheckpointError`` naming the file when it is missing or no JSON."""
    try:
        return Section(json.loads(path.read_text(encoding="utf-8")), path.name)
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}; it is no checkpoint folder") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from None
