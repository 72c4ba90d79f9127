"""Exact limits of a rate, from how many of n rows count (Clopper and Pearson, 1934).

Of n independent rows, each of which counts with probability θ, the number k that do is binomial. Whatever θ is, the
chance of so few as k, P(Bin(n, θ) <= k), is itself at most p with probability at most p: it is the p-value of "the rate
is θ or more". The upper limit at an error probability p is the θ at which it is p. No normal approximation is in it.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betainc, betaincinv

from softswitch.support import checks


class BinomialRate:
    """What is known of a rate from above, by how many of so many rows count."""

    def __init__(self, count: int, rows: int) -> None:
        self.count, self.rows, self.estimate = count, rows, count / rows

    def p_value(self, mean: float) -> float:
        """Of "the rate is this or more"."""
        return float(binomial_cdf(self.count, self.rows, mean))

    def p_values(self, means: np.ndarray) -> np.ndarray:
        """Of many of them."""
        return binomial_cdf(self.count, self.rows, means)

    def upper(self, error: float) -> float:
        """The rate is at most this, but for a chance of ``error``."""
        return clopper_pearson_upper(self.count, self.rows, error)


def clopper_pearson_upper(count: float, rows: float, error: float) -> float:
    """The rate is at most this, but for a chance of ``error``."""
    return float(betaincinv(count + 1, rows - count, 1 - error)) if count < rows else 1.0


def binomial_cdf(count: float, rows: float, rate: np.ndarray | float) -> np.ndarray:
    """The p-value of "the rate is this or more"; between whole counts by the incomplete beta function."""
    if count >= rows:
        return np.ones_like(np.asarray(rate, dtype=float))
    chance: np.ndarray = betainc(rows - count, count + 1, 1 - np.clip(rate, 0, 1))
    return chance


def rows_to_certify(
    bound: float, clients: int = 1, confidence: float = 0.95, *, errors: int = 0, each: bool = False
) -> int:
    """How many rows every client must have, so that a rate of at most ``bound`` can be certified.

    For a plan before training: "misses at most 5%, at all of 20 hospitals, with 95% confidence" takes 59 malignant
    cases held out at each of them, and not one of them missed; to certify hospitals one by one, whatever the others
    come to, takes 117.

    Args:
        bound: what the rate may be at most.
        clients: how many there are.
        confidence: of the certificate.
        errors: how many of its rows a client may get wrong.
        each: whether a client is to be certified also where no other one is.
    """
    level = 1 - checks.probability("confidence", confidence)
    checks.probability("bound", bound)
    wrong = checks.whole_number("errors", errors, at_least=0)
    level /= checks.whole_number("clients", clients, at_least=1) if each else 1
    low, high = wrong, max(2 * wrong, 1)
    while binomial_cdf(wrong, high, bound) > level:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if binomial_cdf(wrong, middle, bound) <= level else (middle, high)
    return high


def more_rows(rows: int, rate: float, bound: float, error: float) -> int | None:
    """How many more rows, of the same rate, show that it is within the bound, or above; None beyond 10¹²."""
    flip = rate > bound
    rate, bound = (1 - rate, 1 - bound) if flip else (rate, bound)
    low, high = rows, 2 * rows
    while binomial_cdf(rate * high, high, bound) > error:
        low, high = high, 2 * high
        if high > 10**12:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if binomial_cdf(rate * middle, middle, bound) <= error else (middle, high)
    return math.ceil(high - rows)
