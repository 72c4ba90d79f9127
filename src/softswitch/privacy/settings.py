"""RecordPrivacy: settings of record-level differential privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from softswitch.support import checks

_PROBABILITY = checks.limits(above=0, below=1)  # metadata of fields


@dataclass(frozen=True, kw_only=True)
class RecordPrivacy:
    """Record-level differential privacy: clients release only sums of clipped rows with discrete Gaussian noise.

    Numbers of rows are public: each client's total, and that of each class or group. Each row's contribution is rounded
    to integers, and sums and noise are integers. Noise and drawn rows come from the operating system's entropy, so a
    private run does not repeat with its seed.

    Set ``epsilon`` to calibrate the noise for the planned number of rounds, or ``noise`` to compute ε from it. Needs
    ``pip install 'softswitch[privacy]'``.

    Attributes:
        epsilon: Privacy budget ε >= 1e-6 of each client for the whole run. Default: computed from ``noise``.
        delta: Failure probability δ, which should be well below 1/n for the smallest client's number of rows n.
            Default: 1e-5.
        clip_value: Clipping norm > 0 of the vector of a row's objective and constraints, in their units. If it is too
            small, large losses are underestimated, and the constraint holds only for the clipped values. Default: 3.
        clip_gradient: Clipping norm > 0 of a row's gradient. Default: 2.
        rate: Probability in (0, 1] with which a client draws each of its rows for a report and for each gradient,
            independently (Poisson sampling). Neighbouring data sets differ by adding or removing a row. Default: 1.
        noise: Noise multiplier of a gradient: standard deviation of the noise divided by ``clip_gradient``. Default:
            calibrated for ``epsilon``.
        report_share: Fraction of the budget for reports, the values of objective and constraint that the switch uses.
            Default: 0.5.
        evaluation_share: Fraction of the budget for evaluating the final parameters. Gradients get the rest. Default:
            0.05.
    """

    epsilon: float | None = field(default=None, metadata=checks.limits(minimum=1e-6))  # smaller values overflow
    delta: float = field(default=1e-5, metadata=_PROBABILITY)
    clip_value: float = field(default=3.0, metadata=checks.POSITIVE)
    clip_gradient: float = field(default=2.0, metadata=checks.POSITIVE)
    rate: float = field(default=1.0, metadata=checks.limits(above=0, maximum=1))
    noise: float | None = field(default=None, metadata=checks.limits(minimum=1e-9))
    report_share: float = field(default=0.5, metadata=_PROBABILITY)
    evaluation_share: float = field(default=0.05, metadata=_PROBABILITY)
    neighbours: ClassVar[str] = "one row of a client is added or removed, with the same public numbers of rows"

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise is None):
            given = f"epsilon is {self.epsilon!r} and noise is {self.noise!r}"
            raise ValueError(f"RecordPrivacy needs epsilon (the budget) or noise (the noise multiplier), but {given}")
        checks.check_limits(self)
        if (rest := self.step_share) <= 0:
            shares = "report_share and evaluation_share"
            raise ValueError(f"{shares} must sum to less than 1, but leave {rest:g} for gradients")

    @property
    def step_share(self) -> float:
        """Fraction of the budget that is left for gradients."""
        return 1 - self.report_share - self.evaluation_share


class Releases(NamedTuple):
    """Numbers of noisy releases of one client, by kind."""

    reports: int = 0  # values of f and g on drawn rows
    steps: int = 0  # gradients on drawn rows
    evaluations: int = 0  # values of f and g on all rows


class NoiseLevels(NamedTuple):
    """Noise multipliers of each kind of release: standard deviation of the noise over the sensitivity to one row."""

    report: float
    step: float
    evaluation: float

    @classmethod
    def of(cls, privacy: RecordPrivacy, planned: Releases, step: float) -> NoiseLevels:
        """Return the levels that divide the budget. Releases of all rows take their part of it, not amplified."""
        drawn = step * math.sqrt(privacy.step_share / max(1, planned.steps))
        whole = drawn / privacy.rate
        if privacy.epsilon is not None:
            whole = 1 / math.sqrt(2 * zcdp_budget(privacy.epsilon, privacy.delta))
        return cls(
            drawn * math.sqrt(max(1, planned.reports) / privacy.report_share),
            step,
            whole * math.sqrt(max(1, planned.evaluations) / privacy.evaluation_share),
        )


def zcdp_budget(epsilon: float, delta: float) -> float:
    """Return the ρ for which ρ-zCDP implies (ε, δ)-differential privacy: the root of ε = ρ + 2 sqrt(ρ ln(1/δ))."""
    log = math.log(1 / delta)
    return (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2
