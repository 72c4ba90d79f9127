"""Parameters and batches: what a user's functions are given."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

Params = Any
"""A model's parameters: a pytree of floating arrays, such as an array, a dict or list of arrays, or a Flax model's."""
Batch = dict[str, Any]
"""Some rows of a client: the data's columns by name, and the rows' weights under ``"weight"``."""

WEIGHT = "weight"
"""The key under which every batch carries its row weights."""
CLIENT_OPTIMUM = "client_optimum"
"""The column with the client's own best objective, where regrets are minimised."""


def float_dtype(params: Params) -> Any:
    """The dtype to compute weights, reports and averages in: that of the parameters, and float32 at least."""
    return jnp.promote_types(jnp.result_type(*jax.tree.leaves(params)), jnp.float32)


def checked_params(argument: str, params: Params) -> Params:
    """The parameters as floating arrays, all finite, or raise."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ValueError(f"{argument} must hold at least one floating array, but is {params!r}")
    for path, leaf in leaves:
        name = f"{argument}{jax.tree_util.keystr(path)}"
        try:
            array = jnp.asarray(leaf)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} must be a floating array, but is {leaf!r}") from error
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(
                f"{name} must be a floating array, but has dtype {array.dtype}; write 0.0, or .astype(float)"
            )
        if not bool(jnp.isfinite(array).all()):
            raise ValueError(f"{name} must be finite, but holds NaN or infinity")
    return jax.tree.map(lambda leaf: jnp.array(leaf, dtype=jnp.asarray(leaf).dtype), params)


def checked_start(argument: str, params: Params) -> Params:
    """Parameters to train from: as ``checked_params``, and wide enough that a small step is not lost in rounding."""
    start = checked_params(argument, params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(start):
        if jnp.finfo(leaf.dtype).bits < 32:
            raise TypeError(
                f"{argument}{jax.tree_util.keystr(path)} must be float32 or float64, but has dtype {leaf.dtype}: a "
                "step smaller than its rounding would leave it where it is. Keep it in float32, and compute in "
                f"{leaf.dtype} inside your functions: w.astype(jnp.{leaf.dtype})"
            )
    return start
