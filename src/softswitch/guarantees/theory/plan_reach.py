"""What a plan can reach: the smallest error in any number of rounds, and what κ leaves of a wish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from scipy import optimize

from softswitch.guarantees.theory.theorems import Constants, Setting, bound, constraint_bound, least_switch_share

MOST_ROUNDS = MOST_ROWS = 10**15
"""A plan of more rounds, or of more rows a report, is as good as none."""


@dataclass(frozen=True)
class LeastSwitchShare:
    """What κ is reckoned to be at least: what was ``given``, and what Slater's ν assures (0 where it is not known)."""

    given: float
    slater: float

    def at(self, constants: Constants, epsilon: float) -> float:
        """For a promise of ε."""
        assured = self.slater / (self.slater + constants.diameter * constants.lipschitz + epsilon)
        return max(self.given, assured)

    def of(self, constants: Constants, setting: Setting) -> float:
        """For a setting, of whose K rounds one at least is feasible."""
        return max(self.given, least_switch_share(constants, setting, self.slater) if self.slater else 0.0)


def smallest_error(constants: Constants, template: Setting, limit: int) -> float:
    """The smallest ε that is left when rows a report are no object, in as many rounds as there may be."""
    quiet = replace(constants, value_noise=0.0)
    if not grows_with_rounds(constants, template):
        return bound(quiet, replace(template, rounds=limit)).epsilon
    numbers, k = [], 1
    while k < limit:
        numbers.append(k)
        k = max(k + 1, int(1.1 * k))
    return min(bound(quiet, replace(template, rounds=k)).epsilon for k in (*numbers, limit))


def grows_with_rounds(constants: Constants, setting: Setting) -> bool:
    """Whether the sampling error does: by the general bound, of which every round takes its share of δ."""
    return setting.participants < setting.clients and setting.longest_wait is None and constants.gap != "uniform"


def beyond_epsilon(constants: Constants, setting: Setting, switch_share: float) -> float:
    """How far the promise on the constraint lies above ε at the smallest κ; the same for all rounds and batches."""
    return max(0.0, constraint_bound(constants, setting, switch_share) - bound(constants, setting).epsilon)


def left_for_epsilon(constants: Constants, template: Setting, wish: float, share: LeastSwitchShare) -> float:
    """The largest ε with which the promise on the constraint is within the wish."""
    if not share.slater:
        return wish - beyond_epsilon(constants, template, share.given)

    def excess(epsilon: float) -> float:
        return epsilon + beyond_epsilon(constants, template, share.at(constants, epsilon)) - wish

    if excess(0.0) >= 0 or excess(wish) <= 0:
        return wish if excess(wish) <= 0 else 0.0
    return float(optimize.brentq(excess, 0.0, wish, xtol=1e-12 * wish)) * (1 - 1e-9)


def first_number(holds: Callable[[int], bool], limit: int, growth: float = 2.0) -> int | None:
    """The smallest number in [1, limit] at which ``holds``, which once true stays true; None if never."""
    low, high = 0, 1
    while not holds(high):
        if high >= limit:
            return None
        low, high = high, min(max(high + 1, int(growth * high)), limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
