"""Exact confidence limits for a rate from counts (Clopper and Pearson, 1934).

Each of n independent rows counts with probability θ. P(Bin(n, θ) <= k) is a p-value of "the rate is at least θ" after k
rows counted. The upper limit with error probability p is the θ at which the p-value is p.
"""

from __future__ import annotations

import numpy as np
from scipy.special import betainc, betaincinv

from softswitch.support import checks
from softswitch.support.bisection import smallest_integer


class BinomialRate:
    """Upper confidence bounds for a rate, from the number of rows that count."""

    def __init__(self, count: int, rows: int) -> None:
        self.count, self.rows, self.estimate = count, rows, count / rows

    def p_value(self, mean: float) -> float:
        """Return the p-value of "the rate is at least ``mean``"."""
        return float(binomial_cdf(self.count, self.rows, mean))

    def p_values(self, means: np.ndarray) -> np.ndarray:
        """Return the p-values of several rates."""
        return binomial_cdf(self.count, self.rows, means)

    def upper(self, error: float) -> float:
        """Return the upper confidence limit with error probability ``error``."""
        return clopper_pearson_upper(self.count, self.rows, error)


def clopper_pearson_upper(count: float, rows: float, error: float) -> float:
    """Return the upper confidence limit of a rate with error probability ``error``."""
    return float(betaincinv(count + 1, rows - count, 1 - error)) if count < rows else 1.0


def binomial_cdf(count: float, rows: float, rate: np.ndarray | float) -> np.ndarray:
    """Return P(Bin(rows, rate) <= count), interpolated between integers by the incomplete beta function."""
    if count >= rows:
        return np.ones_like(np.asarray(rate, dtype=float))
    probability: np.ndarray = betainc(rows - count, count + 1, 1 - np.clip(rate, 0, 1))
    return probability


def rows_to_certify(
    bound: float, clients: int = 1, confidence: float = 0.95, *, errors: int = 0, each: bool = False
) -> int:
    """Return the number of rows that every client needs for a certificate of a rate.

    To certify "at most 5% missed at all of 20 hospitals" with 95% confidence, each hospital needs 59 held-out malignant
    cases, none of which is missed. To certify each hospital independently takes 117.

    Args:
        bound: Upper bound on the rate.
        clients: Number of clients.
        confidence: Confidence of the certificate.
        errors: Number of errors that each client may make on its rows.
        each: Whether a client should be certified even if no other client is.
    """
    level = 1 - checks.check_probability("confidence", confidence)
    checks.check_probability("bound", bound)
    allowed = checks.check_integer("errors", errors, minimum=0)
    level /= checks.check_integer("clients", clients, minimum=1) if each else 1
    rows = smallest_integer(lambda rows: bool(binomial_cdf(allowed, rows, bound) <= level), allowed)
    assert rows is not None
    return rows


def additional_rows(rows: int, rate: float, bound: float, error: float) -> int | None:
    """Return how many more rows of the same rate decide whether it is within the bound; None if more than 10¹²."""
    if rate > bound:
        rate, bound = 1 - rate, 1 - bound
    total = smallest_integer(lambda count: bool(binomial_cdf(rate * count, count, bound) <= error), rows, 10**12)
    return None if total is None else total - rows
