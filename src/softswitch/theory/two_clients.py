"""The paper's example of two clients, f_1 = w and f_2 = −w: which α are useful, and where runs end up jumping."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import optimize

from softswitch.support import checks


@dataclass(frozen=True)
class AlphaWindow:
    """Where α is useful for a step size, by the two-client example f_1 = w, f_2 = −w with L = 1.

    Attributes:
        adaptive_from: below, weights are too even to find the worst client: ln(2)/(2η).
        smooth_to: above, iterates alternate: 1/η.
        stable_to: above, they never settle but jump between two points: 2/η.
    """

    adaptive_from: float
    smooth_to: float
    stable_to: float


def alpha_window(step_size: float) -> AlphaWindow:
    """The window 0.35 <= αη <= 1, and αη = 2 where limit cycles begin.

    Args:
        step_size: η, for losses with a slope of 1.
    """
    eta = checks.real_number("step_size", step_size, above=0)
    return AlphaWindow(math.log(2) / (2 * eta), 1 / eta, 2 / eta)


def limit_cycle(alpha: float, step_size: float) -> float:
    """How far from its optimum the two-client example ends up jumping, in the end.

    ηp with p > 0 the root of tanh(αηp) = 2p where αη > 2; 0 otherwise. It is at most half a step, and the only pair of
    points ±ηp that the example is drawn to. But where αη is large the draw is far too weak to notice (the tanh is
    flat there, its slope below rounding): a run then jumps between the first two points w and w − η that it meets on
    either side, up to a whole step away, and their mean is up to half a step off.

    Args:
        alpha: α, per unit of the loss.
        step_size: η, for losses with a slope of 1.
    """
    eta = checks.real_number("step_size", step_size, above=0)
    product = checks.real_number("alpha", alpha, at_least=0) * eta
    if product <= 2:
        return 0.0
    # The paper's bounds on p: ½√(1 − 2/αη) < p < √(3(αη − 2)/8); and tanh < 1 gives p < ½.
    low, high = math.sqrt(1 - 2 / product) / 2, min(0.5, math.sqrt(3 * (product - 2) / 8))
    if product - 2 < 1e-6:  # the upper bound is then the root to all digits that rounding leaves
        return eta * high
    return eta * float(optimize.brentq(lambda p: math.tanh(product * p) - 2 * p, low, high))
