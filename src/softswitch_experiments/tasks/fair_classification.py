"""Fair classification: the worst client's cross-entropy, with a bound on every client's gap between groups.

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
from softswitch.problem.fairness import SIDE, demographic_parity, gap_sides, signed_gaps
from softswitch.problem.networks import Network, init_network, logistic_objective, predict_probability, scores
from softswitch.problem.problem import PooledConstraint, Problem
from softswitch.support import checks
from softswitch_experiments.tasks import adult as census
from softswitch_experiments.tasks.partitions import split_by_column, split_iid

__all__ = ["Adult", "accuracy_and_gap", "adult", "init_network", "logistic_objective", "predict_probability", "scores"]


class Adult(NamedTuple):
    """The Adult data, split over clients.

    Attributes:
        problem: The problem.
        train: UCI's training rows: 100 features ``x``, the label ``y`` (income above 50,000 dollars), and ``group``, 1
            for women.
        test: UCI's test rows, split in the same way, without clients that have none.
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
    """Return the Adult data over clients, with a network to train.

    Args:
        clients: n. Rows are split IID by label and group.
        seed: Seed of the split over clients and of the network's weights.
        by: A categorical column, such as "occupation", whose values are the clients; ``clients`` is then ignored.
        min_rows: Values of that column with fewer training rows form one client together.
        hidden: Widths of the network's hidden layers; () is logistic regression.
        constraint: A fairness constraint over ``probability``. Default: demographic parity.
        strata: Columns by which batches are stratified: "group", or ("group", "y") for constraints that depend on
            labels. Default: no strata, as in the paper.
        sides: "parity" or "opportunity": use that gap as two constraints, each a mean over rows, as ``RecordPrivacy``
            needs it. The rows then have a column ``side``, and ``constraint`` must be None.
    """
    table = census.columns()
    training = table["split"] == "train"
    x, y, group = _encode()
    if by is None:
        owners = [split_iid(2 * y[part] + group[part], clients, seed=seed) for part in (training, ~training)]
    else:
        checks.check_choice("by", by, census.CATEGORICAL)
        values = table[by]
        kept = split_by_column(values[training], min_rows=min_rows)
        known = np.isin(values, np.unique(kept))
        owners = [kept, np.where(known, values, "other")[~training]]
    data = [
        ClientData.from_arrays(
            {"x": x[part], "y": y[part], "group": group[part], **_side_column(sides, y[part], group[part], owner)},
            client=owner,
            strata=strata,
        )
        for part, owner in zip((training, ~training), owners, strict=True)
    ]
    if sides is not None:
        if constraint is not None:
            raise ValueError(
                f"constraint must be None if sides are given, but sides is {sides!r}: leave out one of them"
            )
        largest = max(float(jnp.abs(part.rows.columns[SIDE]).max()) for part in data)
        start = init_network(x.shape[1], hidden, seed=seed)
        return Adult(
            Problem(logistic_objective, signed_gaps(predict_probability), start, constraint_range=(-largest, largest)),
            *data,
        )
    gap = demographic_parity(predict_probability) if constraint is None else constraint
    bounds = (0.0, 1.0) if gap.gaps else None  # of probabilities
    return Adult(
        Problem(logistic_objective, gap, init_network(x.shape[1], hidden, seed=seed), constraint_range=bounds), *data
    )


def _side_column(sides: str | None, y: np.ndarray, group: np.ndarray, owner: np.ndarray) -> dict[str, np.ndarray]:
    if sides is None:
        return {}
    checks.check_choice("sides", sides, ("parity", "opportunity"))
    return {SIDE: gap_sides(group, owner, counted=None if sides == "parity" else y == 1)}


@lru_cache(maxsize=1)
def _encode() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features, labels and group of all rows."""
    table = census.columns()
    x, _ = census.features(table, table["split"] == "train")
    return x, census.labels(table), (table["sex"] == "Female").astype(np.int32)


def accuracy_and_gap(params: Network, data: ClientData) -> dict[str, Any]:
    """Return accuracy, gap of positive decisions and gap of mean probabilities between the groups, on all rows.

    A decision is positive if the probability is at least one half.
    """
    rows = {key: np.asarray(column) for key, column in data.rows.columns.items()}
    positive = np.asarray(jax.nn.sigmoid(scores(params, jnp.asarray(rows["x"]))))
    decisions = positive >= 0.5
    protected = rows["group"] == 1
    return {
        "accuracy": float((decisions == rows["y"]).mean()),
        "decision_gap": float(abs(decisions[protected].mean() - decisions[~protected].mean())),
        "probability_gap": float(abs(positive[protected].mean() - positive[~protected].mean())),
    }
