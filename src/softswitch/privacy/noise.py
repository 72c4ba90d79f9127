"""Random numbers that nobody can repeat: from the operating system, not from a seed that a server knows."""

from __future__ import annotations

import math
import os

import numpy as np
from scipy.special import ndtri


def secret_normals(*shape: int) -> np.ndarray:
    """Independent Gaussian numbers of deviation 1, each from 53 random bits.

    Args:
        shape: of the array.
    """
    uniform = (secret_words(math.prod(shape)) >> np.uint64(11)).astype(float)
    return np.asarray(ndtri((uniform + 0.5) / 2**53)).reshape(shape)


def secret_draw(rows: int, rate: float) -> np.ndarray:
    """The indices of rows that are drawn each by itself: with at most this probability, by less than 2⁻⁶⁴.

    Args:
        rows: how many there are.
        rate: the probability; 1: all.
    """
    if rate >= 1:
        return np.arange(rows)
    return np.flatnonzero(secret_words(rows) < np.uint64(math.floor(rate * 2**64)))


def secret_choice(rows: int, taken: int) -> np.ndarray:
    """The indices of so many rows, all sets of them alike likely.

    Args:
        rows: how many there are.
        taken: how many are wanted.
    """
    return np.sort(np.argsort(secret_words(rows), kind="stable")[:taken])


def secret_words(many: int) -> np.ndarray:
    """So many random words of 64 bits.

    Args:
        many: how many.
    """
    return np.frombuffer(os.urandom(8 * many), np.uint64)
