"""Noisy sums of rows, computed in integers, and secret random numbers from the operating system's entropy.

A float with Gaussian noise reveals more than the noise hides: from a given sum, only some floats can be reached. So
each row's clipped contribution is rounded to a grid. Contributions and noise are integers, and only noisy totals become
floats. OpenDP draws the noise from the exact discrete Gaussian distribution.
"""

from __future__ import annotations

import math
import os
from functools import lru_cache
from typing import Any

import numpy as np
from array_api_compat import array_namespace

RESOLUTION = 2**24  # number of grid intervals in the clipping norm
MAX_SCALE = 2.0**58  # of the noise, in grid intervals; 64-bit integers are 32 times as large


def quantize_rows(rows: Any, clip: Any) -> Any:
    """Return rows (rows × entries, in float64), clipped to norm ``clip``, as integers in grid intervals.

    −∞ and NaN count as 0, ∞ as very large. The norm of a row of the result is at most ``sensitivity(entries)``.
    """
    xp = array_namespace(rows)
    rows = xp.where(rows == xp.inf, xp.finfo(rows.dtype).max, rows)
    rows = xp.where(xp.isfinite(rows), rows, xp.zeros_like(rows))
    with np.errstate(over="ignore", under="ignore"):
        largest = xp.max(xp.abs(rows), axis=1, keepdims=True)
        unit = rows / xp.where(largest > 0, largest, xp.ones_like(largest))  # large entries would overflow in the norm
        norm = xp.linalg.vector_norm(unit, axis=1, keepdims=True)
        share = xp.minimum(largest / clip, 1 / xp.where(norm > 0, norm, xp.ones_like(norm)))
    return xp.astype(xp.round(unit * share * RESOLUTION), xp.int64)


def sensitivity(entries: int) -> float:
    """Return the largest norm of a row's contribution, a vector of this many integers, in grid intervals.

    Rounding to the grid changes an entry by at most 1/2. The relative error of norms in float64 is less than
    (entries + 8)·2⁻⁵⁰.
    """
    return RESOLUTION * (1 + (entries + 8) * 2.0**-50) + math.sqrt(entries) / 2


def add_noise(sums: np.ndarray, multiplier: float) -> np.ndarray:
    """Return integer sums (… × entries) with discrete Gaussian noise, in units of the clipping norm.

    ``multiplier`` is the standard deviation of the noise divided by the sensitivity.
    """
    if sums.dtype != np.int64:
        raise TypeError(f"sums must be integers of dtype int64, but have dtype {sums.dtype}")
    noise = discrete_gaussian(sums.size, multiplier * sensitivity(sums.shape[-1])).reshape(sums.shape)
    return np.asarray((sums + noise) / RESOLUTION)


def discrete_gaussian(count: int, scale: float) -> np.ndarray:
    """Return ``count`` independent integers from the discrete Gaussian distribution with parameter ``scale``.

    Raise ValueError if the noise may not fit into 64 bits: sums with saturated noise would be exact.
    """
    if scale > MAX_SCALE:
        maximum = MAX_SCALE / RESOLUTION
        raise ValueError(f"noise must be at most {maximum:.2g} clipping norms, but is {scale / RESOLUTION:.2g}")
    return np.array(_sampler(scale)([0] * count), np.int64)


@lru_cache(maxsize=64)
def _sampler(scale: float) -> Any:
    try:
        import opendp.prelude as opendp
    except ImportError as error:
        raise ImportError("privacy needs OpenDP: pip install 'softswitch[privacy]'") from error
    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T=opendp.i64)), opendp.l2_distance(T=float)
    return opendp.m.make_gaussian(*space, scale=scale)


def secret_draw(rows: int, rate: float) -> np.ndarray:
    """Return the indices of a Poisson sample of ``rows`` rows: each with a probability in (rate − 2⁻⁶⁴, rate]."""
    if rate >= 1:
        return np.arange(rows)
    words = np.frombuffer(os.urandom(8 * rows), np.uint64)
    return np.flatnonzero(words < np.uint64(math.floor(rate * 2**64)))
