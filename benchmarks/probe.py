"""A round written by hand for one problem: what the same arithmetic costs without a library around it.

A network of one hidden layer, logistic loss, and the gap of mean scores between two groups as constraint; Softmax SGM
with the softmax criterion; drawn clients and rows; E = 1 by one backward pass, more by local steps. No record, no
checks, no other iterate kept than the average.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.large_cases import Case, constraint, objective
from softswitch.data.sampling import client_bit_count, sample_clients, scale_bits

Carried = tuple[Any, Any, Any]


def probe(case: Case, columns: dict[str, jax.Array], start: Any) -> Callable[[int], Carried]:
    """A function that plays so many rounds."""
    n, m, width, steps, rows = case.clients, case.asked, case.batch, case.local_steps, case.rows

    in_axes = (None, {**dict.fromkeys(columns, 0), "weight": None})

    def play(columns: dict[str, jax.Array], k: Any, carried: Carried) -> Carried:
        def taken(indices: jax.Array) -> dict[str, jax.Array]:
            picked = {
                key: column.at[indices].get(mode="promise_in_bounds", wrap_negative_indices=False)
                for key, column in columns.items()
            }
            return picked | {"weight": jnp.full((width,), 1 / width, jnp.float32)}

        params, total, count = carried
        chosen = client_bit_count(n, m)
        words = jax.random.bits(jax.random.fold_in(jax.random.key(0), k), (chosen + (1 + steps) * m * width,))
        clients = sample_clients(words[:chosen], n, m)
        drawn = scale_bits(words[chosen:].reshape(1 + steps, m, width), jnp.int32(rows)) + (clients * rows)[:, None]
        batch = taken(drawn[0])
        f = jax.vmap(objective, in_axes)(params, batch)
        g = jax.vmap(constraint, in_axes)(params, batch)
        by_f, by_g = jax.nn.softmax(case.alpha * f), jax.nn.softmax(case.alpha * g)
        feasible = jnp.dot(by_g, g) <= case.tolerance / 1.1

        def direction(loss: Any, weights: Any) -> Any:
            if steps == 1:
                own = taken(drawn[1])
                return jax.grad(lambda w: jnp.dot(weights, jax.vmap(loss, in_axes)(w, own)))(params)

            def local(own_rows: Any) -> Any:
                def step(total: Any, now: Any) -> tuple[Any, None]:
                    here = jax.tree.map(lambda w, s: w - case.step * s, params, total)
                    return jax.tree.map(jnp.add, total, jax.grad(loss)(here, taken(now))), None

                return lax.scan(step, jax.tree.map(jnp.zeros_like, params), own_rows)[0]

            moved = jax.vmap(local, in_axes=1)(drawn[1:])
            return jax.tree.map(lambda u: jnp.tensordot(weights, u, axes=1) / steps, moved)

        along = lax.cond(feasible, lambda: direction(objective, by_f), lambda: direction(constraint, by_g))
        total = jax.tree.map(lambda s, w: s + jnp.where(feasible, w, 0), total, params)
        params = jax.tree.map(lambda w, u: w - case.step * u, params, along)
        return params, total, count + feasible

    @jax.jit
    def run(columns: dict[str, jax.Array], rounds: Any, carried: Carried) -> Carried:
        played: Carried = lax.fori_loop(0, rounds, partial(play, columns), carried)
        return played

    zeros = jax.tree.map(jnp.zeros_like, start)
    return lambda rounds: jax.block_until_ready(run(columns, rounds, (start, zeros, jnp.int32(0))))
