"""One bound of a frontier: the model that was trained for it, and what came of its test."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from softswitch.results.certificate import Certificate
from softswitch.results.result import Result

NUMBERS = ("objective", "constraint", "chosen_objective", "other_objective", "other_constraint", "constant")


class BoundOutcome(StrEnum):
    """What came of a bound."""

    CERTIFIED = "certified"
    """The model keeps the bound at every client on rows that nobody has seen, together with all others so called."""
    FAILED = "not certified"
    """It was tested, and that cannot be said."""
    LATER = "not tested"
    """Tests end with the first model that does not pass, and its own would have come later."""
    TOO_FEW = "too few rows"
    """No model could be certified for it by these rows, which is known before any is looked at."""
    NOT_REACHED = "not reached"
    """No model was found that keeps it on the rows learnt from."""


@dataclass(frozen=True, eq=False)
class FrontierPoint:
    """A bound, what it costs on the rows learnt from, and the model that was chosen for unseen rows.

    Attributes:
        bound: what the constraint may be at most.
        outcome: whether the chosen model is certified, and why not.
        objective: the smallest F, the worst client's objective, that was found on the rows learnt from,
        constraint: and the largest constraint of any client, G, of that model there.
        chosen_objective: F of the chosen model on the rows learnt from,
        other_objective: and on those that it was chosen by, not trained on,
        other_constraint: and its G there.
        constant: F of the best constant prediction that keeps the bound on the rows learnt from; NaN without one.
        measures: what else was measured of the chosen model, on the rows that it was chosen by.
        model: how the chosen one came about.
        in_the_way: labels of the clients that were not said to meet the bound, where it was tested.
        result: the run with the chosen model as its answer; it is not written down.
        certificate: of that model, where it was tested; it is not written down here either.
    """

    bound: float
    outcome: BoundOutcome
    objective: float
    constraint: float
    chosen_objective: float
    other_objective: float
    other_constraint: float
    constant: float = math.nan
    measures: dict[str, float] = field(default_factory=dict)
    model: str = ""
    in_the_way: tuple[str, ...] = ()
    result: Result | None = None
    certificate: Certificate | None = None

    @property
    def reached(self) -> bool:
        """Whether any model keeps the bound on the rows learnt from."""
        return self.constraint <= self.bound

    @property
    def for_a_certificate(self) -> bool:
        """Whether the model was chosen so that it could be certified, for which it may have to be very careful."""
        return self.outcome in (BoundOutcome.CERTIFIED, BoundOutcome.FAILED, BoundOutcome.LATER)

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers and words, for JSON: what is not finite is None."""
        return {
            "bound": self.bound,
            "outcome": str(self.outcome),
            **{name: finite(getattr(self, name)) for name in NUMBERS},
            "measures": {name: finite(value) for name, value in self.measures.items()},
            "model": self.model,
            "in_the_way": list(self.in_the_way),
        }

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> FrontierPoint:
        """From ``to_dict``; what was not finite is NaN."""
        numbers: dict[str, Any] = {name: number(told[name]) for name in NUMBERS}
        return cls(
            bound=float(told["bound"]),
            outcome=BoundOutcome(told["outcome"]),
            **numbers,
            measures={name: number(value) for name, value in told["measures"].items()},
            model=told["model"],
            in_the_way=tuple(told["in_the_way"]),
        )


@dataclass(frozen=True)
class SmallestConstraint:
    """The smallest constraint that was reached on the rows learnt from.

    Attributes:
        constraint: G, the largest of any client.
        objective: F of that model.
        constant: the smallest G of a constant prediction; NaN where none was looked at.
    """

    constraint: float
    objective: float
    constant: float = math.nan

    @property
    def by_a_constant(self) -> bool:
        """Whether a constant prediction has it too."""
        return self.constant <= self.constraint


def finite(value: float) -> float | None:
    """For JSON, which knows no NaN and no infinity."""
    return float(value) if math.isfinite(value) else None


def number(value: float | None) -> float:
    """From JSON."""
    return math.nan if value is None else float(value)
