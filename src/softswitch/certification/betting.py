"""Limits of a mean of bounded values by betting (Waudby-Smith and Ramdas, 2023), one side at a time.

Values lie in [0, 1] and are drawn one after the other, independently, with mean θ. Whoever claims that θ is m or more
must take bets that values are low: from a capital of 1, before each value x_t a share λ_t of it is chosen by what came
before, and the capital is multiplied by 1 − λ_t (x_t − m), which is positive as long as λ_t < 1/(1 − m). If θ is m or
more the capital grows in no round on average, and so exceeds 1/p at any time with probability at most p (Ville's
inequality). One over the largest capital is thus a p-value of "the mean is m or more", and the upper limit is the m at
which it is p. It falls as m grows: so does each factor's inverse.

The shares are the paper's predictable plug-in, √(2 ln(1/p)/(n·variance so far)), cut off at 3/4 of the largest: any
other choice would be as valid, and wider. The order of the values matters to the limits, though not to their validity:
they are dealt by a permutation of fixed seed, so that the order in a file (by class, by size) is no part of it, and the
same rows give the same limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

MAX_BET = 0.75  # of the largest share that leaves no debt
BELOW_ONE = math.nextafter(1.0, 0.0)
AT_ONCE = 1 << 15  # factors that fit into a processor's cache
BLOCKS = 2048  # of factors whose product is looked at: after each of them the capital may be called in


class BettingMean:
    """BettingMean against high means, on values in [0, 1].

    Args:
        values: in any order; they are dealt anew.
        error: the error probability that the bets aim at. They are valid for all.
    """

    def __init__(self, values: np.ndarray, error: float) -> None:
        self.rows = len(values)
        dealt = values[np.random.default_rng(self.rows).permutation(self.rows)]
        self._shares = self._padded(shares(dealt, error), 0.0)
        self._values = self._padded(dealt, 0.0)
        self.estimate = float(values.mean())

    def log_capital(self, mean: float) -> float:
        """The logarithm of the largest capital, from bets with someone who says that the mean is this or more."""
        return float(self._log_capitals(np.array([mean]))[0])

    def _log_capitals(self, means: np.ndarray) -> np.ndarray:
        inside = np.minimum(means, BELOW_ONE)[:, None, None]
        factors = np.minimum(self._shares, MAX_BET / (1 - inside))
        factors *= inside - self._values
        factors += 1
        course = np.cumsum(np.log(np.multiply.reduce(factors, axis=2)), axis=1)
        found = np.maximum(0.0, course.max(axis=1))
        return found if self.estimate == 1 else np.where(means >= 1, math.inf, found)

    def p_value(self, mean: float) -> float:
        """Of "the mean is this or more"."""
        return math.exp(-self.log_capital(mean))

    def p_values(self, means: np.ndarray) -> np.ndarray:
        """Of many of them, a few at a time."""
        at_once = max(1, AT_ONCE // self.rows)
        parts = [means[i : i + at_once] for i in range(0, len(means), at_once)]
        return np.exp(-np.concatenate([self._log_capitals(part) for part in parts]))

    def upper(self, error: float) -> float:
        """The mean is at most this, but for a chance of ``error``."""
        wanted = math.log(1 / error)
        return smallest(lambda mean: self.log_capital(mean) - wanted, self.estimate, BELOW_ONE)

    def _padded(self, column: np.ndarray, pad: float) -> np.ndarray:
        """In rows of few enough factors that their product neither vanishes nor overflows; pads change nothing."""
        width = min(32, max(1, math.ceil(self.rows / BLOCKS)))
        missing = -self.rows % width
        return np.concatenate([column, np.full(missing, pad)]).reshape(-1, width)


def shares(dealt: np.ndarray, error: float) -> np.ndarray:
    """What share of the capital is staked on each value, by those before it alone; to be cut off at the largest."""
    seen = np.arange(1, len(dealt) + 1)
    means = (0.5 + np.cumsum(dealt)) / (seen + 1)
    variance = (0.25 + np.cumsum(np.square(dealt - means))) / (seen + 1)
    before = np.concatenate([[0.25], variance[:-1]])
    return np.sqrt(2 * math.log(1 / error) / (len(dealt) * before))


def smallest(function: Callable[[float], float], low: float, high: float) -> float:
    """Where an increasing function comes to 0; 1 where it does not before ``high``."""
    if function(high) < 0:
        return 1.0
    if low >= high or function(low) >= 0:
        return low
    found, precision = brentq(function, low, high, xtol=1e-12, rtol=1e-12), 2e-12
    return min(1.0, found + precision)


def more_rows(rows: int, mean: float, deviation: float, bound: float, error: float) -> int | None:
    """About how many more values, of the same mean and deviation, show that the mean is within the bound, or above.

    They are taken to be 0 or one other number, as of losses that are mostly small. All are in [0, 1].
    """
    wanted = math.log(1 / error)
    variance = max(deviation**2, 1e-12)
    other = min(mean + variance / mean, 1.0) if mean > 0 else 1.0
    chance = mean / other
    sign, room = (1, 1 - bound) if mean <= bound else (-1, bound)

    def decides(count: int) -> bool:
        seen = (0.25 + variance * count / 2) / (1 + count / 2)
        share = sign * min(math.sqrt(2 * wanted / (count * seen)), MAX_BET / max(room, 1e-12))
        growth = (1 - chance) * math.log1p(share * bound) + chance * math.log1p(-share * (other - bound))
        return count * growth >= wanted

    low, high = rows, 2 * rows
    while not decides(high):
        low, high = high, 2 * high
        if high > 10**12:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high - rows
