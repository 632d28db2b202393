"""Imports kernels in Gluon, which Triton calls experimental. Itself imports no Triton."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

import torch

from engine.ops.tiles import NUM_MULTIPROCESSORS

log = logging.getLogger(__name__)


def import_gluon_kernel(module: str, name: str, otherwise: str) -> Any | None:
    """Import a kernel of ``engine.ops``; where this Triton lacks what it uses, log ``otherwise`` and return None."""
    try:
        return getattr(import_module(f"engine.ops.{module}"), name)
    except (ImportError, AttributeError, TypeError, ValueError, AssertionError) as error:
        log.warning("%s: %s", otherwise, error)
        return None


def num_multiprocessors(device: torch.device) -> int:
    """Return those of a GPU; of another device, those of the GPU that launch shapes were measured on."""
    if device.type != "cuda":
        return NUM_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count
