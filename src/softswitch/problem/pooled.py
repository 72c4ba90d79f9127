"""Constraints that can be computed on the pooled data of all clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from softswitch.problem.parameters import Batch, Params
from softswitch.problem.random_keys import call_with_key, takes_key
from softswitch.support import checks


@dataclass(frozen=True)
class PooledConstraint:
    """A constraint that is a function of additive statistics, so that it can be computed over all clients.

    A client's constraint is ``value(statistics(params, batch))``. The criterion ``"pooled"`` adds the statistics of
    all reporting clients, each times the client's number of rows, and evaluates ``value`` on the sum. The result is
    the constraint on the pooled data.

    Attributes:
        statistics: ``(params, batch) -> vector``. Each entry is a sum over rows of ``batch["weight"]`` times a value.
            It may take a random ``key``, like the functions of a ``Problem``.
        value: ``(vector) -> scalar or vector``, the constraint as a function of the summed statistics. It must be
            invariant to scaling all statistics, such as a ratio of sums.
        gaps: Whether each constraint is a gap between two group means, |a/b − c/d| of four statistics a, b, c, d:
            the sum of a group's values and its row count, then those of the other group. Certificates then bound it
            by the range of the values (``Problem.constraint_range``).
    """

    statistics: Callable[..., Any]
    value: Callable[[Any], Any]
    gaps: bool = False

    def __post_init__(self) -> None:
        checks.check_callable("statistics", self.statistics, "(params, batch) -> vector of additive statistics")
        checks.check_callable("value", self.value, "(statistics) -> scalar or vector")

    @property
    def random(self) -> bool:
        """Whether the statistics take a random key."""
        return takes_key(self.statistics)

    def __call__(self, params: Params, batch: Batch, key: Any = None) -> Any:
        """Return the constraint of one client."""
        return self.value(call_with_key(self.statistics, params, batch, key))
