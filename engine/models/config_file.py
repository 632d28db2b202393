"""Configuration files of checkpoints: typed values out of JSON, and errors that name file, key and value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from engine.errors import CheckpointError
from engine.layers.transformer import TransformerConfig

# Of any width, row count or number of positions; released ones end at 151,936.
MAX_SIZE = 2**20
# Of layers, heads, books, or entries of a list.
MAX_COUNT = 256
MIN_NUMBER, MAX_NUMBER = 1e-30, 1e30
MAX_DISPLAY_CHARS = 80

Config = TypeVar("Config")
# Fields of a configuration that are read from a section, by the method of ``ConfigSection`` that reads them.
Size = Annotated[int, "positive"]
Count = Annotated[int, "count"]
Id = Annotated[int, "integer"]
Scale = Annotated[float, "positive_number"]
Sizes = Annotated[tuple[int, ...], "positives"]
NO_KEYS: Mapping[str, str] = {}


class ConfigSection:
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

    def read(self, kind: type[Config], keys: Mapping[str, str] = NO_KEYS, **known: Any) -> Config:
        """A configuration of what is ``known`` and, for fields of type ``Size``, ``Count`` and so on, of this section.

        A field is read from the key of its name, or from the key that ``keys`` has for it.
        """
        for name, hint in get_type_hints(kind, include_extras=True).items():
            if name not in known and hasattr(hint, "__metadata__"):
                known[name] = getattr(self, hint.__metadata__[0])(keys.get(name, name))
        return kind(**known)

    def integer(self, key: str) -> int:
        value: int = self.get(key, int)
        return value

    def positive(self, key: str, most: int = MAX_SIZE) -> int:
        """1 to ``most``, so that nothing is made whose size no file could fill."""
        value: int = self.get(key, int)
        if not 0 < value <= most:
            found = f"{self.where}: {key!r} is {truncate_value(value)}"
            raise CheckpointError(f"{found}; it must be positive and at most {most}")
        return value

    def count(self, key: str) -> int:
        return self.positive(key, MAX_COUNT)

    def number(self, key: str, least: float = -MAX_NUMBER) -> float:
        value: int | float = self.get(key, (int, float))
        if not least <= value <= MAX_NUMBER:  # nor NaN
            limits = f"{least:g}..{MAX_NUMBER:g}"
            raise CheckpointError(f"{self.where}: {key!r} is {truncate_value(value)}; it must lie in {limits}")
        return float(value)

    def positive_number(self, key: str) -> float:
        return self.number(key, MIN_NUMBER)

    def positives(self, key: str) -> tuple[int, ...]:
        values = self.get(key, list)
        if not 0 < len(values) <= MAX_COUNT or any(type(v) is not int or not 0 < v <= MAX_SIZE for v in values):
            raise CheckpointError(f"{self.where}: {key!r} is {truncate_value(values)}; it must list positive integers")
        return tuple(values)

    def names(self, key: str, kind: type) -> dict[str, Any]:
        """An object, its keys in lower case and each of its values of one kind."""
        found = self.section(key)
        return {name.lower(): found.get(name, kind) for name in found.values}

    def section(self, key: str) -> ConfigSection:
        return ConfigSection(self.get(key, Mapping), f"{self.where}: {key}")

    def require_one_of(self, key: str, *known: object) -> None:
        """A key that may be there, with one of the values that are built."""
        value = self.values.get(key, known[0])
        if value not in known:
            wanted = ", ".join(map(repr, known))
            raise CheckpointError(f"{self.where}: {key!r} is {value!r}; what is built here: {wanted}")


def truncate_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_DISPLAY_CHARS else text[:MAX_DISPLAY_CHARS] + " ..."


def read_rope_theta(section: ConfigSection) -> float:
    """Rope base of a transformer, from ``rope_parameters`` (transformers 5) or from ``rope_theta`` and
    ``rope_scaling``. Raises ``CheckpointError`` for a scaled rope, and where the two disagree.
    """
    if section.values.get("rope_parameters") is None:
        _check_rope(section.where, "rope_scaling", section.values.get("rope_scaling"))
        return section.positive_number("rope_theta")
    rope = section.section("rope_parameters")
    _check_rope(section.where, "rope_parameters", rope.values)
    theta = rope.positive_number("rope_theta")
    stated = section.values.get("rope_theta")
    if stated is not None and stated != theta:
        raise CheckpointError(f"{section.where}: 'rope_theta' is {stated!r}; 'rope_parameters' has {theta:g}")
    return theta


def read_transformer(section: ConfigSection, **known: Any) -> TransformerConfig:
    """Sizes of a transformer; ``known`` are fields that do not come from keys of their names."""
    heads, kv_heads = section.count("num_attention_heads"), section.count("num_key_value_heads")
    if heads % kv_heads:
        raise CheckpointError(f"{section.where}: {heads} heads cannot share {kv_heads} key-value heads")
    known = {"rope_theta": read_rope_theta(section)} | known
    if "head_dim" not in known:
        known["head_dim"] = section.positive("head_dim")
    return TransformerConfig(
        hidden_size=section.positive("hidden_size"),
        intermediate_size=section.positive("intermediate_size"),
        num_hidden_layers=section.count("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        rms_norm_eps=section.positive_number("rms_norm_eps"),
        **known,
    )


def _check_rope(where: str, key: str, scaling: object) -> None:
    """Accept plain rope alone: one row of positions turns all axes of ``mrope`` alike, so that is plain, too."""
    if scaling is None:
        return
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, Mapping) else scaling
    if kind not in ("default", "mrope"):
        raise CheckpointError(f"{where}: {key!r} is of type {kind!r}; what is built here: 'default'")


def read_json(path: Path) -> ConfigSection:
    """Read a JSON file. Raises ``CheckpointError`` naming it when it is missing or not JSON."""
    try:
        return ConfigSection(json.loads(path.read_text(encoding="utf-8")), path.name)
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}; it is no checkpoint folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from None
