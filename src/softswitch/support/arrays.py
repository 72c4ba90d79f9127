"""Trees of arrays: conversion to and from flat dictionaries, digests, operations over clients, conditional updates."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool

LARGE_SIZE = 2**16  # numbers; trees of at least this size are updated in place
_ALIGNMENT = 64  # bytes

Tree = TypeVar("Tree")


def is_random_key(leaf: Any) -> bool:
    """Return whether an array holds random keys, which NumPy does not support."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _without_keys(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if is_random_key(leaf) else leaf


def _leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path), _without_keys(leaf if hasattr(leaf, "dtype") else np.asarray(leaf))


def flatten_by_path(tree: Any) -> dict[str, np.ndarray]:
    """Return the leaves as NumPy arrays by path; random keys as their data."""
    return {name: np.asarray(leaf, order="C") for name, leaf in _leaves(tree)}


def unflatten_by_path(arrays: Mapping[str, Any], like: Any) -> Any:
    """Return a tree with the structure of ``like`` from arrays by path."""

    def restore(path: Any, leaf: Any) -> Any:
        array = arrays[jax.tree_util.keystr(path)]
        is_key_data = is_random_key(leaf) and not is_random_key(array)
        return jax.random.wrap_key_data(jnp.asarray(array)) if is_key_data else array

    return jax.tree_util.tree_map_with_path(restore, like)


def has_leaves(value: Any) -> bool:
    """Return whether a value is a pytree node rather than a single leaf."""
    return not jax.tree_util.all_leaves([value])


def structure_and_shapes(tree: Any) -> tuple[Any, list[Any]]:
    """Return the structure, and the shapes and dtypes of the leaves."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = (leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf) for leaf in leaves)
    return structure, [(tuple(array.shape), array.dtype) for array in arrays]


def fingerprint(*trees: Any) -> str:
    """Return a digest of the names, shapes, dtypes and values of all arrays."""
    digest = hashlib.sha256()
    named_leaves = [(f"{i}{name}", leaf) for i, tree in enumerate(trees) for name, leaf in _leaves(tree)]
    for name, leaf in sorted(named_leaves, key=lambda pair: pair[0]):
        digest.update(f"{name} {np.dtype(leaf.dtype).str} {tuple(leaf.shape)}".encode())
        content: Any = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
        digest.update(content)
    return digest.hexdigest()


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return zeros in a buffer that is aligned so that JAX can use it without a copy."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT
    return raw[first : first + size].view(dtype).reshape(shape)


def take_clients(tree: Tree, clients: Any) -> Tree:
    """Return the entries of some clients, by index; scalars are unchanged."""
    return jax.tree.map(lambda leaf: leaf if leaf.ndim == 0 else leaf[clients], tree)


def append_clients(tree: Tree, more: Tree) -> Tree:
    """Append the entries of further clients; scalars are unchanged."""
    return jax.tree.map(lambda old, new: old if old.ndim == 0 else jnp.concatenate([old, new]), tree, more)


def weighted_sum(tree: Tree, weights: jax.Array) -> Tree:
    """Return Σ_i r_i x_i over the clients."""
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1), tree)


def expand_like(values: jax.Array, leaf: jax.Array) -> jax.Array:
    """Reshape one value per client so that it broadcasts with an array of the clients."""
    return values.reshape(-1, *[1] * (leaf.ndim - 1))


# Conditional updates of large trees, written so that XLA's CPU compiler updates buffers in place. It inserts copies
# before it schedules operations: it copies a buffer unless all of its readers are ordered before its update.


def is_large(tree: Any) -> bool:
    """Return whether the compiler would make copies of the tree that are worth avoiding."""
    return jax.default_backend() == "cpu" and sum(leaf.size for leaf in jax.tree.leaves(tree)) >= LARGE_SIZE


def select(condition: Bool[Array, ""], chosen: Any, otherwise: Any) -> Any:
    """Return one of two trees of the same shape, with the dtypes of the second."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b).astype(b.dtype), chosen, otherwise)


def update_if(condition: Bool[Array, ""], change: Callable[[Tree], Tree], tree: Tree) -> Tree:
    """Return ``change(tree)`` if the condition holds, else the tree; for large trees.

    A loop of at most one iteration: its carry has a single buffer, while a ``cond`` copies the unchanged tree.
    """

    def body(_: Any, old: Tree) -> Tree:
        return jax.tree.map(lambda a, b: a.astype(b.dtype), change(old), old)

    return lax.fori_loop(0, condition.astype(jnp.int32), body, tree)


def delay_until(value: Array, others: Any, overwritten: Any) -> Array:
    """Return ``value``, computed after ``others`` if the tree that depends on it is large.

    The test is always true, which the compiler does not know; it removes optimisation barriers before it adds copies.
    """
    if not is_large(overwritten):
        return value
    numbers = [jnp.asarray(leaf, jnp.float32).ravel() for leaf in jax.tree.leaves(others)]
    known = jnp.stack([((some == some) | (some != some)).all() for some in numbers]).all()
    return jnp.where(known, value, jnp.zeros_like(value))
