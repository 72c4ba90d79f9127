"""Domains Θ, the convex sets that iterates are projected onto: a ball, a box, or a custom class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.problem.parameters import Params
from softswitch.support import checks
from softswitch.support.arrays import has_leaves, structure_and_shapes
from softswitch.support.function_equality import TracedSettings


@runtime_checkable
class Domain(Protocol):
    """Protocol of a convex set Θ with a projection. ``softswitch.theory`` supports ``Ball`` and ``Box`` only."""

    def project(self, params: Params) -> Params:
        """Return the point of Θ that is nearest to ``params``. Part of the compiled round, so it must use JAX.

        Args:
            params: Parameters, a pytree of floating arrays.
        """
        ...


@dataclass(frozen=True)
class Ball(TracedSettings, Domain):
    """The Euclidean ball around the origin, over all entries of the parameter pytree together.

    Attributes:
        radius: Radius > 0, in units of the parameters; half the diameter D of the theorems.
    """

    radius: float = field(metadata=checks.POSITIVE)

    def project(self, params: Params) -> Params:
        """Return w · min(1, radius/‖w‖) for the parameters w."""
        leaves = jax.tree.leaves(params)
        # The norm is computed relative to the largest entry, whose square may overflow.
        dtype = jnp.promote_types(jnp.result_type(*leaves), jnp.float32)
        largest = jnp.maximum(jnp.stack([jnp.abs(leaf).max().astype(dtype) for leaf in leaves]).max(), 1e-30)
        squares = sum(((leaf / largest) ** 2).sum() for leaf in leaves)
        scale = jnp.minimum(1, self.radius / largest / jnp.sqrt(squares))
        return jax.tree.map(lambda leaf: (leaf * scale).astype(leaf.dtype), params)

    def diameter(self, params: Params) -> float:
        """Return the diameter, 2 · radius.

        Args:
            params: Not used; the diameter of a ``Box`` needs it.
        """
        return 2 * self.radius


@dataclass(frozen=True)
class Box(TracedSettings, Domain):
    """The box of all parameters with ``lower`` <= every entry <= ``upper``.

    Attributes:
        lower: Lower bound of every entry, a finite number.
        upper: Upper bound of every entry, a finite number > ``lower``.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        lower = checks.check_real("lower", self.lower)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", checks.check_real("upper", self.upper, above=lower))

    def project(self, params: Params) -> Params:
        """Return the parameters with each entry clipped to [lower, upper]."""
        return jax.tree.map(lambda leaf: jnp.clip(leaf, self.lower, self.upper), params)

    def diameter(self, params: Params) -> float:
        """Return the Euclidean diameter, (upper − lower) · √(number of entries).

        Args:
            params: Parameters of any values; only the number of entries matters.
        """
        entries = sum(np.size(leaf) for leaf in jax.tree.leaves(params))
        return float(np.sqrt(entries) * (self.upper - self.lower))


def check_domain(domain: Any, start: Params) -> None:
    """Raise TypeError unless ``domain`` is None or has a JAX projection, ValueError unless it contains ``start``."""
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
        raise ValueError(f"domain.project must return parameters of the start's shapes, but returns {projected!r}")
    moved = jax.tree.map(jnp.subtract, projected, start)
    if any(not np.allclose(leaf, 0, atol=1e-5) for leaf in jax.tree.leaves(moved)):
        raise ValueError(f"start must lie in the domain {domain!r}, but does not")


def as_pytree(domain: Domain | None) -> Domain | None:
    """Return the domain as a pytree, to be an argument of a compiled program; custom classes become static."""
    return domain if domain is None or has_leaves(domain) else _StaticDomain(domain.project)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _StaticDomain:
    """A custom domain as a static pytree. Two are equal if their ``project`` is a method of the same object."""

    project: Callable[[Params], Params]
