"""Buffer donation: the server's state is overwritten in place, and arrays of callers stay valid."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.engine import compiled
from softswitch.engine.server_step import Setup
from softswitch.methods.state import first_state
from softswitch.oracles.gradient import make_federation

WIDTH = 300
ROWS = {"x": np.random.default_rng(0).normal(size=(8, WIDTH)).astype(np.float32), "y": np.ones(8, np.float32)}
CLIENTS = ss.ClientData.from_arrays(ROWS, client=np.repeat(np.arange(4), 2))
RULE = ss.SoftmaxSGM(alpha=10.0, step_size=0.1, tolerance=0.5)


def score(w, batch):
    return jnp.tanh(batch["x"] @ w).mean(axis=1)


def loss(w, batch):
    return jnp.average((score(w, batch) - batch["y"]) ** 2, weights=batch["weight"])


def level(w, batch):
    return jnp.average(score(w, batch), weights=batch["weight"])


PROBLEM = ss.Problem(loss, level, jnp.zeros((WIDTH, WIDTH)))


@pytest.mark.parametrize(("optimizer", "limit"), [(optax.sgd, 6.1), (optax.adam, 9.6)])
def test_round_needs_few_parameter_copies(optimizer, limit):
    """The compiler's count of arguments, outputs and temporaries, excluding rows."""
    method = ss.SoftmaxSGM(alpha=10.0, step_size=0.1, tolerance=0.5, optimizer=optimizer)
    oracle = make_federation(PROBLEM, CLIENTS).oracle.without_evaluation()
    arguments = (Setup(oracle, method, None), compiled.Program(10, False, False), compiled.Span(0, 10, 0, 1))
    lowered = compiled.CompiledEngine.run_chunk.lower(
        *arguments, jax.random.key(0), first_state(PROBLEM.start, method, (), 0, 1)
    )
    memory = lowered.compile().memory_analysis()
    copies = memory.argument_size_in_bytes - CLIENTS.rows.columns["x"].nbytes + memory.temp_size_in_bytes
    copies += memory.output_size_in_bytes - memory.alias_size_in_bytes
    assert copies / PROBLEM.start.nbytes <= limit


def test_callback_may_keep_state(monkeypatch):
    monkeypatch.setattr(compiled, "CHUNK_ROUNDS", 5)
    states = []
    result = flat.solve(PROBLEM, CLIENTS, RULE, rounds=15, callbacks=[lambda chunk: states.append(chunk.state)])
    sizes = [float(jnp.abs(state.params).sum()) for state in states]
    assert len(set(sizes)) == 3
    np.testing.assert_array_equal(states[-1].params, result.last)
    np.testing.assert_array_equal(PROBLEM.start, 0)


def test_warm_start_keeps_previous_result():
    first = flat.solve(PROBLEM, CLIENTS, RULE, rounds=5)
    before = np.array(first.last)
    second = flat.solve(PROBLEM, CLIENTS, RULE, rounds=5, warm_start=first)
    np.testing.assert_array_equal(first.state.params, before)
    np.testing.assert_array_equal(first.last, before)
    assert (np.asarray(second.last) != before).any()
