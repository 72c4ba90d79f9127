"""Domains Θ to keep the iterates in: a Euclidean ball or a box. The default is no domain at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.support import checks
from softswitch.support.traced import traced_settings

Params = Any  # a pytree of floating arrays


@traced_settings
@dataclass(frozen=True)
class Ball:
    """All parameters within Euclidean distance ``radius`` of the origin, over the whole pytree.

    Attributes:
        radius: half the diameter D of the theorems; > 0.
    """

    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", checks.real_number("radius", self.radius, above=0))

    def project(self, params: Params) -> Params:
        """w · min(1, radius/‖w‖)."""
        leaves = jax.tree.leaves(params)
        # Measured in units of the largest entry, whose square may overflow.
        dtype = jnp.promote_types(jnp.result_type(*leaves), jnp.float32)
        largest = jnp.maximum(jnp.stack([jnp.abs(leaf).max().astype(dtype) for leaf in leaves]).max(), 1e-30)
        squares = sum(((leaf / largest) ** 2).sum() for leaf in leaves)
        scale = jnp.minimum(1, self.radius / largest / jnp.sqrt(squares))
        return jax.tree.map(lambda leaf: (leaf * scale).astype(leaf.dtype), params)

    def diameter(self, params: Params) -> float:
        """2 · radius."""
        return 2 * self.radius


@traced_settings
@dataclass(frozen=True)
class Box:
    """All parameters with ``lower`` <= every entry <= ``upper``.

    Attributes:
        lower: the smallest value an entry may take.
        upper: the largest; > ``lower``.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        lower = checks.real_number("lower", self.lower)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", checks.real_number("upper", self.upper, above=lower))

    def project(self, params: Params) -> Params:
        """Each entry clipped to [lower, upper]."""
        return jax.tree.map(lambda leaf: jnp.clip(leaf, self.lower, self.upper), params)

    def diameter(self, params: Params) -> float:
        """(upper − lower) · √(number of entries)."""
        entries = sum(np.size(leaf) for leaf in jax.tree.leaves(params))
        return float(np.sqrt(entries) * (self.upper - self.lower))


Domain = Ball | Box
"""A convex set Θ that can be projected onto."""
