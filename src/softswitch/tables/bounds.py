"""Estimates of what a bound on a rate costs, and of the clients that can certify it, from a quick model.

The certification rows are set aside first. Of their labels only the number of rows of each class and client is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from softswitch.certification.limits import allowed_errors
from softswitch.data.splits import split_masks
from softswitch.problem.choices import BINARY, NUMBER
from softswitch.tables.constraints import KINDS
from softswitch.tables.features import Encoding, mark_categories, to_categories
from softswitch.tables.scores import cross_validate, make_estimators, row_weights
from softswitch.tables.settings import Config
from softswitch.tables.table import match_value

BOUNDED_POSITIVE = {"miss-rate": True, "false-alarm-rate": False}  # kinds with estimates: is that class bounded?
BOUNDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
USEFUL_COST = 0.75  # a bound is useful if its estimated cost at the worst client is smaller
MAX_ROWS = 20_000  # largest number of rows of the quick model
MAX_CELLS = 3_000_000  # largest number of rows times features of the quick model
DRAWS = 40  # simulated samples of certification rows, for the cost of a bound
MIN_CLASS_ROWS = 10  # smallest number of rows of each class
MIN_COST_ROWS = 20  # smallest number of rows of a client for its cost


@dataclass(frozen=True)
class BoundEstimate:
    """What a bound would cost, and the clients whose rows can certify it."""

    bound: float
    names: tuple[str, ...]  # names of all clients
    certifiable: tuple[str, ...]  # names of the clients that have enough certification rows for this bound
    cost: float  # estimated rate of the other error at the worst client; NaN if unknown
    mean_cost: float  # mean of this rate over the clients

    @property
    def is_useful(self) -> bool:
        """Whether the estimated cost is well below that of always predicting one class, which is 1."""
        return self.cost < USEFUL_COST


def propose_bound(estimates: Sequence[BoundEstimate]) -> BoundEstimate | None:
    """Return the smallest useful bound that the most clients can certify; if none is useful, that of least cost.

    None if no client can certify any bound.
    """

    def order(one: BoundEstimate) -> tuple[bool, int, float, float]:
        cost = math.inf if math.isnan(one.cost) else one.cost
        return not one.is_useful, -len(one.certifiable), 0.0 if one.is_useful else cost, one.bound

    return min((one for one in estimates if one.certifiable), key=order, default=None)


def certification_mask(table: pd.DataFrame, config: Config) -> np.ndarray:
    """Return the mask of the certification rows of a table without incomplete rows, as ``softswitch train`` splits it.

    Rows are split by client, class and group, but nothing else is read from the labels.
    """
    data, task = config.data, config.task
    labels, types, columns = table[data.label], KINDS[task.kind].label_types, []
    if BINARY in types and labels.nunique() == 2 and data.positive is not None:
        columns.append(match_value(labels, data.positive, "data.positive"))
    elif types != (NUMBER,):
        columns.append(pd.factorize(labels, sort=True)[0])
    if KINDS[task.kind].uses_groups:
        columns.append(match_value(table[task.sensitive], task.protected, "task.protected"))
    shares: Any = {"validation": 0.0, "calibration": data.held_out, "seed": config.run.seed}
    return split_masks(table[data.client], *columns, **shares)[2]


def complete_rows(table: pd.DataFrame, config: Config) -> pd.DataFrame:
    """Return the rows that have a label, a client and, for kinds that compare groups, a group."""
    group = [config.task.sensitive] if KINDS[config.task.kind].uses_groups else []
    return table.dropna(subset=[config.data.label, config.data.client, *group]).reset_index(drop=True)


def estimate_bounds(table: pd.DataFrame, config: Config) -> list[BoundEstimate]:
    """Estimate the cost of bounds from 5% to 50% with cross-validated scores of the rows that do not certify.

    ``config`` has the roles of the columns and a kind of ``BOUNDED_POSITIVE``; its bound is not used.
    """
    data = config.data
    table = mark_categories(complete_rows(table, config), data.categories)
    is_bounded = match_value(table[data.label], data.positive, "data.positive") == BOUNDED_POSITIVE[config.task.kind]
    names, client = np.unique(to_categories(table[data.client]).to_numpy(str), return_inverse=True)
    is_reserved = certification_mask(table, config)
    features = [name for name in table.columns if name not in (data.label, data.client, *data.ignore)]
    rows = sample_rows(client, np.flatnonzero(~is_reserved), MAX_ROWS)
    encoding = Encoding.fit(table.iloc[rows], features, table)
    rows = sample_rows(client, rows, max(1000, MAX_CELLS // len(encoding.features)))
    x, y, owner = encoding.encode(table.iloc[rows]), is_bounded[rows].astype(int), client[rows]
    scores = np.full(len(y), math.nan)
    if np.bincount(y, minlength=2).min() >= MIN_CLASS_ROWS:
        weights = row_weights(y, owner, balance=True)
        scores = cross_validate(make_estimators("auto", BINARY), x, y, owner, weights, BINARY, 2)[:, 0]
    counts, estimates = np.bincount(client[is_reserved & is_bounded], minlength=len(names)), []
    for bound in BOUNDS:
        allowed = np.array([allowed_errors(int(count), bound, 1 - config.run.confidence) for count in counts])
        costs = _estimate_costs(allowed, counts, scores, y, owner)
        estimates.append(BoundEstimate(bound, tuple(names.tolist()), tuple(names[allowed >= 0].tolist()), *costs))
    return estimates


def sample_rows(client: np.ndarray, rows: np.ndarray, limit: int) -> np.ndarray:
    """Return at most ``limit`` of the row indices ``rows``; random rows of the largest clients are dropped."""
    if len(rows) <= limit:
        return rows
    shuffled = np.random.default_rng(0).permutation(rows)
    shuffled = shuffled[np.argsort(client[shuffled], kind="stable")]
    place = pd.Series(shuffled).groupby(client[shuffled]).cumcount()  # within the client
    return np.sort(shuffled[np.argsort(place.to_numpy(), kind="stable")[:limit]])


def _estimate_costs(
    allowed: np.ndarray, counts: np.ndarray, scores: np.ndarray, y: np.ndarray, client: np.ndarray
) -> tuple[float, float]:
    """Estimate the cost of a bound at the worst client, and its mean over the clients; NaN if unknown.

    ``counts`` are the clients' certification rows of the bounded class, y = 1, and ``allowed`` the largest numbers of
    errors on these rows with which they are certified; negative if they cannot be.
    """
    generator, thresholds = np.random.default_rng(0), []
    for i in np.flatnonzero(allowed >= 0):
        if len(bounded := scores[(client == i) & (y == 1)]):
            samples = generator.choice(bounded, (DRAWS, counts[i]))
            thresholds.append(np.sort(samples, axis=1)[:, allowed[i]])
    others = [one for i in range(len(counts)) if len(one := scores[(client == i) & (y == 0)]) >= MIN_COST_ROWS]
    if not thresholds or not others or not np.isfinite(scores).all():
        return math.nan, math.nan
    highest = np.min(thresholds, axis=0)  # that certifies every client, in each simulated sample
    costs = np.array([[(one >= threshold).mean() for one in others] for threshold in highest])
    return float(costs.max(axis=1).mean()), float(costs.mean())
