"""Domains Θ to keep the iterates in: a ball, a box, or one of your own. The default is no domain at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.problem.parameters import Params
from softswitch.support import checks
from softswitch.support.arrays import has_leaves, structure_and_shapes
from softswitch.support.traced_settings import traced_settings


@runtime_checkable
class Domain(Protocol):
    """A convex set Θ: anything that can be projected onto. Plans by the theorems are for ``Ball`` and ``Box``."""

    def project(self, params: Params) -> Params:
        """The nearest point of Θ, in JAX: it is part of the compiled round.

        Args:
            params: parameters, any tree of floating arrays.
        """
        ...


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
        """w · min(1, radius/‖w‖).

        Args:
            params: parameters, any tree of floating arrays.
        """
        leaves = jax.tree.leaves(params)
        # Measured in units of the largest entry, whose square may overflow.
        dtype = jnp.promote_types(jnp.result_type(*leaves), jnp.float32)
        largest = jnp.maximum(jnp.stack([jnp.abs(leaf).max().astype(dtype) for leaf in leaves]).max(), 1e-30)
        squares = sum(((leaf / largest) ** 2).sum() for leaf in leaves)
        scale = jnp.minimum(1, self.radius / largest / jnp.sqrt(squares))
        return jax.tree.map(lambda leaf: (leaf * scale).astype(leaf.dtype), params)

    def diameter(self, params: Params) -> float:
        """2 · radius.

        Args:
            params: parameters of the shape in question; their values do not matter.
        """
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
        """Each entry clipped to [lower, upper].

        Args:
            params: parameters, any tree of floating arrays.
        """
        return jax.tree.map(lambda leaf: jnp.clip(leaf, self.lower, self.upper), params)

    def diameter(self, params: Params) -> float:
        """(upper − lower) · √(number of entries).

        Args:
            params: parameters of the shape in question; their values do not matter.
        """
        entries = sum(np.size(leaf) for leaf in jax.tree.leaves(params))
        return float(np.sqrt(entries) * (self.upper - self.lower))


def check_domain(domain: Any, start: Params) -> None:
    """Raise unless ``domain`` is one, and holds the start; None is no domain."""
    if domain is None:
        return
    if not isinstance(domain, Domain) or isinstance(domain, type):
        raise TypeError(f"domain must be a Ball, a Box, anything with project(params), or None, but is {domain!r}")
    try:
        jax.eval_shape(domain.project, start)
    except jax.errors.TracerArrayConversionError as error:
        raise TypeError(f"domain.project must compute in JAX, but {domain!r} uses NumPy on its argument") from error
    projected = domain.project(start)
    if structure_and_shapes(projected) != structure_and_shapes(start):
        raise ValueError(f"domain.project must give parameters of the start's shapes, but gives {projected!r}")
    moved = jax.tree.map(jnp.subtract, projected, start)
    if any(not np.allclose(leaf, 0, atol=1e-5) for leaf in jax.tree.leaves(moved)):
        raise ValueError(f"start must lie in the domain {domain!r}, but does not")


def as_argument(domain: Domain | None) -> Domain | None:
    """The domain as a compiled program takes it: a pytree as it is, any other object as part of the program."""
    return domain if domain is None or has_leaves(domain) else OwnDomain(domain)


@jax.tree_util.register_static
class OwnDomain:
    """A domain of a user's own class, the same as itself only: what it holds is compiled in."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain

    def project(self, params: Params) -> Params:
        """As the domain does."""
        return self.domain.project(params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnDomain) and other.domain is self.domain

    def __hash__(self) -> int:
        return id(self.domain)
