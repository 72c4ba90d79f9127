"""Parameters as arrays by name, and back: how a pytree travels."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flwr.app import ArrayRecord

from softswitch.flower.messages import Arrays, to_record
from softswitch.problem.parameters import Params
from softswitch.support.arrays import shaped


def initial_arrays(params: Params) -> ArrayRecord:
    """Parameters as Flower's record of arrays: what ``SwitchingStrategy.start`` begins with.

    ``initial_arrays(problem.start)``, or ``initial_arrays(parameters(module))`` for a PyTorch module.

    Args:
        params: w_0, a tree of arrays, or arrays by name.
    """
    return to_record(flatten_params(params))


def flatten_params(params: Params) -> Arrays:
    """Arrays by name: a dict of arrays keeps its names, anything else is named by its paths."""
    return {name: np.asarray(leaf, order="C") for name, leaf in flatten_traced(params).items()}


def flatten_traced(params: Params) -> dict[str, Any]:
    """The same within a compiled program."""
    if _is_flat(params):
        return dict(params)
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def unflatten_params(arrays: Arrays, like: Params) -> Params:
    """Arrays by name in the structure of ``like``."""
    if _is_flat(like):
        return {name: arrays[name] for name in like}
    return shaped(arrays, like)


def unflatten_state(tree: Any, like: Any, flat_params: Arrays) -> Any:
    """A tree that holds parameters by name in some of its places (a run's state, say), in the structure of ``like``."""
    arrays = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        *outer, last = path
        name = getattr(last, "key", None)
        arrays[jax.tree_util.keystr(path)] = leaf
        if name in flat_params:  # a name is the path within the parameters
            arrays[f"{jax.tree_util.keystr(tuple(outer))}{name}"] = leaf
    return shaped(arrays, like)


def _is_flat(params: Any) -> bool:
    return isinstance(params, dict) and all(
        isinstance(name, str) and jax.tree_util.all_leaves([leaf]) for name, leaf in params.items()
    )
