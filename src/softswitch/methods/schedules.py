"""A decaying step size, and a server optimiser that is independent of the scale of gradients, for automatic runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import optax

from softswitch.support.function_equality import TracedSettings


@dataclass(frozen=True, kw_only=True)
class FallingStep(TracedSettings):
    """Cosine decay of the step size to 0: first·(1 + cos(π (k − begin)/rounds))/2 in round k.

    Attributes:
        first: Initial step size.
        rounds: Number of rounds of the decay; the step size is 0 after them.
        begin: First round of the decay. Default: 0.
    """

    first: float
    rounds: int
    begin: int = 0

    def __call__(self, k: Any) -> Any:
        """Return the step size in round k, a scalar array."""
        progress = jnp.clip((k - self.begin) / self.rounds, 0, 1)
        return self.first * 0.5 * (1 + jnp.cos(jnp.pi * progress))


@dataclass(frozen=True, kw_only=True)
class NormalizedAdam(TracedSettings):
    """Adam on directions normalised to length 1, so that the units of objective and constraint do not matter.

    Attributes:
        momentum: Decay rate of the mean direction (``b1`` of ``optax.adam``). Default: 0.9.
    """

    momentum: float = 0.9

    def __call__(self, step_size: Any) -> optax.GradientTransformation:
        """Return the optax transformation with the given step size."""
        return optax.chain(optax.normalize_by_update_norm(eps=1e-30), optax.adam(step_size, b1=self.momentum))
