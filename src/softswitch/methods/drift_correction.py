"""Drift-corrected running estimates of the clients' reports.

    x̂_i ← x_i(w_k) + β^a (x̂_i − x_i(w_{k−1}))     both on the same batch; a: rounds since the client's last report

A running mean of reports lags behind the iterates. The change of x_i from w_{k−1} to w_k on one batch has far less
noise than x_i itself, so this estimate (STORM's, for values) has no lag.

The best β depends on the noise of the reports and the step size. An estimate is kept for each β in ``DECAY_RATES``, and
tested on a fresh batch at w_{k−1}. The one with the smallest recent mean squared error is used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

DECAY_RATES = (0.98, 0.95, 0.9, 0.8, 0.5)  # values of β that are tried; ties are resolved in favour of the first
ERROR_DECAY = 0.97  # decay rate per round of the running mean squared errors


class Forecasts(NamedTuple):
    """Estimates of every client's v values (objective, constraints, statistics) for each of the b rates β."""

    estimates: Float[Array, "n b v"]  # x̂; −∞ for a client without a report or without the value
    missed: Float[Array, "b v"]  # running mean squared error of the estimates on fresh batches

    @classmethod
    def empty(cls, clients: int, values: int, dtype: Any) -> Forecasts:
        """Return the estimates before the first report: −∞, with errors of 0."""
        rates = len(DECAY_RATES)
        return cls(jnp.full((clients, rates, values), -jnp.inf, dtype), jnp.zeros((rates, values), dtype))

    def widened(self, clients: int) -> Forecasts:
        """Return the estimates extended to ``clients`` clients; the additional ones have −∞."""
        more = ((0, clients - self.estimates.shape[0]), (0, 0), (0, 0))
        return self._replace(estimates=jnp.pad(self.estimates, more, constant_values=-jnp.inf))

    def with_values(self, values: Float[Array, "n v"], who: Bool[Array, " n"]) -> Forecasts:
        """Return the estimates with exact ``values`` for the clients where ``who`` is True, and errors of 0."""
        estimates = jnp.where(who[:, None, None], values[:, None].astype(self.estimates.dtype), self.estimates)
        return Forecasts(estimates, jnp.zeros_like(self.missed))

    def correct(
        self, clients: Array, mask: Array, ages: Array, now: Float[Array, "m v"], earlier: Float[Array, "m v"]
    ) -> tuple[Forecasts, Float[Array, "n v"]]:
        """Return the estimates after a round's reports, and every client's estimate for the best β.

        ``clients`` are the m participants, ``mask`` whether each reported, and ``ages`` the rounds since their last
        reports. ``now`` are the reports at w_k, and ``earlier`` the values of the same batches at w_{k−1}.
        """
        old = self.estimates[clients]
        is_known = (jnp.isfinite(now) & jnp.isfinite(earlier))[:, None] & jnp.isfinite(old)
        error = jnp.where(is_known, jnp.where(is_known, earlier[:, None], 0) - jnp.where(is_known, old, 0), 0)
        tested = is_known & (mask & (ages == 1))[:, None, None]  # older estimates are not at w_{k−1}
        missed = ERROR_DECAY * self.missed + (1 - ERROR_DECAY) * jnp.where(tested, error**2, 0).sum(axis=0)
        share = jnp.asarray(DECAY_RATES, old.dtype)[:, None] ** ages.astype(old.dtype)[:, None, None]
        is_missing = jnp.isneginf(now)[:, None] & jnp.isfinite(old)  # a batch that lacks a class keeps the estimate
        new = jnp.where(mask[:, None, None] & ~is_missing, now[:, None] - share * error, old).astype(old.dtype)
        estimates = self.estimates.at[clients].set(new)
        best = jnp.argmin(missed, axis=0)
        return Forecasts(estimates, missed), jnp.take_along_axis(estimates, best[None, None], axis=1)[:, 0]
