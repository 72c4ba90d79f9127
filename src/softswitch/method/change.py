"""How much the largest of the clients' values changes from one round to the next: a running mean."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from array_api_compat import array_namespace

from softswitch.method.weighting import maximum, spread

KEPT = 0.9
"""The share of the running mean that is kept from round to round."""
FIRST_SPREAD, FIRST_VALUE = 0.1, 1e-3
"""Before there is any change to see: these shares of the values' spread and of the largest one."""


class Change(NamedTuple):
    """A running mean of the change of the largest value.

    Attributes:
        largest: the largest value in the round before; NaN before the first.
        mean: the running mean; NaN before the first.
    """

    largest: Any
    mean: Any

    def size(self, values: Any, mask: Any) -> Any:
        """The change that is expected, before this round's values are counted."""
        xp = array_namespace(values)
        first = FIRST_SPREAD * spread(values, mask) + FIRST_VALUE * xp.abs(maximum(values, mask))
        known = xp.asarray(self.mean, dtype=values.dtype)
        return xp.where(xp.isnan(known), first, known)

    def after(self, values: Any, mask: Any) -> Change:
        """The running mean with this round's values."""
        xp = array_namespace(values)
        largest, before = maximum(values, mask), xp.asarray(self.largest, dtype=values.dtype)
        expected = self.size(values, mask)
        blended = KEPT * expected + (1 - KEPT) * xp.abs(largest - before)
        mean = xp.where(xp.isfinite(blended), blended, expected)
        dtype = self.mean.dtype
        return Change(xp.astype(largest, dtype), xp.astype(mean, dtype))


def no_change() -> Change:
    """Before the first round."""
    unknown = jnp.full((), jnp.nan, dtype=jnp.result_type(float))
    return Change(unknown, unknown)
