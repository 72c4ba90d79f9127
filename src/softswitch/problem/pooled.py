"""A constraint that can be put together over clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from softswitch.problem.parameters import Batch, Params
from softswitch.problem.random_keys import call, takes_key
from softswitch.support import checks


@dataclass(frozen=True)
class PooledConstraint:
    """A constraint that is a function of additive statistics, so that it can be recomputed over all clients.

    A client's own constraint is ``value(statistics(params, batch))``. The criterion ``"pooled"`` adds the statistics of
    all reporting clients, each times the client's number of rows, and takes ``value`` of the sum: the constraint on
    the clients' data put together.

    Attributes:
        statistics: ``(params, batch) -> vector``; each entry a sum over rows of ``batch["weight"]`` times something.
            It may take a random ``key``, as the functions of a ``Problem``.
        value: ``(vector) -> scalar or vector``, the constraint as a function of the summed statistics. It must not
            change when all statistics are multiplied by one number: a ratio of sums, say.
        gaps: whether each constraint is the gap between two groups' means, |a/b − c/d| of four statistics a, b, c, d in
            their order: the sum of a group's values and how many they are, then those of the other group. A certificate
            can then promise something of it, by the range of the values (``Problem.constraint_range``).
    """

    statistics: Callable[..., Any]
    value: Callable[[Any], Any]
    gaps: bool = False

    def __post_init__(self) -> None:
        checks.function("statistics", self.statistics, "(params, batch) -> vector of additive statistics")
        checks.function("value", self.value, "(statistics) -> scalar or vector")

    @property
    def random(self) -> bool:
        """Whether its statistics take a random key."""
        return takes_key(self.statistics)

    def __call__(self, params: Params, batch: Batch, key: Any = None) -> Any:
        """The constraint of one client."""
        return self.value(call(self.statistics, params, batch, key))
