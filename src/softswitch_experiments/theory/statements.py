"""Statements of the paper for its figures and checks: a tail bound, and the example of two clients."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import optimize

from softswitch.support import checks
from softswitch.theory.theorems import Setting


def tail_bound(clients: int, participants: int, below: float) -> float:
    """Return an upper bound on the probability P(max over all n clients − max over a random subset of m >= t).

    It is exp(−n|ln(1−r)|·P(U < t)) if P(U < t) <= 1 − r, otherwise 0, where U dominates the gap of a random client to
    the worst.

    Args:
        clients: Number of clients n.
        participants: Size m of the subset.
        below: Probability P(U < t).
    """
    Setting(clients, participants, rounds=1)  # checks the numbers of clients
    below = checks.check_real("below", below, minimum=0, maximum=1)
    if below == 0:
        return 1.0
    if participants == clients or below * clients > clients - participants + 1e-9:  # P(U < t) > 1 − r, up to rounding
        return 0.0
    return math.exp(-clients * abs(math.log1p(-participants / clients)) * below)


@dataclass(frozen=True)
class AlphaWindow:
    """Useful values of α for a step size in the paper's example of two clients, f_1 = w and f_2 = −w.

    Attributes:
        adaptive_from: α = ln(2)/(2η). Below it, weights are too uniform to find the worst client.
        smooth_to: α = 1/η. Above it, iterates oscillate.
        stable_to: α = 2/η. Above it, iterates converge to a limit cycle of two points.
    """

    adaptive_from: float
    smooth_to: float
    stable_to: float


def alpha_window(step_size: float) -> AlphaWindow:
    """Return the useful values of α for a step size: 0.35 <= αη <= 1, and αη = 2, above which limit cycles begin.

    Args:
        step_size: η > 0, for losses with slope 1.
    """
    eta = checks.check_real("step_size", step_size, above=0)
    return AlphaWindow(math.log(2) / (2 * eta), 1 / eta, 2 / eta)


def limit_cycle(alpha: float, step_size: float) -> float:
    """Return the amplitude of the limit cycle of the paper's two-client example (see ``AlphaWindow``).

    It is ηp with p > 0 the root of tanh(αηp) = 2p if αη > 2, otherwise 0. The amplitude is at most half a step, and
    ±ηp is the only attracting pair of points. For large αη the attraction is below rounding. A run then alternates
    between the first two points w and w − η on either side, up to a whole step away from the optimum.

    Args:
        alpha: α >= 0, per unit of the loss.
        step_size: η > 0, for losses with slope 1.
    """
    eta = checks.check_real("step_size", step_size, above=0)
    product = checks.check_real("alpha", alpha, minimum=0) * eta
    if product <= 2:
        return 0.0
    # The paper bounds p by ½√(1 − 2/αη) < p < √(3(αη − 2)/8); tanh < 1 gives p < ½.
    low, high = math.sqrt(1 - 2 / product) / 2, min(0.5, math.sqrt(3 * (product - 2) / 8))
    if product - 2 < 1e-6:  # the upper bound is the root up to rounding
        return eta * high
    return eta * float(optimize.brentq(lambda p: math.tanh(product * p) - 2 * p, low, high))
