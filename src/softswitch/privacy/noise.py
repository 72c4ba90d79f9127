"""Random numbers from the operating system, which cannot be reproduced from a seed."""

from __future__ import annotations

import math
import os

import numpy as np
from scipy.special import ndtri


def secret_normals(*shape: int) -> np.ndarray:
    """Return independent standard normal numbers, each from 53 random bits."""
    uniform = (secret_words(math.prod(shape)) >> np.uint64(11)).astype(float)
    return np.asarray(ndtri((uniform + 0.5) / 2**53)).reshape(shape)


def secret_draw(rows: int, rate: float) -> np.ndarray:
    """Return the row indices of a Poisson sample; the probability is at most ``rate``, and less than 2⁻⁶⁴ below it."""
    if rate >= 1:
        return np.arange(rows)
    return np.flatnonzero(secret_words(rows) < np.uint64(math.floor(rate * 2**64)))


def secret_words(count: int) -> np.ndarray:
    """Return random words of 64 bits."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)
