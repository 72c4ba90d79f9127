"""Who is how good: merits above the best seen, ranks over tasks, paired intervals, profiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

EQUAL = 0.005
"""Merits that differ by less are as good as each other: half a percent of the start's objective."""
LEVEL = 0.95


@dataclass(frozen=True)
class Ranking:
    """Merits of methods on tasks.

    Attributes:
        methods: names.
        tasks: names.
        merits: methods × tasks × seeds, above the best seen on the task; infinite where a run went astray, NaN where a
            method does not apply.
        violations: methods × tasks × seeds: how far the constraint is broken, in units of the bound.
    """

    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    merits: np.ndarray
    violations: np.ndarray

    @classmethod
    def of(cls, cells: Sequence[dict[str, Any]], by: str, tolerances: dict[str, float]) -> Ranking:
        """From cells of one scheme, judged at equal "passes" or "bytes"."""
        methods = tuple(dict.fromkeys(cell["method"] for cell in cells))
        tasks = tuple(dict.fromkeys(cell["task"] for cell in cells))
        seeds = max(len(cell["runs"][by]) for cell in cells)
        merits = np.full((len(methods), len(tasks), seeds), np.nan)
        violations = np.full_like(merits, np.nan)
        for cell in cells:
            at = methods.index(cell["method"]), tasks.index(cell["task"])
            for seed, run in enumerate(cell["runs"][by]):
                merits[(*at, seed)] = run["merit"]
                beyond = max(0.0, run["constraint"] - tolerances[cell["task"]])
                violations[(*at, seed)] = beyond / cell["scale"]["constraint"]
        least = np.nanmin(merits, axis=(0, 2), keepdims=True)
        return cls(methods, tasks, merits - least, violations)

    @property
    def means(self) -> np.ndarray:
        """Methods × tasks."""
        mean: np.ndarray = self.merits.mean(axis=2)
        return mean

    @property
    def best(self) -> np.ndarray:
        """The best method on each task, by its number."""
        found: np.ndarray = np.nanargmin(np.where(np.isnan(self.means), np.inf, self.means), axis=0)
        return found

    def ranks(self) -> np.ndarray:
        """The mean rank of each method over the tasks that all of them have; equal merits share their ranks."""
        everywhere = ~np.isnan(self.means).any(axis=0)
        shown = np.round(self.means[:, everywhere] / EQUAL)  # what differs by less is a tie
        ranks: np.ndarray = stats.rankdata(shown, axis=0).mean(axis=1)
        return ranks

    def critical_difference(self) -> float:
        """Nemenyi's: mean ranks that are farther apart differ, at 5%."""
        many, tasks = len(self.methods), int((~np.isnan(self.means).any(axis=0)).sum())
        quantile = stats.studentized_range.ppf(LEVEL, many, np.inf) / math.sqrt(2)
        return float(quantile * math.sqrt(many * (many + 1) / (6 * tasks)))

    def behind(self, method: str, task: int, other: int) -> tuple[float, float]:
        """By how much a method's merit is above another's on a task: the interval of the paired mean, at 95%."""
        mine = self.merits[self.methods.index(method), task]
        gap = mine - self.merits[other, task]
        if not np.isfinite(gap).all():
            return (math.inf, math.inf) if not np.isfinite(mine).all() else (-math.inf, -math.inf)
        mean, many = float(gap.mean()), len(gap)
        if many < 2:
            return mean, mean
        half = float(stats.t.ppf((1 + LEVEL) / 2, many - 1) * gap.std(ddof=1) / math.sqrt(many))
        return mean - half, mean + half

    def leads(self, method: str) -> list[bool]:
        """On which tasks a method is the best, as good as it, or not told apart from it."""
        index = self.methods.index(method)
        return [
            bool(best == index or self.behind(method, task, int(best))[0] <= EQUAL)
            for task, best in enumerate(self.best)
        ]

    def profile(self, within: np.ndarray) -> np.ndarray:
        """Methods × levels: on which share of tasks the mean merit is within so much of the best seen."""
        means = np.where(np.isnan(self.means), np.inf, self.means)
        share: np.ndarray = (means[:, :, None] <= within).mean(axis=1)
        return share
