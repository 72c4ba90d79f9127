"""Neyman–Pearson classification: minimise false alarms, with a bound on every client's misses.

Objective: the mean logistic loss of class 0 (benign) at a client. Constraint: that of class 1 (malignant). The paper's
logistic loss is φ(w; (x, y)) = −y·wᵀx + log(1 + exp(wᵀx)).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from softswitch.data.client_data import ClientData
from softswitch.problem.domains import Domain
from softswitch.problem.losses import logistic_loss, mean_over
from softswitch.problem.parameters import Batch
from softswitch.problem.problem import Problem
from softswitch_experiments.tasks.partitions import split_dirichlet, split_iid


def class_loss(params: Float[Array, " d"], batch: Batch, label: int) -> Float[Array, ""]:
    """Return the mean logistic loss over the client's rows of one class, or −∞ if it has none."""
    scores = batch["x"] @ params
    loss = logistic_loss(scores, batch["y"])
    return mean_over(loss, batch["weight"] * (batch["y"] == label))


def objective(params: Float[Array, " d"], batch: Batch) -> Float[Array, ""]:
    """Return f_i, the loss of class 0."""
    return class_loss(params, batch, 0)


def constraint(params: Float[Array, " d"], batch: Batch) -> Float[Array, ""]:
    """Return g_i, the loss of class 1."""
    return class_loss(params, batch, 1)


def neyman_pearson(features: int, domain: Domain | None = None) -> Problem:
    """Return the problem for this number of features, with a start at zero."""
    return Problem(objective, constraint, jnp.zeros(features), domain, convex=True)


class BreastCancer(NamedTuple):
    """The paper's data: scikit-learn's breast cancer set, split over clients.

    Attributes:
        problem: The problem.
        train: 80% of the rows, standardised, with a constant column.
        test: The remaining 20%, without clients that have no such rows.
    """

    problem: Problem
    train: ClientData
    test: ClientData


def breast_cancer(
    clients: int = 20,
    *,
    seed: int = 0,
    split_seed: int | None = None,
    concentration: float | None = None,
    domain: Domain | None = None,
) -> BreastCancer:
    """Return breast cancer over ``clients`` clients; class 1 is malignant, the minority.

    Batches are stratified by class.

    Args:
        clients: n.
        seed: Seed of the split over clients.
        split_seed: Seed of the split into training and test rows. Default: ``seed``.
        concentration: Concentration of a Dirichlet split by class, with clients of very different sizes and class mix.
            Some have no row of a class, but each has at least 5 rows, training and test together. Default: an IID
            split with equal sizes and class mix.
        domain: Θ, a set to which the iterates are projected. Default: none.
    """
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    features, benign = load_breast_cancer(return_X_y=True)
    labels = 1 - benign
    train, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, random_state=seed if split_seed is None else split_seed, stratify=labels
    )
    if concentration is None:
        owners = [split_iid(labels[part], clients, seed=seed) for part in (train, test)]
    else:
        split = split_dirichlet(labels, clients, concentration=concentration, min_rows=5, seed=seed)
        owners = [split[train], split[test]]
    scaler = StandardScaler().fit(features[train])
    data = []
    for part, owner in zip((train, test), owners, strict=True):
        rows = np.column_stack([scaler.transform(features[part]), np.ones(len(part))]).astype(np.float32)
        data.append(ClientData.from_arrays({"x": rows, "y": labels[part]}, client=owner, strata="y"))
    return BreastCancer(neyman_pearson(features.shape[1] + 1, domain), *data)
