"""Trees of arrays as arrays by name, and back; their digests; and where they lie."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

BLOCK_BYTES = 1 << 26
"""So much of an array is brought to the host at a time, where it lies elsewhere."""
_ALIGNMENT = 64  # bytes


def flatten_by_path(tree: Any) -> dict[str, np.ndarray]:
    """The leaves by their paths."""
    return {name: np.asarray(_numbers(leaf), order="C") for name, leaf in _leaves(tree)}


def unflatten_by_path(arrays: Mapping[str, Any], like: Any) -> Any:
    """Arrays by their paths as a tree again, in the structure of ``like``."""
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = [_like(arrays[jax.tree_util.keystr(path)], leaf) for path, leaf in paths]
    return jax.tree.unflatten(structure, leaves)


def _numbers(leaf: Any) -> Any:
    """An array that NumPy knows: of a random key its data."""
    return jax.random.key_data(leaf) if is_random_key(leaf) else leaf


def _like(array: Any, leaf: Any) -> Any:
    return jax.random.wrap_key_data(jnp.asarray(array)) if is_random_key(leaf) and not is_random_key(array) else array


def is_random_key(leaf: Any) -> bool:
    """Whether an array holds random keys, which NumPy does not know."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def encode_structure(tree: Any) -> Any:
    """The structure of nested dicts, lists and tuples, for JSON; each array's place holds its path.

    Raises:
        TypeError: there are nodes of other kinds; they can be read back in the structure of a like tree only.
    """

    def part(node: Any, path: str) -> Any:
        if node is None:
            return None
        if type(node) is dict and all(isinstance(name, str) for name in node):
            return {"dict": {name: part(value, f"{path}[{name!r}]") for name, value in node.items()}}
        if type(node) in (list, tuple):
            return {type(node).__name__: [part(value, f"{path}[{i}]") for i, value in enumerate(node)]}
        if jax.tree_util.all_leaves([node]):
            return path
        raise TypeError(f"{type(node).__name__} is neither a dict, a list, a tuple nor an array")

    return part(tree, "")


def decode_structure(outlined: Any, arrays: Mapping[str, Any]) -> Any:
    """Arrays by their paths as a tree again, in the structure that ``outline`` gave."""
    if outlined is None:
        return None
    if isinstance(outlined, str):
        return arrays[outlined]
    ((kind, parts),) = outlined.items()
    if kind == "dict":
        return {name: decode_structure(part, arrays) for name, part in parts.items()}
    made = [decode_structure(part, arrays) for part in parts]
    return made if kind == "list" else tuple(made)


def has_leaves(value: Any) -> bool:
    """Whether a value is a pytree of arrays, and not an object that JAX knows nothing of."""
    return not jax.tree_util.all_leaves([value])


def structure_and_shapes(tree: Any) -> tuple[Any, list[Any]]:
    """What two trees must share for one to take the other's place: structure, shapes and dtypes."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = (leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf) for leaf in leaves)
    return structure, [(tuple(array.shape), array.dtype) for array in arrays]


def fingerprint(*trees: Any) -> str:
    """A digest of all arrays in the trees: names, shapes, types and values. Copies none of them whole."""
    digest = hashlib.sha256()
    named_leaves = [(f"{i}{name}", leaf) for i, tree in enumerate(trees) for name, leaf in _leaves(tree)]
    for name, leaf in sorted(named_leaves, key=lambda pair: pair[0]):
        leaf = _numbers(leaf)
        digest.update(f"{name} {np.dtype(leaf.dtype).str} {tuple(leaf.shape)}".encode())
        for block in _blocks(leaf):
            digest.update(block)
    return digest.hexdigest()


def _leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path), leaf if hasattr(leaf, "dtype") else np.asarray(leaf)


def _blocks(leaf: Any) -> Iterator[Any]:
    """An array's bytes, block by block: a view of what lies on the host, small copies of what does not."""
    rows = len(leaf) if np.ndim(leaf) else 0
    if _on_host(leaf) or not rows:
        yield _bytes(np.asarray(leaf))
        return
    step = max(1, BLOCK_BYTES * rows // max(1, leaf.nbytes))
    for start in range(0, rows, step):
        yield _bytes(np.asarray(leaf[start : start + step]))


def _on_host(leaf: Any) -> bool:
    return not isinstance(leaf, jax.Array) or all(device.platform == "cpu" for device in leaf.devices())


def _bytes(array: np.ndarray) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros in a buffer that JAX takes over as it is; one that is not aligned so it copies.

    Args:
        shape: of the array.
        dtype: of its numbers.
    """
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT
    return raw[first : first + size].view(dtype).reshape(shape)


Tree = TypeVar("Tree")


def take_clients(tree: Tree, clients: Any) -> Tree:
    """What it holds of some clients, by their indices."""
    found: Tree = jax.tree.map(lambda every: every if every.ndim == 0 else every[clients], tree)
    return found


def append_clients(tree: Tree, more: Tree) -> Tree:
    """The same with further clients after those that it has; single numbers stay."""
    found: Tree = jax.tree.map(lambda old, new: old if old.ndim == 0 else jnp.concatenate([old, new]), tree, more)
    return found


def weighted_sum(tree: Tree, weights: jax.Array) -> Tree:
    """Σ_i r_i x_i over the clients."""
    found: Tree = jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1), tree)
    return found


def expand_like(values: jax.Array, leaf: jax.Array) -> jax.Array:
    """One value a client, in a shape that goes with an array of theirs."""
    return values.reshape(-1, *[1] * (leaf.ndim - 1))


MIN_BLOCK_WIDTH = 4
"""Blocks of fewer numbers are not worth the second search."""


def top_k_indices(values: Float[Array, " n"], many: int) -> Int[Array, " many"]:
    """The places of the ``many`` largest, in falling order; of equals the first: exactly ``lax.top_k``'s, and sooner.

    Only the ``many`` blocks with the largest maxima are searched. A number elsewhere has at least that many before it:
    each of these maxima is larger, or as large and stands earlier.
    """
    n = values.shape[0]
    width = math.isqrt(n // max(1, many))  # both searches are then among √(n·many) numbers
    if width < MIN_BLOCK_WIDTH:
        return lax.top_k(values, many)[1].astype(jnp.int32)
    blocks = -(-n // width)
    split = jnp.pad(values, (0, blocks * width - n), constant_values=-jnp.inf).reshape(blocks, width)
    which = jnp.sort(lax.top_k(split.max(axis=1), many)[1])
    place = lax.top_k(split[which].reshape(-1), many)[1]
    return (which[place // width] * width + place % width).astype(jnp.int32)
