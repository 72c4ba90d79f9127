"""Privacy accounting with Google's ``dp-accounting``: the ε of releases, and the noise for a budget.

Every release is an integer sum of clipped rows with discrete Gaussian noise, and neighbouring data sets differ by one
row. Accounting uses Rényi divergences. Those of the discrete Gaussian are at most those of the Gaussian (Canonne,
Kamath and Steinke, 2020). With Poisson sampling of rows this holds for integer orders: the divergence from the sum
without the row is a polynomial of them with positive coefficients, and the other direction is at most as large, because
a reflection of the integers exchanges the two distributions (Mironov, Talwar and Zhang, 2019, Theorem 5). The sampling
of clients does not amplify privacy: the server knows the participants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from softswitch.privacy.settings import NoiseLevels, RecordPrivacy, Releases, zcdp_budget
from softswitch.support.text import format_number

RELATIVE_TOLERANCE = 1e-3  # largest fraction by which calibrated noise exceeds the required noise
INTEGER_ORDERS = [*range(2, 65), 80, 128, 256, 512, 1024]  # of Rényi divergences
FRACTIONAL_ORDERS = [1 + 2.0**-k for k in range(20, 2, -1)] + [1 + i / 8 for i in range(1, 88) if i % 8]


@dataclass(frozen=True)
class PrivacyAccount:
    """The (ε, δ) differential privacy that a run has spent, with the mechanism that it used.

    Over Flower, clients keep their own accounts and report only ε, δ and ``deviations``. The remaining fields then have
    their defaults.

    Attributes:
        epsilon: ε of each client, including the evaluation of the answer; None for a client that is not private.
        delta: δ of all clients.
        neighbours: Definition of neighbouring data sets, as text.
        budget: ε that a client may spend; None if the noise was given instead.
        rate: Probability with which a client draws each of its rows.
        releases: Number of releases of each client.
        noise: Noise multipliers of each kind of release.
        clip_value: Clipping norm of a row's values.
        clip_gradient: Clipping norm of a row's gradient.
        deviations: Standard deviation of the noise on each client's ``client_objective`` and ``client_constraint``,
            clients × functions; None for a function that a client lacks, or if the deviation is unknown.
    """

    epsilon: tuple[float | None, ...]
    delta: float
    neighbours: str
    budget: float | None = None
    rate: float | None = None
    releases: tuple[Releases, ...] = ()
    noise: NoiseLevels | None = None
    clip_value: float | None = None
    clip_gradient: float | None = None
    deviations: tuple[tuple[float | None, ...], ...] = ()

    @property
    def worst_epsilon(self) -> float:
        """Largest ε of the private clients; 0 if there are none."""
        return max((epsilon for epsilon in self.epsilon if epsilon is not None), default=0.0)

    @property
    def value_note(self) -> str:
        """Sentence for reports: how the released values of the answer differ from the exact ones."""
        clients = "of private clients" if None in self.epsilon else "of clients"
        known = [one for deviations in self.deviations for one in deviations[1:] if one is not None]
        noise = f"noise with a standard deviation of up to {max(known):.2g}" if known else "noise"
        return f"values {clients} are computed on clipped rows, with {noise}"

    def __str__(self) -> str:
        budget = "" if self.budget is None else f" of a budget of {format_number(self.budget)}"
        text = (
            f"every row has (ε, δ)-differential privacy with ε = {format_number(self.worst_epsilon)}{budget} at the "
            f"client with the largest ε, and δ = {self.delta:.2g}; neighbouring data sets: {self.neighbours}"
        )
        without = sum(epsilon is None for epsilon in self.epsilon)
        return f"{text}; {without} of {len(self.epsilon)} clients are not private" if without else text

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict of JSON values."""
        noise = None if self.noise is None else self.noise._asdict()
        return {**asdict(self), "releases": [releases._asdict() for releases in self.releases], "noise": noise}


@lru_cache(maxsize=4096)
def compute_epsilon(releases: Releases, levels: NoiseLevels, rate: float, delta: float) -> float:
    """Return ε, given δ, of all releases of a client that draws each row with probability ``rate``; 0 without any."""
    if not any(releases):
        return 0.0
    try:
        import dp_accounting as library
        from dp_accounting import NeighboringRelation
    except ImportError as error:
        needed = "dp-accounting 0.6.0 (with attrs below 24)"
        raise ImportError(f"privacy needs {needed}: pip install 'softswitch[privacy]'") from error
    report, step, evaluation = (library.GaussianDpEvent(noise) for noise in levels)
    if rate < 1:
        report, step = (library.PoissonSampledDpEvent(rate, event) for event in (report, step))
    events = zip((report, step, evaluation), releases, strict=True)
    event = library.ComposedDpEvent([library.SelfComposedDpEvent(one, times) for one, times in events if times])
    orders = INTEGER_ORDERS if rate < 1 else [*FRACTIONAL_ORDERS, *INTEGER_ORDERS]
    accountant = library.rdp.RdpAccountant(orders, NeighboringRelation.ADD_OR_REMOVE_ONE)
    return float(accountant.compose(event).get_epsilon(delta))


@lru_cache(maxsize=256)
def calibrate_noise(privacy: RecordPrivacy, planned: Releases) -> NoiseLevels:
    """Return the noise multipliers of the planned releases: from ``privacy.noise``, or the smallest for its budget."""
    if privacy.noise is not None:
        return NoiseLevels.of(privacy, planned, privacy.noise)
    budget, delta = privacy.epsilon, privacy.delta
    assert budget is not None

    def is_enough(step: float) -> bool:
        return compute_epsilon(planned, NoiseLevels.of(privacy, planned, step), privacy.rate, delta) <= budget

    # Exact if the costs of releases were additive.
    guess = privacy.rate * math.sqrt(planned.steps / privacy.step_share / (2 * zcdp_budget(budget, delta)))
    return NoiseLevels.of(privacy, planned, _smallest(is_enough, guess))


def _smallest(is_enough: Callable[[float], bool], guess: float) -> float:
    """Return the smallest positive number that is enough (a monotone condition), or at most 0.1% more."""
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
