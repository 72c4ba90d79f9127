"""Consistency of the clients' reports with their directions.

To first order, a client's direction predicts that its local loss changes by <u_i, w_{k+1} − w_k> along the server's
step. Its next report shows the actual change. A convex loss cannot decrease if an increase is predicted. Noise in the
reports makes it decrease at most half of the time. A client whose loss decreases far more often is inconsistent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from softswitch.methods.messages import LocalLoss
from softswitch.methods.parts import Round
from softswitch.problem.parameters import Params
from softswitch.support.arrays import append_clients, take_clients


class Consistency(NamedTuple):
    """Consistency statistics of every client over the run, predictions for the next reports, and stalled rounds."""

    round: Int[Array, " n"]  # round of its last direction; −1 if none
    loss: LocalLoss  # local loss in that round, one row of constraints per client
    value: Float[Array, " n"]  # reported value of that loss
    predicted_change: Float[Array, " n"]  # predicted change of the value
    times: Int[Array, " n"]  # number of comparisons
    predicted_increases: Int[Array, " n"]  # number of predicted increases
    contradictions: Int[Array, " n"]  # number of these after which it reported a decrease
    reported_total: Float[Array, " n"]  # sum of the absolute reported changes
    predicted_total: Float[Array, " n"]  # sum of the absolute predicted changes
    stalled_rounds: Int[Array, ""]  # number of consecutive infeasible rounds without a new lowest criterion
    lowest: Float[Array, ""]  # lowest criterion of the infeasible rounds since the last feasible one

    @classmethod
    def empty(cls, clients: int, constraints: int, dtype: Any) -> Consistency:
        """Return the statistics before the first round: all counts 0, no predictions."""
        none, zero, scalar = jnp.zeros(clients, jnp.int32), jnp.zeros(clients, dtype), jnp.zeros((), dtype)
        loss = LocalLoss(zero, jnp.zeros((clients, constraints), dtype), scalar, scalar)
        return cls(none - 1, loss, zero, zero, none, none, none, zero, zero, jnp.int32(0), scalar + jnp.inf)

    def widen(self, clients: int) -> Consistency:
        """Return the statistics extended to ``clients`` clients; the additional ones are empty."""
        known, constraints = self.loss.constraint.shape
        return append_clients(self, Consistency.empty(clients - known, constraints, self.value.dtype))

    def without_predictions(self) -> Consistency:
        """Return the statistics without predictions and stall, for parameters that changed outside of a round."""
        none = jnp.full_like(self.round, -1)
        return self._replace(round=none, stalled_rounds=jnp.int32(0), lowest=jnp.full_like(self.lowest, jnp.inf))

    def compare(self, played: Round, directions: Params, returned: Bool[Array, " m"], step: Params) -> Consistency:
        """Return the statistics after round k: compare its reports with the predictions, and predict the next.

        ``directions`` are the u_i of the participants, ``returned`` whether each sent one. ``step`` is w_{k+1} − w_k.
        """
        k, clients, reports, loss = played.k, played.clients, played.reports, played.decision.local_loss
        before = take_clients(self, clients)
        feasible, criterion = played.decision.feasible, played.decision.criterion.astype(self.lowest.dtype)
        change = reports.local_losses(before.loss) - before.value
        counts = reports.mask & (before.round == k - 1) & (k > 0) & jnp.isfinite(change)
        predicted_increases = counts & (before.predicted_change > 0)
        predicted_change = jnp.zeros_like(before.predicted_change)
        for leaf, leaf_step in zip(jax.tree.leaves(directions), jax.tree.leaves(step), strict=True):
            flat = leaf.reshape(len(clients), -1)
            predicted_change += jnp.tensordot(flat, leaf_step.ravel().astype(leaf.dtype), axes=1)

        def add(total: Array, more: Array) -> Array:
            return total.at[clients].add(jnp.where(counts, more, 0).astype(total.dtype))

        def put(every: Array, new: Array) -> Array:
            return every.at[clients].set(new.astype(every.dtype))

        mix = jnp.broadcast_to(loss.constraint, before.loss.constraint.shape)
        penalty, tolerance = (jnp.asarray(part, self.value.dtype) for part in (loss.penalty, loss.tolerance))
        objective = put(jnp.asarray(self.loss.objective), jnp.broadcast_to(loss.objective, clients.shape))
        return Consistency(
            round=put(self.round, jnp.where(returned, k, before.round)),
            loss=LocalLoss(objective, put(self.loss.constraint, mix), penalty, tolerance),
            value=put(self.value, reports.local_losses(loss)),
            predicted_change=put(self.predicted_change, predicted_change),
            times=add(self.times, counts),
            predicted_increases=add(self.predicted_increases, predicted_increases),
            contradictions=add(self.contradictions, predicted_increases & (change < 0)),
            reported_total=add(self.reported_total, jnp.abs(change)),
            predicted_total=add(self.predicted_total, jnp.abs(before.predicted_change)),
            stalled_rounds=jnp.where(feasible | (criterion < self.lowest), 0, self.stalled_rounds + 1),
            lowest=jnp.where(feasible, jnp.inf, jnp.minimum(self.lowest, criterion)),
        )
