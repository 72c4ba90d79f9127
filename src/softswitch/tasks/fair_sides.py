"""A gap between two groups as two constraints that are means over rows: for clients that keep their rows private.

|mean π of the protected − mean π of the rest| ≤ ε says that the difference is at most ε, and at least −ε. With known
sizes of the groups the difference is a mean over rows of π times a number of each row's own, its ``side``: a client's
rows over those of the row's group, and negative outside of the protected one. So it can be clipped row by row, as
``RecordPrivacy`` does, which a gap cannot. The sizes of the groups are then public. A row tells both constraints, up to
its side each: ``clip_value`` should be √2 times the largest side, or rows of the smaller group count for less than they
should, and the gap looks smaller than it is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from softswitch.problem.means import mean_over
from softswitch.problem.parameters import Batch, Params
from softswitch.support import checks
from softswitch.tasks.fairness import Predict

SIDE = "side"
"""The column that a batch has it in."""


def gap_sides(predict: Predict) -> Any:
    """Two constraints, the difference of the groups' mean π and its negative; batches have a column ``side``.

    The same function gives the same constraint, and compiles once.

    Args:
        predict: ``(params, batch) -> π`` of every row.
    """
    checks.function("predict", predict, "(params, batch) -> one probability a row")
    return _gap_sides(predict)


@lru_cache
def _gap_sides(predict: Predict) -> Any:
    def sides(params: Params, batch: Batch) -> Float[Array, " two"]:
        side = batch[SIDE]
        difference = mean_over(side * predict(params, batch), batch["weight"] * (side != 0))
        known = difference > -jnp.inf
        return jnp.where(known, jnp.stack([difference, -difference]), -jnp.inf)

    return sides


def side_of_rows(group: ArrayLike, client: ArrayLike, *, counted: ArrayLike | None = None) -> np.ndarray:
    """The ``side`` of every row; 0 for rows that do not count, and at clients that lack one of the groups.

    Args:
        group: 1 for the protected one, one a row.
        client: whose row each is.
        counted: which rows count: for equal opportunity those with y = 1. None: all, for demographic parity.
    """
    protected = np.asarray(group) == 1
    counts = np.ones(len(protected), bool) if counted is None else np.asarray(counted, bool)
    _, owner = np.unique(np.asarray(client), return_inverse=True)
    sizes = [np.bincount(owner[counts & own], minlength=owner.max() + 1) for own in (protected, ~protected)]
    both = (sizes[0] > 0) & (sizes[1] > 0)
    total = sizes[0] + sizes[1]
    inside, outside = (total / np.maximum(own, 1) for own in sizes)
    side = np.where(protected, inside[owner], -outside[owner])
    return np.where(counts & both[owner], side, 0).astype(np.float32)
