"""Steps that fall, and a server optimiser that needs no scale: for runs whose settings choose themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import optax

from softswitch.support.traced_settings import traced_settings


@traced_settings
@dataclass(frozen=True, kw_only=True)
class FallingStep:
    """A step size that falls to 0 by a cosine: first·(1 + cos(π (k − begin)/rounds))/2 in round k.

    Attributes:
        first: the step in its first round.
        rounds: how many rounds it takes to fall.
        begin: its first round.
    """

    first: float
    rounds: int
    begin: int = 0

    def __call__(self, k: Any) -> Any:
        """The step in round k."""
        gone = jnp.clip((k - self.begin) / self.rounds, 0, 1)
        return self.first * 0.5 * (1 + jnp.cos(jnp.pi * gone))


@traced_settings
@dataclass(frozen=True, kw_only=True)
class NormalizedAdam:
    """Adam on directions of length 1, so that objective and constraint, whatever their units, pull alike.

    Attributes:
        momentum: the share of the mean direction that is kept from round to round.
    """

    momentum: float = 0.9

    def __call__(self, step_size: Any) -> optax.GradientTransformation:
        """The optimiser with this step."""
        return optax.chain(optax.normalize_by_update_norm(eps=1e-30), optax.adam(step_size, b1=self.momentum))
