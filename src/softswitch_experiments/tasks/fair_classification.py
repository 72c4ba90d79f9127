"""Fair classification: the smallest cross-entropy at the worst client, while no client's groups are treated apart.

The paper's experiment: Adult over ten clients, a network 100 → 64 (ReLU) → 1 with 6,529 parameters, sex as the
protected attribute, demographic parity as the constraint.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.data.client_data import ClientData
from softswitch.data.splits import split_by_column, split_iid
from softswitch.problem.fairness import SIDE, demographic_parity, gap_sides, side_of_rows
from softswitch.problem.networks import Network, network, objective, probability, scores
from softswitch.problem.pooled import PooledConstraint
from softswitch.problem.problem import Problem
from softswitch.support import checks
from softswitch_experiments.tasks import adult as census

__all__ = ["Adult", "accuracy_and_gap", "adult", "network", "objective", "probability", "scores"]


class Adult(NamedTuple):
    """The Adult data over clients.

    Attributes:
        problem: what to solve.
        train: UCI's training rows: 100 features ``x``, the label ``y`` (income above 50,000 dollars), and ``group``, 1
            for women.
        test: UCI's test rows, dealt likewise; a client that has none is not in it.
    """

    problem: Problem
    train: ClientData
    test: ClientData


def adult(
    clients: int = 10,
    *,
    seed: int = 0,
    by: str | None = None,
    min_rows: int = 500,
    hidden: tuple[int, ...] = (64,),
    constraint: PooledConstraint | None = None,
    strata: str | tuple[str, ...] | None = None,
    sides: str | None = None,
) -> Adult:
    """Adult over clients, with a network to train.

    Args:
        clients: n; rows are dealt IID by label and group.
        seed: of the split over clients and of the network's weights.
        by: a categorical column, such as "occupation": its values are the clients, and ``clients`` is not used.
        min_rows: values of that column with fewer training rows make one client together.
        hidden: widths of the network's hidden layers; () is logistic regression.
        constraint: a fairness constraint over ``probability``; by default demographic parity.
        strata: what to draw batches by, so that none lacks what its client has: "group", or ("group", "y") for
            constraints that look at labels. By default rows are drawn plainly, as in the paper.
        sides: "parity" or "opportunity": that gap as two constraints, each a mean over rows, as ``RecordPrivacy`` needs
            it; ``constraint`` is then left out. The rows have a column ``side`` for it.
    """
    table = census.columns()
    training = table["split"] == "train"
    x, y, group = _encoded()
    if by is None:
        owners = [split_iid(2 * y[part] + group[part], clients, seed=seed) for part in (training, ~training)]
    else:
        checks.one_of("by", by, census.CATEGORICAL)
        dealt = table[by]
        kept = split_by_column(dealt[training], min_rows=min_rows)
        known = np.isin(dealt, np.unique(kept))
        owners = [kept, np.where(known, dealt, "other")[~training]]
    data = [
        ClientData.from_arrays(
            {"x": x[part], "y": y[part], "group": group[part], **_side(sides, y[part], group[part], owner)},
            client=owner,
            strata=strata,
        )
        for part, owner in zip((training, ~training), owners, strict=True)
    ]
    if sides is not None:
        if constraint is not None:
            raise ValueError("constraint must be left out where sides are given: they are the constraint")
        largest = max(float(jnp.abs(part.rows.columns[SIDE]).max()) for part in data)
        start = network(x.shape[1], hidden, seed=seed)
        return Adult(Problem(objective, gap_sides(probability), start, constraint_range=(-largest, largest)), *data)
    gap = demographic_parity(probability) if constraint is None else constraint
    bounds = (0.0, 1.0) if gap.gaps else None  # of probabilities
    return Adult(Problem(objective, gap, network(x.shape[1], hidden, seed=seed), constraint_range=bounds), *data)


def _side(sides: str | None, y: np.ndarray, group: np.ndarray, owner: np.ndarray) -> dict[str, np.ndarray]:
    """The rows' sides of the gap, where they are asked for."""
    if sides is None:
        return {}
    checks.one_of("sides", sides, ("parity", "opportunity"))
    return {SIDE: side_of_rows(group, owner, counted=None if sides == "parity" else y == 1)}


@lru_cache(maxsize=1)
def _encoded() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels and group of all rows, encoded once."""
    table = census.columns()
    x, _ = census.features(table, table["split"] == "train")
    return x, census.labels(table), (table["sex"] == "Female").astype(np.int32)


def accuracy_and_gap(params: Network, data: ClientData) -> dict[str, Any]:
    """What a user of the classifier sees on all rows together: decisions at a probability of one half.

    Accuracy, the gap of positive decisions between the groups, and the gap of mean probabilities.
    """
    rows = {key: np.asarray(column) for key, column in data.rows.columns.items()}
    positive = np.asarray(jax.nn.sigmoid(scores(params, jnp.asarray(rows["x"]))))
    decided = positive >= 0.5
    protected = rows["group"] == 1
    return {
        "accuracy": float((decided == rows["y"]).mean()),
        "decision_gap": float(abs(decided[protected].mean() - decided[~protected].mean())),
        "probability_gap": float(abs(positive[protected].mean() - positive[~protected].mean())),
    }
