"""A function that is traced once: its shapes and its values, in a loop and side by side."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softswitch.support.tracing import trace_once


class Pair(NamedTuple):
    total: jax.Array
    nothing: None
    last: dict[str, jax.Array]


def test_shapes_are_known_and_the_loop_traces_nothing_again():
    times = []

    @jax.jit
    def rows_so_far(rows):
        def one(pair, i):
            times.append(i)
            row = rows[i]  # of the program around it
            return Pair(pair.total + row.sum(), None, {"row": row}), row * 2

        play, (_, shape) = trace_once(one, Pair(jnp.float32(0), None, {"row": rows[0]}), jnp.int32(0))
        assert (shape.shape, shape.dtype) == ((3,), jnp.float32)

        def step(i, so_far):
            pair, seen = so_far
            pair, row = play(pair, i)
            return pair, seen.at[i].set(row)

        first = Pair(jnp.float32(0), None, {"row": jnp.zeros(3)}), jnp.zeros((len(rows), *shape.shape), shape.dtype)
        return jax.lax.fori_loop(0, len(rows), step, first)

    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    pair, seen = rows_so_far(rows)
    assert len(times) == 1
    assert float(pair.total) == rows.sum()
    np.testing.assert_array_equal(pair.last["row"], rows[-1])
    np.testing.assert_array_equal(seen, 2 * rows)
    both, _ = jax.vmap(rows_so_far)(np.stack([rows, rows + 1]))
    np.testing.assert_array_equal(both.total, [rows.sum(), (rows + 1).sum()])


def test_what_takes_no_arguments_sees_the_program_around_it():
    def doubled(x):
        play, shape = trace_once(lambda: {"twice": 2 * x})
        assert shape["twice"].shape == x.shape
        return jax.lax.cond(x.sum() > 0, play, lambda: {"twice": jnp.zeros(shape["twice"].shape)})

    np.testing.assert_array_equal(jax.jit(doubled)(jnp.ones(2))["twice"], [2, 2])
    np.testing.assert_array_equal(jax.jit(doubled)(-jnp.ones(2))["twice"], [0, 0])


def test_other_arguments_than_it_was_traced_with_are_refused():
    play, _ = trace_once(lambda x: x + 1, jnp.zeros(2))
    np.testing.assert_array_equal(play(jnp.ones(2)), [2, 2])
    for other in (jnp.ones(3), jnp.ones(2, jnp.int32)):
        with pytest.raises(TypeError, match=r"arguments must be like .*float32\[2\]"):
            play(other)
