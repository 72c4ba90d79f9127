"""Compression in the compiled engine, compared with a plain NumPy loop."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_methods import draw_rounds

import softswitch as ss
from benchmarks import flat
from problems import NumpyTwin, client_data, least_squares, record_iterates, regression, softplus_level
from reference_methods import Round, client_weights
from softswitch.methods import Compression, TopK

ETA, EPS, ALPHA, N, D, ROUNDS = 0.1, 0.05, 20.0, 6, 4, 60
LAM = EPS / (1 + 1 / 10)
HOW = {"batch_size": 8, "local_steps": 3, "participation": 0.5}
SETTINGS = {"alpha": ALPHA, "step_size": ETA, "tolerance": EPS}


def keep_largest(vector, k):
    """Keep the k entries with the largest absolute values and set the rest to zero."""
    kept = np.zeros_like(vector)
    places = sorted(range(len(vector)), key=lambda j: (-abs(vector[j]), j))[:k]
    kept[places] = vector[places]
    return kept


def numpy_loop(functions, draws, up, down):
    """Softmax SGM with top-k in both directions as a plain loop: iterates, bytes down and feasible rounds."""
    w, server_error = np.zeros(D), np.zeros(D)
    errors, last_round = np.zeros((2, N, D)), np.full(N, -1)
    iterates, bytes_down, feasible_rounds = [w], [], []
    for k, draw in enumerate(draws):
        round_ = Round(functions, draw, ETA, ETA / 3, 3, N)
        f, g = round_.f(w), round_.g(w)
        p, q = client_weights(f, ALPHA), client_weights(g, ALPHA)
        feasible = (q * g).sum() <= LAM
        feasible_rounds.append(feasible)
        residual = errors[0 if feasible else 1]
        direction = np.zeros(D)
        for j, i in enumerate(draw.clients):
            u = round_.u(j, w, 1.0, np.zeros(1)) if feasible else round_.u(j, w, 0.0, np.ones(1))
            sent = keep_largest(residual[i] + u, up)
            residual[i] += u - sent
            direction += (p[j] if feasible else q[j].sum()) * sent
        change = 2 * 8 + 1  # two float64, and four bits for their positions
        bytes_down.append(sum(32 if s < 0 else min(32, (k - s) * change) for s in last_round[draw.clients]))
        last_round[draw.clients] = k
        step = keep_largest(server_error - ETA * direction, down)
        server_error += -ETA * direction - step
        w = w + step
        iterates.append(w)
    return np.array(iterates), bytes_down, feasible_rounds


def test_engine_matches_numpy_loop(monkeypatch, x64):
    data, owner = regression()
    clients = client_data(data, owner)
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(D, jnp.float64))
    compression = Compression(up=TopK(0.25), down=TopK(0.5))
    method = ss.SoftmaxSGM(at_clients=compression, **SETTINGS)
    draws = draw_rounds(problem, clients, 3, ROUNDS, **HOW)
    expected, down, feasible_rounds = numpy_loop(NumpyTwin(data, 1), draws, 1, 2)
    iterates, result = record_iterates(
        monkeypatch, problem, clients, method, rounds=ROUNDS, seed=3, replace=True, memory=None, answer="last", **HOW
    )
    np.testing.assert_allclose(iterates, expected, rtol=1e-8, atol=1e-11)
    assert 5 < sum(feasible_rounds) < ROUNDS - 5, "both branches must occur"
    np.testing.assert_array_equal(result.history.bytes_down, down)
    np.testing.assert_array_equal(result.history.bytes_up, np.full(ROUNDS, 3 * (8 + 1)))


def test_bytes_are_counted_only_with_compression():
    clients = client_data(*regression())
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(D))
    options = {"rounds": 40, "seed": 2, "eval_every": 0, "answer": "last", **HOW}
    plain = flat.solve(problem, clients, ss.SoftmaxSGM(**SETTINGS), **options)
    compressed = flat.solve(
        problem, clients, ss.SoftmaxSGM(at_clients=Compression(up=TopK(0.5)), **SETTINGS), **options
    )
    assert plain.history.bytes_up is None
    assert "bytes_up" not in plain.history.to_arrays()
    assert "bytes_up" in compressed.history.to_arrays()


def test_byte_counts_do_not_overflow():
    from softswitch.methods.compressors import join_byte_counts, split_byte_counts

    each = jnp.full(30_000, 2**30 + 5, jnp.int32)
    assert join_byte_counts(np.array([split_byte_counts(each)])).tolist() == [30_000 * (2**30 + 5)]


def test_incompatible_settings_are_rejected():
    clients = client_data(*regression())
    both = Compression(up=TopK(0.5), down=TopK(0.5))
    bounded = ss.Problem(least_squares, softplus_level, jnp.zeros(D), ss.Ball(1.0))
    with pytest.raises(ValueError, match="domain must be None"):
        flat.solve(bounded, clients, ss.SoftmaxSGM(at_clients=both, **SETTINGS), rounds=2)
    method = ss.SoftmaxSGM(at_clients=Compression(up=TopK(0.5, 4)), **SETTINGS)
    result = flat.solve(bounded, clients, method, rounds=5, batch_size=None)
    assert np.linalg.norm(result.last) <= 1.0 + 1e-6
    plain = ss.Problem(least_squares, softplus_level, jnp.zeros(D))
    with pytest.raises(ValueError, match="robust=1"):
        flat.solve(plain, clients, ss.SoftmaxSGM(robust=1, at_clients=both, **SETTINGS), rounds=2)
