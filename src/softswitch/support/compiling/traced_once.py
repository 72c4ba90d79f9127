"""A function that is traced once, where the shapes of its outputs have to be known before it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.extend.core import jaxpr_as_fun

T = TypeVar("T")


def traced_once(function: Callable[..., T], *examples: Any) -> tuple[Callable[..., T], T]:
    """The function as it was traced with arguments like these, and the shapes of what it returns.

    ``jax.eval_shape`` traces it too, and forgets what it traced: tracing is much of what it takes to compile.

    Args:
        function: from trees of arrays to a tree of arrays.
        *examples: arguments of the shapes and types that it will be called with.
    """
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*examples)
    play, structure = jaxpr_as_fun(traced), jax.tree.structure(shapes)

    def again(*arguments: Any) -> T:
        leaves = jax.tree.leaves(arguments)
        for leaf, like in zip(leaves, traced.in_avals, strict=True):
            if (leaf.shape, leaf.dtype) != (like.shape, like.dtype):
                raise TypeError(
                    f"arguments must be like {like}, with which it was traced, but one is {jax.typeof(leaf)}"
                )
        returned: T = jax.tree.unflatten(structure, play(*leaves))
        return returned

    return again, shapes
