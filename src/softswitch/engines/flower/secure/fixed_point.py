"""Directions as whole numbers below 2³², in which masks cancel exactly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from softswitch.engines.flower import wire
from softswitch.engines.flower.compressed.codes import arrays_of, vector_of

UNITS = 2**30
"""As many stand for the largest entry that a weighted sum can have: half of what fits, so that nothing runs over."""


def in_units(direction: Mapping[str, np.ndarray], weight: float, limit: float) -> np.ndarray:
    """A weighted direction, each entry rounded to the nearest unit; negative ones count down from 2³².

    Args:
        direction: whose norm is at most the limit.
        weight: the client's; all clients' sum to 1 at most.
        limit: the largest norm.
    """
    scaled = vector_of(direction).astype(np.float64) * (weight * UNITS / limit)
    return np.rint(scaled).astype(np.int64).astype(np.uint32)


def out_of_units(total: np.ndarray, limit: float, like: Mapping[str, wire.Shape]) -> wire.Arrays:
    """A sum of such numbers as arrays.

    Args:
        total: the sum, without masks.
        limit: the largest norm.
        like: the arrays' shapes.
    """
    wide = {name: wire.Shape(shape.shape, "float64") for name, shape in like.items()}
    return arrays_of(total.astype(np.uint32).view(np.int32).astype(np.float64) * (limit / UNITS), wide)
