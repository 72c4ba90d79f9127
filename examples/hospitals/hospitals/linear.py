"""A linear model with 31 parameters, its two losses, and a hospital's rows."""

import jax.numpy as jnp
import numpy as np

from softswitch import Problem, logistic_loss, mean_over

FEATURES = 30
MAX_MISS_LOSS = 0.3
"""Bound on the mean loss of malignant tumours at every hospital."""
RIDGE = 0.01
"""Weight of the squared weights in the objective. Without it, few rows near the boundary would determine the model."""


def class_loss(params, batch, label):
    """Return the mean logistic loss over the rows of one class, or −∞ if there are none."""
    score = batch["x"] @ params["weights"] + params["intercept"]
    return mean_over(logistic_loss(score, batch["y"]), batch["weight"] * (batch["y"] == label))


def false_alarms(params, batch):
    """Return the objective: the loss of benign tumours, and a penalty on large weights."""
    return class_loss(params, batch, 0) + RIDGE * (params["weights"] ** 2).sum()


def misses(params, batch):
    """Return the constraint: the loss of malignant tumours, which the tolerance bounds."""
    return class_loss(params, batch, 1)


PROBLEM = Problem(false_alarms, misses, {"weights": jnp.zeros(FEATURES), "intercept": jnp.zeros(())}, convex=True)


def read_rows(file):
    """Return the training rows of a hospital, and every third row, which is held out for the certificate."""
    table = np.loadtxt(file, delimiter=",", skiprows=1, dtype=np.float32)
    columns = {"x": table[:, :FEATURES], "y": table[:, FEATURES]}
    held_out = np.arange(len(table)) % 3 == 2
    return ({name: column[rows] for name, column in columns.items()} for rows in (~held_out, held_out))
