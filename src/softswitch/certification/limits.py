"""Upper confidence limits of rates and of bounded means: the parameter at which the p-value is the error probability.

**Rates** (Clopper and Pearson, 1934). With k events in n rows, P(Bin(n, θ) <= k) is a p-value of a rate of at least θ.

**Means by betting** (Waudby-Smith and Ramdas, 2023). A test of "the mean of values in [0, 1] is at least m" starts with
a capital of 1. Before each value x_t it chooses a bet λ_t < 1/(1 − m) from the earlier values, and multiplies the
capital by 1 − λ_t (x_t − m). If the claim is true, the capital is a supermartingale, so the inverse of the largest
capital is a p-value (Ville's inequality). The bets are the paper's predictable plug-in, √(2 ln(1/p)/(n·variance so
far)), capped. Values are permuted with a fixed seed, so that sorted rows do not weaken the test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import bdtr, betainc, betaincinv, ndtri, rel_entr

from softswitch.support import checks
from softswitch.support.bisection import smallest_integer

MAX_BET = 0.75  # cap of the bets, as a share of the largest bet that keeps the capital positive
BELOW_ONE = math.nextafter(1.0, 0.0)  # the largest float64 below 1
MAX_BLOCKS = 2048  # largest number of blocks of values; the capital is computed after each block
MAX_ROWS = 10**12  # limit of the search for additional rows


@dataclass(frozen=True)
class BinomialRate:
    """Upper confidence limits of a rate, from ``count`` events in ``rows`` rows, by Clopper and Pearson."""

    count: int
    rows: int

    def p_value(self, mean: float) -> float:
        """Return the p-value of the null hypothesis that the rate is at least ``mean``."""
        return binomial_cdf(self.count, self.rows, mean)

    def upper(self, error: float) -> float:
        """Return the upper confidence limit of the rate with error probability ``error``."""
        return clopper_pearson_upper(self.count, self.rows, error)


@dataclass(frozen=True)
class NoisyMean:
    """Upper confidence limits of the mean of ``rows`` values in [0, 1], from the noisy sum ``total``."""

    total: float
    rows: int
    noise: float  # standard deviation of the noise
    binary: bool  # whether all values are 0 or 1

    def p_value(self, mean: float) -> float:
        """Return the smallest error probability >= e^−690 with which the upper limit is at most ``mean``; else 1."""
        if self.upper(1.0) > mean:
            return 1.0
        return math.exp(_bisect(lambda log: self.upper(math.exp(log)) <= mean, -690.0, 0.0))

    def upper(self, error: float) -> float:
        """Return the upper confidence limit of the mean with error probability ``error``."""
        total = max(self.total - float(ndtri(error / 2)) * self.noise, 0.0)
        if total >= self.rows:
            return 1.0
        if self.binary:
            return clopper_pearson_upper(math.floor(total), self.rows, error / 2)
        share, allowed = total / self.rows, math.log(2 / error) / self.rows
        return _bisect(lambda mean: rel_entr(share, mean) + rel_entr(1 - share, 1 - mean) >= allowed, share, 1.0)


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the smallest number in [low, high] at which a monotone condition holds, assuming that it does at high."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def clopper_pearson_upper(count: float, rows: float, error: float) -> float:
    """Return the upper limit of a rate, given ``count`` events in ``rows`` rows, with error probability ``error``."""
    return float(betaincinv(count + 1, rows - count, 1 - error)) if count < rows else 1.0


def binomial_cdf(count: float, rows: float, rate: float) -> float:
    """Return P(Bin(rows, rate) <= count); between integer counts, the incomplete beta function interpolates."""
    return float(betainc(rows - count, count + 1, 1 - min(max(rate, 0.0), 1.0))) if count < rows else 1.0


def allowed_errors(rows: int, bound: float, level: float) -> int:
    """Return the largest number of errors on ``rows`` rows with which the exact test certifies a bound; −1 if none."""
    return int((bdtr(np.arange(rows), rows, bound) <= level).sum()) - 1


def rows_to_certify(
    bound: float, clients: int = 1, confidence: float = 0.95, *, errors: int = 0, each: bool = False
) -> int:
    """Return the number of held-out rows that every client needs to certify that its rate is at most ``bound``.

    To certify "at most 5% missed at all of 20 hospitals" with 95% confidence, each hospital needs 59 held-out malignant
    cases, none of which is missed. To certify each hospital independently takes 117.

    Args:
        bound: Upper bound on the rate, in (0, 1).
        clients: Number of clients. Default: 1.
        confidence: Confidence of the certificate, in (0, 1). Default: 0.95.
        errors: Number of errors that each client may make on its rows. Default: 0.
        each: Whether a client should be certified even if no other client is. Default: False, all or none.
    """
    level = 1 - checks.check_probability("confidence", confidence)
    checks.check_probability("bound", bound)
    allowed = checks.check_integer("errors", errors, minimum=0)
    level /= checks.check_integer("clients", clients, minimum=1) if each else 1
    rows = smallest_integer(lambda rows: binomial_cdf(allowed, rows, bound) <= level, allowed)
    assert rows is not None
    return rows


def additional_rate_rows(rows: int, rate: float, bound: float, error: float) -> int | None:
    """Return how many more rows of the same rate decide whether it is within the bound; None if over ``MAX_ROWS``."""
    if rate > bound:
        rate, bound = 1 - rate, 1 - bound
    total = smallest_integer(lambda count: binomial_cdf(rate * count, count, bound) <= error, rows, MAX_ROWS)
    return None if total is None else total - rows


class BettingMean:
    """Upper confidence limits of the mean of values in [0, 1], by betting.

    The bets are tuned for the error probability ``error``; limits are valid for any other.
    """

    def __init__(self, values: np.ndarray, error: float) -> None:
        self.rows = len(values)
        self.estimate = float(values.mean())
        permuted = values[np.random.default_rng(self.rows).permutation(self.rows)]
        self._bets, self._values = self._split(bet_sizes(permuted, error)), self._split(permuted)

    def log_capital(self, mean: float) -> float:
        """Return the natural logarithm of the largest capital in the test of "the mean is at least ``mean``"."""
        if mean >= 1 and self.estimate != 1:
            return math.inf
        inside = min(mean, BELOW_ONE)
        factors = np.minimum(self._bets, MAX_BET / (1 - inside)) * (inside - self._values) + 1
        return max(0.0, float(np.cumsum(np.log(np.multiply.reduce(factors, axis=1))).max()))

    def p_value(self, mean: float) -> float:
        """Return the p-value of the null hypothesis that the mean is at least ``mean``."""
        return math.exp(-self.log_capital(mean))

    def upper(self, error: float) -> float:
        """Return the upper confidence limit of the mean with error probability ``error``."""

        def excess(mean: float) -> float:
            return self.log_capital(mean) - math.log(1 / error)

        if excess(BELOW_ONE) < 0:
            return 1.0
        if self.estimate >= BELOW_ONE or excess(self.estimate) >= 0:
            return self.estimate
        return min(1.0, brentq(excess, self.estimate, BELOW_ONE, xtol=1e-12, rtol=1e-12) + 2e-12)

    def _split(self, column: np.ndarray) -> np.ndarray:
        """Reshape to blocks × values, padded with zeros; products within a block neither underflow nor overflow."""
        width = min(32, max(1, math.ceil(self.rows / MAX_BLOCKS)))
        return np.concatenate([column, np.zeros(-self.rows % width)]).reshape(-1, width)


def bet_sizes(values: np.ndarray, error: float) -> np.ndarray:
    """Return the bet on each value, computed from the values before it, without the cap."""
    count = np.arange(1, len(values) + 1)
    means = (0.5 + np.cumsum(values)) / (count + 1)
    variance = (0.25 + np.cumsum(np.square(values - means))) / (count + 1)
    previous = np.concatenate([[0.25], variance[:-1]])
    return np.sqrt(2 * math.log(1 / error) / (len(values) * previous))


def additional_mean_rows(rows: int, mean: float, deviation: float, bound: float, error: float) -> int | None:
    """Estimate how many more values decide whether the mean is within the bound; None if over ``MAX_ROWS``.

    The values are modelled as 0 or one other number, with the given mean and standard deviation. All are in [0, 1].
    """
    required = math.log(1 / error)
    variance = max(deviation**2, 1e-12)
    high = min(mean + variance / mean, 1.0) if mean > 0 else 1.0
    probability = mean / high
    sign, margin = (1, 1 - bound) if mean <= bound else (-1, bound)

    def is_decided(count: int) -> bool:
        estimated_variance = (0.25 + variance * count / 2) / (1 + count / 2)
        bet = sign * min(math.sqrt(2 * required / (count * estimated_variance)), MAX_BET / max(margin, 1e-12))
        growth = (1 - probability) * math.log1p(bet * bound) + probability * math.log1p(-bet * (high - bound))
        return count * growth >= required

    total = smallest_integer(is_decided, rows, MAX_ROWS)
    return None if total is None else total - rows
