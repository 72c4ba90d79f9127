"""Ranking of methods: merits above the best one, ranks over tasks, paired intervals and performance profiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

EQUAL = 0.005
"""Merits that differ by less count as equal: half a percent of the objective at the start."""
LEVEL = 0.95


@dataclass(frozen=True)
class Ranking:
    """Merits of methods on tasks.

    Attributes:
        methods: Names of the methods.
        tasks: Names of the tasks.
        merits: Methods × tasks × seeds, relative to the best run on the task. Infinite for runs that diverged, NaN for
            methods that do not apply.
        violations: Methods × tasks × seeds: violation in units of the constraint.
    """

    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    merits: np.ndarray
    violations: np.ndarray

    @classmethod
    def from_cells(cls, cells: Sequence[dict[str, Any]], kind: str, tolerances: dict[str, float]) -> Ranking:
        """Return the ranking of the cells of one scheme at equal "passes" or "bytes"."""
        methods = tuple(dict.fromkeys(cell["method"] for cell in cells))
        tasks = tuple(dict.fromkeys(cell["task"] for cell in cells))
        seeds = max(len(cell["runs"][kind]) for cell in cells)
        merits = np.full((len(methods), len(tasks), seeds), np.nan)
        violations = np.full_like(merits, np.nan)
        for cell in cells:
            index = methods.index(cell["method"]), tasks.index(cell["task"])
            for seed, run in enumerate(cell["runs"][kind]):
                merits[(*index, seed)] = run["merit"]
                violation = max(0.0, run["constraint"] - tolerances[cell["task"]])
                violations[(*index, seed)] = violation / cell["units"]["constraint"]
        best = np.nanmin(merits, axis=(0, 2), keepdims=True)
        return cls(methods, tasks, merits - best, violations)

    @property
    def means(self) -> np.ndarray:
        """Mean merits, methods × tasks."""
        return self.merits.mean(axis=2)

    @property
    def best(self) -> np.ndarray:
        """Index of the best method on each task."""
        return np.nanargmin(np.where(np.isnan(self.means), np.inf, self.means), axis=0)

    def ranks(self) -> np.ndarray:
        """Return the mean rank of each method over the tasks that all methods have. Equal merits share ranks."""
        is_complete = ~np.isnan(self.means).any(axis=0)
        rounded = np.round(self.means[:, is_complete] / EQUAL)
        return stats.rankdata(rounded, axis=0).mean(axis=1)

    def critical_difference(self) -> float:
        """Return Nemenyi's critical difference of mean ranks at 5%."""
        methods, tasks = len(self.methods), int((~np.isnan(self.means).any(axis=0)).sum())
        quantile = stats.studentized_range.ppf(LEVEL, methods, np.inf) / math.sqrt(2)
        return float(quantile * math.sqrt(methods * (methods + 1) / (6 * tasks)))

    def difference(self, method: str, task: int, other: int) -> tuple[float, float]:
        """Return the paired 95% interval of the mean difference between the merits of two methods on a task."""
        merits = self.merits[self.methods.index(method), task]
        differences = merits - self.merits[other, task]
        if not np.isfinite(differences).all():
            return (math.inf, math.inf) if not np.isfinite(merits).all() else (-math.inf, -math.inf)
        mean, count = float(differences.mean()), len(differences)
        if count < 2:
            return mean, mean
        half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1) * differences.std(ddof=1) / math.sqrt(count))
        return mean - half, mean + half

    def leads(self, method: str) -> list[bool]:
        """Return for each task whether a method is the best, or not significantly worse than the best."""
        index = self.methods.index(method)
        return [
            bool(best == index or self.difference(method, task, int(best))[0] <= EQUAL)
            for task, best in enumerate(self.best)
        ]

    def profile(self, levels: np.ndarray) -> np.ndarray:
        """Return, methods × levels, the share of tasks whose mean merit is within each level of the best."""
        means = np.where(np.isnan(self.means), np.inf, self.means)
        return (means[:, :, None] <= levels).mean(axis=1)
