"""HyperPyYAML read as data: tags become plain values, references are followed, nothing is built or called. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from engine.errors import CheckpointError

# Key under which a mapping keeps what it was to be made into.
CLASS = "!"
MAX_BYTES = 2**20
# Followed one behind the other.
MAX_REFERENCES = 16
MAX_PRODUCT = 2**63
MAX_DISPLAY_CHARS = 80
REFERENCE = re.compile(r"<([A-Za-z_][A-Za-z0-9_]*)>")


# YAML 1.1 takes ``1e-6`` for a string; everybody means a number.
SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


class YamlReference(str):
    """The text of a ``!ref``: names in angle brackets, or a product of such and numbers."""


class _DataLoader(yaml.SafeLoader):
    """Knows every tag, and makes nothing but mappings, lists, strings and numbers.

    What YAML itself has for references is refused: a few lines of it can stand for any amount of data.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def _construct(loader: _DataLoader, tag: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {CLASS: tag, **loader.construct_mapping(node, deep=True)}
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    text = loader.construct_scalar(node)
    return YamlReference(text) if tag.startswith("ref") else text


_DataLoader.add_multi_constructor("!", _construct)
_DataLoader.add_implicit_resolver("tag:yaml.org,2002:float", SCIENTIFIC, list("-+0123456789."))


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in the file, references followed. Raises ``CheckpointError`` naming the file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{path}: has {path.stat().st_size} bytes; a configuration has at most {MAX_BYTES}")
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_DataLoader)
        if not isinstance(values, dict):
            raise CheckpointError(f"{path}: holds {type(values).__name__}, expected a mapping")
        return {key: _resolve(value, values, MAX_REFERENCES) for key, value in values.items()}
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}") from None
    except (OSError, UnicodeError, yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read as YAML: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _resolve(value: Any, names: Mapping[str, Any], num_left: int) -> Any:
    if isinstance(value, YamlReference):
        return _value_of(value, names, num_left)
    if isinstance(value, dict):
        return {key: _resolve(item, names, num_left) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, names, num_left) for item in value]
    return value


def _value_of(reference: YamlReference, names: Mapping[str, Any], num_left: int) -> Any:
    """A name, or a product of whole numbers; anything else stays the text that it is."""
    if not num_left:
        raise ValueError(f"{str(reference)!r} refers to itself")
    factors = [_factor(part.strip(), names, num_left) for part in reference.split("*")]
    if len(factors) == 1:
        return factors[0]
    if any(type(factor) is not int for factor in factors):
        return str(reference)
    product = 1
    for factor in factors:
        product *= factor
        if abs(product) > MAX_PRODUCT:
            raise ValueError(f"{str(reference)[:MAX_DISPLAY_CHARS]!r} makes more than {MAX_PRODUCT}")
    return product


def _factor(text: str, names: Mapping[str, Any], num_left: int) -> Any:
    found = REFERENCE.fullmatch(text)
    if found is None:
        return int(text) if text.isascii() and text.isdigit() else text
    if found[1] not in names:
        raise ValueError(f"{text} is nowhere defined")
    target = names[found[1]]
    # whole sections are referred to by training alone; copying them here would let a small file grow without end
    return _value_of(target, names, num_left - 1) if isinstance(target, YamlReference) else target
