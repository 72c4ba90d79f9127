"""Trees of arrays whose first axis counts clients; what is a single number is of all of them."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")


def some(tree: Tree, clients: Any) -> Tree:
    """What it holds of some clients, by their indices."""
    found: Tree = jax.tree.map(lambda every: every if every.ndim == 0 else every[clients], tree)
    return found


def with_more(tree: Tree, more: Tree) -> Tree:
    """The same with further clients after those that it has; single numbers stay."""
    found: Tree = jax.tree.map(lambda old, new: old if old.ndim == 0 else jnp.concatenate([old, new]), tree, more)
    return found


def weighted_sum(tree: Tree, weights: jax.Array) -> Tree:
    """Σ_i r_i x_i over the clients."""
    found: Tree = jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1), tree)
    return found


def beside(values: jax.Array, leaf: jax.Array) -> jax.Array:
    """One value a client, in a shape that goes with an array of theirs."""
    return values.reshape(-1, *[1] * (leaf.ndim - 1))
