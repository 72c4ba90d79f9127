"""Digests of arrays cover every value without copies."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.support.arrays import (
    fingerprint,
    flatten_by_path,
    unflatten_by_path,
)


def test_digest_depends_on_values_shapes_types_and_names():
    base = {"a": jnp.arange(6.0), "b": [np.int32(3)]}
    other_arrays = [
        {"a": jnp.arange(6.0).at[5].set(5.5), "b": [np.int32(3)]},
        {"a": jnp.arange(6.0).reshape(2, 3), "b": [np.int32(3)]},
        {"a": np.arange(6, dtype=np.int32), "b": [np.int32(3)]},
        {"c": jnp.arange(6.0), "b": [np.int32(3)]},
        {"a": jnp.arange(6.0), "b": [np.int32(4)]},
    ]
    digests = {fingerprint(tree) for tree in (base, *other_arrays)}
    assert len(digests) == 6
    assert fingerprint(base) == fingerprint(jax.tree.map(np.asarray, base))


def test_digest_does_not_copy_arrays():
    column = jnp.zeros((1 << 22, 4))  # 64 MiB
    tracemalloc.start()
    fingerprint({"x": column})
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()


def test_tree_round_trip():
    tree = {"key": jax.random.key(3), "list": [jnp.ones(2), None, (jnp.zeros(1),)]}
    restored = unflatten_by_path(flatten_by_path(tree), tree)
    assert jax.random.key_data(restored["key"]).tolist() == jax.random.key_data(tree["key"]).tolist()
    assert jax.tree.structure(restored) == jax.tree.structure(tree)
