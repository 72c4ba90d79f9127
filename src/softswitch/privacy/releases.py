"""What leaves a private client, counted; and how much noise is on each kind of it."""

from __future__ import annotations

import math
from typing import NamedTuple

from softswitch.privacy.settings import RecordPrivacy

TOO_FEW = 4.0
"""A size told with noise that is not above so many deviations of it is taken for none."""


class Releases(NamedTuple):
    """How often a client told something of its rows.

    Attributes:
        reports: f and all g on drawn rows, with noise.
        steps: gradients on drawn rows, each with noise of its own; a direction is made of E of them.
        evaluations: f and all g on all rows.
        sizes: how many rows each function concerns.
    """

    reports: int = 0
    steps: int = 0
    evaluations: int = 0
    sizes: int = 0

    def after(self, rounds: int, local_steps: int = 1) -> Releases:
        """With so many rounds more, of so many local steps each.

        Args:
            rounds: in which the client took part.
            local_steps: E.
        """
        return self._replace(reports=self.reports + rounds, steps=self.steps + rounds * local_steps)

    @classmethod
    def planned(cls, privacy: RecordPrivacy, rounds: int, local_steps: int, evaluations: int = 1) -> Releases:
        """What a client tells at most: it may be asked in every round.

        Args:
            privacy: whether sizes are told with noise.
            rounds: of the run.
            local_steps: E.
            evaluations: how often answers are judged.
        """
        return cls(evaluations=evaluations, sizes=int(not privacy.public_sizes)).after(rounds, local_steps)


class NoiseLevels(NamedTuple):
    """Noise multipliers: the deviation of the noise over the most that one row can change what it is added to.

    Attributes:
        report: of a report.
        step: of a gradient.
        evaluation: of an evaluation.
        sizes: of the sizes.
    """

    report: float
    step: float
    evaluation: float
    sizes: float

    @classmethod
    def of(cls, privacy: RecordPrivacy, planned: Releases, step: float) -> NoiseLevels:
        """Such that each kind takes its share of the budget, as far as costs add up as rate²·times/noise².

        They do not quite for rows that are drawn; so what is told of all rows takes its share of the budget, where
        there is one, and not one of what gradients cost.

        Args:
            privacy: the shares, the budget and the rate.
            planned: how often each kind is released.
            step: the noise multiplier of a gradient.
        """
        drawn = step * math.sqrt(privacy.step_share / max(1, planned.steps))
        whole = drawn / privacy.rate
        if privacy.epsilon is not None:
            distance = 2 if privacy.sampling == "fixed" else 1  # by which a row changes a sum, in clips
            whole = distance / math.sqrt(2 * concentrated(privacy.epsilon, privacy.delta))
        return cls(
            drawn * math.sqrt(max(1, planned.reports) / privacy.report_share),
            step,
            whole * math.sqrt(max(1, planned.evaluations) / privacy.evaluation_share),
            whole * math.sqrt(max(1, planned.sizes) / privacy.sizes_share),
        )


def concentrated(epsilon: float, delta: float) -> float:
    """ρ with ε = ρ + 2 sqrt(ρ ln(1/δ)): what is ρ-zCDP is (ε, δ)-private."""
    log = math.log(1 / delta)
    return (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2


class Drawing(NamedTuple):
    """How rows are drawn for reports and gradients.

    Attributes:
        sampling: "poisson" or "fixed".
        rate: each row's probability to be drawn.
        rows: how many rows the client has, where that matters: with "fixed"; else 0.
        taken: how many of these are drawn, likewise.
    """

    sampling: str
    rate: float
    rows: int = 0
    taken: int = 0

    @classmethod
    def of(cls, privacy: RecordPrivacy, rows: int) -> Drawing:
        """That of a client with so many rows.

        Args:
            privacy: how rows are drawn.
            rows: how many the client has.
        """
        if privacy.sampling == "poisson":
            return cls("poisson", privacy.rate)
        return cls("fixed", privacy.rate, rows, rows_taken(privacy.rate, rows))


def rows_taken(rate: float, rows: int) -> int:
    """How many rows that share of them is, at least one."""
    return max(1, min(rows, round(rate * rows)))
