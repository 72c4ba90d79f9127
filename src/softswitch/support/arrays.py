"""Pytrees of arrays: conversion to and from flat dicts, digests, operations over clients, conditional updates."""

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

LARGE_SIZE = 2**16  # array entries; trees with at least this many are updated in place
_ALIGNMENT = 64  # bytes

Tree = TypeVar("Tree")


def is_random_key(leaf: Any) -> bool:
    """Return whether ``leaf`` is a JAX array of typed random keys, which NumPy cannot represent."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        yield jax.tree_util.keystr(path), jax.random.key_data(array) if is_random_key(array) else array


def flatten_by_path(tree: Any) -> dict[str, np.ndarray]:
    """Return a tree's leaves as NumPy arrays by path (``jax.tree_util.keystr``); random keys become integer arrays."""
    return {name: np.asarray(leaf, order="C") for name, leaf in _leaves(tree)}


def unflatten_by_path(arrays: Mapping[str, Any], like: Any) -> Any:
    """Invert ``flatten_by_path``: return the arrays in the structure of ``like``; KeyError if a path is missing."""

    def restore(path: Any, leaf: Any) -> Any:
        array = arrays[jax.tree_util.keystr(path)]
        is_key_data = is_random_key(leaf) and not is_random_key(array)
        return jax.random.wrap_key_data(jnp.asarray(array)) if is_key_data else array

    return jax.tree_util.tree_map_with_path(restore, like)


def has_leaves(value: Any) -> bool:
    """Return whether ``value`` is a pytree node, such as a list, a registered class or None, not a single leaf."""
    return not jax.tree_util.all_leaves([value])


def structure_and_shapes(tree: Any) -> tuple[Any, list[Any]]:
    """Return the structure (treedef) of a tree, and the (shape, dtype) of each leaf."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = (leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf) for leaf in leaves)
    return structure, [(tuple(array.shape), array.dtype) for array in arrays]


def fingerprint(*trees: Any) -> str:
    """Return the SHA-256 digest, in hexadecimal, of the paths, dtypes, shapes and values of all leaves."""
    digest = hashlib.sha256()
    named_leaves = [(f"{i}{name}", leaf) for i, tree in enumerate(trees) for name, leaf in _leaves(tree)]
    for name, leaf in sorted(named_leaves, key=lambda pair: pair[0]):
        digest.update(f"{name} {np.dtype(leaf.dtype).str} {tuple(leaf.shape)}".encode())
        content: Any = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
        digest.update(content)
    return digest.hexdigest()


def unflatten_vector(vectors: np.ndarray, like: Tree) -> Tree:
    """Return arrays of the shapes in ``like`` from their entries in the last axis; further axes are in front."""
    leaves, tree = jax.tree.flatten(like)
    parts = np.split(vectors, np.cumsum([np.size(leaf) for leaf in leaves])[:-1], axis=-1)
    shaped = [part.reshape((*vectors.shape[:-1], *np.shape(leaf))) for part, leaf in zip(parts, leaves, strict=True)]
    restored: Tree = jax.tree.unflatten(tree, shaped)
    return restored


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return a NumPy array of zeros, aligned to 64 bytes so that JAX can use it without a copy."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT
    return raw[first : first + size].view(dtype).reshape(shape)


def take_clients(tree: Tree, clients: Any) -> Tree:
    """Index the first axis (clients) of every array of a tree by ``clients``; scalars are unchanged."""
    return jax.tree.map(lambda leaf: leaf if leaf.ndim == 0 else leaf[clients], tree)


def append_clients(tree: Tree, more: Tree) -> Tree:
    """Concatenate the arrays of two trees along the first axis (clients); scalars are those of ``tree``."""
    return jax.tree.map(lambda old, new: old if old.ndim == 0 else jnp.concatenate([old, new]), tree, more)


def weighted_sum(tree: Tree, weights: jax.Array) -> Tree:
    """Return Σ_i weights[i] · x[i] for every array x of a tree, whose first axis is the clients."""
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1), tree)


def expand_like(values: jax.Array, leaf: jax.Array) -> jax.Array:
    """Reshape ``values`` from (clients,) to (clients, 1, …, 1), so that it broadcasts with ``leaf``."""
    return values.reshape(-1, *[1] * (leaf.ndim - 1))


def select(condition: Bool[Array, ""], chosen: Any, otherwise: Any) -> Any:
    """Return ``chosen`` if the condition holds, else ``otherwise``, with the dtypes of ``otherwise``."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b).astype(b.dtype), chosen, otherwise)


def update_if(condition: Bool[Array, ""], change: Callable[[Tree], Tree], tree: Tree) -> Tree:
    """Return ``change(tree)`` if the condition holds, else ``tree``; on a CPU, a large tree is updated in place."""
    if jax.default_backend() != "cpu" or sum(leaf.size for leaf in jax.tree.leaves(tree)) < LARGE_SIZE:
        return select(condition, change(tree), tree)

    def body(_: Any, old: Tree) -> Tree:
        return jax.tree.map(lambda a, b: a.astype(b.dtype), change(old), old)

    return lax.fori_loop(0, condition.astype(jnp.int32), body, tree)
