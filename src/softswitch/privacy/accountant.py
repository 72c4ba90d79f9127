"""How much ε the releases of a client come to, and how much noise a budget asks for, by Google's ``dp-accounting``.

Every release is a sum of clipped rows with Gaussian noise, on all rows or on rows drawn anew. Rows drawn each by itself
are counted by privacy loss distributions, with and without a row; rows drawn in a fixed number by Rényi divergences,
with one row replaced; all rows exactly. Nothing is gained from which clients the server asks: it knows whom it asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from softswitch.privacy.releases import Drawing, NoiseLevels, Releases, concentrated
from softswitch.privacy.settings import RecordPrivacy

GRID = 1e-3
"""Privacy losses are rounded up to multiples of this."""
LARGE = 50.0
"""Beyond it nobody cares how tight an ε is: by Rényi divergences it is found at once."""
CLOSE = 1e-3
"""Noise is found to this part of itself, and never less than is needed."""


@lru_cache(maxsize=4096)
def epsilon_of(releases: Releases, levels: NoiseLevels, drawing: Drawing, delta: float) -> float:
    """ε of all that a client has told.

    Args:
        releases: how often it told what.
        levels: how much noise was on it.
        drawing: how rows were drawn.
        delta: δ.
    """
    if not any(releases):
        return 0.0
    fixed = drawing.sampling == "fixed"
    weakened = 2.0 if fixed else 1.0  # one row replaced by another changes a sum by twice what one row can add to it
    everything = drawing.rate == 1 or (fixed and drawing.taken == drawing.rows)
    if everything:
        return _of_all_rows(releases, levels, weakened, delta)
    accounting = _library()

    def on_all(noise: float) -> Any:
        return accounting.GaussianDpEvent(noise / weakened)

    def on_drawn(noise: float) -> Any:
        if fixed:
            return accounting.SampledWithoutReplacementDpEvent(drawing.rows, drawing.taken, on_all(noise))
        return accounting.PoissonSampledDpEvent(drawing.rate, on_all(noise))

    told = (
        (on_drawn(levels.report), releases.reports),
        (on_drawn(levels.step), releases.steps),
        (on_all(levels.evaluation), releases.evaluations),
        (on_all(levels.sizes), releases.sizes),
    )
    event = accounting.ComposedDpEvent([accounting.SelfComposedDpEvent(one, times) for one, times in told if times])
    relation = accounting.NeighboringRelation
    neighbours = relation.REPLACE_ONE if fixed else relation.ADD_OR_REMOVE_ONE
    rough = accounting.rdp.RdpAccountant(orders=_ORDERS, neighboring_relation=neighbours).compose(event)
    found = float(rough.get_epsilon(delta))
    if fixed or found > LARGE:
        return found
    return float(accounting.pld.PLDAccountant(neighbours, GRID).compose(event).get_epsilon(delta))


def _of_all_rows(releases: Releases, levels: NoiseLevels, weakened: float, delta: float) -> float:
    """Gaussian noise on all rows adds up to one release with Gaussian noise, whose ε is known exactly."""
    precision = sum(times / noise**2 for times, noise in zip(releases, levels, strict=True))
    return float(_library().get_epsilon_gaussian(1 / (weakened * math.sqrt(precision)), delta, tol=1e-9))


_ORDERS = [*range(2, 65), 80, 128, 256, 512, 1024]


def levels_for(privacy: RecordPrivacy, planned: Releases, drawing: Drawing) -> NoiseLevels:
    """The noise of each kind of release: as it is told, or the least that keeps to the budget.

    Args:
        privacy: the settings.
        planned: how often each kind is released at most.
        drawing: how rows are drawn.
    """
    if privacy.noise is not None:
        return NoiseLevels.of(privacy, planned, privacy.noise)
    assert privacy.epsilon is not None
    return _least_noise(privacy, planned, drawing)


@lru_cache(maxsize=256)
def _least_noise(privacy: RecordPrivacy, planned: Releases, drawing: Drawing) -> NoiseLevels:
    budget, delta = privacy.epsilon, privacy.delta
    assert budget is not None

    def enough(step: float) -> bool:
        return epsilon_of(planned, NoiseLevels.of(privacy, planned, step), drawing, delta) <= budget

    # Near to what would do if costs just added up.
    guess = privacy.rate * math.sqrt(planned.steps / privacy.step_share / (2 * concentrated(budget, delta)))
    return NoiseLevels.of(privacy, planned, _smallest(enough, guess))


def _smallest(enough: Callable[[float], bool], guess: float) -> float:
    """The smallest number that is enough, or hardly more; all larger ones are enough."""
    low, high = guess, guess
    while not enough(high):
        low, high = high, 1.5 * high
    if low == high:
        while enough(low):
            low, high = low / 1.5, low
    while high > (1 + CLOSE) * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def rounds_within(
    privacy: RecordPrivacy, levels: NoiseLevels, drawing: Drawing, rounds: int, local_steps: int, evaluations: int = 1
) -> int:
    """In how many of so many rounds a client can take part before its budget is spent.

    Args:
        privacy: the settings; without an ``epsilon`` there is no end.
        levels: the noise.
        drawing: how rows are drawn.
        rounds: how many are planned.
        local_steps: E.
        evaluations: how often answers are judged, which must fit in as well.
    """
    if privacy.epsilon is None:
        return rounds
    budget = privacy.epsilon

    def fits(many: int) -> bool:
        told = Releases.planned(privacy, many, local_steps, evaluations)
        return epsilon_of(told, levels, drawing, privacy.delta) <= budget

    if fits(rounds):
        return rounds
    low, high = -1, rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return max(0, low)


def _library() -> Any:
    """Google's dp-accounting; imported where privacy is asked for only."""
    try:
        import dp_accounting
    except ImportError as error:
        raise ImportError("privacy needs dp-accounting: pip install 'softswitch[privacy]'") from error
    if not hasattr(dp_accounting, "NeighboringRelation"):
        raise ImportError("privacy needs dp-accounting 0.6.0 (with attrs below 24): pip install 'softswitch[privacy]'")
    return dp_accounting
