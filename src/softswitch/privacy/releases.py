"""The number of releases of a private client, and the noise on each kind."""

from __future__ import annotations

import math
from typing import NamedTuple

from softswitch.privacy.settings import RecordPrivacy

SIZE_THRESHOLD = 4.0
"""A noisy number of rows of at most this many standard deviations counts as 0."""


class Releases(NamedTuple):
    """Number of releases of a client.

    Attributes:
        reports: Of f and all g on drawn rows.
        steps: Of gradients on drawn rows; a direction consists of E of them.
        evaluations: Of f and all g on all rows.
        sizes: Of the number of rows of each function.
    """

    reports: int = 0
    steps: int = 0
    evaluations: int = 0
    sizes: int = 0

    def after(self, rounds: int, local_steps: int = 1) -> Releases:
        """Add the releases of some rounds."""
        return self._replace(reports=self.reports + rounds, steps=self.steps + rounds * local_steps)

    @classmethod
    def planned(cls, privacy: RecordPrivacy, rounds: int, local_steps: int, evaluations: int = 1) -> Releases:
        """Return the maximum number of releases of a client, which may take part in every round."""
        return cls(evaluations=evaluations, sizes=int(not privacy.public_sizes)).after(rounds, local_steps)


class NoiseLevels(NamedTuple):
    """Noise multipliers: standard deviation of the noise divided by the sensitivity to one row.

    Attributes:
        report: Of a report.
        step: Of a gradient.
        evaluation: Of an evaluation.
        sizes: Of the numbers of rows.
    """

    report: float
    step: float
    evaluation: float
    sizes: float

    @classmethod
    def of(cls, privacy: RecordPrivacy, planned: Releases, step: float) -> NoiseLevels:
        """Return the levels with which each kind of release takes its share of the budget.

        For drawn rows, the cost is approximated by rate²·times/noise². Releases of all rows take their share of the
        budget itself if there is one, because amplification by sampling does not apply to them.

        Args:
            privacy: Shares, budget and rate.
            planned: Number of releases.
            step: Noise multiplier of a gradient.
        """
        drawn = step * math.sqrt(privacy.step_share / max(1, planned.steps))
        whole = drawn / privacy.rate
        if privacy.epsilon is not None:
            sensitivity = 2 if privacy.sampling == "fixed" else 1
            whole = sensitivity / math.sqrt(2 * zcdp_budget(privacy.epsilon, privacy.delta))
        return cls(
            drawn * math.sqrt(max(1, planned.reports) / privacy.report_share),
            step,
            whole * math.sqrt(max(1, planned.evaluations) / privacy.evaluation_share),
            whole * math.sqrt(max(1, planned.sizes) / privacy.sizes_share),
        )


def zcdp_budget(epsilon: float, delta: float) -> float:
    """Return ρ with ε = ρ + 2 sqrt(ρ ln(1/δ)), for which ρ-zCDP implies (ε, δ)-differential privacy."""
    log = math.log(1 / delta)
    return (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2


class Drawing(NamedTuple):
    """How rows are drawn for reports and gradients.

    Attributes:
        sampling: "poisson" or "fixed".
        rate: Probability of each row to be drawn.
        rows: Number of rows of the client for "fixed" sampling; else 0.
        taken: Number of drawn rows for "fixed" sampling; else 0.
    """

    sampling: str
    rate: float
    rows: int = 0
    taken: int = 0

    @classmethod
    def of(cls, privacy: RecordPrivacy, rows: int) -> Drawing:
        """Return how a client with this number of rows draws."""
        if privacy.sampling == "poisson":
            return cls("poisson", privacy.rate)
        return cls("fixed", privacy.rate, rows, count_drawn_rows(privacy.rate, rows))


def count_drawn_rows(rate: float, rows: int) -> int:
    """Return the number of rows of a sample of fixed size, at least one."""
    return max(1, min(rows, round(rate * rows)))
