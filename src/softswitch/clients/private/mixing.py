"""What a local loss of several functions is on single rows: each function is a mean over rows of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from array_api_compat import array_namespace

from softswitch.method.messages import LocalLoss

if TYPE_CHECKING:  # it would import JAX, which not every client has
    from jaxtyping import Array, Float


def row_mix(
    loss: LocalLoss, told: Float[Array, " c"], counts: Float[Array, " functions"]
) -> tuple[Float[Array, " functions"], Any]:
    """The weights of f and each g on a row, and what a sum over rows of their mixture is multiplied by.

    The local loss is Σ_j m_j h_j with h_j = Σ_rows h_j(row)/n_j. On a row that is Σ_j (m_j N/n_j) h_j(row), times 1/N,
    with the weighted harmonic mean N of the n_j: for a single function its own rows count as they are. Where the loss
    has a price on what exceeds the tolerance, what was told of g with noise says whether it does.

    Args:
        loss: what one client descends on.
        told: what it reported of g.
        counts: n_j, how many rows f and each g concern; 0: none.
    """
    xp = array_namespace(counts)
    one = xp.reshape(xp.asarray(loss.objective, dtype=counts.dtype), (1,))
    above = xp.astype(told > xp.asarray(loss.tolerance, dtype=told.dtype), counts.dtype)
    price = xp.asarray(loss.constraint, dtype=counts.dtype) + xp.asarray(loss.penalty, dtype=counts.dtype) * above
    known = counts > 0
    mix = xp.where(known, xp.concat([one, price]), xp.zeros_like(counts))
    per_row = mix / xp.where(known, counts, xp.ones_like(counts))
    total, size = xp.sum(xp.abs(per_row)), xp.sum(xp.abs(mix))
    anything = total > 0
    rows = size / xp.where(anything, total, xp.ones_like(total))
    scale = xp.where(anything, 1 / xp.where(anything, rows, xp.ones_like(rows)), xp.zeros_like(rows))
    return per_row * rows, scale
