"""Random numbers from the operating system, which cannot be reproduced from a seed."""

from __future__ import annotations

import math
import os

import numpy as np
from scipy.special import ndtri


def secret_normals(*shape: int) -> np.ndarray:
    """Return an array of independent standard normal numbers, each from 53 bits of ``os.urandom``."""
    uniform = (secret_words(math.prod(shape)) >> np.uint64(11)).astype(float)
    return np.asarray(ndtri((uniform + 0.5) / 2**53)).reshape(shape)


def secret_draw(rows: int, rate: float) -> np.ndarray:
    """Return the indices of a Poisson sample of ``rows`` rows: each with a probability in (rate − 2⁻⁶⁴, rate]."""
    if rate >= 1:
        return np.arange(rows)
    return np.flatnonzero(secret_words(rows) < np.uint64(math.floor(rate * 2**64)))


def secret_words(count: int) -> np.ndarray:
    """Return ``count`` random uint64 numbers from ``os.urandom``."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)
