"""Running estimates of what clients report that go along with the server's steps.

    x̂_i ← x_i(w_k) + β^a (x̂_i − x_i(w_{k−1}))     both on the same batch; a: rounds since client i was heard before

A running mean of reports lags behind the iterates. A batch tells by how much x_i changed from w_{k−1} to w_k far more
surely than it tells x_i, so this estimate neither lags nor forgets what was known before. It is STORM's, of values.

Which β is best depends on how noisy reports are and how far the steps go. All of ``SHARES`` are kept side by side. A
fresh batch at w_{k−1} puts each to the test: that one is believed whose mean square miss of late is the smallest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

SHARES = (0.98, 0.95, 0.9, 0.8, 0.5)
"""Each β; where all do as well, the first is believed: a cycle begins with estimates that are exact."""
OF_LATE = 0.97
"""What a round takes over of the mean square misses before it."""


class Forecasts(NamedTuple):
    """Estimates of every client's values, by each β.

    Attributes:
        estimates: x̂; −∞ where a client was never heard, or has no such value.
        missed: the running mean of squares by which estimates missed what fresh batches said.
    """

    estimates: Float[Array, "n b v"]
    missed: Float[Array, "b v"]

    def of(self, clients: Int[Array, " m"]) -> Forecasts:
        """Those of some clients alone."""
        return self._replace(estimates=self.estimates[clients])

    def widened(self, clients: int) -> Forecasts:
        """The same for more clients, of whom nothing is known."""
        more = ((0, clients - self.estimates.shape[0]), (0, 0), (0, 0))
        return self._replace(estimates=jnp.pad(self.estimates, more, constant_values=-jnp.inf))

    def without(self, clients: Int[Array, " m"]) -> Forecasts:
        """The same as if some clients had never been heard."""
        return self._replace(estimates=self.estimates.at[clients].set(-jnp.inf))

    def told(self, values: Float[Array, "n v"], who: Bool[Array, " n"]) -> Forecasts:
        """The same where some clients' values are known exactly; which share foresaw best is looked for anew.

        Args:
            values: of all clients.
            who: those of whom they are known.
        """
        estimates = jnp.where(who[:, None, None], values[:, None].astype(self.estimates.dtype), self.estimates)
        return Forecasts(estimates, jnp.zeros_like(self.missed))


def nothing_foreseen(clients: int, values: int, dtype: Any) -> Forecasts:
    """Before anybody was heard."""
    many = len(SHARES)
    return Forecasts(jnp.full((clients, many, values), -jnp.inf, dtype), jnp.zeros((many, values), dtype))


def known(values: Float[Array, "n v"]) -> Forecasts:
    """Where every client's values are known exactly."""
    clients, many = values.shape
    nothing = nothing_foreseen(clients, many, values.dtype)
    return nothing._replace(estimates=jnp.broadcast_to(values[:, None], nothing.estimates.shape))


def corrected(
    before: Forecasts,
    clients: Int[Array, " m"],
    mask: Bool[Array, " m"],
    ages: Int[Array, " m"],
    told: Float[Array, "m v"],
    earlier: Float[Array, "m v"],
) -> tuple[Forecasts, Float[Array, "n v"]]:
    """The estimates after a round's reports, and of every client those that are believed.

    Args:
        before: the estimates before it.
        clients: who was asked.
        mask: who of them reported.
        ages: how many rounds ago each was heard before.
        told: what they report at w_k,
        earlier: and what the same batches gave at w_{k−1}.
    """
    own = before.estimates[clients]
    tells = (jnp.isfinite(told) & jnp.isfinite(earlier))[:, None] & jnp.isfinite(own)
    miss = jnp.where(tells, jnp.where(tells, earlier[:, None], 0) - jnp.where(tells, own, 0), 0)
    tested = tells & (mask & (ages == 1))[:, None, None]  # of others it is not known how far they went meanwhile
    missed = OF_LATE * before.missed + (1 - OF_LATE) * jnp.where(tested, miss**2, 0).sum(axis=0)
    share = jnp.asarray(SHARES, own.dtype)[:, None] ** ages.astype(own.dtype)[:, None, None]
    lacking = jnp.isneginf(told)[:, None] & jnp.isfinite(own)  # a batch without rows of a class: the estimate is kept
    now = jnp.where(mask[:, None, None] & ~lacking, told[:, None] - share * miss, own).astype(own.dtype)
    estimates = before.estimates.at[clients].set(now)
    best = jnp.argmin(missed, axis=0)
    believed = jnp.take_along_axis(estimates, best[None, None], axis=1)[:, 0]
    return Forecasts(estimates, missed), believed
