"""The cases: a table, a kind of constraint and a bound on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import softswitch as ss
from benchmarks.tables.sources import SOURCES, Source, table
from softswitch.tables.constraints import build_problem
from softswitch_experiments.leaderboard.tables import encode_table


@dataclass(frozen=True)
class Case:
    """A problem on a table.

    Attributes:
        table: the name of its source.
        kind: as ``task.kind`` in a table's settings.
        tolerance: the bound on every client's constraint. It was chosen between the smallest that any model can meet
            and what the model without the constraint has, before any method was run.
    """

    table: str
    kind: str
    tolerance: float

    @property
    def name(self) -> str:
        """The table and the kind."""
        return f"{self.table}, {self.kind}"

    @property
    def source(self) -> Source:
        """Where the table is from, and its licence."""
        return SOURCES[self.table]

    @property
    def held_out(self) -> bool:
        """Every second table in alphabetical order: its results choose nothing. All cases of a table go together."""
        return list(SOURCES).index(self.table) % 2 == 1

    @property
    def convex(self) -> bool:
        """Whether the problem is convex for logistic regression: gaps of probabilities are not."""
        return self.kind in ("neyman-pearson", "group-loss")

    def columns(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The encoded columns, one row a row, and each row's client."""
        return encode_table(table(self.table), self.kind)

    def make(self, hidden: tuple[int, ...] = (), seed: int = 0) -> tuple[ss.Problem, ss.ClientData]:
        """Problem and clients, for logistic regression or a network."""
        columns, client = self.columns()
        made = build_problem(self.kind, columns["x"].shape[1], hidden, seed=seed)
        return made.problem, ss.ClientData.from_arrays(columns, client, strata=made.strata)


CASES = (
    Case("adult", "demographic-parity", 0.1),
    Case("adult", "equal-opportunity", 0.1),
    Case("attrition", "equal-opportunity", 0.1),
    Case("birds", "neyman-pearson", 0.5),
    Case("cancer", "neyman-pearson", 0.2),
    Case("chemistry", "demographic-parity", 0.08),
    Case("chemistry", "equal-opportunity", 0.08),
    Case("churn", "neyman-pearson", 0.5),
    Case("crashes", "neyman-pearson", 0.5),
    Case("diamonds", "neyman-pearson", 0.4),
    Case("digits", "neyman-pearson", 0.3),
    Case("exam", "group-loss", 0.7),
    Case("flights", "neyman-pearson", 0.5),
    Case("growth", "group-loss", 0.6),
    Case("language", "group-loss", 0.7),
    Case("loans", "group-loss", 0.6),
    Case("loans", "neyman-pearson", 0.5),
    Case("mortgages", "demographic-parity", 0.05),
    Case("resume", "equal-opportunity", 0.02),
    Case("star", "group-loss", 0.68),
    Case("star", "neyman-pearson", 0.55),
    Case("stops", "demographic-parity", 0.03),
    Case("votes", "group-loss", 0.53),
    Case("wages", "demographic-parity", 0.1),
    Case("women", "demographic-parity", 0.05),
)


def chosen(half: str, names: tuple[str, ...] = ()) -> tuple[Case, ...]:
    """The cases of a half, "tuned", "held-out" or "all"; perhaps only those whose name has one of these words."""
    wanted = {"tuned": (False,), "held-out": (True,), "all": (False, True)}[half]
    return tuple(
        case for case in CASES if case.held_out in wanted and (not names or any(word in case.name for word in names))
    )
