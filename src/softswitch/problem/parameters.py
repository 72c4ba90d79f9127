"""Parameters, batches and random keys: the arguments of the user's objective and constraint functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = Any
"""Model parameters: a pytree of floating arrays, such as an array, or nested dicts and lists of arrays."""
Move = Callable[[Params, float, float], Params]
"""Function ``(params, scale, offset) -> params`` that returns a model with scores ``scale`` · score + ``offset``."""
Batch = dict[str, Any]
"""Rows of a client: the data columns by name, and the row weights under ``"weight"``."""

WEIGHT = "weight"
"""Key of the row weights in a batch."""
CLIENT_OPTIMUM = "client_optimum"
"""Key of the client's own minimal objective in a batch, if regrets are minimised."""


def float_dtype(params: Params) -> Any:
    """Return the dtype of weights, reports and averages: that of the parameters, but at least float32."""
    return jnp.promote_types(jnp.result_type(*jax.tree.leaves(params)), jnp.float32)


def to_vector(params: Params) -> np.ndarray:
    """Return all entries of the parameters as one float64 vector on the host."""
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(params)])


def count_parameters(params: Params) -> int:
    """Return the number of scalar entries in all arrays of the parameters."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(params))


def check_params(argument: str, params: Params) -> Params:
    """Return the parameters as JAX arrays; raise unless all are floating (TypeError) and finite (ValueError)."""
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
            raise TypeError(f"{name} must be a floating array, but has dtype {array.dtype}; write 0.0, not 0")
        if not bool(jnp.isfinite(array).all()):
            raise ValueError(f"{name} must be finite, but holds NaN or infinity")
    return jax.tree.map(lambda leaf: jnp.array(leaf, dtype=jnp.asarray(leaf).dtype), params)


def check_start(argument: str, params: Params) -> Params:
    """Return the parameters as ``check_params`` does; also raise TypeError if an array is smaller than float32."""
    start = check_params(argument, params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(start):
        if jnp.finfo(leaf.dtype).bits < 32:
            name = f"{argument}{jax.tree_util.keystr(path)}"
            reason = f"rounds small steps to 0. Compute in it inside your functions: w.astype(jnp.{leaf.dtype})"
            raise TypeError(f"{name} must be float32 or float64, but has dtype {leaf.dtype}, which {reason}")
    return start


@lru_cache
def takes_key(function: Callable[..., Any]) -> bool:
    """Return whether a function has an argument ``key`` after its first two, without a default or with default None.

    An argument ``key`` with another default, in the function or by ``functools.partial``, does not count. An object
    that calls another function has an attribute ``inner_function``, whose arguments count instead.
    """
    if (inner := getattr(function, "inner_function", None)) is not None:
        return takes_key(inner)
    try:
        arguments = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):  # a built-in without a signature
        return False
    key = next((argument for argument in arguments[2:] if argument.name == "key"), None)
    if key is None or key.kind not in (key.POSITIONAL_OR_KEYWORD, key.KEYWORD_ONLY):
        return False
    return key.default is key.empty or key.default is None


def call_with_key(function: Callable[..., Any], params: Any, batch: Any, key: Any) -> Any:
    """Return ``function(params, batch)``, called with ``key=key`` if the function takes a key."""
    return function(params, batch, key=key) if takes_key(function) else function(params, batch)
