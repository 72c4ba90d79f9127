"""Rows that count more than others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from softswitch.problem.parameters import WEIGHT, Batch, Params
from softswitch.problem.problem import Problem

SAMPLE_WEIGHT = "sample_weight"
"""The column that says how much a row counts."""


def weighted(problem: Problem) -> Problem:
    """The same problem, with means over rows that count as the column ``sample_weight`` says.

    Its certificates are approximate: weighted means are no means over rows.
    """
    stand_in = problem.constraint_stand_in
    return replace(
        problem,
        objective=by_weights(problem.objective),
        constraint=by_weights(problem.constraint),
        constraint_stand_in=None if stand_in is None else by_weights(stand_in),
    )


def by_weights(function: Any) -> Any:
    """The same function, of rows that count as the column ``sample_weight`` says; or one made of several functions."""
    if is_dataclass(function) and not isinstance(function, type):
        own = {entry.name: getattr(function, entry.name) for entry in fields(function)}
        of_batches = {name: _of_batches(own[name]) for name in ("statistics", "exact") if name in own}
        return replace(function, **of_batches)
    return _of_batches(function)


def _of_batches(function: Callable[[Params, Batch], Any]) -> Callable[[Params, Batch], Any]:
    def own(params: Params, batch: Batch) -> Any:
        return function(params, {**batch, WEIGHT: batch[WEIGHT] * batch[SAMPLE_WEIGHT]})

    return own
