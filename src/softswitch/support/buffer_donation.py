"""Large trees of arrays that change under a condition, written so that a processor's compiler overwrites them.

It decides what has to be copied before it puts operations in order. What reads an array and what overwrites it must
then follow from each other; a choice between old and new arrays, made at the end of a round, copies nearly all of them
at its beginning. On an accelerator, where that is not so, and for arrays of few numbers a choice is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

LARGE_SIZE = 2**16
"""From so many numbers on a tree is large."""

Tree = TypeVar("Tree")


def count_entries(tree: Any) -> int:
    """How many numbers a tree of arrays holds."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def is_large(tree: Any) -> bool:
    """Whether copies of the tree are worth avoiding, and the compiler would make them."""
    return jax.default_backend() == "cpu" and count_entries(tree) >= LARGE_SIZE


def select(condition: Bool[Array, ""], chosen: Any, otherwise: Any) -> Any:
    """One of two pytrees of the same shape; the result has the second one's dtypes."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b).astype(b.dtype), chosen, otherwise)


def update_if(condition: Bool[Array, ""], change: Callable[[Tree], Tree], tree: Tree) -> Tree:
    """``change(tree)`` where the condition holds, else the tree, for a large one.

    It goes through a loop of one turn or none: what a loop carries always has one place, while the branch of a ``cond``
    that keeps it would copy it to another. The change must not be one of which parts are the same every turn: the
    compiler computes these before the loop, and keeps them.
    """
    turns = condition.astype(jnp.int32)
    found: Tree = lax.fori_loop(0, turns, lambda _, old: _like(change(old), old), tree)
    return found


def delay_until(value: Array, others: Any, overwritten: Any) -> Array:
    """The value, which has to wait for the others, where the tree that is overwritten by it is large.

    So what the others are computed from is read before. A number equals itself or does not; the compiler, which would
    forget a mere barrier before it decides on copies, does not know.
    """
    if not is_large(overwritten):
        return value
    numbers = [jnp.asarray(leaf, jnp.float32).ravel() for leaf in jax.tree.leaves(others)]
    known = jnp.stack([((some == some) | (some != some)).all() for some in numbers]).all()
    return jnp.where(known, value, jnp.zeros_like(value))


def _like(new: Tree, old: Tree) -> Tree:
    found: Tree = jax.tree.map(lambda a, b: a.astype(b.dtype), new, old)
    return found
