"""Conversion between a pytree of parameters and the named arrays in messages."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flwr.app import ArrayRecord

from softswitch.flower.messages import Arrays, to_record
from softswitch.problem.parameters import Params
from softswitch.support.arrays import unflatten_by_path


def initial_arrays(params: Params) -> ArrayRecord:
    """Return parameters as a Flower record, the start of ``SwitchingStrategy.start``.

    For example ``initial_arrays(problem.start)``, or ``initial_arrays(parameters(module))`` for a PyTorch module.

    Args:
        params: The parameters w_0: a pytree of arrays, or arrays by name.
    """
    return to_record(flatten_params(params))


def flatten_params(params: Params) -> Arrays:
    """Return NumPy arrays by name: a dict of arrays keeps its names, and other trees use their paths as names."""
    return {name: np.asarray(leaf, order="C") for name, leaf in flatten_traced(params).items()}


def flatten_traced(params: Params) -> dict[str, Any]:
    """Return the leaves by name without conversion to NumPy, for use in compiled programs."""
    if _is_flat(params):
        return dict(params)
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def unflatten_params(arrays: Arrays, like: Params) -> Params:
    """Return arrays by name in the structure of ``like``."""
    return {name: arrays[name] for name in like} if _is_flat(like) else unflatten_by_path(arrays, like)


def unflatten_state(state: Any, like: Any, flat_params: Arrays) -> Any:
    """Return a tree that contains parameters by name, such as a run's state, in the structure of ``like``."""
    arrays = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        *outer, last = path
        name = getattr(last, "key", None)
        arrays[jax.tree_util.keystr(path)] = leaf
        if name in flat_params:  # the name is the path within the parameters
            arrays[f"{jax.tree_util.keystr(tuple(outer))}{name}"] = leaf
    return unflatten_by_path(arrays, like)


def _is_flat(params: Any) -> bool:
    return isinstance(params, dict) and all(
        isinstance(name, str) and jax.tree_util.all_leaves([leaf]) for name, leaf in params.items()
    )
