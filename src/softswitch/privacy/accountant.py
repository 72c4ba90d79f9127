"""Privacy accounting with Google's ``dp-accounting``: the ε of releases, and the noise for a budget.

Every release is a sum of clipped rows with Gaussian noise. Poisson sampling is accounted with privacy loss
distributions (add or remove one row), sampling of a fixed size with Rényi divergences (replace one row), and releases
of all rows exactly. The sampling of clients does not amplify privacy: the server knows the participants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from softswitch.privacy.releases import Drawing, NoiseLevels, Releases, zcdp_budget
from softswitch.privacy.settings import RecordPrivacy

DISCRETIZATION = 1e-3
"""Interval to whose multiples privacy losses are rounded up."""
LARGE_EPSILON = 50.0
"""Above this value the looser but fast bound by Rényi divergences is used."""
RELATIVE_TOLERANCE = 1e-3
"""Calibrated noise exceeds the required noise by at most this fraction."""
_ORDERS = [*range(2, 65), 80, 128, 256, 512, 1024]


@lru_cache(maxsize=4096)
def compute_epsilon(releases: Releases, levels: NoiseLevels, drawing: Drawing, delta: float) -> float:
    """Return the ε of all releases of a client."""
    if not any(releases):
        return 0.0
    fixed = drawing.sampling == "fixed"
    sensitivity = 2.0 if fixed else 1.0  # replacing a row changes a sum by up to twice the clipping norm
    library = _import_library()
    if drawing.rate == 1 or (fixed and drawing.taken == drawing.rows):
        # Gaussian releases of all rows compose to one Gaussian release, whose ε is known exactly.
        precision = sum(times / noise**2 for times, noise in zip(releases, levels, strict=True))
        return float(library.get_epsilon_gaussian(1 / (sensitivity * math.sqrt(precision)), delta, tol=1e-9))

    def on_all(noise: float) -> Any:
        return library.GaussianDpEvent(noise / sensitivity)

    def on_drawn(noise: float) -> Any:
        if fixed:
            return library.SampledWithoutReplacementDpEvent(drawing.rows, drawing.taken, on_all(noise))
        return library.PoissonSampledDpEvent(drawing.rate, on_all(noise))

    events = (
        (on_drawn(levels.report), releases.reports),
        (on_drawn(levels.step), releases.steps),
        (on_all(levels.evaluation), releases.evaluations),
        (on_all(levels.sizes), releases.sizes),
    )
    event = library.ComposedDpEvent([library.SelfComposedDpEvent(one, times) for one, times in events if times])
    relation = library.NeighboringRelation
    neighbours = relation.REPLACE_ONE if fixed else relation.ADD_OR_REMOVE_ONE
    accountant = library.rdp.RdpAccountant(orders=_ORDERS, neighboring_relation=neighbours)
    epsilon = float(accountant.compose(event).get_epsilon(delta))
    if fixed or epsilon > LARGE_EPSILON:
        return epsilon
    return float(library.pld.PLDAccountant(neighbours, DISCRETIZATION).compose(event).get_epsilon(delta))


def calibrate_noise(privacy: RecordPrivacy, planned: Releases, drawing: Drawing) -> NoiseLevels:
    """Return the given noise levels, or the smallest ones within the budget."""
    if privacy.noise is not None:
        return NoiseLevels.of(privacy, planned, privacy.noise)
    return _smallest_noise(privacy, planned, drawing)


@lru_cache(maxsize=256)
def _smallest_noise(privacy: RecordPrivacy, planned: Releases, drawing: Drawing) -> NoiseLevels:
    budget, delta = privacy.epsilon, privacy.delta
    assert budget is not None

    def is_enough(step: float) -> bool:
        return compute_epsilon(planned, NoiseLevels.of(privacy, planned, step), drawing, delta) <= budget

    # Exact if the costs of releases were additive.
    guess = privacy.rate * math.sqrt(planned.steps / privacy.step_share / (2 * zcdp_budget(budget, delta)))
    return NoiseLevels.of(privacy, planned, _bisect(is_enough, guess))


def _bisect(is_enough: Callable[[float], bool], guess: float) -> float:
    """Return a number close to the smallest that is enough, and never below it."""
    low, high = guess, guess
    while not is_enough(high):
        low, high = high, 1.5 * high
    if low == high:
        while is_enough(low):
            low, high = low / 1.5, low
    while high > (1 + RELATIVE_TOLERANCE) * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def count_affordable_rounds(
    privacy: RecordPrivacy, levels: NoiseLevels, drawing: Drawing, rounds: int, local_steps: int, evaluations: int = 1
) -> int:
    """Return in how many of ``rounds`` rounds a client can take part within its budget, evaluations included."""
    if privacy.epsilon is None:
        return rounds
    budget = privacy.epsilon

    def fits(count: int) -> bool:
        releases = Releases.planned(privacy, count, local_steps, evaluations)
        return compute_epsilon(releases, levels, drawing, privacy.delta) <= budget

    if fits(rounds):
        return rounds
    low, high = -1, rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return max(0, low)


def _import_library() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise ImportError("privacy needs dp-accounting: pip install 'softswitch[privacy]'") from error
    if not hasattr(dp_accounting, "NeighboringRelation"):
        raise ImportError("privacy needs dp-accounting 0.6.0 (with attrs below 24): pip install 'softswitch[privacy]'")
    return dp_accounting
